"""The APIs that each chain has at its nodes: RPC, validators and proposervm.

The nodes of a chain are those of `p-chain-api` and `info-api` that run it, and those of its entry
of `evm-chains`, which has the complete URLs of the RPC API; the other APIs are next to it. Source
of truth: ACP-181; avalanchego `vms/proposervm/service.go`,
`graft/subnet-evm/internal/ethapi/api_extra.go`, subnet-evm's validators API; the Ethereum JSON-RPC
specification.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, TypeVar

import msgspec
from cachetools import TTLCache
from msgspec.structs import replace

from warpseal.chains.proposervm import Epoch
from warpseal.errors import CallRefused
from warpseal.node.p_chain import decode_height
from warpseal.runtime.ttl_cache import loop_time
from warpseal.upstream.agreement import make_reply_classes
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.errors import (
    CallFailure,
    MethodMissing,
    NodeAttempt,
    NodeFailure,
    NodesDisagree,
    NodeUnavailable,
    RpcRefusal,
)
from warpseal.upstream.json_values import (
    MAX_HEIGHT,
    block_height,
    decode_bytes,
    decode_quantity,
    field_decoder,
    list_decoder,
    u64,
    unix_s,
)
from warpseal.upstream.node import NodeCall, UpstreamNode
from warpseal.upstream.pool import NodePool, PoolNode, attempt_of
from warpseal.upstream.replies import (
    HeightClaims,
    Reply,
    compare_fixed,
    find_agreement,
    find_quorum_height,
)
from warpseal.warp.ids import EMPTY_NODE_ID, P_CHAIN, ChainID, NodeID, id_text, node_id_text

T = TypeVar("T")

NO_EPOCH: Final = Epoch(p_chain_height=0, number=0, start_time_s=0)
"""Before Granite: a block verifies messages at the P-Chain height in its own header."""
_RPC: Final = "/rpc"
_WHOLE_URL: Final = ("",)
_LATEST: Final = "latest"
_VALIDATORS: Final = "validators.getCurrentValidators"
_READINGS: Final = 3
_READINGS_PAUSE_S: Final = 0.2
NOT_SERVED_S: Final = 600.0
"""Time for which a node that does not serve validators is not called again."""
_NOT_SERVED: Final = frozenset({404, 405})

U64 = Annotated[int, msgspec.Meta(ge=0)]


class ChainApi(StrEnum):
    """An API of a chain: the last part of its path."""

    RPC = "rpc"
    PROPOSERVM = "proposervm"
    VALIDATORS = "validators"


class ChainApiClient:
    """The nodes of one API of all chains.

    absent: statuses by which a node says that it does not run the chain, or forbids the call.
    shared: nodes of all chains.
    own: nodes of single chains, by chain.
    """

    api: ClassVar[ChainApi]
    absent: ClassVar[Container[int | None]]

    def __init__(self, shared: NodePool[int], own: Mapping[ChainID, NodePool[int]]) -> None:
        self._shared = shared
        self._own = own
        self._own_first: set[ChainID] = set()

    async def call(
        self,
        chain_id: ChainID,
        method: str,
        params: Mapping[str, Any] | Sequence[Any],
        decode: Callable[[bytes], T],
        *,
        is_refusal_final: bool = False,
        is_plausible: Callable[[T], bool] = lambda value: True,
    ) -> T | None:
        """Return the first usable result; None if all nodes lack the chain or the method.

        A node that fails may run the chain, so that its failure raises NodeUnavailable.

        is_refusal_final: true raises the first refusal as CallRefused.
        is_plausible: function that prefers results; the first other one counts if no node has one.
        """
        attempts: list[NodeAttempt] = []
        implausible: Reply[T] | None = None
        has_failed = False
        for pool, paths in self._lists(chain_id):
            call = NodeCall(method, params, paths, decode, optional=True)
            try:
                nodes = await pool.candidates(call.origin)
            except NodeUnavailable as error:
                attempts += error.attempts
                has_failed = True
                continue
            for node in nodes:
                result = await self.call_node(node, call, is_refusal_final=is_refusal_final)
                if isinstance(result, Reply):
                    value = result.value
                    if value is not None and not is_plausible(value):
                        implausible = implausible or result
                        continue
                    # The list that has the chain is called first from now on.
                    if pool is self._shared:
                        self._own_first.discard(chain_id)
                    else:
                        self._own_first.add(chain_id)
                    return value
                if result is not None:
                    attempts.append(result)
        if implausible is not None:
            return implausible.value
        if has_failed or attempts:
            raise NodeUnavailable(method, attempts)
        return None

    async def call_node(
        self, node: PoolNode, call: NodeCall[T], *, first: int = 0, is_refusal_final: bool = False
    ) -> Reply[T] | NodeAttempt | None:
        """Return the reply of a node, or its failure; None if it lacks the chain or the method.

        first: position of node 0 of the list, for the reply.
        is_refusal_final: true raises a refusal as CallRefused.
        """
        try:
            value: T = await node.call(call)
            return Reply(first + node.position, value)
        except MethodMissing:
            return None
        except RpcRefusal as refusal:
            if is_refusal_final:
                raise CallRefused(refusal.text, refusal.data) from None
            return attempt_of(node, refusal)
        except CallFailure as error:
            is_absent = error.status in self.absent and error.failure is not NodeFailure.BUSY
            return None if is_absent else attempt_of(node, error)

    def is_shared(self, chain_id: ChainID) -> bool:
        """Return whether the last result for a chain came from a node of all chains."""
        return chain_id not in self._own_first

    def _lists(self, chain_id: ChainID) -> Sequence[tuple[NodePool[int], tuple[str, ...]]]:
        """Return the lists of nodes in the order of the calls, each with the paths of the API."""
        names = ("P", id_text(chain_id)) if chain_id == P_CHAIN else (id_text(chain_id),)
        shared = (self._shared, tuple(f"/ext/bc/{name}/{self.api.value}" for name in names))
        own_pool = self._own.get(chain_id)
        if own_pool is None:
            return (shared,)
        own = (own_pool, _WHOLE_URL)
        return (own, shared) if chain_id in self._own_first else (shared, own)


def api_endpoint(rpc: NodeEndpoint, api: ChainApi) -> NodeEndpoint | None:
    """Return the endpoint of an API beside a chain's RPC endpoint; None if its URL has no /rpc."""
    base, separator, rest = rpc.base_url.rpartition(_RPC)
    if not separator:
        return None
    return replace(rpc, base_url=f"{base}/{api.value}{rest}")


class ChainRpcClient(ChainApiClient):
    """eth_* calls to the nodes of a chain, with the results of `call`."""

    api = ChainApi.RPC
    absent = (404, 405)

    async def chain_config(self, chain_id: ChainID, decode: Callable[[bytes], T]) -> T | None:
        """Return the configuration of a chain.

        decode: function that makes the JSON a value, or raises ValueError.
        """
        return await self.call(chain_id, "eth_getChainConfig", [], decode)

    async def latest_block_time_s(self, chain_id: ChainID) -> int | None:
        """Return the time of the last accepted block, Unix seconds."""
        params = [_LATEST, False]
        return await self.call(chain_id, "eth_getBlockByNumber", params, _decode_block_time)

    async def eth_call(self, chain_id: ChainID, transaction: Mapping[str, Any]) -> bytes | None:
        """Return the result of a call at the last accepted block.

        transaction: its from, to, data and gas, in the spelling of the Ethereum JSON-RPC.
        Raises CallRefused with a node's message and data.
        """
        params = [dict(transaction), _LATEST]
        return await self.call(chain_id, "eth_call", params, decode_bytes, is_refusal_final=True)


class ProposerVMClient(ChainApiClient):
    """proposervm.* calls to the nodes of a chain, with the results of `call`.

    Methods raise NodesDisagree if nodes differ.

    quorum: number of nodes of a chain that must agree; all nodes that run it, if these are fewer.
    claim_grace_s: time for which a node may report a height that too few other nodes reach.
    """

    api = ChainApi.PROPOSERVM
    absent = range(500)

    def __init__(
        self,
        shared: NodePool[int],
        own: Mapping[ChainID, NodePool[int]],
        quorum: int = 1,
        claim_grace_s: float = 60.0,
    ) -> None:
        super().__init__(shared, own)
        self._quorum = quorum
        self._claims = HeightClaims(quorum, claim_grace_s)

    async def current_epoch(self, chain_id: ChainID, most_height: int = MAX_HEIGHT) -> Epoch | None:
        """Return the epoch of the chain's next block; NO_EPOCH before Granite.

        most_height: P-Chain height beyond which another node is asked as well.
        """
        method = "proposervm.getCurrentEpoch"
        if self._quorum == 1:
            return await self.call(
                chain_id,
                method,
                {},
                _decode_epoch,
                is_plausible=lambda epoch: epoch.p_chain_height <= most_height,
            )
        for reading in range(_READINGS):
            # Nodes accept the block that ends an epoch at slightly different times: after a pause
            # all may have it.
            if reading > 0:
                await asyncio.sleep(_READINGS_PAUSE_S)
            replies, quorum = await self._ask_all(chain_id, method, _decode_epoch)
            agreed = find_agreement(replies, quorum, compare_fixed)
            if not replies:
                return None
            if agreed is not None:
                epoch = agreed[0].value
                if epoch is not None:
                    self._blame(chain_id, method, replies, epoch, lambda reply: reply.number)
                return epoch
        raise NodesDisagree(method, quorum, make_reply_classes(replies, compare_fixed))

    async def proposed_height(self, chain_id: ChainID, most_height: int = MAX_HEIGHT) -> int | None:
        """Return the P-Chain height for the header of the chain's next block, as a node sees it.

        Several nodes give the highest height that a quorum of them has reached.

        most_height: P-Chain height beyond which another node is asked as well.
        """
        method = "proposervm.getProposedHeight"
        if self._quorum == 1:
            return await self.call(
                chain_id,
                method,
                {},
                decode_height,
                is_plausible=lambda height: height <= most_height,
            )
        replies, quorum = await self._ask_all(chain_id, method, decode_height)
        heights = [reply.value for reply in replies if reply.value is not None]
        agreed = find_quorum_height(heights, quorum) if heights else None
        if agreed is not None:
            self._blame(chain_id, method, replies, agreed, lambda height: height)
        return agreed

    def _blame(
        self,
        chain_id: ChainID,
        method: str,
        replies: Sequence[Reply[T]],
        agreed: T,
        number_of: Callable[[T], int],
    ) -> None:
        """Report nodes that contradict the agreed value.

        A node contradicts it by another value with the same number, or by a number that the others
        do not reach. Of only as many nodes as have to agree, no node is reported.

        number_of: function that returns the number of a value, such as the number of an epoch.
        """
        values = {reply.position: reply.value for reply in replies if reply.value is not None}
        numbers = {position: number_of(value) for position, value in values.items()}
        now, name = asyncio.get_running_loop().time(), id_text(chain_id)
        forging = set(self._claims.update(f"{method} {name}", numbers, number_of(agreed), now))
        if len(replies) > self._quorum:
            for position, value in values.items():
                if numbers[position] == number_of(agreed) and value != agreed:
                    forging.add(position)
        for position in sorted(forging):
            # `_ask_all` counts the chain's own nodes behind those of all chains.
            pool, first = self._shared, 0
            if position >= len(self._shared):
                pool, first = self._own[chain_id], len(self._shared)
            detail = f"{name}: {values[position]}; the others agree on {agreed}"
            pool.note_contradiction(pool.nodes[position - first], method, detail)

    async def _ask_all(
        self, chain_id: ChainID, method: str, decode: Callable[[bytes], T]
    ) -> tuple[list[Reply[T]], int]:
        """Return the replies of all nodes that run the chain, and the number that must agree.

        Raises NodeUnavailable if nodes that may run it fail, so that too few are left.
        """
        tries: list[Awaitable[Reply[T] | NodeAttempt | None]] = []
        for pool, paths in self._lists(chain_id):
            call = NodeCall(method, {}, paths, decode, optional=True)
            # The chain's own nodes are counted behind those of all chains.
            first = 0 if pool is self._shared else len(self._shared)
            nodes = await pool.candidates(call.origin)
            tries += [self.call_node(node, call, first=first) for node in nodes]
        results = await asyncio.gather(*tries)
        replies = [result for result in results if isinstance(result, Reply)]
        attempts = [result for result in results if isinstance(result, NodeAttempt)]
        if attempts and len(replies) < self._quorum:
            raise NodeUnavailable(method, attempts)
        return replies, min(self._quorum, len(replies))


class ListedValidator(msgspec.Struct, frozen=True):
    """One validator, with the fields and their order as on the wire.

    Times are in seconds, percentages from 0 to 100.
    """

    validation_id: str = msgspec.field(name="validationID")
    node_id: str = msgspec.field(name="nodeID")
    weight: U64
    start_timestamp: U64 = msgspec.field(name="startTimestamp")
    is_active: bool = msgspec.field(name="isActive")
    is_l1_validator: bool = msgspec.field(name="isL1Validator")
    is_connected: bool = msgspec.field(name="isConnected")
    uptime_percentage: int | float = msgspec.field(name="uptimePercentage")
    uptime_seconds: U64 = msgspec.field(name="uptimeSeconds")


class ChainValidatorsClient:
    """The validators of one chain, with their uptimes.

    Each node measures uptimes itself, so that the node that replied last is called first.

    has_answered: true once a node has replied.
    now: monotonic clock, seconds.
    """

    def __init__(
        self, nodes: Sequence[UpstreamNode], now: Callable[[], float] | None = None
    ) -> None:
        self._nodes = list(nodes)
        timer = now or loop_time
        self._not_serving: TTLCache[UpstreamNode, bool] = TTLCache(
            1 + len(nodes), NOT_SERVED_S, timer
        )
        self.has_answered = False

    async def are_served(self) -> bool:
        """Return whether a node serves validators, or may: a node that is silent may."""
        if not self.has_answered:
            try:
                await self.current([EMPTY_NODE_ID])
            except (NodeUnavailable, CallRefused):
                return True
        return any(node not in self._not_serving for node in self._nodes)

    async def current(self, node_ids: Sequence[NodeID]) -> tuple[ListedValidator, ...] | None:
        """Return the validators with these node ids; None if no node serves validators.

        node_ids: ids of the nodes; an empty list stands for all.
        Raises CallRefused with a node's message, and NodeUnavailable if no node answered.
        """
        params = {"nodeIDs": [node_id_text(node_id) for node_id in node_ids]}
        call = NodeCall(_VALIDATORS, params, _WHOLE_URL, _decode_validators)
        attempts: list[NodeAttempt] = []
        for position, node in enumerate(tuple(self._nodes)):
            if node in self._not_serving:
                continue
            try:
                validators = await node.call(call)
            except RpcRefusal as error:
                raise CallRefused(error.text) from None
            except CallFailure as error:
                if error.status in _NOT_SERVED:
                    self._not_serving[node] = True
                else:
                    attempts.append(NodeAttempt(position, error.failure.public))
                continue
            self.has_answered = True
            self._nodes.remove(node)
            self._nodes.insert(0, node)
            return validators
        if attempts:
            raise NodeUnavailable(_VALIDATORS, attempts)
        return None


class _Epoch(msgspec.Struct, rename="camel"):
    number: int | str
    start_time: int | str
    p_chain_height: int | str


_EPOCH: Final = msgspec.json.Decoder(_Epoch)
_decode_validators: Final = list_decoder("validators", ListedValidator, lambda validator: validator)
_decode_block_time: Final = field_decoder(
    "timestamp", str, lambda text: unix_s(decode_quantity(text))
)


def _decode_epoch(result: bytes) -> Epoch:
    epoch = _EPOCH.decode(result)
    return Epoch(block_height(epoch.p_chain_height), u64(epoch.number), unix_s(epoch.start_time))
