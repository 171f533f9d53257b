"""The blockchain id of the chain behind an RPC URL, for `--evm`.

Source of truth: the path of a node's RPC, `/ext/bc/<blockchain id>/rpc`; subnet-evm
`precompile/contracts/warp`, `getBlockchainID`. An EVM chain of another kind has no such id: it gets
its EVM chain id as a number of 32 bytes.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from typing import Final
from urllib.parse import urlsplit

from warpseal.chains.keccak import keccak
from warpseal.cli.process import run_on_loop
from warpseal.errors import StartupError
from warpseal.node.settings import NodeSettings
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.errors import CallFailure, RpcRefusal
from warpseal.upstream.identity import CHAIN_ID
from warpseal.upstream.json_values import decode_bytes
from warpseal.upstream.limits import CallOrigin
from warpseal.upstream.node import NodeCall, UpstreamNode, open_session
from warpseal.warp.ids import ID_BYTES, P_CHAIN, ChainID, MalformedID, parse_id
from warpseal.warp.message import WARP_PRECOMPILE

_RPC_PATH: Final = re.compile(r".*/ext/bc/([^/]+)/rpc/?")
_GET_BLOCKCHAIN_ID: Final = {
    "to": f"0x{WARP_PRECOMPILE.hex()}",
    "data": f"0x{keccak(b'getBlockchainID()')[:4].hex()}",
}
_WARP_CALL: Final = NodeCall(
    "eth_call", (_GET_BLOCKCHAIN_ID, "latest"), ("",), decode_bytes, CallOrigin.DAEMON
)


@cache
def find_blockchain_id(rpc_url: str) -> ChainID:
    """Return the id in the URL, else the id that the node reports.

    The node is asked for the id of the chain's Warp contract, then for the EVM chain id. Raises
    StartupError if it does not reply: a guess would begin another index.
    """
    match = _RPC_PATH.fullmatch(urlsplit(rpc_url).path)
    if match is not None:
        # Otherwise the name is an alias, such as C.
        with suppress(MalformedID):
            return ChainID(parse_id(match[1]))
    return run_on_loop(_read_blockchain_id(NodeEndpoint(rpc_url)))


async def _read_blockchain_id(endpoint: NodeEndpoint) -> ChainID:
    limits = NodeSettings((endpoint,), (endpoint,)).limits
    async with open_session() as session:
        node = UpstreamNode(endpoint, session, limits)
        try:
            blockchain_id = await node.call(_WARP_CALL)
            if len(blockchain_id) != ID_BYTES:
                # No contract is there: the chain has no Warp.
                blockchain_id = (await node.call(CHAIN_ID)).to_bytes(ID_BYTES, "big")
        except (CallFailure, RpcRefusal) as error:
            raise StartupError(
                f"--evm: {endpoint.display} does not say which chain it serves: {error}"
            ) from None
    if blockchain_id == P_CHAIN:
        raise StartupError(f"--evm: {endpoint.display} reports 0 as the id of its chain")
    return ChainID(blockchain_id)
