"""EVM chains for the replay node: recorded ones, and made-up ones whose blocks are consistent with
their receipts.

Hashes of made-up blocks and transactions are drawn from the seed, so equal seeds make equal chains;
everything that the indexer compares (parents, hashes, positions, gas, blooms, receiptsRoot) is
computed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from hashlib import sha256
from random import Random
from typing import Any, Final

import zstandard
from eth_hash.auto import keccak

from tests.paths import VECTORS
from warpseal.warp.ids import ChainID, parse_id

ZERO: Final = bytes(20)
TRANSFER: Final = keccak(b"Transfer(address,address,uint256)")
TRANSFER_SINGLE: Final = keccak(b"TransferSingle(address,address,address,uint256,uint256)")
TRANSFER_BATCH: Final = keccak(b"TransferBatch(address,address,address,uint256[],uint256[])")
GENESIS_TIME: Final = 1_700_000_000
GWEI: Final = 10**9
EMPTY_ROOT: Final = keccak(b"\x80")


@dataclass(frozen=True)
class ServedChain:
    """The results that a node returns, as JSON, by height.

    headers: blocks with the hashes of the transactions only.
    traces: results of debug_traceBlockByNumber with the callTracer.
    """

    blockchain_id: ChainID
    evm_chain_id: int
    headers: list[bytes]
    receipts: list[bytes]
    hashes: list[str]
    traces: dict[int, bytes] = field(default_factory=dict)

    @property
    def tip(self) -> int:
        """Return the height of the last block."""
        return len(self.headers) - 1

    @property
    def genesis_hash(self) -> bytes:
        """Return the hash of block 0."""
        return bytes.fromhex(self.hashes[0][2:])


@cache
def recorded_chain(network: str, chain: str) -> ServedChain:
    """Return `c-chain`, `l1-0` or `l1-1` of `localnet` (before Helicon) or `helicon` (after it)."""
    packed = (VECTORS / network / f"{chain}.jsonl.zst").read_bytes()
    headers: dict[int, dict[str, Any]] = {}
    receipts: dict[int, list[Any]] = {}
    traces: dict[int, bytes] = {}
    evm_chain_id, path = 0, ""
    for line in zstandard.decompress(packed, 2**24).splitlines():
        call = json.loads(line)
        path = call["path"]
        match call["method"]:
            case "eth_chainId":
                evm_chain_id = int(call["result"], 16)
            case "eth_getBlockByNumber" if call["result"] is not None:
                block = call["result"]
                hashes = [tx if isinstance(tx, str) else tx["hash"] for tx in block["transactions"]]
                headers[int(block["number"], 16)] = {**block, "transactions": hashes}
            case "eth_getBlockReceipts":
                receipts[int(call["params"][0], 16)] = call["result"]
            case "debug_traceBlockByNumber" if "result" in call:
                traces[int(call["params"][0], 16)] = _json(call["result"])
    heights = range(len(headers))
    return ServedChain(
        ChainID(parse_id(path.split("/")[3])),
        evm_chain_id,
        [_json(headers[height]) for height in heights],
        [_json(receipts.get(height, [])) for height in heights],
        [headers[height]["hash"] for height in heights],
        traces,
    )


@dataclass(frozen=True, slots=True)
class Log:
    """A log of a made-up transaction."""

    address: bytes
    topics: tuple[bytes, ...]
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Tx:
    """A made-up transaction with its outcome.

    to: None if it creates `created`.
    """

    sender: bytes
    to: bytes | None
    logs: Sequence[Log] = ()
    gas_used: int = 21_000
    is_successful: bool = True
    created: bytes | None = None


class MadeUpChain:
    """A chain that grows by `add`.

    has_roots: whether headers get the receiptsRoot of their receipts (else zeros).
    """

    def __init__(
        self, seed: int = 1, *, evm_chain_id: int = 99_999, has_roots: bool = True
    ) -> None:
        self.random = Random(seed)
        self._seed = sha256(b"%d" % seed).digest()
        self._has_roots = has_roots
        self.chain = ServedChain(ChainID(self._hash(b"chain")), evm_chain_id, [], [], [])
        self.add(())

    def _hash(self, name: bytes) -> bytes:
        return sha256(self._seed + name).digest()

    @property
    def height(self) -> int:
        """Return the height of the last block."""
        return self.chain.tip

    def address(self, name: str | int) -> bytes:
        """Return the address with a name."""
        return self._hash(b"address %s" % str(name).encode())[:20]

    def add(self, txs: Sequence[Tx], *, seconds: int = 2) -> None:
        """Add a block with these transactions, some seconds after its parent."""
        chain, number = self.chain, len(self.chain.headers)
        block_hash = "0x" + self._hash(b"block %d" % number).hex()
        tx_hashes = [
            "0x" + self._hash(b"tx %d %d" % (number, index)).hex() for index in range(len(txs))
        ]
        receipts, encoded, bloom, log_index, gas_used = [], [], 0, 0, 0
        for index, tx in enumerate(txs):
            gas_used += tx.gas_used
            tx_bloom = logs_bloom(tx.logs)
            bloom |= tx_bloom
            place = (
                f'"blockHash":"{block_hash}","blockNumber":"{number:#x}","transactionHash":"{tx_hashes[index]}",'
                f'"transactionIndex":"{index:#x}"'
            )
            receipts.append(_receipt_json(tx, place, gas_used, tx_bloom, log_index))
            log_index += len(tx.logs)
            if self._has_roots:
                encoded.append(_encode_receipt(tx, gas_used, tx_bloom))
        root = receipts_trie_root(encoded) if self._has_roots else bytes(32)
        parent = chain.hashes[-1] if chain.hashes else "0x" + bytes(32).hex()
        chain.headers.append(
            _header_json(
                number,
                block_hash,
                parent,
                GENESIS_TIME + seconds * number,
                gas_used,
                bloom,
                root,
                tx_hashes,
            )
        )
        chain.receipts.append(f"[{','.join(receipts)}]".encode())
        chain.hashes.append(block_hash)


def erc20_transfer(contract: bytes, sender: bytes, recipient: bytes, amount: int) -> Log:
    """Return the log of an ERC-20 transfer."""
    return Log(contract, (TRANSFER, word(sender), word(recipient)), word(amount))


def erc721_transfer(contract: bytes, sender: bytes, recipient: bytes, token_id: int) -> Log:
    """Return the log of an ERC-721 transfer."""
    return Log(contract, (TRANSFER, word(sender), word(recipient), word(token_id)))


def erc1155_transfer(
    contract: bytes, sender: bytes, recipient: bytes, token_id: int, amount: int
) -> Log:
    """Return the log of an ERC-1155 transfer of one token."""
    topics = (TRANSFER_SINGLE, word(sender), word(sender), word(recipient))
    return Log(contract, topics, word(token_id) + word(amount))


def erc1155_batch(
    contract: bytes, sender: bytes, recipient: bytes, amounts: Sequence[tuple[int, int]]
) -> Log:
    """Return the log of an ERC-1155 transfer of several (token id, amount)."""
    topics = (TRANSFER_BATCH, word(sender), word(sender), word(recipient))
    count = len(amounts)
    ids = word(count) + b"".join(word(token_id) for token_id, _ in amounts)
    values = word(count) + b"".join(word(amount) for _, amount in amounts)
    return Log(contract, topics, word(64) + word(64 + len(ids)) + ids + values)


def word(value: int | bytes) -> bytes:
    """Return the 32 bytes of a number or an address."""
    return value.to_bytes(32) if isinstance(value, int) else value.rjust(32, b"\0")


def transfer_blocks(count: int, seed: int = 1, *, has_roots: bool = True) -> ServedChain:
    """Return a chain of `count` blocks behind its genesis, each with one transaction: an ERC-20
    transfer.
    """
    chain = MadeUpChain(seed, has_roots=has_roots)
    people = [chain.address(number) for number in range(500)]
    token = chain.address("token")
    for _ in range(count):
        sender, recipient = chain.random.choice(people), chain.random.choice(people)
        log = erc20_transfer(token, sender, recipient, chain.random.getrandbits(60))
        chain.add([Tx(sender, token, (log,), gas_used=51_000)])
    return chain.chain


def dense_blocks(
    count: int, seed: int = 1, *, txs: int = 200, logs: int = 5, has_roots: bool = True
) -> ServedChain:
    """Return a chain of blocks with `txs` * `logs` logs each; one in 50 logs is of an NFT, the
    others are ERC-20.
    """
    chain = MadeUpChain(seed, has_roots=has_roots)
    nfts = _Collections(chain)
    people = [chain.address(number) for number in range(500)]
    tokens = [chain.address(f"token {number}") for number in range(40)]
    random = chain.random
    for _ in range(count):
        block = []
        for _ in range(txs):
            sender = random.choice(people)
            made_logs = [
                (
                    nfts.transfer()
                    if random.random() < 0.02
                    else erc20_transfer(
                        random.choice(tokens), sender, random.choice(people), random.getrandbits(60)
                    )
                )
                for _ in range(logs)
            ]
            block.append(Tx(sender, tokens[0], made_logs, gas_used=120_000))
        chain.add(block)
    return chain.chain


def nft_blocks(
    count: int, seed: int = 1, *, txs: int = 50, coin_txs: int = 0, has_roots: bool = True
) -> ServedChain:
    """Return a chain of blocks with `txs` NFT transfers each: mints, sales and burns of ERC-721 and
    ERC-1155.

    coin_txs: ERC-20 transfers behind them, of two coins among few holders, who have what they send.
    """
    chain = MadeUpChain(seed, has_roots=has_roots)
    nfts, coins = _Collections(chain), _Coins(chain)
    for _ in range(count):
        logs = [nfts.transfer() for _ in range(txs)] + [coins.transfer() for _ in range(coin_txs)]
        chain.add(
            [Tx(chain.address("market"), log.address, (log,), gas_used=90_000) for log in logs]
        )
    return chain.chain


class _Coins:
    """ERC-20 contracts whose transfers are possible."""

    def __init__(self, chain: MadeUpChain) -> None:
        self._random = chain.random
        self._balances = [
            {chain.address(f"saver {number}"): 0 for number in range(20)} for _ in range(2)
        ]
        self._contracts = [chain.address(f"coin {number}") for number in range(2)]

    def transfer(self) -> Log:
        """Return the log of the next transfer."""
        number = self._random.randrange(2)
        balances = self._balances[number]
        sender, recipient = self._random.sample([ZERO, *balances], 2)
        amount = self._random.randrange(1, 10**20)
        if sender != ZERO:
            amount = min(amount, balances[sender])
            balances[sender] -= amount
        if recipient != ZERO:
            balances[recipient] += amount
        return erc20_transfer(self._contracts[number], sender, recipient, amount)


class _Collections:
    """NFT contracts whose transfers are possible: only owners send, and only what they have."""

    def __init__(self, chain: MadeUpChain, contracts: int = 60, holders: int = 5_000) -> None:
        self._random = chain.random
        self._contracts = [chain.address(f"nft {number}") for number in range(contracts)]
        self._holders = [chain.address(f"holder {number}") for number in range(holders)]
        self._held: list[tuple[int, int, bytes, int]] = []
        self._next_id = [0] * contracts

    def transfer(self) -> Log:
        """Return the log of the next transfer.

        Contracts with an even number are ERC-721, the others ERC-1155.
        """
        roll, random = self._random.random(), self._random
        if roll < 0.4 or not self._held:
            contract = min(
                random.randrange(len(self._contracts)), random.randrange(len(self._contracts))
            )
            token_id = self._next_id[contract]
            self._next_id[contract] += 1
            sender, amount = ZERO, 1 if contract % 2 == 0 else random.randrange(1, 1_000)
        else:
            at = random.randrange(len(self._held))
            self._held[at], self._held[-1] = self._held[-1], self._held[at]
            contract, token_id, sender, amount = self._held.pop()
        recipient = ZERO if roll > 0.97 else random.choice(self._holders)
        if recipient != ZERO:
            self._held.append((contract, token_id, recipient, amount))
        if contract % 2 == 0:
            return erc721_transfer(self._contracts[contract], sender, recipient, token_id)
        return erc1155_transfer(self._contracts[contract], sender, recipient, token_id, amount)


def logs_bloom(logs: Sequence[Log]) -> int:
    """Return the bloom filter of logs, a number of 2048 bits."""
    bloom = 0
    for log in logs:
        bloom |= _bloom_bits(log.address)
        for topic in log.topics:
            bloom |= _bloom_bits(topic)
    return bloom


@lru_cache(maxsize=100_000)
def _bloom_bits(value: bytes) -> int:
    digest = keccak(value)
    bits = 0
    for at in (0, 2, 4):
        bits |= 1 << (int.from_bytes(digest[at : at + 2]) & 2_047)
    return bits


def receipts_trie_root(encoded: Sequence[bytes]) -> bytes:
    """Return the root of the Merkle-Patricia trie of values by their RLP-encoded index.

    It is written out here and not taken from the library that the indexer uses, so that each one
    checks the other.
    """
    pairs = [
        (_nibbles(rlp(index.to_bytes((index.bit_length() + 7) // 8))), raw)
        for index, raw in enumerate(encoded)
    ]
    return keccak(_node(pairs)) if pairs else EMPTY_ROOT


def _nibbles(raw: bytes) -> bytes:
    return bytes(nibble for byte in raw for nibble in (byte >> 4, byte & 15))


def _node(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the RLP of the node that holds these (rest of the key, value); no key is a prefix of
    another.
    """
    if len(pairs) == 1:
        key, value = pairs[0]
        return rlp([_compact(key, 2), value])
    shared = 0
    while len({key[shared] for key, _ in pairs}) == 1:
        shared += 1
    if shared:
        return rlp(
            [
                _compact(pairs[0][0][:shared], 0),
                _reference([(key[shared:], value) for key, value in pairs]),
            ]
        )
    children: list[bytes | _Encoded] = []
    for nibble in range(16):
        below = [(key[1:], value) for key, value in pairs if key[0] == nibble]
        children.append(_reference(below) if below else b"")
    return rlp([*children, b""])


@dataclass(frozen=True, slots=True)
class _Encoded:
    """RLP that becomes part of a list as it is."""

    raw: bytes


def _reference(pairs: Sequence[tuple[bytes, bytes]]) -> bytes | _Encoded:
    raw = _node(pairs)
    return _Encoded(raw) if len(raw) < 32 else keccak(raw)


def _compact(nibbles: bytes, flag: int) -> bytes:
    padded = bytes([flag + 1]) + nibbles if len(nibbles) % 2 else bytes([flag, 0]) + nibbles
    return bytes(high << 4 | low for high, low in zip(padded[::2], padded[1::2], strict=True))


def rlp(item: Any) -> bytes:
    """Return the RLP of byte strings, and lists of them."""
    if isinstance(item, _Encoded):
        return item.raw
    if isinstance(item, bytes):
        return item if len(item) == 1 and item[0] < 0x80 else _length(len(item), 0x80) + item
    body = b"".join(map(rlp, item))
    return _length(len(body), 0xC0) + body


def _length(length: int, offset: int) -> bytes:
    if length < 56:
        return bytes([offset + length])
    raw = length.to_bytes((length.bit_length() + 7) // 8)
    return bytes([offset + 55 + len(raw)]) + raw


def _encode_receipt(tx: Tx, cumulative_gas: int, bloom: int) -> bytes:
    """Return a receipt of type 2 as consensus encodes it."""
    logs = [[log.address, list(log.topics), log.data] for log in tx.logs]
    gas = cumulative_gas.to_bytes((cumulative_gas.bit_length() + 7) // 8)
    return b"\x02" + rlp([b"\x01" if tx.is_successful else b"", gas, bloom.to_bytes(256), logs])


def _receipt_json(tx: Tx, place: str, cumulative_gas: int, bloom: int, first_log: int) -> str:
    logs = ",".join(
        f'{{"address":"0x{log.address.hex()}","topics":[{_hex_list(log.topics)}],"data":"0x{log.data.hex()}",{place},'
        f'"logIndex":"{number:#x}","removed":false}}'
        for number, log in enumerate(tx.logs, first_log)
    )
    created = "null" if tx.created is None else f'"0x{tx.created.hex()}"'
    to = "null" if tx.to is None else f'"0x{tx.to.hex()}"'
    return (
        f'{{{place},"contractAddress":{created},"cumulativeGasUsed":"{cumulative_gas:#x}",'
        f'"effectiveGasPrice":"{25 * GWEI:#x}","from":"0x{tx.sender.hex()}",'
        f'"gasUsed":"{tx.gas_used:#x}","logs":[{logs}],"logsBloom":"0x{bloom:0512x}",'
        f'"status":"{int(tx.is_successful):#x}","to":{to},"type":"0x2"}}'
    )


def _hex_list(values: Sequence[bytes]) -> str:
    return ",".join([f'"0x{value.hex()}"' for value in values])


def _header_json(
    number: int,
    block_hash: str,
    parent: str,
    time: int,
    gas_used: int,
    bloom: int,
    root: bytes,
    tx_hashes: list[str],
) -> bytes:
    zeros = "0" * 64
    txs = ",".join([f'"{tx_hash}"' for tx_hash in tx_hashes])
    return (
        f'{{"baseFeePerGas":"0x5d21dba00","blockGasCost":"0x0","difficulty":"0x1",'
        f'"extraData":"0x{"0" * 160}","gasLimit":"0xe4e1c0","gasUsed":"{gas_used:#x}",'
        f'"hash":"{block_hash}","logsBloom":"0x{bloom:0512x}",'
        f'"miner":"0x0100000000000000000000000000000000000000","mixHash":"0x{zeros}","nonce":"0x0000000000000000",'
        f'"number":"{number:#x}","parentHash":"{parent}","receiptsRoot":"0x{root.hex()}",'
        '"sha3Uncles":"0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347","size":"0x3e8",'
        f'"stateRoot":"0x{zeros}","timestamp":"{time:#x}","totalDifficulty":"{number:#x}","transactions":[{txs}],'
        f'"transactionsRoot":"0x{zeros}","uncles":[]}}'
    ).encode()


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
