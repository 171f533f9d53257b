"""P-Chain reads of several calls that must all reach the same node, because their results belong together.

Source of truth: avalanchego `vms/platformvm/service.go`. A node may lag: the next node may know more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from warpseal.errors import NodeAttempt, NodeFailure, NodeUnavailable
from warpseal.node.errors import CallFailure, NotFoundByNode, RpcRefusal
from warpseal.node.limits import CallOrigin
from warpseal.node.p_chain import (
    FoundTransaction,
    TxStatus,
    ValidationAt,
    decode_height,
    decode_l1_validator,
    decode_tx,
    decode_tx_status,
)
from warpseal.node.pool import PoolNode
from warpseal.node.rpc import NodeCall
from warpseal.warp.ids import ValidationID, id_text

P_CHAIN_PATHS: Final = ("/ext/P", "/ext/bc/P")
_FINAL: Final = (TxStatus.COMMITTED, TxStatus.ABORTED)


async def find_transaction(nodes: Iterable[PoolNode], tx_id: bytes, origin: CallOrigin) -> FoundTransaction | None:
    """Return a transaction from the first node for which it is final, else from any node that has it.

    None if no node that answered has it. Raises NodeUnavailable.
    """
    attempts: list[NodeAttempt] = []
    unsettled: FoundTransaction | None = None
    has_answer = False
    for node in nodes:
        try:
            found = await _transaction_at(node, tx_id, origin)
        except (CallFailure, RpcRefusal) as error:
            attempts.append(_attempt(node, error))
            continue
        if found is not None and found.status in _FINAL:
            return found
        has_answer = True
        unsettled = unsettled or found
    if not has_answer:
        raise NodeUnavailable("platform.getTx", attempts)
    return unsettled


async def find_validation(
    nodes: Iterable[PoolNode], validation_id: ValidationID, at_least: int, origin: CallOrigin
) -> ValidationAt | None:
    """Return a validation from the first node whose state is of height `at_least` or later.

    None if all nodes that answered are below. Raises NodeUnavailable.
    """
    attempts: list[NodeAttempt] = []
    has_answer = False
    for node in nodes:
        try:
            validation = await _validation_at(node, validation_id, origin)
        except (CallFailure, RpcRefusal) as error:
            attempts.append(_attempt(node, error))
            continue
        if validation.height >= at_least:
            return validation
        has_answer = True
    if not has_answer:
        raise NodeUnavailable("platform.getL1Validator", attempts)
    return None


async def find_all_validations(
    nodes: Sequence[PoolNode], validation_id: ValidationID, origin: CallOrigin
) -> tuple[ValidationAt, ...]:
    """Return the validation from every node that answers."""
    found = await asyncio.gather(*(_validation_or_none(node, validation_id, origin) for node in nodes))
    return tuple(validation for validation in found if validation is not None)


async def _transaction_at(node: PoolNode, tx_id: bytes, origin: CallOrigin) -> FoundTransaction | None:
    params = {"txID": id_text(tx_id)}
    hex_params = {**params, "encoding": "hex"}
    try:
        raw = await node.call(
            NodeCall(
                "platform.getTx", hex_params, P_CHAIN_PATHS, lambda result: decode_tx(tx_id, result), origin, large=True
            )
        )
    except NotFoundByNode:
        return None
    status = await node.call(NodeCall("platform.getTxStatus", params, P_CHAIN_PATHS, decode_tx_status, origin))
    # The height comes last: a transaction that was committed by then is at or below it.
    return FoundTransaction(raw, status, await node.call(_height_call(origin)))


async def _validation_at(node: PoolNode, validation_id: ValidationID, origin: CallOrigin) -> ValidationAt:
    params = {"validationID": id_text(validation_id)}
    call = NodeCall("platform.getL1Validator", params, P_CHAIN_PATHS, decode_l1_validator, origin)
    try:
        return await node.call(call)
    except NotFoundByNode:
        pass
    # This answer names no height. If the validation is still missing after the height is known, it is missing there.
    height = await node.call(_height_call(origin))
    try:
        return await node.call(call)
    except NotFoundByNode:
        return ValidationAt(height, None)


async def _validation_or_none(node: PoolNode, validation_id: ValidationID, origin: CallOrigin) -> ValidationAt | None:
    try:
        return await _validation_at(node, validation_id, origin)
    except (CallFailure, RpcRefusal):
        return None


def _height_call(origin: CallOrigin) -> NodeCall[int]:
    return NodeCall("platform.getHeight", {}, P_CHAIN_PATHS, decode_height, origin)


def _attempt(node: PoolNode, error: CallFailure | RpcRefusal) -> NodeAttempt:
    failure = error.failure if isinstance(error, CallFailure) else NodeFailure.BAD_ANSWER
    return NodeAttempt(node.position, failure)
