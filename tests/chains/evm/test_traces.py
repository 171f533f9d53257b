from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chains.evm.evm_values import RECORDED, account, as_json
from tests.indexer.evm_chains import recorded_chain
from warpseal.chains.evm.blocks import MalformedBlock
from warpseal.chains.evm.facts import Creation
from warpseal.chains.evm.traces import (
    MAX_CALL_DEPTH,
    TxTrace,
    allow_nested_traces,
    decode_block_trace,
)

SENDER, FACTORY, CHILD, GRANDCHILD, OTHER = map(account, range(1, 6))
TX_HASH = bytes(range(32))


def call(
    sender: bytes, to: bytes | None, *calls: dict[str, Any], kind: str = "CALL", error: str = ""
) -> dict[str, Any]:
    """Return a call as callTracer shows it."""
    optional = {"to": to and "0x" + to.hex(), "calls": list(calls), "error": error}
    fields = {
        "type": kind,
        "from": "0x" + sender.hex(),
        "gas": "0x1",
        "gasUsed": "0x1",
        "input": "0x",
        "value": "0x0",
    }
    return fields | {name: value for name, value in optional.items() if value}


def create(
    sender: bytes, to: bytes | None, *calls: dict[str, Any], kind: str = "CREATE", error: str = ""
) -> Any:
    """Return a creation as callTracer shows it."""
    return call(sender, to, *calls, kind=kind, error=error)


def traced(*transactions: dict[str, Any]) -> tuple[TxTrace, ...]:
    """Return the decoded traces of a block."""
    traces = decode_block_trace(
        as_json([{"txHash": "0x" + TX_HASH.hex(), "result": tx} for tx in transactions])
    )
    assert traces is not None
    return traces


def creations(transaction: dict[str, Any]) -> tuple[Creation, ...]:
    """Return what the calls of a single transaction created."""
    (trace,) = traced(transaction)
    return trace.creations


@pytest.fixture
def deep_traces_allowed() -> Iterator[None]:
    """Allow deep traces during a test."""
    limit = sys.getrecursionlimit()
    allow_nested_traces()
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    ("network", "chain"), [pair for pair in RECORDED if pair != ("localnet", "c-chain")]
)
def test_recorded_traces_are_decoded(network: str, chain: str) -> None:
    (raw,) = recorded_chain(network, chain).traces.values()
    traces = decode_block_trace(raw)
    assert traces is not None
    assert [trace.creations for trace in traces] == [()]
    assert f'"txHash":"0x{(traces[0].tx_hash or b"").hex()}"'.encode() in raw


def test_contracts_that_contracts_create_name_their_factory_and_the_sender() -> None:
    transaction = call(
        SENDER,
        FACTORY,
        create(FACTORY, CHILD, create(CHILD, GRANDCHILD, kind="CREATE2")),
        call(FACTORY, OTHER, kind="STATICCALL"),
        create(FACTORY, OTHER, kind="CREATE2"),
    )
    assert creations(transaction) == (
        Creation(0, 1, CHILD, SENDER, FACTORY),
        Creation(0, 2, GRANDCHILD, SENDER, CHILD),
        Creation(0, 3, OTHER, SENDER, FACTORY),
    )


def test_a_creation_by_delegated_code_is_the_proxys() -> None:
    delegated = call(FACTORY, OTHER, create(FACTORY, CHILD), kind="DELEGATECALL")
    assert creations(call(SENDER, FACTORY, delegated)) == (Creation(0, 1, CHILD, SENDER, FACTORY),)


def test_the_transactions_own_contract_is_left_out_and_those_of_its_constructor_are_not() -> None:
    assert creations(create(SENDER, FACTORY, create(FACTORY, CHILD))) == (
        Creation(0, 1, CHILD, SENDER, FACTORY),
    )


def test_reverted_calls_and_everything_below_them_are_left_out() -> None:
    transaction = call(
        SENDER,
        FACTORY,
        create(FACTORY, None, create(CHILD, GRANDCHILD), error="execution reverted"),
        call(FACTORY, OTHER, call(OTHER, CHILD, create(CHILD, GRANDCHILD)), error="out of gas"),
        create(FACTORY, OTHER),
    )
    assert creations(transaction) == (Creation(0, 1, OTHER, SENDER, FACTORY),)
    assert (
        creations(call(SENDER, FACTORY, create(FACTORY, CHILD), error="execution reverted")) == ()
    )


def test_transactions_keep_their_places() -> None:
    creating = call(SENDER, FACTORY, create(FACTORY, CHILD))
    assert traced(call(SENDER, OTHER), creating, creating) == (
        TxTrace(TX_HASH, ()),
        TxTrace(TX_HASH, (Creation(1, 1, CHILD, SENDER, FACTORY),)),
        TxTrace(TX_HASH, (Creation(2, 1, CHILD, SENDER, FACTORY),)),
    )


def test_old_nodes_leave_the_hash_out() -> None:
    assert decode_block_trace(as_json([{"result": call(SENDER, OTHER)}])) == (TxTrace(None, ()),)
    assert decode_block_trace(b"[]") == ()
    assert decode_block_trace(b"null") is None


@pytest.mark.parametrize(
    "result",
    [
        {},
        [{}],
        [{"error": "execution timeout"}],
        [{"result": {"type": "CALL"}}],
        [{"result": call(SENDER, OTHER), "txHash": "0x12"}],
        [{"result": call(SENDER, OTHER, create(FACTORY, None))}],
        [{"result": call(SENDER, OTHER, create(FACTORY, b"\1"))}],
        [{"result": {"gas": 1, "structLogs": []}}],
    ],
)
def test_a_trace_that_is_missing_or_no_trace_is_refused(result: Any) -> None:
    with pytest.raises(MalformedBlock):
        decode_block_trace(as_json(result))


def nested(depth: int) -> bytes:
    """Return the trace of a transaction with `depth` calls inside each other, the innermost a
    creation.
    """
    opened = b'{"type":"CALL","from":"0x%s","calls":[' % SENDER.hex().encode()
    return b'[{"result":' + opened * depth + as_json(create(FACTORY, CHILD)) + b"]}" * depth + b"}]"


@pytest.mark.usefixtures("deep_traces_allowed")
def test_calls_are_nested_as_deep_as_the_evm_allows() -> None:
    traces = decode_block_trace(nested(MAX_CALL_DEPTH))
    assert traces == (TxTrace(None, (Creation(0, 1, CHILD, SENDER, FACTORY),)),)


@pytest.mark.usefixtures("deep_traces_allowed")
def test_endless_nesting_is_refused() -> None:
    for raw in (nested(200_000), b'[{"result":' + b'{"calls":[' * 200_000):
        with pytest.raises(MalformedBlock):
            decode_block_trace(raw)


@st.composite
def call_trees(draw: st.DrawFn) -> tuple[dict[str, Any], list[bytes]]:
    """A transaction with random calls, and the contracts that it creates, in their order."""
    addresses = map(account, count(100))
    created: list[bytes] = []

    def grow(depth: int, is_reverted: bool) -> dict[str, Any]:
        kind = draw(st.sampled_from(("CALL", "DELEGATECALL", "CREATE", "CREATE2", "SELFDESTRUCT")))
        error = draw(st.sampled_from(("", "", "execution reverted")))
        address = next(addresses)
        is_reverted = is_reverted or bool(error)
        if kind.startswith("CREATE") and not is_reverted and depth:
            created.append(address)
        width = draw(st.integers(0, 2)) if depth < 4 else 0
        calls = [grow(depth + 1, is_reverted) for _ in range(width)]
        return call(SENDER, address, *calls, kind=kind, error=error)

    return grow(0, False), created


@given(call_trees())
@settings(max_examples=60)
def test_creations_are_those_of_the_calls_that_were_not_reverted(
    tree: tuple[dict[str, Any], list[bytes]],
) -> None:
    transaction, created = tree
    traced_creations = creations(transaction)
    assert [creation.address for creation in traced_creations] == created
    assert [creation.position for creation in traced_creations] == list(range(1, len(created) + 1))


@given(st.binary())
def test_any_bytes_are_decoded_or_refused(raw: bytes) -> None:
    try:
        decode_block_trace(raw)
    except MalformedBlock:
        return
