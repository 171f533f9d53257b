"""Checks the rows of an EVM chain's index against each other, and samples against the nodes.

The receipts of a sampled block must give the receiptsRoot of its header, which a node cannot
invent, until Helicon on the C-Chain and always on L1s. If a contract does not confirm a holding
that its events gave, the index is searched for the cause: only if no event is wrong or missing, the
contract itself is, and that is no fault of the index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from random import Random
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from warpseal.chains.evm.blocks import EvmHeader, EvmReceipt, MalformedBlock, decode_block
from warpseal.chains.evm.checks import BlockContradiction, BlockRules, block_facts
from warpseal.chains.evm.contract_calls import (
    balance_of_batch_call,
    balance_of_call,
    decode_account,
    decode_number,
    decode_numbers,
    owner_of_call,
)
from warpseal.chains.evm.facts import EvmBlockFacts, TokenStandard
from warpseal.chains.evm.receipts_root import receipts_root
from warpseal.chains.keccak import keccak
from warpseal.index.consistency import Inconsistency, check_file
from warpseal.index.evm import consistency, holder_consistency, icm_consistency
from warpseal.index.evm.consistency import IndexedRange, SampledToken
from warpseal.index.evm.holder_consistency import SampledBalance
from warpseal.index.evm.icm_consistency import SampledMessage
from warpseal.index.settings import IndexSettings
from warpseal.indexer.evm.nodes import ChainNodes, ContractCall, EvmCaller, NoResult
from warpseal.indexer.verify import IndexFinding, SnapshotReader
from warpseal.resources.text import account_text
from warpseal.runtime.process import Progress, ignore_progress
from warpseal.store.connection import Connection
from warpseal.store.url import StoreUrl
from warpseal.upstream.batch import ChainNode, NodeResource
from warpseal.upstream.errors import CallFailure, NodeUnavailable
from warpseal.upstream.evm_blocks import BLOCK, NO_RECEIPTS, read_receipts
from warpseal.upstream.jsonrpc import rpc_call

T = TypeVar("T")

_MAX_INCONSISTENCIES: Final = 100
# A chain may have a block each half second, and a node without older states must have the same last
# block as the index.
_STATE_ATTEMPTS: Final = 40
_STATE_RETRY_S: Final = 0.25
_NOT_HERE: Final = "no node has the block with its receipts"
_NO_STATE: Final = "no node has the state at the height of the index, or answers"
_BEGINS_LATER: Final = "the index begins later than the chain, so that the balance is not known"
_WRONG_EVENTS: Final = "the events of the contract contradict each other"
_EVENTS: Final = [
    "0x" + keccak(signature).hex()
    for signature in (
        b"Transfer(address,address,uint256)",
        b"ConsecutiveTransfer(uint256,uint256,address,address)",
        b"TransferSingle(address,address,address,uint256,uint256)",
        b"TransferBatch(address,address,address,uint256[],uint256[])",
    )
]
_ERC20_TOPICS: Final = 3
# Blocks of one search for events, searches, and blocks that are compared then.
_SEARCHED_BLOCKS: Final = 2_000
_MAX_SEARCHES: Final = 100
_MAX_COMPARED: Final = 200
# Fields of EvmBlockFacts that have rows.
_COMPARED: Final = (
    "hash",
    "time",
    "tx_count",
    "gas_used",
    "gas_limit",
    "base_fee",
    "gas_cost",
    "fees_spent",
    "transfers",
    "creations",
    "tx_hashes",
)


class _Log(msgspec.Struct, rename="camel"):
    block_number: str
    topics: list[str]


class _FetchedBlock(Struct, frozen=True):
    """A block of a node.

    facts: the facts without candidate transfers of contracts that deny being ERC-721.
    """

    header: EvmHeader
    receipts: Sequence[EvmReceipt]
    facts: EvmBlockFacts


class _StateCheck(Struct, frozen=True):
    """A comparison of a row with the state of a contract after one block.

    read: returns the row as it is in a snapshot.
    judge: returns the finding from the row, the result of the call, and the indexed blocks of that
        snapshot.
    """

    subject: str
    call: ContractCall
    read: Callable[[Connection], Any]
    judge: Callable[[Any, bytes | NoResult, IndexedRange], Awaitable[IndexFinding]]


class _Search(Struct, frozen=True):
    """The blocks in which the cause of a difference may be.

    heights: the blocks to compare with the nodes.
    compare: returns how a block differs from the block of a node, as `_compare_with_nodes` does.
    lowest: the lowest block that was searched for events that the index lacks.
    """

    heights: Iterable[int]
    compare: Callable[[int], Awaitable[str | None]]
    lowest: int


class EvmIndexVerifier:
    """Verifies the index of one chain, which the indexer may be writing to.

    It is used once, from one event loop.

    name: name of the chain, in front of every subject.
    """

    def __init__(
        self,
        name: str,
        nodes: ChainNodes,
        rules: BlockRules,
        url: StoreUrl,
        settings: IndexSettings,
    ) -> None:
        self._name = name
        self._nodes = nodes
        self._rules = replace(rules, has_icm=True)
        self._caller = EvmCaller(nodes)
        self._index = SnapshotReader(url, settings)
        self._read = self._index.read

    async def run(
        self, count: int, seed: int | None = None, progress: Progress = ignore_progress
    ) -> tuple[IndexFinding, ...]:
        """Return the result of every check. Raises StoreDown, IndexDamaged.

        count: number of samples of blocks, NFT holdings, ERC-20 balances, and messages each.
        progress: gets the name of a step, its finished units and all its units.
        """
        random = Random(seed)
        progress(f"{self._name}: comparing rows with each other", 0, 0)
        try:
            await self._read(check_file)
            inconsistencies = await self._read(partial(self._find_inconsistencies, progress))
            if inconsistencies:
                # Samples of such rows cannot be read, or differ because of them.
                return tuple(self._finding(row.subject, row.reason) for row in inconsistencies)
            findings = [self._finding("the rows of the index against each other")]
            blocks = await self._read(
                partial(consistency.sample_blocks, count=count, random=random)
            )
            tokens = await self._read(
                partial(consistency.sample_tokens, count=count, random=random)
            )
            balances: list[SampledBalance] = []
            if await self._read(holder_consistency.has_balances):
                self._rules = replace(self._rules, has_erc20=True)
                sample = partial(holder_consistency.sample_balances, count=count, random=random)
                balances = await self._read(sample)
            for place, number in enumerate(blocks):
                progress(f"{self._name}: comparing blocks", place, len(blocks))
                findings.append(await self._verify_block(number))
            range_ = await self._read(consistency.indexed_range)
            is_complete = range_ is not None and range_.is_complete
            checks: list[_StateCheck] = []
            for token in tokens:
                check = self._token_check(token)
                if is_complete or token.standard is not TokenStandard.ERC1155:
                    checks.append(check)
                else:
                    findings.append(self._incomparable(check.subject))
            checks += map(self._balance_check, balances)
            checks += await self._message_checks(count, random)
            # All states come last and together: they are compared after one block.
            findings += await self._compare_states(checks, progress)
            return tuple(findings)
        finally:
            self._index.close()

    def _find_inconsistencies(
        self, progress: Progress, connection: Connection
    ) -> list[Inconsistency]:
        """Return the first contradictions between rows, with the steps of their search reported."""

        def report(step: str, done: int, total: int) -> None:
            progress(f"{self._name}: {step}", done, total)

        inconsistencies = consistency.find_inconsistencies(connection, report)
        with closing(inconsistencies):
            return list(islice(inconsistencies, _MAX_INCONSISTENCIES))

    def _finding(self, subject: str, difference: str = "", **fields: Any) -> IndexFinding:
        return IndexFinding(f"{self._name}: {subject}", difference, chain=self._name, **fields)

    def _incomparable(self, subject: str) -> IndexFinding:
        return self._finding(subject, is_compared=False, reason=_BEGINS_LATER, is_comparable=False)

    async def _verify_block(self, number: int) -> IndexFinding:
        difference = await self._compare_block(number)
        if difference is None:
            return self._finding(f"block {number}", is_compared=False, reason=_NOT_HERE)
        return self._finding(f"block {number}", difference)

    async def _compare_block(self, number: int) -> str | None:
        """Return how the rows of a block differ from the blocks of the nodes.

        The result is that of `_compare_with_nodes`.
        """
        stored = await self._read(partial(consistency.stored_block, number=number))
        if stored is None:
            return "it is not in the index"
        return await self._compare_with_nodes(number, partial(self._difference, stored))

    async def _compare_with_nodes(
        self, number: int, compare: Callable[[_FetchedBlock], Awaitable[str]]
    ) -> str | None:
        """Return the result of `compare` for the block of the last node that has it.

        Returns "" as soon as one node agrees, since the others may be wrong, and None if no node
        has the block.
        """
        difference: str | None = None
        try:
            nodes = await self._nodes.require_candidates(NodeResource.RECEIPTS, number)
        except NodeUnavailable:
            return None
        for node in nodes:
            block = await self._fetch(node, number)
            if block is not None:
                difference = await compare(block)
                if not difference:
                    return ""
        return difference

    async def _difference(self, stored: EvmBlockFacts, block: _FetchedBlock) -> str:
        for name in _COMPARED:
            ours, theirs = getattr(stored, name), getattr(block.facts, name)
            if ours != theirs:
                return f"{name}: the index has {_text(ours)}, the node {_text(theirs)}"
        compare_messages = partial(icm_consistency.compare_messages, block=block.facts)
        if difference := await self._read(compare_messages):
            return difference
        if self._rules.is_executed_first(stored.time):
            root = await asyncio.to_thread(receipts_root, block.receipts)
            if root.hex() != block.header.receipts_root.removeprefix("0x").lower():
                return "the receipts of the node do not give the receiptsRoot of the block"
        return ""

    async def _fetch(self, node: ChainNode, number: int) -> _FetchedBlock | None:
        """Return a block of a node; None if it does not have it, or contradicts itself."""
        try:
            header = decode_block(await self._call(node, BLOCK, hex(number), False))
            if header is None:
                return None
            raw = await read_receipts(node.call_batch, [header], node.lacks_methods)
            receipts = raw.get(0, NO_RECEIPTS).decode()
            if receipts is None:
                return None
            facts = block_facts(header, receipts, self._rules)
        except (CallFailure, MalformedBlock, BlockContradiction):
            return None
        candidates = [transfer.contract for transfer in facts.transfers if transfer.is_candidate]
        denied: set[bytes] = set()
        if candidates:
            read = partial(consistency.denied_contracts, contracts=candidates)
            denied = await self._read(read)
        return _FetchedBlock(header, receipts, _as_stored(facts, denied))

    async def _call(self, node: ChainNode, method: str, *params: Any) -> bytes:
        """Return the JSON of a result, `null` for an error."""
        (response,) = await node.call_batch([rpc_call(method, *params)])
        return b"null" if response.result is None else bytes(response.result)

    async def _compare_states(
        self, checks: Sequence[_StateCheck], progress: Progress
    ) -> list[IndexFinding]:
        """Compare rows with the state of their contracts, all of them after one block.

        The index and its nodes go on. So the height and all rows are read in one snapshot, and one
        batch of calls follows; the next attempt repeats the calls that no node answered in that
        state.
        """
        findings: dict[int, IndexFinding] = {}
        name = f"{self._name}: comparing holdings"
        for attempt in range(_STATE_ATTEMPTS):
            open_numbers = [number for number in range(len(checks)) if number not in findings]
            open_checks = [checks[number] for number in open_numbers]
            progress(name, len(findings), len(checks))
            if not open_checks:
                break
            await asyncio.sleep(_STATE_RETRY_S if attempt else 0)
            head = await self._head()
            blocks, samples = await self._read(partial(_read_samples, checks=open_checks))
            calls = [check.call for check in open_checks]
            results = await self._caller.call_all(calls, blocks.height)
            # A node without the state of the height answers from its last block, which is another
            # state unless it is the same block.
            is_latest = any(
                node.lacks(NodeResource.STATE, blocks.height) for node in self._nodes.nodes
            )
            if is_latest and not head == await self._head() == blocks.height:
                continue
            for number, sample, result in zip(open_numbers, samples, results, strict=True):
                if result is not None:
                    findings[number] = await checks[number].judge(sample, result, blocks)
        for number, check in enumerate(checks):
            if number not in findings:
                findings[number] = self._finding(check.subject, is_compared=False, reason=_NO_STATE)
        return [findings[number] for number in range(len(checks))]

    def _token_check(self, token: SampledToken) -> _StateCheck:
        subject = (
            f"{token.standard} token {token.token_id} of {account_text(token.contract)}"
            f" held by {account_text(token.holder)}"
        )
        if token.standard is TokenStandard.ERC721:
            call = owner_of_call(token.token_id)
        else:
            call = balance_of_batch_call([token.holder], [token.token_id])

        async def judge(
            current: SampledToken, result: bytes | NoResult, blocks: IndexedRange
        ) -> IndexFinding:
            return await self._explain(subject, current, _token_difference(current, result), blocks)

        return _StateCheck(
            subject,
            ContractCall(token.contract, call),
            partial(consistency.holding, token=token),
            judge,
        )

    def _balance_check(self, sampled: SampledBalance) -> _StateCheck:
        subject = (
            f"ERC-20 balance of {account_text(sampled.holder)} in {account_text(sampled.contract)}"
        )

        async def judge(
            current: SampledBalance, result: bytes | NoResult, blocks: IndexedRange
        ) -> IndexFinding:
            balance = None if isinstance(result, NoResult) else decode_number(result)
            difference = ""
            if balance is None:
                difference = f"the index has {current.balance}, the contract nothing"
            elif balance != current.balance:
                difference = f"the index has {current.balance}, the contract {balance}"
            return await self._explain(subject, current, difference, blocks)

        call = ContractCall(sampled.contract, balance_of_call(sampled.holder))
        read = partial(holder_consistency.current_balance, sampled=sampled)
        return _StateCheck(subject, call, read, judge)

    async def _message_checks(self, count: int, random: Random) -> list[_StateCheck]:
        """Return comparisons of sampled messages of ICM with the state of their messengers."""
        checks: list[_StateCheck] = []
        sample = partial(icm_consistency.sample_messages, count=count, random=random)
        for key in await self._read(sample):
            read = partial(icm_consistency.read_message, key=key)
            message = await self._read(read)
            for name, expected in message.results.items():
                selector = keccak(f"{name}(bytes32)".encode())[:4]
                call = ContractCall(message.messenger, selector + expected.argument)
                subject = f"{name} of message 0x{message.message_id.hex()}"
                judge = partial(self._judge_message, subject, name)
                checks.append(_StateCheck(subject, call, read, judge))
        return checks

    async def _judge_message(
        self,
        subject: str,
        name: str,
        message: SampledMessage,
        result: bytes | NoResult,
        blocks: IndexedRange,
    ) -> IndexFinding:
        _, low, high, size = message.results[name]
        lowest = _text(low.to_bytes(size))
        if isinstance(result, NoResult):
            return self._finding(subject, f"the index has {lowest}, the messenger nothing")
        if len(result) == size and low <= int.from_bytes(result) <= high:
            return self._finding(subject)
        ours = lowest if low == high else f"{lowest} to {_text(high.to_bytes(size))}"
        return self._finding(subject, f"the index has {ours}, the messenger {_text(result)}")

    async def _explain(
        self,
        subject: str,
        row: SampledToken | SampledBalance,
        difference: str,
        blocks: IndexedRange,
    ) -> IndexFinding:
        """Return the finding for a row that its contract may contradict.

        The row is wrong if a block of the index differs from the nodes; else the contract is, and
        the finding has a remark.

        difference: the contradiction, "" for none.
        """
        if not difference:
            return self._finding(subject)
        reason = _WRONG_EVENTS
        if not row.is_inconsistent:
            if isinstance(row, SampledToken):
                search = await self._search_token(row, blocks)
            else:
                search = await self._search_balance(row, blocks)
            for number in dict.fromkeys(search.heights):
                if cause := await search.compare(number):
                    return self._finding(subject, f"{difference}; block {number}: {cause}")
            events = f"its events since block {search.lowest}"
            reason = f"{events} say otherwise, and the index has all of them"
        return self._finding(
            subject, remark=f"{difference}; {reason}", contract=account_text(row.contract)
        )

    async def _search_token(self, token: SampledToken, blocks: IndexedRange) -> _Search:
        """Return the blocks of a token, and the blocks with events that the index lacks."""
        read_numbers = partial(consistency.blocks_of_token, token=token, limit=_MAX_COMPARED)
        numbers = await self._read(read_numbers)
        read_indexed = partial(consistency.blocks_of_contract, contract=token.contract)
        indexed = set(await self._read(read_indexed))
        logged, lowest = await self._blocks_with_events(
            token.contract, blocks, [_EVENTS], lambda log: not _is_erc20(log)
        )
        others = sorted(logged - indexed, reverse=True)[:_MAX_COMPARED]
        return _Search((*numbers, *others), self._compare_block, lowest)

    async def _search_balance(self, sampled: SampledBalance, blocks: IndexedRange) -> _Search:
        """Return the blocks that changed a balance, and the blocks with events of the holder."""
        changes = await self._read(
            partial(holder_consistency.changes_of_balance, sampled=sampled, limit=_MAX_COMPARED)
        )
        logged: set[int] = set()
        lowest = blocks.height + 1
        sent = [_EVENTS[0], _word(sampled.holder)]
        received = [_EVENTS[0], None, _word(sampled.holder)]
        for topics in (sent, received):
            numbers, lowest = await self._blocks_with_events(
                sampled.contract, blocks, topics, _is_erc20
            )
            logged |= numbers
        others = sorted(logged - changes.keys(), reverse=True)[:_MAX_COMPARED]
        # Below the last compared change, the index may have changes that were not read.
        if len(changes) == _MAX_COMPARED:
            others = [other for other in others if other > min(changes)]

        async def compare(number: int) -> str | None:
            change = changes.get(number, 0)
            compare_change = partial(_compare_change, sampled, change=change)
            return await self._compare_with_nodes(number, compare_change)

        return _Search((*changes, *others), compare, lowest)

    async def _head(self) -> int | None:
        try:
            return (await self._nodes.heads())[0]
        except NodeUnavailable:
            return None

    async def _blocks_with_events(
        self,
        contract: bytes,
        blocks: IndexedRange,
        topics: Sequence[Any],
        is_match: Callable[[_Log], bool],
    ) -> tuple[set[int], int]:
        """Return the blocks with events of a contract, and the lowest block that was searched.

        The search begins at the newest block. It ends early at a node that does not answer, and
        after a number of calls.
        """
        numbers: set[int] = set()
        low = blocks.height + 1
        for _ in range(_MAX_SEARCHES):
            if low <= blocks.first_height:
                break
            begin = max(blocks.first_height, low - _SEARCHED_BLOCKS)
            span = {
                "address": "0x" + contract.hex(),
                "fromBlock": hex(begin),
                "toBlock": hex(low - 1),
                "topics": topics,
            }
            logs = await self._search(span)
            if logs is None:
                break
            numbers.update(int(log.block_number, 16) for log in logs if is_match(log))
            low = begin
        return numbers, low

    async def _search(self, span: dict[str, Any]) -> list[_Log] | None:
        try:
            node = (await self._nodes.require_candidates())[0]
            raw = await self._call(node, "eth_getLogs", span)
            return msgspec.json.decode(raw, type=list[_Log] | None)
        except (NodeUnavailable, CallFailure, msgspec.MsgspecError, ValueError):
            return None


async def _compare_change(sampled: SampledBalance, block: _FetchedBlock, *, change: int) -> str:
    """Return how the change of a balance differs from the events of a node's block.

    Returns "" if it does not.
    """
    expected = 0
    for transfer in block.facts.erc20_transfers:
        if transfer.contract == sampled.contract:
            # A transfer to oneself changes nothing.
            if transfer.recipient == sampled.holder:
                expected += transfer.amount
            if transfer.sender == sampled.holder:
                expected -= transfer.amount
    if expected == change:
        return ""
    return f"it changed by {change}, by the events of the node by {expected}"


def _read_samples(
    connection: Connection, checks: Sequence[_StateCheck]
) -> tuple[IndexedRange, list[Any]]:
    blocks = consistency.indexed_range(connection)
    assert blocks is not None
    return blocks, [check.read(connection) for check in checks]


def _token_difference(token: SampledToken, result: bytes | NoResult) -> str:
    """Return how the contract contradicts a holding, "" if it does not."""
    if isinstance(result, NoResult):
        return f"the contract does not answer: {result.value}"
    if token.standard is TokenStandard.ERC721:
        owner = decode_account(result)
        if owner is None:
            return "ownerOf returned no address"
        if owner != token.holder:
            return f"the contract says that {account_text(owner)} owns it"
        return ""
    balances = decode_numbers(result, 1)
    if balances is None:
        return "balanceOfBatch returned no balance"
    if balances[0] != token.balance:
        return f"the index has {token.balance}, the contract {balances[0]}"
    return ""


def _is_erc20(log: _Log) -> bool:
    return len(log.topics) == _ERC20_TOPICS and log.topics[0] == _EVENTS[0]


def _word(address: bytes) -> str:
    return "0x" + address.rjust(32, b"\0").hex()


def _as_stored(facts: EvmBlockFacts, denied: set[bytes]) -> EvmBlockFacts:
    """Return facts as `stored_block` returns them: without denied candidates and unused hashes."""
    transfers = tuple(
        msgspec.structs.replace(transfer, is_candidate=False)
        for transfer in facts.transfers
        if not (transfer.is_candidate and transfer.contract in denied)
    )
    tx_indexes = {transfer.tx_index for transfer in transfers} | {
        creation.tx_index for creation in facts.creations
    }
    hashes = {index: facts.tx_hashes[index] for index in tx_indexes}
    return msgspec.structs.replace(facts, transfers=transfers, tx_hashes=hashes)


def _text(value: object) -> str:
    text = "0x" + value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= 200 else text[:200] + "…"
