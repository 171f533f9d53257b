"""Holds the index against itself and against a node: balances of sampled addresses, supply, L1 balances.

A node's answers count only when its height was the same before and after, and is that of the index; each balance is
worked out by the rule of the call that it is compared with. Source of truth: avalanchego `vms/platformvm/service.go`
(GetBalance), `vms/avm/service.go` (GetAllBalances).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, TypeVar

from sqlalchemy import Connection

from warpseal.chains.ids import Address, address_text, parse_address
from warpseal.errors import NodeUnavailable
from warpseal.history.chains import PrimaryChain
from warpseal.history.outputs import Utxo
from warpseal.index import consistency
from warpseal.index.database import reading_index
from warpseal.index.settings import IndexSettings
from warpseal.ledger.params import Parameters
from warpseal.node.state import AVAX, NodeState, PBalance
from warpseal.node.upstream import Upstream
from warpseal.store.access import read_snapshot
from warpseal.store.url import StoreUrl
from warpseal.warp.ids import ValidationID, id_text

T = TypeVar("T")

TRIES: Final = 5
BETWEEN_TRIES_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class IndexFinding:
    """One thing that was looked at. fault: "" where it is right; is_compared: False where nothing could be said."""

    subject: str
    fault: str = ""
    is_compared: bool = True


@dataclass(frozen=True, slots=True)
class _Check:
    """One comparison with a node. differ: returns what differs, "" for nothing, None where the node does not tell."""

    subject: str
    chain: PrimaryChain
    differ: Callable[[NodeState], Awaitable[str | None]]


class IndexVerifier:
    """Looks at an index that may be written meanwhile. Used once, from one event loop."""

    def __init__(self, upstream: Upstream, params: Parameters, url: StoreUrl, settings: IndexSettings) -> None:
        self._upstream = upstream
        self._params = params
        self._engine = reading_index(url, settings)

    async def run(self, count: int, named: Iterable[str] = (), seed: int | None = None) -> tuple[IndexFinding, ...]:
        """Return everything that was looked at. count: how many addresses and how many validations are drawn.

        named: more addresses, in their text form. Raises StoreDown, MalformedID, NodeUnavailable.
        """
        own = [parse_address(text)[1] for text in named]
        random = Random(seed)
        try:
            found = [IndexFinding(each.subject, each.reason) for each in await self._read(_own_faults)]
            found = found or [IndexFinding("the rows of the index against each other")]
            drawn = await self._read(partial(consistency.sample_addresses, count=count, random=random))
            validations = await self._read(partial(consistency.sample_validations, count=count, random=random))
            node = await self._node()
            for check in self._checks(tuple(dict.fromkeys((*own, *drawn))), validations):
                found.append(await self._compare(node, check))
            return tuple(found)
        finally:
            self._engine.dispose()

    async def _node(self) -> NodeState:
        for node in await self._upstream.state.nodes():
            try:
                await node.p_height()
            except NodeUnavailable:
                continue
            return node
        raise NodeUnavailable("platform.getHeight")

    def _checks(self, addresses: Iterable[Address], validations: Iterable[ValidationID]) -> Iterator[_Check]:
        for address in addresses:
            for chain, differ in ((PrimaryChain.P, self._p_balance), (PrimaryChain.X, self._x_balance)):
                text = address_text(self._params.network_id, address, chain.value[0].upper())
                yield _Check(f"balance of {text}", chain, partial(differ, address, text))
        for validation in validations:
            yield _Check(f"balance of {id_text(validation)}", PrimaryChain.P, partial(self._l1_balance, validation))
        yield _Check("supply", PrimaryChain.P, self._supply)

    async def _compare(self, node: NodeState, check: _Check) -> IndexFinding:
        """Compare while nothing moves, or say that it always did."""
        tip = node.p_height if check.chain is PrimaryChain.P else node.x_height
        height = partial(consistency.indexed_height, chain=check.chain)
        if await self._read(height) is None:
            return IndexFinding(check.subject, is_compared=False)
        for attempt in range(TRIES):
            await asyncio.sleep(BETWEEN_TRIES_S if attempt else 0)
            before = await tip()
            if await self._read(height) == before:
                fault = await _told(check, node)
                if await tip() == before == await self._read(height):
                    return IndexFinding(check.subject, fault or "", is_compared=fault is not None)
        return IndexFinding(check.subject, is_compared=False)

    async def _p_balance(self, address: Address, text: str, node: NodeState) -> str | None:
        told = await node.p_balance(text)
        found = await self._read(lambda connection: _held(connection, address, PrimaryChain.P))
        ours = sum_p_balance(found, int(time.time()))
        return "" if ours == told else f"the index has {ours}, the node {told}"

    async def _x_balance(self, address: Address, text: str, node: NodeState) -> str | None:
        told = await node.x_balances(text)
        found = await self._read(lambda connection: _held(connection, address, PrimaryChain.X))
        sums = sum_x_balances(found, int(time.time()))
        ours = {AVAX if key == self._params.staking_asset_id else id_text(key): sums[key] for key in sums}
        return "" if ours == told else f"the index has {ours}, the node {dict(told)}"

    async def _l1_balance(self, validation: ValidationID, node: NodeState) -> str | None:
        told = await node.l1_balance(validation)
        ours = await self._read(lambda connection: consistency.l1_balance(connection, validation))
        # One that was removed has no balance, and no node knows it.
        return "" if (ours or 0) == (told or 0) else f"the index has {ours}, the node {told}"

    async def _supply(self, node: NodeState) -> str | None:
        told = await node.supply()
        ours = await self._read(consistency.current_supply)
        if told is None or ours is None:
            return None
        return "" if ours == told else f"the index has {ours}, the node {told}"

    async def _read(self, look: Callable[[Connection], T]) -> T:
        return await asyncio.to_thread(self._look, look)

    def _look(self, look: Callable[[Connection], T]) -> T:
        with self._engine.connect() as connection, read_snapshot(connection):
            return look(connection)


async def _told(check: _Check, node: NodeState) -> str | None:
    try:
        return await check.differ(node)
    except NodeUnavailable:
        # Such calls may be switched off.
        return None
    except (LookupError, ValueError) as error:
        return f"the index lacks what it needs to tell: {type(error).__name__}"


def sum_p_balance(utxos: Iterable[Utxo], now_s: int) -> PBalance:
    """Return what platform.getBalance tells of an address with these unspent outputs."""
    unlocked: dict[bytes, int] = {}
    stakeable: dict[bytes, int] = {}
    locked: dict[bytes, int] = {}
    for utxo in utxos:
        sums = locked if utxo.locktime > now_s else stakeable if utxo.stakeable_locktime > now_s else unlocked
        sums[utxo.asset.asset_id] = sums.get(utxo.asset.asset_id, 0) + utxo.amount
    return PBalance(unlocked, stakeable, locked)


def sum_x_balances(utxos: Iterable[Utxo], now_s: int) -> dict[bytes, int]:
    """Return what avm.getAllBalances tells: of amounts only, owned alone, and spendable now."""
    sums: dict[bytes, int] = {}
    for utxo in utxos:
        if utxo.kind == "TRANSFER" and len(utxo.addresses) == 1 and utxo.locktime <= now_s:
            sums[utxo.asset.asset_id] = sums.get(utxo.asset.asset_id, 0) + utxo.amount
    return sums


def _held(connection: Connection, address: Address, chain: PrimaryChain) -> list[Utxo]:
    """Return what a node's own state has: what was exported here and not imported yet is not in it."""
    return consistency.balances(connection, address, chain, chain).utxos


def _own_faults(connection: Connection) -> list[consistency.Inconsistency]:
    return list(consistency.find_inconsistencies(connection))
