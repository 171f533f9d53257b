"""A chain of a real EVM node (anvil) on which tests deploy and call our Solidity contracts, block
by block.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from eth_abi.abi import decode, encode
from eth_hash.auto import keccak

from tests.forwarding.evm.anvil import anvil
from tests.solidity.compiled import creation_code

_GAS: Final = hex(6_000_000)


class CallReverted(Exception):
    """A contract reverted."""


@dataclass
class AnvilChain:
    """The chain.

    Transactions wait for the next block.
    accounts: funded, 20 bytes each; the first sends everything.
    """

    url: str
    session: aiohttp.ClientSession
    accounts: list[bytes] = field(default_factory=list)

    async def rpc(self, method: str, *params: Any) -> Any:
        """Return the result of a call to the node. Raises CallReverted."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with self.session.post(self.url, json=body) as reply:
            response = await reply.json()
        if "error" in response:
            raise CallReverted(response["error"]["message"])
        return response["result"]

    async def send(
        self,
        to: bytes,
        signature: str,
        *arguments: Any,
        gas: str = _GAS,
        sender: bytes | None = None,
    ) -> str:
        """Call a contract in the next block; return the hash of the transaction.

        sender: None for the first account.
        """
        tx = {"to": _hex(to), "data": _hex(encode_call(signature, *arguments)), "gas": gas}
        return await self._send(tx if sender is None else {**tx, "from": _hex(sender)})

    async def deploy(self, contract: str, types: str = "", *arguments: Any) -> bytes:
        """Create a contract in a block of its own; return its address.

        types: types of the arguments of the constructor, with commas.
        """
        data = creation_code(contract) + encode(types.split(",") if types else [], arguments)
        tx_hash = await self._send({"data": _hex(data), "gas": hex(16_000_000)})
        await self.mine()
        receipt = await self.rpc("eth_getTransactionReceipt", tx_hash)
        assert receipt["status"] == "0x1", contract
        return bytes.fromhex(receipt["contractAddress"][2:])

    async def mine(self) -> int:
        """Make a block of the transactions that wait; return its height."""
        await self.rpc("evm_mine")
        return int(await self.rpc("eth_blockNumber"), 16)

    async def call(self, to: bytes, signature: str, returns: str, *arguments: Any) -> Any:
        """Return what a contract returns now. Raises CallReverted."""
        data = encode_call(signature, *arguments)
        result = await self.rpc("eth_call", {"to": _hex(to), "data": _hex(data)}, "latest")
        return decode([returns], bytes.fromhex(result[2:]))[0]

    async def _send(self, tx: dict[str, str]) -> str:
        tx_hash: str = await self.rpc("eth_sendTransaction", {"from": _hex(self.accounts[0]), **tx})
        return tx_hash


@asynccontextmanager
async def open_anvil_chain(*more: str) -> AsyncIterator[AnvilChain]:
    """Run a node.

    more: more flags of the node.
    """
    flags = "--gas-limit", "1000000000", "--hardfork", "cancun"
    async with anvil(*flags, *more) as node, aiohttp.ClientSession() as session:
        chain = AnvilChain(node.url, session)
        chain.accounts = [bytes.fromhex(text[2:]) for text in await chain.rpc("eth_accounts")]
        yield chain


def encode_call(signature: str, *arguments: Any) -> bytes:
    """Return the data of a call of a function such as "mint(address,uint256)".

    Its types may be tuples.
    """
    types, depth = [""], 0
    for character in signature[signature.index("(") + 1 : -1]:
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            types.append("")
        else:
            types[-1] += character
    return keccak(signature.encode())[:4] + encode(types if types[0] else [], arguments)


def _hex(raw: bytes) -> str:
    return "0x" + raw.hex()
