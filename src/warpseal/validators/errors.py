"""Errors of looking up chains, subnets, P-Chain heights and validator sets."""

from __future__ import annotations

from warpseal.errors import WarpsealError
from warpseal.upstream.errors import NodeUnavailable


class UnknownChain(WarpsealError):
    """The P-Chain knows no blockchain of this id, or this daemon serves no EVM chain of this name.

    evm_name: the name in the path; None: the P-Chain was asked.
    """

    code = "unknown_chain"
    http_status = 404

    def __init__(self, chain_id: str = "", *, evm_name: str | None = None) -> None:
        self.chain_id = chain_id
        if evm_name is None:
            super().__init__(
                f"no blockchain with id {chain_id} is known to the P-Chain", blockchain_id=chain_id
            )
        else:
            text = (
                f"no EVM chain {evm_name[:64]!r} is served here; GET /v1/chains lists those of this"
                " daemon"
            )
            super().__init__(text, chain_id=evm_name[:64])


class UnknownSubnet(WarpsealError):
    """The P-Chain knows no subnet of this id."""

    code = "unknown_subnet"
    http_status = 400

    def __init__(self, subnet_id: str) -> None:
        super().__init__(
            f"no subnet with id {subnet_id} is known to the P-Chain", signing_subnet_id=subnet_id
        )


class HeightTooOld(WarpsealError):
    """The named height lies further back than `max-p-chain-lookback` allows."""

    code = "height_too_old"
    http_status = 400

    def __init__(self, height: int, oldest: int, lookback: int) -> None:
        super().__init__(
            f"P-Chain height {height} is older than {oldest}, the oldest that"
            f" max-p-chain-lookback={lookback} allows",
            p_chain_height=str(height),
            oldest=str(oldest),
            setting="max-p-chain-lookback",
        )
        self.height = height
        self.oldest = oldest


class HeightTooNew(WarpsealError):
    """The named height lies too far beyond the tip of the P-Chain to wait for it."""

    code = "height_too_new"
    http_status = 400

    def __init__(self, height: int, tip: int) -> None:
        text = f"P-Chain height {height} does not exist yet; the P-Chain is at {tip}"
        super().__init__(text, p_chain_height=str(height), tip=str(tip))
        self.height = height
        self.tip = tip


class HeightNotIndexed(NodeUnavailable):
    """The index lacks this P-Chain height, and validator-sets lets no node take its place."""

    code = "height_not_indexed"
    http_status = 503

    def __init__(self, height: int, oldest: int | None, newest: int | None) -> None:
        has = "no validator sets yet"
        if newest is not None:
            has = f"the validator sets of heights {oldest} to {newest}"
        text = (
            f"the index does not have P-Chain height {height}; it has {has}, and validator-sets is"
            " index"
        )
        self.attempts = ()
        WarpsealError.__init__(self, text, p_chain_height=str(height))


class ValidatorSetsDiffer(WarpsealError):
    """The index and the nodes list other validators of a subnet, and validator-sets is both."""

    code = "validator_sets_differ"
    http_status = 403

    def __init__(self, difference: str, subnet_id: str, height: int) -> None:
        text = (
            f"signing for the subnet is stopped: {difference}; for the operator: find out which of"
            " them is right, set validator-sets to node or index, or start the daemon again"
        )
        super().__init__(text, signing_subnet_id=subnet_id, p_chain_height=str(height))
