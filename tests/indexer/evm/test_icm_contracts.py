"""The real TeleporterMessenger on two EVM nodes (anvil), with a stand-in for the Warp precompile,
indexed and verified.

The messenger is deployed by its keyless transaction, as the recorded network has it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import zstandard
from eth_abi.abi import encode
from eth_hash.auto import keccak
from msgspec.structs import replace

from tests import paths
from tests.chains.evm.icm_logs import MESSAGE_V2, PRECOMPILE, SENT, SENT_V2, WARP, Message
from tests.eventually import until
from tests.icm.fixtures import silent_obstacles
from tests.icm.test_retry import sent as sent_message
from tests.index.evm.icm_histories import A, B
from tests.index.evm.icm_rows import assert_consistent, reading, stored_receives, stored_sends
from tests.indexer.evm.anvil_chain import AnvilChain, open_anvil_chain
from tests.indexer.evm.indexing import INDEX, Indexing, indexing
from tests.indexer.evm_chains import rlp
from warpseal.chains.evm.checks import BlockRules
from warpseal.forwarding.settings import EvmRpcSettings
from warpseal.icm.obstacles import MessageObstacles
from warpseal.icm.resources import IcmExecution, IcmRetry
from warpseal.icm.retry import JoinedMessage
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.records import IcmOptions, ReceivedMessage
from warpseal.indexer.evm.nodes import ChainNodes
from warpseal.indexer.evm.verify import EvmIndexVerifier
from warpseal.indexer.verify import IndexFinding
from warpseal.node.settings import NodeSettings
from warpseal.node.upstream import connect_upstream
from warpseal.resources.base import UNSET
from warpseal.resources.text import hex_text
from warpseal.upstream.endpoint import EvmChain, EvmIndexing, NodeEndpoint, TraceMode
from warpseal.upstream.node import open_sessions
from warpseal.warp.ids import ChainID
from warpseal.warp.message import AddressedCall, UnsignedMessage, unwrap_log_data

MESSENGER: Final = bytes.fromhex("68d42653c8455969edae4f89281f4b9ed3e9080d")
DEPLOYER: Final = "0xb845be8fca46b198ad68b60112f0c9b7910b5086"
SEND: Final = "sendCrossChainMessage((bytes32,address,(address,uint256),uint256,address[],bytes))"
MESSAGE: Final = "(uint256,address,bytes32,address,uint256,address[],(uint256,address)[],bytes)"


def keyless_transaction() -> str:
    """Return the recorded transaction that deploys the messenger."""
    packed = (paths.LOCALNET / "c-chain.jsonl.zst").read_bytes()
    for line in zstandard.decompress(packed, 2**24).splitlines():
        call = json.loads(line)
        if call["method"] == "eth_getBlockByNumber" and call["params"][0] == "0x2":
            (tx,) = call["result"]["transactions"]
            fields = [
                tx[name]
                for name in ("nonce", "gasPrice", "gas", "to", "value", "input", "v", "r", "s")
            ]
            return "0x" + rlp([as_bytes(field) for field in fields]).hex()
    raise LookupError("the block was not recorded")


def as_bytes(quantity: str | None) -> bytes:
    """Return the bytes of a field as RLP has them."""
    digits = (quantity or "0x")[2:]
    raw = bytes.fromhex(digits.rjust(len(digits) + len(digits) % 2, "0"))
    return raw if len(raw) > 32 else raw.lstrip(b"\0")


@dataclass
class IcmNode:
    """A chain with the messenger.

    receiver, coin, liar, messenger_v2: contracts of ours.
    """

    id: ChainID
    chain: AnvilChain
    receiver: bytes = b""
    coin: bytes = b""
    liar: bytes = b""
    messenger_v2: bytes = b""

    @property
    def account(self) -> bytes:
        """The account that sends everything."""
        return self.chain.accounts[0]

    async def prepare(self) -> None:
        """Deploy everything."""
        warp = await self.chain.deploy("Warp")
        code = await self.chain.rpc("eth_getCode", "0x" + warp.hex(), "latest")
        precompile = "0x" + PRECOMPILE.hex()
        await self.chain.rpc("anvil_setCode", precompile, code)
        await self.chain.rpc("anvil_setStorageAt", precompile, "0x0", "0x" + self.id.hex())
        await self.chain.rpc("anvil_setBalance", DEPLOYER, hex(10**20))
        await self.chain.rpc("eth_sendRawTransaction", keyless_transaction())
        await self.chain.mine()
        assert len(await self.chain.rpc("eth_getCode", "0x" + MESSENGER.hex(), "latest")) > 20_000
        self.receiver = await self.chain.deploy("Receiver")
        self.coin = await self.chain.deploy("Coin")
        self.liar = await self.chain.deploy("FalseMessenger")
        self.messenger_v2 = await self.chain.deploy("MessengerV2")

    async def run(self, to: bytes, signature: str, *arguments: Any) -> dict[str, Any]:
        """Call a contract in a block of its own; return the receipt."""
        tx_hash = await self.chain.send(to, signature, *arguments)
        await self.chain.mine()
        receipt: dict[str, Any] = await self.chain.rpc("eth_getTransactionReceipt", tx_hash)
        assert receipt["status"] == "0x1", signature
        return receipt

    async def send(self, to: IcmNode, body: bytes, fee: int = 0) -> tuple[bytes, AddressedCall]:
        """Send a message to the receiver of another chain; return its id and its call."""
        if fee:
            await self.run(self.coin, "approve(address,uint256)", MESSENGER, 2 * fee)
        asset = self.coin if fee else bytes(20)
        return sent(
            await self.run(MESSENGER, SEND, (to.id, to.receiver, (asset, fee), 200_000, [], body))
        )

    async def receive(self, source: IcmNode, call: AddressedCall) -> None:
        """Deliver a message of another chain."""
        stage = "stage(bytes32,address,bytes)"
        await self.run(PRECOMPILE, stage, source.id, call.source_address, call.payload)
        await self.run(MESSENGER, "receiveCrossChainMessage(uint32,address)", 0, self.account)


def sent(receipt: dict[str, Any]) -> tuple[bytes, AddressedCall]:
    """Return the id and the call of the message that a transaction sent."""
    topics = ("0x" + SENT.hex(), "0x" + SENT_V2.hex())
    (first,) = [log for log in receipt["logs"] if log["topics"][0] in topics]
    (warp,) = [log for log in receipt["logs"] if log["topics"][0] == "0x" + WARP.hex()]
    raw = unwrap_log_data(bytes.fromhex(warp["data"][2:]))
    assert raw is not None
    return bytes.fromhex(first["topics"][1][2:]), AddressedCall.parse(
        UnsignedMessage.parse(raw).payload
    )


@asynccontextmanager
async def two_chains() -> AsyncIterator[tuple[IcmNode, IcmNode]]:
    """Run two nodes with messengers."""
    async with open_anvil_chain() as first, open_anvil_chain() as second:
        nodes = IcmNode(A, first), IcmNode(B, second)
        for node in nodes:
            await node.prepare()
        yield nodes


def entry(node: IcmNode) -> EvmChain:
    """Return the entry of a chain."""
    return EvmChain(
        node.id, (NodeEndpoint(node.chain.url),), index=EvmIndexing(traces=TraceMode.OFF)
    )


async def until_joined(folder: Path, index: Indexing, nodes: Sequence[IcmNode]) -> None:
    """Wait until every block is indexed, and every message of A has the outcome that it has at the
    end.
    """
    for node in nodes:
        head = int(await node.chain.rpc("eth_blockNumber"), 16)
        await until(lambda node=node, head=head: height(index, node) >= head)  # type: ignore[misc]

    def is_joined() -> bool:
        with reading(str(folder), A) as connection:
            return len([row for row in stored_sends(connection, A) if row[-2] == "executed"]) == 2

    await until(is_joined)


def height(index: Indexing, node: IcmNode) -> int:
    """Return the last written block, -1 without one."""
    indexer = index.indexer.chains[node.id].indexer
    return -1 if indexer is None or indexer.height is None else indexer.height


async def verify(folder: Path, node: IcmNode) -> dict[str, IndexFinding]:
    """Verify the index of a chain; return the findings by subject."""
    async with open_sessions() as sessions:
        nodes = ChainNodes(entry(node), sessions, EvmRpcSettings())
        url = evm_index_url(INDEX, folder, node.id)
        verifier = EvmIndexVerifier("chain", nodes, BlockRules(), url, INDEX)
        return {finding.subject: finding for finding in await verifier.run(200, seed=1)}


def failed_message(
    source: IcmNode, destination: IcmNode, message_id: bytes, height: int
) -> JoinedMessage:
    """Return the first message, whose execution failed at a height, as indexes have it."""
    side: dict[str, Any] = {
        "message_id": message_id,
        "messenger": MESSENGER,
        "source": source.id,
        "destination": destination.id,
        "nonce": 1,
        "sender": source.account,
        "recipient": destination.receiver,
        "gas_limit": 200_000,
        "tail": b"",
        "body": b"first",
        "tx_hash": bytes(32),
        "height": height,
        "time": 0,
        "tx_fee": 0,
    }
    receive = ReceivedMessage(
        **side,
        deliverer=destination.account,
        redeemer=destination.account,
        is_executed=False,
        has_failed=True,
    )
    return JoinedMessage(receive, receive)


async def execution_and_retry(
    obstacles: MessageObstacles, message: JoinedMessage
) -> tuple[IcmExecution, IcmRetry]:
    """Return why a message failed, and what to do."""
    block = await obstacles.describe(message, (), None)
    assert block is not UNSET
    assert block.state == "failed"
    assert block.execution is not UNSET
    assert block.retry is not UNSET
    return block.execution, block.retry


async def test_the_life_of_messages_of_the_real_contract_is_indexed_and_verified(
    tmp_path: Path,
) -> None:
    async with two_chains() as (a, b), AsyncExitStack() as stack:
        # Sent with a fee that is added to, sent again, received, failed, retried; received at once;
        # never received.
        first_id, first = await a.send(b, b"first", fee=100)
        await a.run(MESSENGER, "addFeeAmount(bytes32,address,uint256)", first_id, a.coin, 50)
        second_id, second = await a.send(b, b"second")
        lost_id, _ = await a.send(b, b"lost")
        nonce_1: tuple[Any, ...] = (1, a.account, b.id, b.receiver, 200_000, [], [], b"first")
        await a.run(MESSENGER, f"retrySendCrossChainMessage({MESSAGE})", nonce_1)
        await b.run(b.receiver, "setFails(bool)", True)
        await b.receive(a, first)
        failed = failed_message(a, b, first_id, await b.chain.mine() - 1)
        upstream = connect_upstream(NodeSettings((), (), evm_chains=(entry(b),)), a.chain.session)
        obstacles = silent_obstacles(upstream.chain_rpc)
        failing = await execution_and_retry(obstacles, failed)
        await b.run(b.receiver, "setFails(bool)", False)
        await b.receive(a, second)
        curable = await execution_and_retry(obstacles, failed)
        for (execution, retry), succeeds in ((failing, False), (curable, True)):
            assert (execution.succeeds, execution.gas_limit) == (succeeds, "200000")
            # Of the time when it failed, also if it would succeed now.
            assert execution.error == "not now"
            assert execution.revert_data == hex_text(
                keccak(b"Error(string)")[:4] + encode(["string"], ["not now"])
            )
            assert ("would fail again" in retry.text) == (retry.call is UNSET) == (not succeeds)
        assert failing[1].error == "TeleporterMessenger: retry execution failed"
        execution, retry = curable
        assert execution.gas_required is not UNSET
        assert 5_000 < int(execution.gas_required) < 30_000
        to_account = JoinedMessage(replace(failed.side, recipient=a.account), failed.received)
        assert (await execution_and_retry(obstacles, to_account))[
            0
        ].error == "the recipient has no code"
        # The contract takes the call of the advice, with the gas of the advice, and no second time.
        assert retry.call is not UNSET
        assert retry.call.gas is not UNSET
        assert int(retry.call.gas) > int(execution.gas_required) + 21_000
        assert f"needs {retry.call.gas} gas" in retry.text
        gas = hex(int(retry.call.gas))
        call = {
            "from": hex_text(b.account),
            "to": retry.call.to,
            "data": retry.call.data,
            "gas": gas,
        }
        await b.chain.rpc("eth_sendTransaction", call)
        await b.chain.mine()
        assert await b.chain.call(b.receiver, "received()", "uint256") == 2
        refused = (await execution_and_retry(obstacles, failed))[1]
        assert (refused.action, refused.error) == ("none", "TeleporterMessenger: message not found")
        # A message back carries the receipts of both.
        back_id, back = await b.send(a, b"back")
        await a.receive(b, back)
        # A false messenger logs the events of the first message, and sends its bytes.
        lie = Message(A, B, 1, a.account, b.receiver, messenger=a.liar)
        for log in (*lie.sent()[:1], *lie.fee_added(7), *lie.executed()):
            await a.run(a.liar, "log(bytes32[],bytes)", list(log.topics), log.data)
        await a.run(a.liar, "sendWarp(bytes)", lie.payload)
        send_v2 = await a.run(
            a.messenger_v2, "send(bytes32,address,bytes)", b.id, b.receiver, b"version 2"
        )
        v2_id, call_v2 = sent(send_v2)

        options = IcmOptions(12_345, (MESSENGER, a.messenger_v2), is_indexed=lambda chain_id: True)
        index = await stack.enter_async_context(
            indexing(tmp_path, [entry(a), entry(b)], icm=options)
        )
        await until_joined(tmp_path, index, (a, b))
        assert_consistent(str(tmp_path))
        with reading(str(tmp_path), A) as connection:
            rows = {row[0]: (row[-3], row[-2], row[-1]) for row in stored_sends(connection, A)}
            assert stored_receives(connection, A)[0][0] == back_id
            ((adapter,),) = connection.fetch(
                "SELECT i.id FROM icm_sends s JOIN ids i ON i.key = s.warp_sender"
            )
            ((unknown, raw),) = connection.fetch(
                "SELECT unknown_logs, (SELECT count(*) FROM warp_sends) FROM chain"
            )
        assert rows == {
            first_id: (["fee", "resent", "receipt"], "executed", ""),
            second_id: (["receipt"], "executed", ""),
            lost_id: ([], "", "open"),
            v2_id: ([], "", "open"),
        }
        assert adapter == call_v2.source_address
        assert (unknown, raw) == (3, 1)
        for node in (a, b):
            findings = await verify(tmp_path, node)
            assert [
                finding
                for finding in findings.values()
                if finding.difference or not finding.is_compared
            ] == []
            kinds = {subject.split(" ")[1] for subject in findings}
            functions = {"messageReceived", "getRelayerRewardAddress", "getReceiptQueueSize"}
            assert {"getMessageHash", "getFeeInfo", *functions} <= kinds
        await stack.aclose()
        path = evm_index_url(INDEX, tmp_path, A).path
        assert path is not None
        with sqlite3.connect(path) as database:
            database.execute("UPDATE icm_sends SET body = x'11' WHERE nonce = 3")
            database.execute("UPDATE icm_receives SET redeemer = deliverer + 1")
        differences = {
            subject.split(" ")[1]
            for subject, finding in (await verify(tmp_path, a)).items()
            if finding.difference
        }
        assert differences == {"block", "getMessageHash", "getRelayerRewardAddress"}


async def test_no_retry_is_advised_that_a_messenger_of_version_2_always_refuses() -> None:
    async with open_anvil_chain() as chain:
        node = IcmNode(B, chain)
        messenger, receiver = await chain.deploy("MessengerV2"), await chain.deploy("Receiver")
        fields: tuple[Any, ...] = (
            1,
            node.account,
            messenger,
            B,
            receiver,
            200_000,
            [],
            [],
            b"first",
        )
        await node.run(messenger, f"fail(bytes32,{MESSAGE_V2})", A, fields)
        message = Message(
            A,
            B,
            1,
            node.account,
            receiver,
            200_000,
            body=b"first",
            messenger=messenger,
            adapter=PRECOMPILE,
        )
        receive = failed_message(node, node, message.id, 1).received
        assert receive is not None
        receive = replace(receive, messenger=messenger, recipient=receiver)
        side = replace(sent_message(message), messenger=messenger)
        upstream = connect_upstream(NodeSettings((), (), evm_chains=(entry(node),)), chain.session)
        execution, retry = await execution_and_retry(
            silent_obstacles(upstream.chain_rpc), JoinedMessage(side, receive)
        )
    # The recipient would take the message.
    assert execution.succeeds is True
    assert (retry.action, retry.call) == ("none", UNSET)
    assert retry.error == "TeleporterMessenger: invalid message hash"
    assert f'reverts with "{retry.error}"' in retry.text


def test_the_recorded_transaction_is_the_whole_deployment() -> None:
    assert len(bytes.fromhex(keyless_transaction()[2:])) == pytest.approx(12_340, abs=60)
