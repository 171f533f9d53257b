"""Logs of a messenger and of the Warp precompile, encoded by the ABI library and not by the code
that reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from typing import Any, Final, NamedTuple

from eth_abi.abi import encode
from eth_hash.auto import keccak

from tests.indexer.evm_chains import Log, MadeUpChain, ServedChain, Tx, erc20_transfer, word
from warpseal.warp.ids import ChainID
from warpseal.warp.message import AddressedCall, UnsignedMessage

MESSAGE: Final = "(uint256,address,bytes32,address,uint256,address[],(uint256,address)[],bytes)"
MESSAGE_V2: Final = (
    "(uint256,address,address,bytes32,address,uint256,address[],(uint256,address)[],bytes)"
)
FEE: Final = "(address,uint256)"
PRECOMPILE: Final = bytes.fromhex("0200000000000000000000000000000000000005")
MESSENGER: Final = bytes.fromhex("253b2784c75e510dd0ff1da844684a1ac0aa5fcf")
NETWORK_ID: Final = 12_345


def topic(signature: str) -> bytes:
    """Return the first topic of an event."""
    return keccak(signature.encode())


WARP: Final = topic("SendWarpMessage(address,bytes32,bytes)")
SENT: Final = topic(f"SendCrossChainMessage(bytes32,bytes32,{MESSAGE},{FEE})")
SENT_V2: Final = topic(f"SendCrossChainMessage(bytes32,bytes32,{MESSAGE_V2},{FEE})")
FEE_ADDED: Final = topic(f"AddFeeAmount(bytes32,{FEE})")
RECEIVED: Final = topic(f"ReceiveCrossChainMessage(bytes32,bytes32,address,address,{MESSAGE})")
EXECUTED: Final = topic("MessageExecuted(bytes32,bytes32)")
FAILED: Final = topic(f"MessageExecutionFailed(bytes32,bytes32,{MESSAGE})")
RECEIPT: Final = topic(f"ReceiptReceived(bytes32,bytes32,address,{FEE})")
VERSION_ADDED: Final = topic("AddProtocolVersion(uint256,address)")


@cache
def message_id(messenger: bytes, source: ChainID, destination: ChainID, nonce: int) -> bytes:
    """Return the id by which the contracts identify a message; histories ask for the same ones many
    times.
    """
    return keccak(
        encode(
            ["address", "bytes32", "bytes32", "uint256"], (messenger, source, destination, nonce)
        )
    )


class Message(NamedTuple):
    """A message of a messenger.

    adapter: adapter of a message of version 2; None for version 1.
    asset, fee: asset and amount of the fee with which it was sent.
    """

    source: ChainID
    destination: ChainID
    nonce: int
    sender: bytes
    recipient: bytes
    gas_limit: int = 100_000
    relayers: Sequence[bytes] = ()
    receipts: Sequence[tuple[int, bytes]] = ()
    body: bytes = b"\1\2\3\4"
    messenger: bytes = MESSENGER
    adapter: bytes | None = None
    asset: bytes = bytes(20)
    fee: int = 0

    @property
    def id(self) -> bytes:
        """The id by which the contracts identify the message."""
        return message_id(self.messenger, self.source, self.destination, self.nonce)

    @property
    def fields(self) -> tuple[Any, ...]:
        """The values of the struct of version 1."""
        return (
            self.nonce,
            self.sender,
            self.destination,
            self.recipient,
            self.gas_limit,
            list(self.relayers),
            list(self.receipts),
            self.body,
        )

    @property
    def payload(self) -> bytes:
        """The payload of the addressed call."""
        if self.adapter is None:
            return encode([MESSAGE], [self.fields])
        return encode([MESSAGE_V2], [(*self.fields[:2], self.messenger, *self.fields[2:])])

    def sent(self) -> list[Log]:
        """Return the logs of the transaction that sends it, or sends it again."""
        types, fields = (MESSAGE, self.fields)
        if self.adapter is not None:
            types, fields = MESSAGE_V2, (*self.fields[:2], self.messenger, *self.fields[2:])
        data = encode([types, FEE], [fields, (self.asset, self.fee)])
        first = SENT if self.adapter is None else SENT_V2
        call = AddressedCall(self.adapter or self.messenger, self.payload)
        return [
            Log(self.messenger, (first, self.id, self.destination), data),
            warp_log(call, self.source),
        ]

    def received(
        self,
        deliverer: bytes,
        redeemer: bytes,
        *,
        is_executed: bool | None = True,
        receipts: Sequence[Log] = (),
    ) -> list[Log]:
        """Return the logs of the transaction that receives it.

        is_executed: None of a message without a body.
        """
        data = encode(["address", MESSAGE], [redeemer, self.fields])
        logs = [
            *receipts,
            Log(self.messenger, (RECEIVED, self.id, self.source, word(deliverer)), data),
        ]
        if is_executed is not None:
            logs += self.executed() if is_executed else self.failed()
        return logs

    def executed(self) -> list[Log]:
        """Return the log of its execution."""
        return [Log(self.messenger, (EXECUTED, self.id, self.source))]

    def failed(self) -> list[Log]:
        """Return the log of its failed execution."""
        return [
            Log(self.messenger, (FAILED, self.id, self.source), encode([MESSAGE], [self.fields]))
        ]

    def fee_added(self, fee: int) -> list[Log]:
        """Return the log of an addition to its fee.

        fee: the whole fee then.
        """
        return [Log(self.messenger, (FEE_ADDED, self.id), encode([FEE], [(self.asset, fee)]))]

    def receipt(self, relayer: bytes, fee: int = 0) -> list[Log]:
        """Return the log of its receipt on its source chain."""
        data = encode([FEE], [(self.asset, fee)])
        return [Log(self.messenger, (RECEIPT, self.id, self.destination, word(relayer)), data)]


def warp_log(payload: AddressedCall, source: ChainID, network_id: int = NETWORK_ID) -> Log:
    """Return the log of the precompile for an addressed call."""
    return raw_warp_log(
        UnsignedMessage.build(network_id, source, payload.encode()).raw, payload.source_address
    )


def raw_warp_log(message: bytes, sender: bytes) -> Log:
    """Return the log of the precompile for any bytes."""
    return Log(
        PRECOMPILE, (WARP, word(sender), sha256(message).digest()), encode(["bytes"], [message])
    )


def version_log(registry: bytes, version: int, messenger: bytes) -> Log:
    """Return the log of a registry that names a messenger."""
    return Log(registry, (VERSION_ADDED, word(version), word(messenger)))


def message_blocks(
    count: int, seed: int = 1, *, txs: int = 15, has_roots: bool = True
) -> ServedChain:
    """Return a chain of blocks of which one transaction in five sends or receives a message, the
    others move coins.
    """
    chain = MadeUpChain(seed, has_roots=has_roots)
    random, here, other = chain.random, chain.chain.blockchain_id, ChainID(b"\xbb" * 32)
    people = [chain.address(number) for number in range(500)]
    coins = [chain.address(f"token {number}") for number in range(40)]
    nonces = {here: 0, other: 0}
    for _ in range(count):
        block = []
        for index in range(txs):
            sender, recipient = random.choice(people), random.choice(people)
            logs = [
                erc20_transfer(random.choice(coins), sender, recipient, random.getrandbits(60))
                for _ in range(3)
            ]
            if index % 5 == 0:
                source, destination = random.choice(((here, other), (other, here)))
                nonces[source] += 1
                message = Message(
                    source,
                    destination,
                    nonces[source],
                    sender,
                    recipient,
                    body=random.randbytes(32),
                )
                logs = message.sent() if source == here else message.received(people[0], people[1])
            block.append(Tx(sender, recipient, logs, gas_used=120_000))
        chain.add(block)
    return chain.chain
