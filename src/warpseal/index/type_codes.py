"""The numbers of transaction types and block types, and the flags of outputs, in the index.

Source of truth: this module; numbers are never given a new meaning. The names are the nodes' own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from warpseal.ledger.outputs import LedgerOutput, OutputKind
from warpseal.resources.base import RewardType

UNKNOWN: Final = 0
TX_NAMES: Final = (
    "UNKNOWN",
    *("AddValidatorTx", "AddSubnetValidatorTx", "AddDelegatorTx", "CreateChainTx", "CreateSubnetTx"),
    *("ImportTx", "ExportTx", "AdvanceTimeTx", "RewardValidatorTx", "RemoveSubnetValidatorTx"),
    *("TransformSubnetTx", "AddPermissionlessValidatorTx", "AddPermissionlessDelegatorTx"),
    *("TransferSubnetOwnershipTx", "BaseTx", "ConvertSubnetToL1Tx", "RegisterL1ValidatorTx"),
    *("SetL1ValidatorWeightTx", "IncreaseL1ValidatorBalanceTx", "DisableL1ValidatorTx"),
    *("CreateAssetTx", "OperationTx"),
)
_TX_NUMBERS: Final = {name: number for number, name in enumerate(TX_NAMES)}
BLOCK_NAMES: Final = (
    "EvmBlock",
    *("ApricotProposalBlock", "ApricotAbortBlock", "ApricotCommitBlock", "ApricotStandardBlock", "ApricotAtomicBlock"),
    *("BanffProposalBlock", "BanffAbortBlock", "BanffCommitBlock", "BanffStandardBlock", "StandardBlock"),
)
BLOCK_NUMBERS: Final = {name: number for number, name in enumerate(BLOCK_NAMES)}
# Outcomes of transactions.
ACCEPTED, PROPOSED, COMMITTED, ABORTED = range(4)

_OUTPUT_KINDS: Final = tuple(OutputKind)
_OUTPUT_NUMBERS: Final = {kind: number for number, kind in enumerate(_OUTPUT_KINDS)}
_REWARDS: Final = (None, RewardType.VALIDATOR, RewardType.DELEGATOR, RewardType.VALIDATOR_FEE)
_REWARD_NUMBERS: Final = {kind: number for number, kind in enumerate(_REWARDS)}
_STAKED: Final = 1 << 7
_INCOMPLETE: Final = 1 << 8


def tx_number(name: str) -> int:
    """Return the number of a transaction's type; the number of UNKNOWN for a name without one."""
    return _TX_NUMBERS.get(name, UNKNOWN)


def flags_of(output: LedgerOutput, created_on: int, held_on: int) -> int:
    """Return the flags of an output. created_on, held_on: numbers of chains."""
    flags = created_on | held_on << 2 | _OUTPUT_NUMBERS[output.kind] << 4 | _REWARD_NUMBERS[output.reward] << 9
    if output.staked:
        flags |= _STAKED
    return flags if output.is_complete else flags | _INCOMPLETE


class OutputFlags(NamedTuple):
    """The flags of an output. created_on, held_on: numbers of the chains that made it, and where it can be spent.

    is_staked: a staking made it. is_incomplete: it is only known from the input that spent it.
    """

    created_on: int
    held_on: int
    kind: OutputKind
    is_staked: bool
    is_incomplete: bool
    reward: RewardType | None


@lru_cache(maxsize=4096)
def parse_flags(flags: int) -> OutputFlags:
    """Return the flags that `flags_of` put into a number."""
    kind, reward = _OUTPUT_KINDS[flags >> 4 & 7], _REWARDS[flags >> 9 & 3]
    return OutputFlags(flags & 3, flags >> 2 & 3, kind, bool(flags & _STAKED), bool(flags & _INCOMPLETE), reward)
