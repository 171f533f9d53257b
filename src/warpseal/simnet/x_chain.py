"""A handful of accepted X-Chain transactions: payments to oneself, so that an id of another chain can be asked for."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from warpseal.simnet import tx_builder
from warpseal.simnet.state import World
from warpseal.simnet.tx_builder import Coin, Purse
from warpseal.simnet.values import ChainKind

_COUNT: Final = 4
_COIN_NAVAX: Final = 10**15


def x_payments(world: World, seed: int) -> dict[bytes, bytes]:
    """Return the signed bytes of accepted X-Chain transactions by id; none where there is no X-Chain."""
    chain = next((one for one in world.chains.values() if one.kind is ChainKind.X), None)
    if chain is None:
        return {}
    purse = Purse(world.network_id, chain.chain_id, world.ledger.asset_id)
    coin = Coin(sha256(f"X coin {seed}".encode()).digest(), 0, _COIN_NAVAX)
    made: dict[bytes, bytes] = {}
    for _ in range(_COUNT):
        raw = tx_builder.x_transaction(purse, coin)
        coin = tx_builder.change(coin, tx_builder.base(), raw)
        made[coin.tx_id] = raw
    return made
