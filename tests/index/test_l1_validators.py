"""The list of L1 validators equals the ledger's state, and what recorded and simulated nodes say of
each validator.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.chains.exchanges import LOCALNET
from tests.index.fixtures import (
    made_up_history,
    made_up_params,
    network_text,
    open_index,
    recorded_history,
    write_all,
)
from tests.indexer.indexed import SimulatedNode, indexing, only, until_caught_up
from tests.ledger.recorded import params
from tests.simnet.client import call
from tests.simnet.sessions import Clock, small_network
from warpseal.chains.p_blocks import parse_p_genesis
from warpseal.index import l1_validators as module
from warpseal.index.index import Index
from warpseal.index.l1_validators import L1ValidatorQuery, l1_validators
from warpseal.ledger.checkpoint import decode_checkpoint
from warpseal.ledger.effects import L1Validator
from warpseal.ledger.p_state import PChainState
from warpseal.ledger.params import Parameters
from warpseal.resources.chains import PUBLIC_CHAINS, PrimaryChain
from warpseal.resources.l1_validators import CurrentL1Validator, L1ValidatorOwner, L1ValidatorPage
from warpseal.resources.queries import PageRequest, Position
from warpseal.resources.text import NetworkText, hex_text, node_text
from warpseal.warp.ids import NodeID, id_text, parse_id, parse_node_id
from warpseal.warp.l1_messages import PChainOwner
from warpseal_simnet.plan import L1Plan, parse_rule
from warpseal_simnet.state import StateAt

SEED = 2
HEIGHTS = (400, 850, 1000)
ALL = L1ValidatorQuery(has_inactive=True)


async def read_all(
    index: Index, text: NetworkText, query: L1ValidatorQuery, size: int = 100
) -> tuple[list[CurrentL1Validator], int]:
    """Return the validators of all pages, and the height of the last one."""
    validators: list[CurrentL1Validator] = []
    after: Position | None = None
    while True:
        read = partial(l1_validators, text=text, query=query, page=PageRequest(size, after))
        page: L1ValidatorPage = await index.page("l1_validators", read)
        assert len(page.items) <= size
        validators += page.items
        if page.next is None:
            return validators, page.height
        after = page.next


def expected(validator: L1Validator, state: PChainState, network: Parameters) -> CurrentL1Validator:
    """Return a validator as the ledger has it."""
    text = network_text(network)
    listed: dict[str, Any] = {
        "validation_id": id_text(validator.validation_id),
        "validation_id_hex": hex_text(validator.validation_id),
        "node_id": node_text(validator.node_id),
        "subnet_id": id_text(validator.subnet_id),
        "weight": validator.weight,
        "remaining_balance": validator.balance(state.l1_accrued_fees),
        "creation_timestamp": validator.start_s,
    }

    def owner(of: PChainOwner) -> L1ValidatorOwner:
        addresses: Any = of.addresses
        return L1ValidatorOwner(addresses=text.addresses(addresses), threshold=of.threshold)

    return CurrentL1Validator(
        **listed,
        bls_credentials=None,  # type: ignore[arg-type]
        remaining_balance_owner=owner(validator.remaining_balance_owner),
        deactivation_owner=owner(validator.deactivation_owner),
    )


def without_keys(validator: CurrentL1Validator) -> CurrentL1Validator:
    fields = {name: getattr(validator, name) for name in CurrentL1Validator.__struct_fields__}
    return CurrentL1Validator(**{**fields, "bls_credentials": None})


def by_id(validators: Sequence[CurrentL1Validator]) -> dict[str, CurrentL1Validator]:
    assert len({validator.validation_id for validator in validators}) == len(validators)
    return {validator.validation_id: validator for validator in validators}


async def test_validators_equal_the_state_of_the_ledger_at_every_height(any_index_url: str) -> None:
    network, history = made_up_params(), made_up_history(SEED, HEIGHTS[-1])
    text = network_text(network)
    seen: Counter[str] = Counter()
    start = 0
    for height in HEIGHTS:
        records = [record for record, _ in history[start : height + 1]]
        await asyncio.to_thread(write_all, any_index_url, network, records)
        start = height + 1
        state = decode_checkpoint(history[height][1], network)
        async with open_index(any_index_url, network) as index:
            listed, read_at = await read_all(index, text, ALL)
            active, _ = await read_all(index, text, L1ValidatorQuery())
        assert read_at == height
        removed = [validator for validator in listed if not validator.weight]
        present = by_id([validator for validator in listed if validator.weight])
        assert {name: without_keys(validator) for name, validator in present.items()} == {
            id_text(key): expected(validator, state, network)
            for key, validator in state.l1.by_id.items()
        }
        for validator in state.l1:
            assert present[id_text(validator.validation_id)].bls_credentials.public_key == hex_text(
                validator.public_key
            )
        assert active == [validator for validator in listed if validator.remaining_balance]
        assert len(active) == state.l1.active
        assert all(validator.remaining_balance == 0 for validator in removed)
        seen["removed"] += len(removed)
        seen["inactive"] += len(present) - len(active)
        seen["active"] += len(active)
    assert all(seen[kind] for kind in ("removed", "inactive", "active"))


async def test_pages_of_any_size_and_filters_list_the_same_validators(
    any_index_url: str, monkeypatch: Any
) -> None:
    network = made_up_params()
    text = network_text(network)
    write_all(any_index_url, network, [record for record, _ in made_up_history(SEED, HEIGHTS[-1])])
    async with open_index(any_index_url, network) as index:
        everything, _ = await read_all(index, text, ALL)
        assert len(everything) > 15
        for query in (ALL, L1ValidatorQuery()):
            whole, _ = await read_all(index, text, query)
            for size, most_scanned, at_once in ((1, 2_000, 100), (7, 3, 2), (3, 1, 1), (50, 5, 5)):
                monkeypatch.setattr(module, "_MOST_SCANNED", most_scanned)
                monkeypatch.setattr(module, "_AT_ONCE", at_once)
                assert (await read_all(index, text, query, size))[0] == whole
        monkeypatch.undo()
        some = everything[len(everything) // 2]
        raw = {
            "validation_id": parse_id(some.validation_id),
            "node_id": parse_node_id(some.node_id),
            "subnet_id": parse_id(some.subnet_id),
        }
        for names in (
            ("validation_id",),
            ("node_id",),
            ("subnet_id",),
            ("node_id", "subnet_id"),
            tuple(raw),
        ):
            query = L1ValidatorQuery(**{name: raw[name] for name in names}, has_inactive=True)
            values = [getattr(some, name) for name in names]
            matching = [
                item for item in everything if [getattr(item, name) for name in names] == values
            ]
            assert some in matching
            assert (await read_all(index, text, query, 2))[0] == matching
        unknown = L1ValidatorQuery(node_id=NodeID(bytes(20)), has_inactive=True)
        assert await read_all(index, text, unknown) == ([], HEIGHTS[-1])


async def test_validators_equal_the_replies_of_the_recorded_node(any_index_url: str) -> None:
    network = params()
    write_all(any_index_url, network, recorded_history())
    async with open_index(any_index_url, network) as index:
        listed, height = await read_all(index, network_text(network), ALL)
    validators = by_id(listed)
    exchanges = map(json.loads, (LOCALNET / "platform.jsonl").read_text().splitlines())
    calls = [exchange for exchange in exchanges if exchange["method"] == "platform.getL1Validator"]
    replies = [exchange["result"] for exchange in calls if "result" in exchange]
    present = {name for name, validator in validators.items() if validator.weight}
    assert present == {reply["validationID"] for reply in replies}
    # The node answered with an error about the others.
    assert (
        {exchange["params"]["validationID"] for exchange in calls}
        >= set(validators) - present
        != set()
    )
    for reply in replies:
        validator = validators[reply["validationID"]]
        assert height == int(reply["height"])
        assert_equal(validator, reply)
        for owner, of_node in (
            (validator.remaining_balance_owner, reply["remainingBalanceOwner"]),
            (validator.deactivation_owner, reply["deactivationOwner"]),
        ):
            assert [f"P-{address}" for address in owner.addresses] == of_node["addresses"]
            assert owner.threshold == int(of_node["threshold"])


def assert_equal(validator: CurrentL1Validator, reply: dict[str, Any]) -> None:
    """Assert that a validator is what a reply to platform.getL1Validator says."""
    assert (validator.node_id, validator.subnet_id) == (reply["nodeID"], reply["subnetID"])
    assert (validator.weight, validator.remaining_balance) == (
        int(reply["weight"]),
        int(reply["balance"]),
    )
    assert validator.creation_timestamp == int(reply["startTime"])
    assert validator.bls_credentials.public_key == reply["publicKey"]


async def test_validators_equal_the_replies_of_a_simulated_node(tmp_path: Path) -> None:
    clock = Clock()
    l1s = (L1Plan(validators=4, spare=1, weights="5/3/2/1"), L1Plan(validators=2))
    rules = (parse_rule("l1-0/0:balance=90"), parse_rule("l1-0/1:inactive"))
    async with small_network(clock, messages=0, l1s=l1s, rules=rules) as network:
        chain, subnet_id = network.p_chain, network.subnets[1].subnet_id
        _, second, third, fourth = network.state.validations[subnet_id]
        assert chain.register(subnet_id, weight=7, balance_navax=5_000).validation_id is not None
        for seconds, change in (
            (30, lambda: chain.increase_balance(second.id, 10**9)),
            (40, lambda: chain.disable(third.id)),
            (30, lambda: chain.set_weight(fourth.id, 0)),
            (500, network.advance),
        ):
            clock.now += seconds
            change()
        genesis = parse_p_genesis(network.state.ledger.genesis)
        node = SimulatedNode(network)
        async with indexing(
            tmp_path, node, settings=only(PrimaryChain.P), genesis=genesis
        ) as indexer:
            await until_caught_up(indexer)
        text = NetworkText(network.network_id, PUBLIC_CHAINS[5])
        async with open_index(f"sqlite:///{tmp_path}/index.db", params()) as index:
            listed, height = await read_all(index, text, ALL)
            active, _ = await read_all(index, text, L1ValidatorQuery())
        replies = {}
        for validator in listed:
            request = {"validationID": validator.validation_id}
            replies[validator.validation_id] = await call(
                network.node_uri, "/ext/bc/P", "platform.getL1Validator", request
            )
    assert height == StateAt(network.state, chain.height).height
    validators = by_id(listed)
    assert len(validators) == 7
    # The node answers with an error about a removed one.
    present = {name: reply for name, reply in replies.items() if isinstance(reply, dict)}
    assert len(present) == 6
    for name, reply in present.items():
        assert_equal(validators[name], reply)
        assert height == int(reply["height"])
    (removed,) = set(validators) - set(present)
    assert (validators[removed].weight, validators[removed].remaining_balance) == (0, 0)
    assert {item.validation_id for item in active} == {
        name for name, reply in present.items() if int(reply["balance"])
    }
    assert 0 < len(active) < 6
