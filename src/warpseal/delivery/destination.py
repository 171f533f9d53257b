"""What decides whether a chain accepts a signed Warp message in its next block: its epoch and its Warp rules.

Source of truth: ACP-181; avalanchego `graft/subnet-evm/precompile/contracts/warp/config.go`,
`vms/platformvm/txs/executor/warp_verifier.go`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from warpseal.chains.proposervm import Epoch
from warpseal.node.proposervm import NO_EPOCH
from warpseal.warp.ids import ChainID, SubnetID

DEFAULT_QUORUM: Final = 67
"""Percent: of a chain whose rules name no other one, and of the P-Chain."""

RulesSource = Literal["genesis", "upgrade", "default"]
"""Where the quorum comes from; default: the rules name none, or the destination is the P-Chain."""


@dataclass(frozen=True, slots=True)
class WarpRules:
    """The Warp configuration of a chain at one time.

    quorum: percent. requires_primary_signers: the Primary Network signs messages of its C- and X-Chain.
    """

    quorum: int = DEFAULT_QUORUM
    requires_primary_signers: bool = False
    source: RulesSource = "default"


@dataclass(frozen=True, slots=True)
class Destination:
    """A chain as it would verify a message in its next block.

    epoch: of the next block; NO_EPOCH before Granite. epoch_duration_s: the first block at or after the epoch's start
    plus this seals it. proposed_height: the P-Chain height that the next block would carry; the height of the next
    epoch if the next block seals this one. read_at: Unix seconds.
    """

    chain_id: ChainID
    subnet_id: SubnetID
    epoch: Epoch
    epoch_duration_s: int
    proposed_height: int
    rules: WarpRules
    read_at: float

    @property
    def height(self) -> int:
        """The P-Chain height at which the next block verifies messages."""
        return self.proposed_height if self.epoch == NO_EPOCH else self.epoch.p_chain_height

    @property
    def sealed_from(self) -> int | None:
        """Unix seconds; the first block at or after it is the last one of the epoch. None: there are no epochs."""
        return None if self.epoch == NO_EPOCH else self.epoch.start_time_s + self.epoch_duration_s
