"""The check of each forwarded EVM chain: whether a node of it can be asked, and none is of another chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warpseal.evm_rpc.build import ForwardedChain
from warpseal.ops.health.check import Check, Outcome
from warpseal.warp.ids import id_text


def evm_check(chain: ForwardedChain) -> Check:
    """Return the check of a chain's nodes; they are named by their place in the operator's list."""

    def look() -> Outcome:
        pool = chain.pool
        identity = pool.identity
        nodes = {str(place): told for place, told in sorted(pool.faults().items())}
        message: Mapping[str, Any] = {"chainID": identity.chain_id if identity else None, "nodes": nodes}
        nodes |= {f"ws{place}": told for place, told in sorted(chain.sockets.refused.items())}
        refused = [f"rpc[{place}] {reason}" for place, reason in sorted(pool.refused().items())]
        refused += [f"ws[{place}] {reason}" for place, reason in sorted(chain.sockets.refused.items())]
        if not pool.is_up:
            refused.append("no node of this chain can be reached")
        return Outcome(message, "; ".join(refused) or None)

    return Check(f"evm-{id_text(chain.chain_id)}", look)
