"""The next block of a chain accepts a message exactly if a node would: quorum, signing subnet,
epoch and time.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import paths
from tests.simnet.sessions import NOW, Clock, small_network
from warpseal import bls
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, NodeID, SubnetID, ValidationID
from warpseal.warp.l1_messages import (
    L1ValidatorWeight,
    PChainOwner,
    RegisterL1Validator,
    bootstrap_validation_id,
)
from warpseal.warp.message import AddressedCall, SignedMessage, UnsignedMessage, encode_signers
from warpseal_simnet.destination import Delivery, RefusalCode
from warpseal_simnet.evm import EvmChain
from warpseal_simnet.messages import teleporter_call
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan
from warpseal_simnet.signing import sign
from warpseal_simnet.teleporter import MESSENGER
from warpseal_simnet.warp_config import WarpRule

CALL = AddressedCall(b"\x01" * 20, b"data").encode()
"""The payload of no contract in particular."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def network(clock: Clock) -> SimulatedNetwork:
    l1s = (
        L1Plan(4, "4/3/2/1", spare=1, idle=True),
        L1Plan(2, idle=True, warp=WarpRule(quorum=90, needs_primary_signers=True)),
        L1Plan(
            2, warp=None, warp_upgrades=(WarpRule(NOW + 10), WarpRule(NOW + 20, is_disabled=True))
        ),
    )
    return small_network(clock, messages=0, l1s=l1s, epoch_blocks=1, epoch_s=30)


def subnet_of(network: SimulatedNetwork, place: int) -> SubnetID:
    return network.subnets[place].subnet_id


def chain_of(network: SimulatedNetwork, place: int) -> ChainID:
    if place:
        return network.state.chains_of(subnet_of(network, place))[0]
    return next(chain.chain_id for chain in network.state.chains.values() if chain.alias == "C")


def signed(
    network: SimulatedNetwork, source: ChainID, signer: int, height: int = 20, payload: bytes = CALL
) -> bytes:
    """Return a message signed by all of a subnet's validators at a height."""
    unsigned = UnsignedMessage.build(network.network_id, source, payload)
    return sign(network.state, unsigned, subnet_of(network, signer), height).encode()


def code_of(delivery: Delivery) -> str | None:
    assert delivery.accepted == (delivery.code is None)
    return delivery.code


@pytest.mark.parametrize(
    ("source", "destination", "signer"),
    [(1, 0, 1), (1, 2, 1), (0, 1, 1), (0, 2, 0), (0, 0, 0), ("P", 1, 1), ("P", 2, 2), ("P", 0, 0)],
)
def test_the_rules_of_the_destination_decide_which_subnet_signs(
    network: SimulatedNetwork, source: int | str, destination: int, signer: int
) -> None:
    chain_id = P_CHAIN if isinstance(source, str) else chain_of(network, source)
    verdicts = [
        network.verify_next(
            chain_of(network, destination), signed(network, chain_id, place)
        ).accepted
        for place in range(4)
    ]
    assert verdicts == [place == signer for place in range(4)]


def test_a_message_is_verified_with_the_epochs_set_and_not_the_present_one(
    network: SimulatedNetwork, clock: Clock
) -> None:
    chain_id = chain_of(network, 1)
    network.p_chain.register(subnet_of(network, 1), weight=10)
    old, new = (signed(network, chain_id, 1, height) for height in (20, 21))
    clock.now += 30
    (accepted, refused) = network.build_block(chain_id, [old, new])
    assert (code_of(accepted), code_of(refused)) == (None, RefusalCode.BIT_SET)
    # The first block at the epoch's end has sealed it.
    (refused, accepted) = network.build_block(chain_id, [old, new])
    assert (code_of(refused), code_of(accepted)) == (RefusalCode.SIGNATURE, None)


def test_errors_are_reported_in_the_order_of_nodes(network: SimulatedNetwork) -> None:
    chain_id = chain_of(network, 1)
    message = SignedMessage.parse(signed(network, chain_id, 1))
    foreign = UnsignedMessage.build(7, chain_id, CALL)
    unknown = UnsignedMessage.build(network.network_id, ChainID(b"\x07" * 32), CALL)
    share = bls.sign(network.validators[4].identity.bls_secret, message.unsigned.raw)
    bad: list[tuple[bytes, RefusalCode]] = [
        (b"junk", RefusalCode.MALFORMED),
        (signed(network, chain_id, 1, payload=b"no payload"), RefusalCode.PAYLOAD),
        (SignedMessage(unknown, b"\x0f", share).encode(), RefusalCode.UNKNOWN_SOURCE),
        (SignedMessage(foreign, b"\x00\xff", share).encode(), RefusalCode.NETWORK_ID),
        (SignedMessage(message.unsigned, b"\x00\x0f", share).encode(), RefusalCode.BIT_SET),
        (SignedMessage(message.unsigned, encode_signers([4]), share).encode(), RefusalCode.BIT_SET),
        (SignedMessage(message.unsigned, b"", share).encode(), RefusalCode.WEIGHT),
        (
            SignedMessage(message.unsigned, encode_signers([0]), bytes(96)).encode(),
            RefusalCode.WEIGHT,
        ),
        (SignedMessage(message.unsigned, message.signers, share).encode(), RefusalCode.SIGNATURE),
        (
            SignedMessage(message.unsigned, message.signers, bytes(96)).encode(),
            RefusalCode.SIGNATURE,
        ),
        (message.encode(), RefusalCode.WEIGHT),
    ]
    deliveries = network.build_block(chain_id, [raw for raw, _ in bad[:-1]])
    assert [code_of(delivery) for delivery in deliveries] == [code for _, code in bad[:-1]]
    no_validators = SignedMessage(message.unsigned, b"", message.signature).encode()
    for validation in network.state.validations[subnet_of(network, 1)]:
        validation.present = False
    network.state.history.put(subnet_of(network, 1), 20, ())
    assert code_of(network.verify_next(chain_id, no_validators)) == RefusalCode.NO_SIGNERS


def test_the_quorum_and_the_configuration_are_those_of_the_blocks_time(
    network: SimulatedNetwork, clock: Clock
) -> None:
    lightest = min(
        network.state.current_set(subnet_of(network, 1)), key=lambda member: member.weight
    ).public_key
    assert lightest is not None
    unsigned = UnsignedMessage.build(network.network_id, chain_of(network, 1), CALL)
    ninety = sign(network.state, unsigned, subnet_of(network, 1), 20, without=[lightest]).encode()
    assert network.verify_next(chain_of(network, 2), ninety).accepted
    network.state.warp[chain_of(network, 2)].upgrades.append(WarpRule(NOW + 5, quorum=91))
    third = chain_of(network, 3)
    codes = []
    for _ in range(3):
        codes.append(
            (
                code_of(network.verify_next(third, ninety)),
                network.verify_next(chain_of(network, 2), ninety),
            )
        )
        clock.now += 10
    disabled = RefusalCode.WARP_DISABLED
    assert [code for code, _ in codes] == [disabled, None, disabled]
    assert [code_of(delivery) for _, delivery in codes] == [None, "weight", "weight"]


def test_a_teleporter_message_for_the_chain_is_received_once(network: SimulatedNetwork) -> None:
    chain_id, own = chain_of(network, 1), network.state.chains[chain_of(network, 1)]
    for_this, for_another = (
        signed(
            network, chain_of(network, 2), 2, payload=teleporter_call(7, destination, b"x").encode()
        )
        for destination in (chain_id, b"\x09" * 32)
    )
    message_id = network.state.messengers[chain_id].id_of(SignedMessage.parse(for_this).unsigned)
    assert message_id is not None
    call = {"to": "0x" + MESSENGER.hex(), "data": "0xebc3b1ba" + message_id.hex()}
    body = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": [call, "latest"]}
    ).encode()
    responses: list[int | str | None] = []
    for _ in range(2):
        responses.append(
            int(json.loads(EvmChain(network.state, own).respond(body)[1])["result"], 16)
        )
        responses += [
            code_of(delivery) for delivery in network.build_block(chain_id, [for_this, for_another])
        ]
    assert responses == [0, None, None, 1, RefusalCode.ALREADY_DELIVERED, None]


def registration(network: SimulatedNetwork, expiry: int) -> RegisterL1Validator:
    node = network.validators[8]
    owner = PChainOwner(0, ())
    return RegisterL1Validator(
        subnet_of(network, 1), node.node_id, node.bls_key, expiry, owner, owner, 5
    )


def from_manager(network: SimulatedNetwork, payload: bytes, address: bytes | None = None) -> bytes:
    """Return a message of the manager of the first L1, signed by its validators at the P-Chain's
    epoch.
    """
    manager = network.manager(subnet_of(network, 1))
    call = AddressedCall(manager.address if address is None else address, payload)
    return signed(network, manager.chain_id, 1, payload=call.encode())


def test_the_p_chain_accepts_a_request_of_a_manager_once(network: SimulatedNetwork) -> None:
    registration_message = registration(network, NOW + 100)
    (accepted, again) = network.build_block(
        P_CHAIN, [from_manager(network, registration_message.encode())] * 2
    )
    assert (code_of(accepted), code_of(again)) == (None, RefusalCode.ALREADY_DELIVERED)
    transaction = network.p_chain.transactions[-1]
    assert (transaction.kind, transaction.height) == ("RegisterL1ValidatorTx", 21)
    members = network.state.current_set(subnet_of(network, 1))
    assert [
        member.weight for member in members if member.node_id == registration_message.node_id
    ] == [5]
    change = from_manager(
        network, L1ValidatorWeight(registration_message.validation_id, 3, 9).encode()
    )
    removal = from_manager(
        network, L1ValidatorWeight(registration_message.validation_id, 4, 0).encode()
    )
    codes = [
        code_of(delivery)
        for delivery in network.build_block(P_CHAIN, [change, change, removal, removal])
    ]
    assert codes == [None, RefusalCode.STALE_NONCE, None, RefusalCode.NO_VALIDATION]
    assert [tx.kind for tx in network.p_chain.transactions[-2:]] == ["SetL1ValidatorWeightTx"] * 2
    assert NodeID(registration_message.node_id) not in {
        m.node_id for m in network.state.current_set(subnet_of(network, 1))
    }


def test_the_p_chain_refuses_transactions_without_effect(
    network: SimulatedNetwork, clock: Clock
) -> None:
    first = bootstrap_validation_id(subnet_of(network, 1), 0)
    reserved = L1ValidatorWeight(first, 2**64 - 1, 1).encode()
    bad: dict[bytes, RefusalCode] = {
        from_manager(
            network, registration(network, NOW).encode()
        ): RefusalCode.EXPIRED_REGISTRATION,
        from_manager(
            network, registration(network, NOW + 86_401).encode()
        ): RefusalCode.EARLY_REGISTRATION,
        from_manager(
            network, registration(network, NOW + 9).encode(), b"\x01" * 20
        ): RefusalCode.WRONG_MANAGER,
        from_manager(
            network, L1ValidatorWeight(first, 9, 1).encode(), b"x"
        ): RefusalCode.WRONG_MANAGER,
        from_manager(
            network, L1ValidatorWeight(ValidationID(b"v" * 32), 9, 1).encode()
        ): RefusalCode.NO_VALIDATION,
        from_manager(network, reserved): RefusalCode.RESERVED_NONCE,
        from_manager(network, b"nothing"): RefusalCode.OTHER_DESTINATION,
        signed(network, chain_of(network, 1), 1, payload=CALL): RefusalCode.OTHER_DESTINATION,
        signed(network, chain_of(network, 1), 0, payload=CALL): RefusalCode.SIGNATURE,
    }
    height = network.p_chain.height
    assert [code_of(delivery) for delivery in network.build_block(P_CHAIN, list(bad))] == list(
        bad.values()
    )
    assert network.p_chain.height == height + 1
    assert network.p_chain.transactions[-1].height != height + 1
    # The Primary Network signs for a manager on the C-Chain.
    on_c = network.verify_next(P_CHAIN, signed(network, chain_of(network, 0), 0))
    assert (code_of(on_c), subnet_of(network, 0)) == (None, PRIMARY_NETWORK)


@pytest.mark.parametrize("name", ["c-chain", "l1-0"])
def test_a_chains_configuration_has_the_recorded_form(network: SimulatedNetwork, name: str) -> None:
    recorded = recorded_result(name, "eth_getChainConfig")
    chain = network.state.chains[chain_of(network, ["c-chain", "l1-0"].index(name))]
    body = b'{"jsonrpc":"2.0","id":1,"method":"eth_getChainConfig","params":[]}'
    ours = json.loads(EvmChain(network.state, chain).respond(body)[1])["result"]
    # The recorded network has no Helicon.
    assert ours["heliconTimestamp"] == ours["graniteTimestamp"]
    others = ("chainId", "contractNativeMinterConfig", "heliconTimestamp", "warpConfig")
    assert without(ours, others) == without(recorded, others)
    assert ("warpConfig" in ours) == ("warpConfig" in recorded)
    if name == "l1-0":
        assert ours["warpConfig"].keys() == recorded["warpConfig"].keys()


def recorded_result(chain: str, method: str) -> Any:
    lines = map(json.loads, (paths.LOCALNET / "evm-chains.jsonl").read_text().splitlines())
    return next(
        line["result"] for line in lines if (line["chain"], line["method"]) == (chain, method)
    )


def without(fields: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}
