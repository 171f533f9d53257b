"""P-Chain calls to a list of nodes: heights, validator sets, subnets, and the subnet that validates a chain.

Source of truth: avalanchego `vms/platformvm/service.go`. The path is /ext/P, which the reference aggregator
uses, so that every gateway that serves it has it; if that is a 404, /ext/bc/P is tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Final, TypeVar

from cachetools import LRUCache

from warpseal.errors import NodeUnavailable
from warpseal.node.consistent_reads import P_CHAIN_PATHS, find_all_validations, find_transaction, find_validation
from warpseal.node.errors import NotFoundByNode, RpcRefusal
from warpseal.node.limits import CallOrigin
from warpseal.node.p_chain import (
    CurrentValidation,
    FoundTransaction,
    Subnet,
    ValidationAt,
    ValidatorEntry,
    decode_all_sets,
    decode_current_validations,
    decode_height,
    decode_subnet,
    decode_subnets,
    decode_validated_by,
    decode_validates,
    decode_validators_at,
)
from warpseal.node.pool import NodePool, NodeResult
from warpseal.node.rpc import NodeCall
from warpseal.runtime.locks import ThreadLock
from warpseal.warp.ids import ChainID, SubnetID, ValidationID, id_text

__all__ = ["P_CHAIN_PATHS", "PlatformClient", "Subnet", "ValidatorEntry"]

T = TypeVar("T")

_MAX_RECENT_ENTRIES: Final = 50_000
# Bounds the number of small sets.
_ENTRIES_PER_SET: Final = 80
_KEYS_BETWEEN_YIELDS: Final = 16


class PlatformClient:
    """P-Chain calls to a list of nodes. Every method raises NodeUnavailable if no node answered.

    check_key is called with each distinct public key of a set, on a worker thread for large sets; a
    ValueError from it makes the answer unusable, so that the next node is called.
    """

    def __init__(self, pool: NodePool, check_key: Callable[[bytes], object] | None = None) -> None:
        self._pool = pool
        self._check_key = check_key
        self._recent_sets = _RecentSets()

    async def proposed_height(self, origin: CallOrigin = CallOrigin.CALLER) -> int:
        """Return the height that the node would propose for a new block; it lags the tip by design."""
        return await self._call("platform.getProposedHeight", {}, decode_height, origin)

    async def height(self, origin: CallOrigin = CallOrigin.CALLER) -> int:
        """Return the height of the last accepted block."""
        return await self._call("platform.getHeight", {}, decode_height, origin)

    async def probe(self) -> tuple[NodeResult[int], ...]:
        """Return the height from each configured node, or its failure; for the operator."""
        return await self._pool.call_all(
            NodeCall("platform.getHeight", {}, P_CHAIN_PATHS, decode_height, CallOrigin.DAEMON)
        )

    async def validators_at(
        self, subnet_id: SubnetID, height: int, origin: CallOrigin = CallOrigin.CALLER
    ) -> tuple[ValidatorEntry, ...]:
        """Return the members after the block at `height`, unordered; an unknown subnet has none.

        Byte-identical answers return the same tuple. Raises HeightAhead.
        """
        call = NodeCall(
            "platform.getValidatorsAt",
            {"height": height, "subnetID": id_text(subnet_id)},
            P_CHAIN_PATHS,
            partial(self._decode_set, subnet_id),
            origin,
            large=True,
        )
        return await self._pool.call(call)

    async def all_validators_at(
        self, height: int, origin: CallOrigin = CallOrigin.CALLER
    ) -> Mapping[SubnetID, tuple[ValidatorEntry, ...]]:
        """Return the members of every subnet at `height`.

        Of nodes that share a key, the first carries the weight of all; weight without a key is one entry of
        the empty node id. Raises MethodMissing if no node has the method (older ones), HeightAhead.
        """
        call = NodeCall(
            "platform.getAllValidatorsAt",
            {"height": height},
            P_CHAIN_PATHS,
            decode_all_sets,
            origin,
            large=True,
            optional=True,
        )
        return await self._pool.call(call)

    async def validated_by(self, chain_id: ChainID, origin: CallOrigin = CallOrigin.CALLER) -> SubnetID | None:
        """Return the subnet that validates a chain, or None if the P-Chain knows no such chain."""
        params = {"blockchainID": id_text(chain_id)}
        try:
            return await self._call("platform.validatedBy", params, decode_validated_by, origin)
        except NotFoundByNode:
            return None

    async def blockchains_of(self, subnet_id: SubnetID, origin: CallOrigin = CallOrigin.CALLER) -> tuple[ChainID, ...]:
        """Return the chains that a subnet validates; none for an unknown subnet."""
        params = {"subnetID": id_text(subnet_id)}
        try:
            return await self._call("platform.validates", params, decode_validates, origin)
        except NotFoundByNode:
            return ()

    async def subnet(self, subnet_id: SubnetID, origin: CallOrigin = CallOrigin.CALLER) -> Subnet | None:
        """Return the record of a subnet other than the Primary Network, or None if there is none."""
        params = {"subnetID": id_text(subnet_id)}
        try:
            return await self._call("platform.getSubnet", params, partial(decode_subnet, subnet_id), origin)
        except NotFoundByNode:
            return None

    async def current_validations(
        self, subnet_id: SubnetID, origin: CallOrigin = CallOrigin.CALLER
    ) -> tuple[CurrentValidation, ...]:
        """Return the validations of a subnet now, with ids and start times; an unknown subnet has none."""
        call = NodeCall(
            "platform.getCurrentValidators",
            {"subnetID": id_text(subnet_id)},
            P_CHAIN_PATHS,
            decode_current_validations,
            origin,
            large=True,
        )
        try:
            return await self._pool.call(call)
        except RpcRefusal:
            raise NodeUnavailable(call.method) from None

    async def subnets(self, origin: CallOrigin = CallOrigin.CALLER) -> tuple[SubnetID, ...]:
        """Return the ids of all subnets, the Primary Network among them. Raises NodeUnavailable."""
        call = NodeCall("platform.getSubnets", {}, P_CHAIN_PATHS, decode_subnets, origin, large=True)
        try:
            return await self._pool.call(call)
        except RpcRefusal:
            raise NodeUnavailable(call.method) from None

    async def transaction(self, tx_id: bytes, origin: CallOrigin = CallOrigin.CALLER) -> FoundTransaction | None:
        """Return a transaction from the first node for which it is final, else from any; None if no node has it."""
        return await find_transaction(await self._pool.candidates(origin), tx_id, origin)

    async def l1_validator(
        self, validation_id: ValidationID, at_least: int = 0, origin: CallOrigin = CallOrigin.CALLER
    ) -> ValidationAt | None:
        """Return a validation from the first node at height `at_least` or later; None if all that answered lag."""
        return await find_validation(await self._pool.candidates(origin), validation_id, at_least, origin)

    async def l1_validator_each(
        self, validation_id: ValidationID, origin: CallOrigin = CallOrigin.CALLER
    ) -> tuple[ValidationAt, ...]:
        """Return the validation from every node that answers, possibly none. Never raises for a node."""
        try:
            nodes = await self._pool.candidates(origin)
        except NodeUnavailable:
            return ()
        return await find_all_validations(nodes, validation_id, origin)

    async def _call(
        self, method: str, params: Mapping[str, object], decode: Callable[[bytes], T], origin: CallOrigin
    ) -> T:
        return await self._pool.call(NodeCall(method, params, P_CHAIN_PATHS, decode, origin))

    def _decode_set(self, subnet_id: SubnetID, result: bytes) -> tuple[ValidatorEntry, ...]:
        """Return the entries of a set. Runs on a worker thread if it is large."""
        digest = sha256(result).digest()
        entries = self._recent_sets.get(subnet_id, digest)
        if entries is None:
            entries = decode_validators_at(result)
            self._check_keys(entries)
            self._recent_sets.add(subnet_id, digest, entries)
        return entries

    def _check_keys(self, entries: tuple[ValidatorEntry, ...]) -> None:
        if self._check_key is None:
            return
        public_keys = {entry.public_key for entry in entries if entry.public_key is not None}
        for count, public_key in enumerate(public_keys):
            self._check_key(public_key)
            if count % _KEYS_BETWEEN_YIELDS == 0:
                # Gives the event loop the interpreter lock, which checking a key holds.
                time.sleep(0)


class _RecentSets:
    """The latest set of each subnet with the digest of its JSON, bounded; used from several threads."""

    def __init__(self) -> None:
        self._lock = ThreadLock()
        self._sets: LRUCache[SubnetID, tuple[bytes, tuple[ValidatorEntry, ...]]] = LRUCache(
            _MAX_RECENT_ENTRIES, getsizeof=lambda cached: _ENTRIES_PER_SET + len(cached[1])
        )

    def get(self, subnet_id: SubnetID, digest: bytes) -> tuple[ValidatorEntry, ...] | None:
        with self._lock:
            cached = self._sets.get(subnet_id)
            return cached[1] if cached is not None and cached[0] == digest else None

    def add(self, subnet_id: SubnetID, digest: bytes, entries: tuple[ValidatorEntry, ...]) -> None:
        # cachetools refuses a value that is larger than the whole cache.
        with self._lock, suppress(ValueError):
            self._sets[subnet_id] = digest, entries
