"""Checks the rows of the index against each other, and samples of them against nodes.

A comparison with a node counts only if the node was at the height of the index before and after it;
a validator set of a height never changes, and is compared with the reply on which p-chain-quorum
nodes agree. A balance is compared output by output, since the calls for sums of balances are
deprecated. Source of truth: avalanchego `vms/platformvm/service.go` and `vms/avm/service.go`
(GetUTXOs).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from msgspec import Struct

from warpseal.chains.components import LockOut, TransferOutput, Utxo
from warpseal.chains.ids import Address, address_text, parse_address
from warpseal.chains.x_txs import NftTransferOutput
from warpseal.index import consistency, validator_sets
from warpseal.index.database import reading_index, translate_bad_rows, translate_errors
from warpseal.index.errors import IndexDamaged
from warpseal.index.read_session import ReadSession
from warpseal.index.settings import IndexSettings
from warpseal.ledger.params import Parameters
from warpseal.node.state import NodeState
from warpseal.node.upstream import Upstream
from warpseal.resources.chains import PrimaryChain
from warpseal.runtime.process import Progress, error_words, ignore_progress
from warpseal.store.connection import Connection
from warpseal.store.url import StoreUrl
from warpseal.upstream.errors import NodeUnavailable, RpcRefusal
from warpseal.upstream.limits import CallOrigin
from warpseal.warp.ids import SubnetID, ValidationID, id_text
from warpseal.warp.validator_set import describe_members, differing_members

T = TypeVar("T")

_MAX_ATTEMPTS: Final = 5
_RETRY_DELAY_S: Final = 1.0
# For all checks together: an index that lags behind its node makes none of them wait for long.
_MAX_RETRIES: Final = 20
_INCOMPLETE: Final = (
    "without a genesis-file, or because of index-from, the index lacks the beginning of the"
)


class IndexFinding(Struct, frozen=True):
    """The result of one check.

    difference: difference between the index and the node, empty if the check passed.
    is_compared: False if the check could not be made; `reason` says why.
    is_comparable: False if the check can never be made, because the index begins later than the
        chain.
    remark: a fact for the operator although the index is right; `contract` is the contract that it
        concerns.
    chain: the name of the EVM chain; empty for the primary chains.
    """

    subject: str
    difference: str = ""
    is_compared: bool = True
    reason: str = "the node does not report it, or is at another height"
    remark: str = ""
    contract: str = ""
    chain: str = ""
    is_comparable: bool = True


class _Check(Struct, frozen=True):
    """One comparison with a node.

    difference: function that returns the difference, "" without any, None if the node does not
        report the value.
    """

    subject: str
    chain: PrimaryChain
    difference: Callable[[NodeState], Awaitable[str | None]]


class SnapshotReader:
    """Reads an index that may be written meanwhile, each query on a thread and in a snapshot."""

    def __init__(self, url: StoreUrl, settings: IndexSettings) -> None:
        self._engine = reading_index(url, settings)

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Return the result of a query. Raises StoreDown, IndexDamaged."""
        return await asyncio.to_thread(self._query, query)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def _query(self, query: Callable[[Connection], T]) -> T:
        with (
            translate_errors(self._engine),
            self._engine.connect() as connection,
            connection.snapshot(),
            translate_bad_rows(),
        ):
            return query(connection)


class IndexVerifier:
    """Verifies an index, which the indexer may be writing at the same time.

    Used once, from one event loop.
    """

    def __init__(
        self, upstream: Upstream, params: Parameters, url: StoreUrl, settings: IndexSettings
    ) -> None:
        self._upstream = upstream
        self._params = params
        self._index = SnapshotReader(url, settings)
        self._read = self._index.read
        self._incomplete: frozenset[PrimaryChain] = frozenset()
        self._retries = _MAX_RETRIES

    async def run(
        self,
        count: int,
        addresses: Iterable[str] = (),
        seed: int | None = None,
        progress: Progress = ignore_progress,
    ) -> tuple[IndexFinding, ...]:
        """Return the result of every check.

        count: number of sampled addresses, validations and validator sets.

        addresses: further addresses, in their text form.
        Raises StoreDown, MalformedID, NodeUnavailable.
        """
        progress("comparing rows with each other", 0, 0)
        requested = [parse_address(text)[1] for text in addresses]
        random = Random(seed)
        try:
            await self._read(consistency.check_file)
            self._incomplete = await self._read(consistency.incomplete_chains)
            inconsistencies = await self._read(
                lambda connection: list(consistency.find_inconsistencies(connection))
            )
            findings = [IndexFinding(row.subject, row.reason) for row in inconsistencies]
            findings = findings or [IndexFinding("the rows of the index against each other")]
            sampled = await self._read(
                partial(consistency.sample_addresses, count=count, random=random)
            )
            validations = await self._read(
                partial(consistency.sample_validations, count=count, random=random)
            )
            sets = await self._read(partial(validator_sets.sample_sets, count=count, random=random))
            for place, (subnet_id, height) in enumerate(sets):
                progress("comparing validator sets", place, len(sets))
                findings.append(await compare_set(self._upstream, self._index, subnet_id, height))
            if not sets:
                reason = (
                    "the index has none: it lacks the genesis, or this version has not written to"
                    " it yet"
                )
                findings.append(
                    IndexFinding(
                        "validator sets", is_compared=False, reason=reason, is_comparable=False
                    )
                )
            node = await self._upstream.state.first_available()
            checks = list(self._checks(tuple(dict.fromkeys((*requested, *sampled))), validations))
            for place, check in enumerate(checks):
                progress("comparing balances", place, len(checks))
                findings.append(await self._compare(node, check))
            return tuple(findings)
        finally:
            self._index.close()

    def _checks(
        self, addresses: Iterable[Address], validations: Iterable[ValidationID]
    ) -> Iterator[_Check]:
        for address in addresses:
            for chain in (PrimaryChain.P, PrimaryChain.X):
                text = address_text(self._params.network_id, address, chain.value[0].upper())
                yield _Check(
                    f"balance of {text}",
                    chain,
                    partial(self._compare_outputs, chain, address, text),
                )
        for validation in validations:
            yield _Check(
                f"balance of {id_text(validation)}",
                PrimaryChain.P,
                partial(self._compare_l1_balance, validation),
            )
        yield _Check("supply", PrimaryChain.P, self._compare_supply)

    async def _compare(self, node: NodeState, check: _Check) -> IndexFinding:
        """Compare while the node and the index are at one height, if they ever are."""
        if check.chain in self._incomplete:
            reason = f"{_INCOMPLETE} {check.chain.value}"
            return IndexFinding(
                check.subject, is_compared=False, reason=reason, is_comparable=False
            )
        tip = node.p_height if check.chain is PrimaryChain.P else node.x_height
        height = partial(consistency.indexed_height, chain=check.chain)
        if await self._read(height) is None:
            return IndexFinding(check.subject, is_compared=False)
        for attempt in range(_MAX_ATTEMPTS):
            if attempt:
                if not self._retries:
                    break
                self._retries -= 1
                await asyncio.sleep(_RETRY_DELAY_S)
            before = await tip()
            if await self._read(height) == before:
                difference = await _difference(check, node)
                if await tip() == before == await self._read(height):
                    return IndexFinding(
                        check.subject, difference or "", is_compared=difference is not None
                    )
        return IndexFinding(check.subject, is_compared=False)

    async def _compare_outputs(
        self, chain: PrimaryChain, address: Address, text: str, node: NodeState
    ) -> str | None:
        outputs: Sequence[Utxo[Any]]
        if chain is PrimaryChain.P:
            outputs = await node.p_outputs(text)
        else:
            outputs = await node.x_outputs(text)
        held = await self._read(partial(consistency.held_outputs, address=address, chain=chain))
        return describe_outputs(held, list(map(held_output, outputs)))

    async def _compare_l1_balance(self, validation: ValidationID, node: NodeState) -> str | None:
        expected = await node.l1_balance(validation)
        balance = await self._read(partial(consistency.l1_balance, validation_id=validation))
        # A removed validation has no balance, and the node does not know it.
        if (balance or 0) == (expected or 0):
            return ""
        return f"the index has {balance}, the node {expected}"

    async def _compare_supply(self, node: NodeState) -> str | None:
        expected = await node.supply()
        supply = await self._read(consistency.current_supply)
        if expected is None or supply is None:
            return None
        return "" if supply == expected else f"the index has {supply}, the node {expected}"


async def compare_set(
    upstream: Upstream, index: SnapshotReader, subnet_id: SubnetID, height: int
) -> IndexFinding:
    """Compare a validator set of the index with the nodes'. Raises StoreDown."""
    subject = f"validators of {id_text(subnet_id)} at height {height}"
    try:
        members = await index.read(
            lambda connection: validator_sets.read_members(
                ReadSession(connection), subnet_id, height
            )
        )
        of_nodes = await upstream.platform.validators_at(subnet_id, height, CallOrigin.DAEMON)
    except IndexDamaged as error:
        return IndexFinding(subject, f"the index lacks data for this check: {error.reason}")
    except (NodeUnavailable, RpcRefusal) as error:
        return IndexFinding(subject, is_compared=False, reason=str(error))
    if members is None:
        return IndexFinding(
            subject, is_compared=False, reason="the index does not have this height any more"
        )
    return IndexFinding(subject, describe_members(differing_members(members, of_nodes)))


async def _difference(check: _Check, node: NodeState) -> str | None:
    try:
        return await check.difference(node)
    except NodeUnavailable:
        # The node may have this call switched off.
        return None
    except IndexDamaged as error:
        return f"the index lacks data for this check: {error.reason}"
    except (LookupError, ValueError) as error:
        return f"the index lacks data for this check: {error_words(error)}"


def held_output(utxo: Utxo[Any]) -> consistency.HeldOutput:
    """Return an output of a node as the index describes it."""
    output, stakeable_locktime = utxo.output, 0
    if isinstance(output, LockOut):
        output, stakeable_locktime = output.output, output.locktime
    is_transfer = isinstance(output, TransferOutput)
    return consistency.HeldOutput(
        utxo_id=utxo.id,
        asset_id=utxo.asset_id,
        amount=output.amount if is_transfer else int(isinstance(output, NftTransferOutput)),
        owner_count=len(output.owners.addresses),
        is_transfer=is_transfer,
        locktime=output.owners.locktime,
        stakeable_locktime=stakeable_locktime,
    )


def describe_outputs(
    index_outputs: Iterable[consistency.HeldOutput],
    node_outputs: Iterable[consistency.HeldOutput],
) -> str:
    """Return how outputs of an address differ between the index and a node; "" if equal."""
    indexed = {output.utxo_id: output for output in index_outputs}
    at_node = {output.utxo_id: output for output in node_outputs}
    differing = sorted(
        utxo_id
        for utxo_id in indexed.keys() | at_node.keys()
        if indexed.get(utxo_id) != at_node.get(utxo_id)
    )
    if not differing:
        return ""
    first = differing[0]
    index_text = _describe_output(indexed.get(first))
    node_text = _describe_output(at_node.get(first))
    return (
        f"{len(differing)} outputs differ, such as {id_text(first)}: the index has {index_text},"
        f" the node {node_text}"
    )


def _describe_output(output: consistency.HeldOutput | None) -> str:
    if output is None:
        return "none"
    locktimes = f"locktime {output.locktime}, stakeable {output.stakeable_locktime}"
    return (
        f"{output.amount} of {id_text(output.asset_id)} with {output.owner_count} owners,"
        f" {locktimes}"
    )
