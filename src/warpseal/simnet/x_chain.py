"""A handful of accepted X-Chain transactions: payments to oneself, so that an id of another chain can be asked for."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from warpseal.simnet import writing
from warpseal.simnet.values import ChainKind
from warpseal.simnet.world import World
from warpseal.simnet.writing import Coin, Purse

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
        raw = writing.x_transaction(purse, coin)
        coin = writing.change(coin, writing.base(), raw)
        made[coin.tx_id] = raw
    return made
