"""P-Chain calls to a list of nodes: heights, validator sets, subnets, transactions, validations of
L1s.

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
    """P-Chain calls to a list of nodes. Every method raises NodeUnavailable if no node answered.

    agreement: agreement of the nodes of the pool; methods that use it also raise NodesDisagree.
    check_key: check of each distinct public key of a set, on a worker thread for large sets. Its
        ValueError makes the reply unusable, so that the next node is called.
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
        """Return the height that the node would propose for a new block; it lags the tip by design."""
        return await self._agreement.height(
            _call("platform.getProposedHeight", {}, p_chain.decode_height, origin)
        )

    async def confirmed_height(
        self, margin: int, origin: CallOrigin, *, has_stalled: bool
    ) -> int | None:
        """Return the proposed height that a second node has reached, up to `margin` blocks; None if
        none replies.

        has_stalled: the second of two nodes may have stalled, so that its chain time is
            read.
        """
        call = _call("platform.getProposedHeight", {}, p_chain.decode_height, origin)
        time_call = _call("platform.getTimestamp", {}, p_chain.decode_timestamp, origin)
        return await self._agreement.find_confirmed_height(
            call, margin, time_call if has_stalled else None
        )

    @property
    def confirms_heights(self) -> bool:
        """Whether a second node can confirm a height that one node proposes."""
        return len(self._pool) > 1 and self._agreement.quorum == 1

    async def height(self, origin: CallOrigin = CallOrigin.CALLER) -> int:
        """Return the height of the last accepted block."""
        return await self._agreement.height(height_call(origin))

    async def chain_time_s(self) -> int:
        """Return the time of the last accepted block, Unix seconds."""
        return await self._agreement.require_checked(
            _call("platform.getTimestamp", {}, p_chain.decode_timestamp), compare_amounts
        )

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
        return await self._agreement.call(
            _call("platform.getValidatorsAt", params, decode, origin, large=True)
        )

    async def validators_at_each(
        self, subnet_id: SubnetID, height: int
    ) -> tuple[NodeResult[tuple[ValidatorEntry, ...]], ...]:
        """Return the members at `height` from each configured node, ordered, or its failure; for
        the operator.
        """
        params = {"height": height, "subnetID": id_text(subnet_id)}
        method, decode = "platform.getValidatorsAt", _decode_sorted_set
        return await self._pool.call_all(
            _call(method, params, decode, CallOrigin.DAEMON, large=True)
        )

    async def all_validators_at(
        self, height: int, origin: CallOrigin = CallOrigin.CALLER
    ) -> Mapping[SubnetID, tuple[ValidatorEntry, ...]]:
        """Return the members of every subnet at `height`.

        Of nodes that share a key, the first carries the weight of all; weight without a key is one
        entry of the empty node id. Raises MethodMissing if no node has the method (older ones),
        HeightAhead.
        """
        method, params = "platform.getAllValidatorsAt", {"height": height}
        return await self._agreement.call(
            _call(method, params, p_chain.decode_all_sets, origin, large=True, optional=True)
        )

    async def validated_by(self, chain_id: ChainID) -> SubnetID | None:
        """Return the subnet that validates a chain, or None if the P-Chain knows no such chain."""
        params = {"blockchainID": id_text(chain_id)}
        return await self._agreement.find(
            _call("platform.validatedBy", params, p_chain.decode_validated_by)
        )

    async def blockchains_of(self, subnet_id: SubnetID) -> tuple[ChainID, ...]:
        """Return the chains that a subnet validates; none for an unknown subnet."""
        params = {"subnetID": id_text(subnet_id)}
        call = _call("platform.validates", params, p_chain.decode_validates)
        return await self._agreement.find(call, compare_grown) or ()

    async def subnet(self, subnet_id: SubnetID) -> Subnet | None:
        """Return the record of a subnet other than the Primary Network, or None if there is none."""
        params, decode = {"subnetID": id_text(subnet_id)}, partial(p_chain.decode_subnet, subnet_id)
        return await self._agreement.find(
            _call("platform.getSubnet", params, decode), p_chain.compare_subnets
        )

    async def subnet_each(self, subnet_id: SubnetID) -> tuple[NodeResult[Subnet], ...]:
        """Return the record of a subnet from each configured node, or its failure; for the
        operator.
        """
        params, decode = {"subnetID": id_text(subnet_id)}, partial(p_chain.decode_subnet, subnet_id)
        return await self._pool.call_all(
            _call("platform.getSubnet", params, decode, CallOrigin.DAEMON)
        )

    async def current_validations(
        self, subnet_id: SubnetID, origin: CallOrigin = CallOrigin.CALLER
    ) -> tuple[CurrentValidation, ...]:
        """Return the validations of a subnet now, with ids and start times; an unknown subnet has
        none.
        """
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

        While too few nodes have the deprecated list, they are those of the subnets that have
        validators.
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
        """Return a transaction from the first node for which it is final, else from any; None if no
        node has it.
        """

        def is_final(transaction: FoundTransaction | None) -> bool:
            return transaction is not None and transaction.status in _FINAL

        results = await self._pool.try_each(
            "platform.getTx", partial(_transaction_at, tx_id), is_final
        )
        return max(
            results, key=lambda transaction: (is_final(transaction), transaction is not None)
        )

    async def l1_validator(
        self, validation_id: ValidationID, at_least: int = 0
    ) -> ValidationAt | None:
        """Return a validation from the first node at height `at_least` or later; None if all that
        answered lag.
        """
        method, attempt = "platform.getL1Validator", partial(_validation_at, validation_id)
        if self._agreement.quorum == 1:
            results = await self._pool.try_each(
                method, attempt, lambda validation: validation.height >= at_least
            )
            return results[-1] if results[-1].height >= at_least else None

        async def attempt_at_least(node: PoolNode) -> ValidationAt:
            validation = await attempt(node)
            if validation.height < at_least:
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
        """Return a validation as an index has it, without a call; None: there is no index, or it
        lacks the row.
        """
        return None

    def _decode_set(self, subnet_id: SubnetID, result: bytes) -> tuple[ValidatorEntry, ...]:
        """Return the entries of a set. Runs on a worker thread if it is large."""
        digest = sha256(result).digest()
        with self._recent_sets_lock:
            recent_digest, recent_entries = self._recent_sets.get(subnet_id, (b"", None))
        if recent_entries is not None and recent_digest == digest:
            return recent_entries
        entries = (
            p_chain.decode_validators_at(result)
            if self._agreement.quorum == 1
            else _decode_sorted_set(result)
        )
        # Nodes that order a set differently return equal entries.
        if self._agreement.quorum > 1 and recent_entries == entries:
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


def _decode_sorted_set(result: bytes) -> tuple[ValidatorEntry, ...]:
    return tuple(sorted(p_chain.decode_validators_at(result), key=itemgetter(0)))


async def _transaction_at(tx_id: bytes, node: PoolNode) -> FoundTransaction | None:
    params = {"txID": id_text(tx_id)}
    hex_params, decode = {**params, "encoding": "hex"}, partial(p_chain.decode_tx, tx_id)
    try:
        raw = await node.call(_call("platform.getTx", hex_params, decode, large=True))
    except NotFoundByNode:
        return None
    status = await node.call(_call("platform.getTxStatus", params, p_chain.decode_tx_status))
    # The height comes last: a transaction that was committed by then is at or below it.
    return FoundTransaction(raw, status, await node.call(height_call()))


async def _validation_at(validation_id: ValidationID, node: PoolNode) -> ValidationAt:
    call = _call(
        "platform.getL1Validator",
        {"validationID": id_text(validation_id)},
        p_chain.decode_l1_validator,
    )
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
