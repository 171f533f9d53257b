"""P-Chain calls over a list of nodes: heights, validator sets, subnets, which subnet validates a chain.

Source of truth: avalanchego `vms/platformvm/service.go`. The path is /ext/P, which the reference aggregator
asks, so that every gateway that serves it has it; where that is a 404, /ext/bc/P is tried.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Final, TypeVar

from warpseal.errors import NodeUnavailable
from warpseal.node.consistent_reads import P_CHAIN_PATHS, each_validation, find_transaction, find_validation
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

_SEEN_SUBNETS: Final = 600
_SEEN_ENTRIES: Final = 50_000
_KEYS_BETWEEN_YIELDS: Final = 16


class PlatformClient:
    """P-Chain calls over a list of nodes. Every method raises NodeUnavailable when no node answered.

    check_key is called with each distinct public key of a set, on a worker thread for large sets; a
    ValueError from it makes the answer unusable, so that the next node is asked.
    """

    def __init__(self, pool: NodePool, check_key: Callable[[bytes], object] | None = None) -> None:
        self._pool = pool
        self._check_key = check_key
        self._seen = _SeenSets()

    async def proposed_height(self, origin: CallOrigin = CallOrigin.CALLER) -> int:
        """Return the height that the node would propose for a new block; it lags the tip by design."""
        return await self._call("platform.getProposedHeight", {}, decode_height, origin)

    async def height(self, origin: CallOrigin = CallOrigin.CALLER) -> int:
        """Return the height of the last accepted block."""
        return await self._call("platform.getHeight", {}, decode_height, origin)

    async def probe(self) -> tuple[NodeResult[int], ...]:
        """Return what each configured node says the height is, or why it does not; for the operator."""
        return await self._pool.call_all(
            NodeCall("platform.getHeight", {}, P_CHAIN_PATHS, decode_height, CallOrigin.DAEMON)
        )

    async def validators_at(
        self, subnet_id: SubnetID, height: int, origin: CallOrigin = CallOrigin.CALLER
    ) -> tuple[ValidatorEntry, ...]:
        """Return the members after the block at `height`, unordered; an unknown subnet has none.

        The same tuple comes again while the answer stays the same to the byte. Raises HeightAhead.
        """
        call = NodeCall(
            "platform.getValidatorsAt",
            {"height": height, "subnetID": id_text(subnet_id)},
            P_CHAIN_PATHS,
            lambda result: self._decode_set(subnet_id, result),
            origin,
            large=True,
        )
        return await self._pool.call(call)

    async def all_validators_at(
        self, height: int, origin: CallOrigin = CallOrigin.CALLER
    ) -> Mapping[SubnetID, tuple[ValidatorEntry, ...]]:
        """Return the members of every subnet at `height`.

        Of nodes that share a key, the first carries the weight of all; weight without a key is one entry of
        the empty node id. Raises MethodMissing where no node knows the method (older ones), HeightAhead.
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
        """Return what is recorded of a subnet other than the Primary Network, or None if there is none."""
        params = {"subnetID": id_text(subnet_id)}
        try:
            return await self._call(
                "platform.getSubnet", params, lambda result: decode_subnet(subnet_id, result), origin
            )
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
        """Return a transaction from the first node that has seen its end, else as any has it; None: no node has it."""
        return await find_transaction(await self._pool.candidates(origin), tx_id, origin)

    async def l1_validator(
        self, validation_id: ValidationID, at_least: int = 0, origin: CallOrigin = CallOrigin.CALLER
    ) -> ValidationAt | None:
        """Return what the first node says whose state is of height `at_least` or later; None: all that answered lag."""
        return await find_validation(await self._pool.candidates(origin), validation_id, at_least, origin)

    async def l1_validator_each(
        self, validation_id: ValidationID, origin: CallOrigin = CallOrigin.CALLER
    ) -> tuple[ValidationAt, ...]:
        """Return what every node says that answers; none may. Never raises for a node."""
        try:
            nodes = await self._pool.candidates(origin)
        except NodeUnavailable:
            return ()
        return await each_validation(nodes, validation_id, origin)

    async def _call(
        self, method: str, params: Mapping[str, object], decode: Callable[[bytes], T], origin: CallOrigin
    ) -> T:
        return await self._pool.call(NodeCall(method, params, P_CHAIN_PATHS, decode, origin))

    def _decode_set(self, subnet_id: SubnetID, result: bytes) -> tuple[ValidatorEntry, ...]:
        """Return the entries of a set; runs on a worker thread where it is large."""
        digest = sha256(result).digest()
        entries = self._seen.get(subnet_id, digest)
        if entries is None:
            entries = decode_validators_at(result)
            self._check_keys(entries)
            self._seen.add(subnet_id, digest, entries)
        return entries

    def _check_keys(self, entries: tuple[ValidatorEntry, ...]) -> None:
        if self._check_key is None:
            return
        public_keys = {entry.public_key for entry in entries if entry.public_key is not None}
        for count, public_key in enumerate(public_keys):
            self._check_key(public_key)
            if count % _KEYS_BETWEEN_YIELDS == 0:
                # Lets the event loop have the interpreter lock, which checking a key holds.
                time.sleep(0)


class _SeenSets:
    """The latest set of each subnet by the digest of its JSON, bounded; used from several threads."""

    def __init__(self) -> None:
        self._lock = ThreadLock()
        self._sets: OrderedDict[SubnetID, tuple[bytes, tuple[ValidatorEntry, ...]]] = OrderedDict()
        self._entries = 0

    def get(self, subnet_id: SubnetID, digest: bytes) -> tuple[ValidatorEntry, ...] | None:
        with self._lock:
            seen = self._sets.get(subnet_id)
            return seen[1] if seen is not None and seen[0] == digest else None

    def add(self, subnet_id: SubnetID, digest: bytes, entries: tuple[ValidatorEntry, ...]) -> None:
        with self._lock:
            replaced = self._sets.pop(subnet_id, None)
            self._entries += len(entries) - (len(replaced[1]) if replaced else 0)
            self._sets[subnet_id] = (digest, entries)
            while self._sets and (self._entries > _SEEN_ENTRIES or len(self._sets) > _SEEN_SUBNETS):
                _, (_, dropped) = self._sets.popitem(last=False)
                self._entries -= len(dropped)
