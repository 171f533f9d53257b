"""P-Chain calls to a list of nodes: heights, validator sets, subnets, transactions, validations.

Replies that decide who signs are those of `p-chain-quorum` nodes; see agreement.py.

Source of truth: avalanchego `vms/platformvm/service.go`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from operator import itemgetter
from typing import Any, Final, TypeVar

from cachetools import LRUCache

from warpseal.ledger.params import L1FeeConfig
from warpseal.node import p_chain
from warpseal.node.p_chain import (
    CurrentValidation,
    FoundTransaction,
    L1FeeState,
    Subnet,
    TxStatus,
    ValidationAt,
)
from warpseal.upstream.agreement import NodeAgreement
from warpseal.upstream.errors import (
    CallFailure,
    HeightAhead,
    NodeUnavailable,
    NotFoundByNode,
    RpcRefusal,
)
from warpseal.upstream.limits import CallOrigin
from warpseal.upstream.node import NodeCall
from warpseal.upstream.pool import NodePool, NodeResult, PoolNode
from warpseal.upstream.replies import compare_amounts, compare_fixed, compare_grown
from warpseal.warp.ids import ChainID, SubnetID, ValidationID, id_text
from warpseal.warp.validator_set import ValidatorEntry

T = TypeVar("T")

_MAX_RECENT_ENTRIES: Final = 50_000
# Bounds the number of small sets.
_ENTRIES_PER_SET: Final = 80
_KEYS_BETWEEN_YIELDS: Final = 16
_FINAL: Final = (TxStatus.COMMITTED, TxStatus.ABORTED)


class PlatformClient:
    """P-Chain calls to a list of nodes.

    Methods raise NodeUnavailable if no node answered, and NodesDisagree if nodes must agree and do
    not.

    agreement: agreement of the nodes of the pool.
    check_key: function that gets each distinct public key of a set, on a worker thread for large
        sets; its ValueError makes the reply unusable, so that the next node is called.
    """

    def __init__(
        self,
        pool: NodePool[int],
        agreement: NodeAgreement,
        check_key: Callable[[bytes], object] | None = None,
    ) -> None:
        self._pool = pool
        self._agreement = agreement
        self._check_key = check_key
        # The latest set of each subnet with the digest of its JSON, used from several threads.
        self._recent_sets: LRUCache[SubnetID, tuple[bytes, tuple[ValidatorEntry, ...]]] = LRUCache(
            _MAX_RECENT_ENTRIES, getsizeof=lambda cached: _ENTRIES_PER_SET + len(cached[1])
        )
        self._recent_sets_lock = threading.Lock()

    async def proposed_height(self, origin: CallOrigin = CallOrigin.CALLER) -> int:
        """Return the height that nodes would propose for a new block; by design behind the tip."""
        call = _call("platform.getProposedHeight", {}, p_chain.decode_height, origin)
        return await self._agreement.height(call)

    async def confirmed_height(
        self, margin: int, origin: CallOrigin, *, has_stalled: bool
    ) -> int | None:
        """Return the proposed height that a second node has reached; None if none replies.

        margin: number of blocks by which the second node may be behind.
        has_stalled: true if the second of two nodes may have stalled, so that its chain time is
            read.
        """
        call = _call("platform.getProposedHeight", {}, p_chain.decode_height, origin)
        time_call = None
        if has_stalled:
            time_call = _call("platform.getTimestamp", {}, p_chain.decode_timestamp, origin)
        return await self._agreement.find_confirmed_height(call, margin, time_call)

    @property
    def confirms_heights(self) -> bool:
        """Whether a second node can confirm a height that one node proposes."""
        return len(self._pool) > 1 and self._agreement.quorum == 1

    async def height(self, origin: CallOrigin = CallOrigin.CALLER) -> int:
        """Return the height of the last accepted block."""
        return await self._agreement.height(height_call(origin))

    async def chain_time_s(self) -> int:
        """Return the time of the last accepted block, Unix seconds."""
        call = _call("platform.getTimestamp", {}, p_chain.decode_timestamp)
        return await self._agreement.require_checked(call, compare_amounts)

    async def probe(self) -> tuple[NodeResult[int], ...]:
        """Return the height from each configured node, or its failure; for the operator."""
        return await self._pool.call_all(height_call(CallOrigin.DAEMON))

    async def validators_at(
        self, subnet_id: SubnetID, height: int, origin: CallOrigin = CallOrigin.CALLER
    ) -> tuple[ValidatorEntry, ...]:
        """Return the members after the block at `height`, unordered; an unknown subnet has none.

        Byte-identical replies return the same tuple. Raises HeightAhead.
        """
        params = {"height": height, "subnetID": id_text(subnet_id)}
        decode = partial(self._decode_set, subnet_id)
        call = _call("platform.getValidatorsAt", params, decode, origin, large=True)
        return await self._agreement.call(call)

    async def validators_at_each(
        self, subnet_id: SubnetID, height: int
    ) -> tuple[NodeResult[tuple[ValidatorEntry, ...]], ...]:
        """Return each node's ordered members at `height`, or its failure; for the operator."""
        method, origin = "platform.getValidatorsAt", CallOrigin.DAEMON
        params = {"height": height, "subnetID": id_text(subnet_id)}
        call = _call(method, params, _decode_sorted_set, origin, large=True)
        return await self._pool.call_all(call)

    async def all_validators_at(
        self, height: int, origin: CallOrigin = CallOrigin.CALLER
    ) -> Mapping[SubnetID, tuple[ValidatorEntry, ...]]:
        """Return the members of every subnet at `height`.

        The first of the nodes that share a key carries the weight of all. Weight without a key is
        one entry with the empty node id. Raises HeightAhead, and MethodMissing if no node has the
        method, as older nodes.
        """
        method, decode = "platform.getAllValidatorsAt", p_chain.decode_all_sets
        call = _call(method, {"height": height}, decode, origin, large=True, optional=True)
        return await self._agreement.call(call)

    async def validated_by(self, chain_id: ChainID) -> SubnetID | None:
        """Return the subnet that validates a chain, or None if the P-Chain knows no such chain."""
        params = {"blockchainID": id_text(chain_id)}
        call = _call("platform.validatedBy", params, p_chain.decode_validated_by)
        return await self._agreement.find(call)

    async def blockchains_of(self, subnet_id: SubnetID) -> tuple[ChainID, ...]:
        """Return the chains that a subnet validates; none for an unknown subnet."""
        params = {"subnetID": id_text(subnet_id)}
        call = _call("platform.validates", params, p_chain.decode_validates)
        return await self._agreement.find(call, compare_grown) or ()

    async def subnet(self, subnet_id: SubnetID) -> Subnet | None:
        """Return the record of a subnet, which the Primary Network lacks; None if it has none."""
        call = _subnet_call(subnet_id, CallOrigin.CALLER)
        return await self._agreement.find(call, p_chain.compare_subnets)

    async def subnet_each(self, subnet_id: SubnetID) -> tuple[NodeResult[Subnet], ...]:
        """Return each node's record of a subnet, or its failure; for the operator."""
        return await self._pool.call_all(_subnet_call(subnet_id, CallOrigin.DAEMON))

    async def current_validations(
        self, subnet_id: SubnetID, origin: CallOrigin = CallOrigin.CALLER
    ) -> tuple[CurrentValidation, ...]:
        """Return the current validations of a subnet; an unknown subnet has none."""
        method, params = "platform.getCurrentValidators", {"subnetID": id_text(subnet_id)}
        call = _call(method, params, p_chain.decode_current_validations, origin, large=True)
        return await self._agreement.require_checked(call, p_chain.compare_validations)

    async def fee_config(self, origin: CallOrigin = CallOrigin.CALLER) -> L1FeeConfig:
        """Return the fee parameters of active L1 validators."""
        call = _call("platform.getValidatorFeeConfig", {}, p_chain.decode_fee_config, origin)
        return await self._agreement.require_checked(call, compare_fixed)

    async def fee_state(self, origin: CallOrigin = CallOrigin.CALLER) -> L1FeeState:
        """Return the state of the fee of active L1 validators after the last accepted block."""
        call = _call("platform.getValidatorFeeState", {}, p_chain.decode_fee_state, origin)
        return await self._agreement.require_checked(call, compare_amounts)

    async def subnets(self) -> tuple[SubnetID, ...]:
        """Return the ids of all subnets, the Primary Network among them.

        While too few nodes have the deprecated list, only subnets with validators are returned.
        """
        try:
            return await self._agreement.call(_SUBNETS, compare_grown)
        except RpcRefusal:
            height = await self.height()
        try:
            return tuple(await self.all_validators_at(height))
        except RpcRefusal:
            raise NodeUnavailable("platform.getAllValidatorsAt") from None

    async def transaction(self, tx_id: bytes) -> FoundTransaction | None:
        """Return a transaction; None if no node has it.

        The first node for which it is final comes before the others.
        """

        def is_final(transaction: FoundTransaction | None) -> bool:
            return transaction is not None and transaction.status in _FINAL

        def rank(transaction: FoundTransaction | None) -> tuple[bool, bool]:
            return is_final(transaction), transaction is not None

        attempt = partial(_transaction_at, tx_id)
        results = await self._pool.try_each("platform.getTx", attempt, is_final)
        return max(results, key=rank)

    async def l1_validator(
        self, validation_id: ValidationID, at_least: int = 0
    ) -> ValidationAt | None:
        """Return a validation; None if all nodes that answered lag.

        at_least: height that a node must have reached.
        """
        method, attempt = "platform.getL1Validator", partial(_validation_at, validation_id)

        def is_recent(validation: ValidationAt) -> bool:
            return validation.height >= at_least

        if self._agreement.quorum == 1:
            results = await self._pool.try_each(method, attempt, is_recent)
            return results[-1] if is_recent(results[-1]) else None

        async def attempt_at_least(node: PoolNode) -> ValidationAt:
            validation = await attempt(node)
            if not is_recent(validation):
                raise HeightAhead(0, "the node lags", at_least, validation.height)
            return validation

        try:
            return await self._agreement.read_checked(
                method, attempt_at_least, p_chain.compare_l1_validations
            )
        except HeightAhead:
            return None

    async def l1_validator_each(self, validation_id: ValidationID) -> tuple[ValidationAt, ...]:
        """Return the validation from every node that answers, possibly none.

        Never raises for a node.
        """

        async def attempt(node: PoolNode) -> ValidationAt | None:
            with suppress(CallFailure, RpcRefusal):
                return await _validation_at(validation_id, node)
            return None

        try:
            nodes = await self._pool.candidates(CallOrigin.CALLER)
        except NodeUnavailable:
            return ()
        validations = await asyncio.gather(*map(attempt, nodes))
        return tuple(validation for validation in validations if validation is not None)

    async def indexed_l1_validator(self, validation_id: ValidationID) -> ValidationAt | None:
        """Return a validation as an index has it, without a call; None if no index has it."""
        return None

    def _decode_set(self, subnet_id: SubnetID, result: bytes) -> tuple[ValidatorEntry, ...]:
        """Return the entries of a set. Runs on a worker thread if it is large."""
        digest = sha256(result).digest()
        with self._recent_sets_lock:
            recent_digest, recent_entries = self._recent_sets.get(subnet_id, (b"", None))
        if recent_entries is not None and recent_digest == digest:
            return recent_entries
        if self._agreement.quorum == 1:
            entries = p_chain.decode_validators_at(result)
        else:
            # Nodes that order a set differently return equal entries.
            entries = _decode_sorted_set(result)
            if recent_entries == entries:
                return recent_entries
        self._check_keys(entries)
        # cachetools refuses a value that is larger than the whole cache.
        with self._recent_sets_lock, suppress(ValueError):
            self._recent_sets[subnet_id] = digest, entries
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


def height_call(origin: CallOrigin = CallOrigin.CALLER) -> NodeCall[int]:
    """Return the call of the height of a node's last accepted block."""
    return NodeCall("platform.getHeight", {}, p_chain.P_CHAIN_PATHS, p_chain.decode_height, origin)


def _subnet_call(subnet_id: SubnetID, origin: CallOrigin) -> NodeCall[Subnet]:
    params = {"subnetID": id_text(subnet_id)}
    decode = partial(p_chain.decode_subnet, subnet_id)
    return _call("platform.getSubnet", params, decode, origin)


def _decode_sorted_set(result: bytes) -> tuple[ValidatorEntry, ...]:
    return tuple(sorted(p_chain.decode_validators_at(result), key=itemgetter(0)))


async def _transaction_at(tx_id: bytes, node: PoolNode) -> FoundTransaction | None:
    params = {"txID": id_text(tx_id)}
    hex_params = {**params, "encoding": "hex"}
    decode = partial(p_chain.decode_tx, tx_id)
    try:
        raw = await node.call(_call("platform.getTx", hex_params, decode, large=True))
    except NotFoundByNode:
        return None
    status = await node.call(_call("platform.getTxStatus", params, p_chain.decode_tx_status))
    # The height comes last: a transaction that was committed by then is at or below it.
    return FoundTransaction(raw, status, await node.call(height_call()))


async def _validation_at(validation_id: ValidationID, node: PoolNode) -> ValidationAt:
    params = {"validationID": id_text(validation_id)}
    call = _call("platform.getL1Validator", params, p_chain.decode_l1_validator)
    try:
        return await node.call(call)
    except NotFoundByNode:
        pass
    # This reply names no height. If the validation is still missing after the height is known, it
    # is missing there.
    height = await node.call(height_call())
    try:
        return await node.call(call)
    except NotFoundByNode:
        return ValidationAt(height, None)


_SUBNETS: Final = NodeCall(
    "platform.getSubnets",
    {},
    p_chain.P_CHAIN_PATHS,
    p_chain.decode_subnets,
    large=True,
    optional=True,
    deprecated=True,
)


def _call(
    method: str,
    params: Mapping[str, Any],
    decode: Callable[[bytes], T],
    origin: CallOrigin = CallOrigin.CALLER,
    large: bool = False,
    optional: bool = False,
) -> NodeCall[T]:
    return NodeCall(method, params, p_chain.P_CHAIN_PATHS, decode, origin, large, optional)
