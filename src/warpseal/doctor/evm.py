"""Checks the nodes of indexed EVM chains for what the indexer needs, and the space on the disk.

No finding here affects signing.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from warpseal.chains.evm.blocks import MalformedBlock, decode_receipts
from warpseal.config.keys import Config
from warpseal.errors import StartupError
from warpseal.forwarding.evm.served_l1s import BlockchainsOf, ServedL1s
from warpseal.index.evm.database import evm_index_url
from warpseal.indexer.evm.nodes import ChainNodes
from warpseal.indexer.evm.tracer import TRACE_METHOD, TRACE_OPTIONS
from warpseal.ops.health.registry import Finding, Grade
from warpseal.upstream.batch import ChainNode
from warpseal.upstream.endpoint import EvmChain, TraceMode
from warpseal.upstream.errors import CallFailure
from warpseal.upstream.evm_blocks import BLOCK, BLOCK_RECEIPTS
from warpseal.upstream.json_values import quantity_or_none
from warpseal.upstream.jsonrpc import RpcResponse, is_unknown_method, rpc_call
from warpseal.upstream.node import Sessions, open_sessions
from warpseal.upstream.probe import probe_endpoint
from warpseal.warp.ids import P_CHAIN, id_text

BYTES_PER_BLOCK: Final = 100
"""The size of a block in an index; transfers, contracts and metadata come on top."""
_TIMEOUT_S: Final = 10.0
_COMMIT_INTERVAL: Final = 4_096

_NO_L1S: Final = (
    "does the node track these subnets (track-subnets), and is it bootstrapped? Later chains are"
    " found as well"
)
_NO_CHAIN: Final = (
    "the node has no chain at this path: the URL ends in /ext/bc/<blockchain id>/rpc (/ext/bc/C/rpc"
    " for the C-Chain), and the node of an L1 tracks its subnet (track-subnets)"
)
_NO_TRACES: Final = (
    "without it, contracts that other contracts create are missing in the list of deployed"
    " contracts, and freshness says internal=none; add debug-tracer to eth-apis in the chain config"
    " of the node, or set traces to off"
)
_NO_OLD_TRACES: Final = (
    "contracts that other contracts created in old blocks are missing in the list of deployed"
    " contracts; a node with pruning-enabled false, synced from the first block, can trace all"
    " blocks"
)
_NO_BEGINNING: Final = (
    "if no other node has them, the index begins at the first block that a node has; a node that"
    " was synced from the first block (state-sync-enabled false) and keeps its receipts has them"
)


async def check_evm_indexes(
    config: Config, network_id: int, blockchains_of: BlockchainsOf
) -> list[Finding]:
    """Check every node of every EVM chain that is indexed; empty without such a chain."""
    node = config.node
    if not node.has_evm_index:
        return []
    findings: list[Finding] = []
    async with open_sessions() as sessions:
        chains = [(chain, "evm-chains") for chain in node.indexed_evm_chains]
        if node.index_l1s_at is not None:
            configured_ids = [chain.blockchain_id for chain in node.evm_chains]
            subnet_ids = config.validators.tracked_subnet_ids
            finder = ServedL1s(
                node.index_l1s_at,
                subnet_ids,
                blockchains_of,
                configured_ids,
                sessions,
                config.evm_rpc,
            )
            l1_chains = await finder.find()
            chains += [(chain, "index-l1s-at") for chain in l1_chains]
            if not l1_chains:
                text = (
                    f"index-l1s-at {node.index_l1s_at.endpoint.display} serves no EVM chain of"
                    " tracked-subnet-ids"
                )
                findings.append(Finding(Grade.WARNING, text, _NO_L1S, {"setting": "index-l1s-at"}))
        checks = [_ChainCheck(chain, setting, config, sessions).run() for chain, setting in chains]
        results = await asyncio.gather(*checks)
    for result in results:
        findings += result.findings
    # The last one stands for the chains that the node of L1s may serve later.
    blocks = [
        (chain.blockchain_id, result.blocks)
        for (chain, _), result in zip(chains, results, strict=True)
    ]
    blocks += [(P_CHAIN, 0)] if node.index_l1s_at is not None else []
    blocks_by_folder = Counter[Path]()
    try:
        for chain_id, count in blocks:
            url = evm_index_url(config.index, config.peers.data_dir / str(network_id), chain_id)
            if url.path is not None:
                blocks_by_folder[url.path.parent] += count
    except StartupError as error:
        return [*findings, Finding(Grade.BAD, str(error))]
    for folder, count in blocks_by_folder.items():
        findings.append(await asyncio.to_thread(_check_disk, folder, count))
    return findings


class _ChainResult(NamedTuple):
    """The findings about a chain.

    blocks: smallest number of blocks that its index will have.
    """

    findings: Sequence[Finding]
    blocks: int


class _ChainCheck:
    """Checks the nodes of one chain.

    setting: name of the setting that names the nodes.
    """

    def __init__(self, chain: EvmChain, setting: str, config: Config, sessions: Sessions) -> None:
        assert chain.index is not None
        self._chain = chain
        self._indexing = chain.index
        self._setting = setting
        self._sessions = sessions
        self._nodes = ChainNodes(chain, sessions, config.evm_rpc)
        self._timeout_s = config.node.call_timeout_s

    async def run(self) -> _ChainResult:
        """Ask all nodes; never raises."""
        await self._nodes.check()
        results = await asyncio.gather(*map(self._check_node, self._nodes.nodes))
        heads = [node.head for node in self._nodes.nodes if node.head is not None]
        findings = [finding for of_node in results for finding in of_node]
        blocks = max(heads, default=0) - self._indexing.first_height
        return _ChainResult(findings, max(0, blocks))

    async def _check_node(self, node: ChainNode) -> list[Finding]:
        chain, setting = id_text(self._chain.blockchain_id), f"rpc[{node.position}]"
        where = f"{self._setting} {chain} {setting} {node.display}"
        detail = {"chain": chain, "setting": setting}
        identity, failure = self._nodes.identity.expected, node.failure
        try:
            if failure is not None:
                return [await self._describe_failure(node, where, failure, detail)]
            assert identity is not None
            head = _number_of(await self._call(node, BLOCK, "latest", False))
            if head is None:
                advice = "the node may still be starting"
                return [Finding(Grade.WARNING, f"{where} has no latest block", advice, detail)]
            node.set_head(head)
            findings = [*await self._check_blocks(node, head, where, detail)]
            if self._indexing.traces is not TraceMode.OFF:
                findings += await self._check_traces(node, head, where, detail)
        except CallFailure as error:
            text, advice = f"{where}: {error.reply}", "is the node overloaded?"
            return [Finding(Grade.WARNING, text, advice, detail)]
        text = f"{where} answers: EVM chain id {identity.chain_id}, block {head}"
        response = Finding(Grade.GOOD, text, detail={**detail, "evmChainId": identity.chain_id})
        return [response, *findings]

    async def _describe_failure(
        self, node: ChainNode, where: str, failure: str, detail: dict[str, Any]
    ) -> Finding:
        """Return why a node cannot be used, and how its URL responds."""
        if node.mismatch is not None:
            advice = (
                "the URL ends in /ext/bc/<blockchain id>/rpc; all nodes of one entry serve one"
                " chain"
            )
            return Finding(Grade.WARNING, f"{where} {failure}", advice, detail)
        session, endpoint = self._sessions.pooled, self._chain.rpc[node.position]
        response = await probe_endpoint(
            session, endpoint, [""], "eth_chainId", self._timeout_s, params=[]
        )
        detail = {**detail, "status": response.status, "body": response.body}
        if response.status == HTTPStatus.NOT_FOUND:
            return Finding(Grade.WARNING, f"{where}: {response}", _NO_CHAIN, detail)
        advice = response.meaning or "is the node up, and the URL right?"
        return Finding(Grade.WARNING, f"{where}: {failure} ({response})", advice, detail)

    async def _check_blocks(
        self, node: ChainNode, head: int, where: str, detail: dict[str, Any]
    ) -> list[Finding]:
        """Check that the node has the receipts of its last block, and the first indexed block."""
        latest = await self._call(node, BLOCK_RECEIPTS, hex(head))
        if is_unknown_method(latest, BLOCK_RECEIPTS):
            advice = (
                "receipts are read one by one, with eth_getTransactionReceipt, which is slower:"
                " upgrade the node"
            )
            text = f"{where} does not have {BLOCK_RECEIPTS}"
            return [Finding(Grade.WARNING, text, advice, detail)]
        if not _has_receipts(latest):
            text = f"{where} returns no receipts of its block {head}{self._reason(node, latest)}"
            advice = "is it still syncing? The indexer asks other nodes, or waits"
            return [Finding(Grade.WARNING, text, advice, detail)]
        first = max(1, self._indexing.first_height)
        if first < head:
            block = await self._call(node, BLOCK, hex(first), False)
            receipts = await self._call(node, BLOCK_RECEIPTS, hex(first))
            missing_part = "" if _has_receipts(receipts) else "the receipts of "
            if missing_part or _number_of(block) != first:
                text = (
                    f"{where} does not have {missing_part}block {first}, the first that is indexed"
                )
                return [Finding(Grade.WARNING, text, _NO_BEGINNING, detail)]
        return []

    async def _check_traces(
        self, node: ChainNode, head: int, where: str, detail: dict[str, Any]
    ) -> list[Finding]:
        """Check that the node traces its last block, the first indexed block, and a middle block.

        A pruned node has the state of the genesis and that of every 4,096th block.
        """
        if head < 1:
            return []
        latest = await self._call(node, TRACE_METHOD, hex(head), TRACE_OPTIONS)
        if latest.result is None:
            text = f"{where} has no {TRACE_METHOD}{self._reason(node, latest)}"
            return [Finding(Grade.WARNING, text, _NO_TRACES, detail)]
        first = max(1, self._indexing.first_height)
        middle = (first + head) // 2
        for height in dict.fromkeys((first, middle + (middle % _COMMIT_INTERVAL == 1))):
            older = await self._call(node, TRACE_METHOD, hex(height), TRACE_OPTIONS)
            if height < head and older.result is None:
                text = f"{where} does not trace block {height}{self._reason(node, older)}"
                return [Finding(Grade.WARNING, text, _NO_OLD_TRACES, detail)]
        return []

    async def _call(self, node: ChainNode, method: str, *params: Any) -> RpcResponse:
        (response,) = await node.call_batch([rpc_call(method, *params)], timeout_s=_TIMEOUT_S)
        return response

    def _reason(self, node: ChainNode, response: RpcResponse) -> str:
        """Return the error of a node in brackets, without the parts that may be a key."""
        if response.error is None:
            return ""
        message = self._chain.rpc[node.position].scrub(response.error.message)
        return f" ({response.error.code}: {message})"


def _check_disk(folder: Path, blocks: int) -> Finding:
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free_bytes = shutil.disk_usage(existing).free
    stored_bytes = sum(path.stat().st_size for path in folder.glob("*.db"))
    needed_bytes = max(0, blocks * BYTES_PER_BLOCK - stored_bytes)
    text = (
        f"{folder} has {_size(free_bytes)} free; {blocks} blocks of the indexed EVM chains take"
        f" about {_size(needed_bytes)} more, in addition to NFT transfers and metadata"
    )
    detail = {"freeBytes": free_bytes, "neededBytes": needed_bytes}
    if free_bytes < needed_bytes:
        advice = "make room, set index-url to a PostgreSQL database, or begin later with from"
        return Finding(Grade.WARNING, text, advice, detail)
    return Finding(Grade.GOOD, text, detail=detail)


def _size(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1024:.0f} KiB"


def _number_of(response: RpcResponse) -> int | None:
    """Return the number of the block in a response; None without one."""
    try:
        header = None if response.result is None else msgspec.json.decode(response.result)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return quantity_or_none(header.get("number")) if isinstance(header, dict) else None


def _has_receipts(response: RpcResponse) -> bool:
    try:
        return response.result is not None and decode_receipts(bytes(response.result)) is not None
    except MalformedBlock:
        return False
