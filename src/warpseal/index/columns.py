"""The content of columns: numbers of types, flags of outputs, and rare fields as MessagePack.

Source of truth: this module; numbers are never given a new meaning. The names of types are the
nodes' own. In MessagePack a field has one letter, and with its default value it takes no bytes. Its
numbers are keys, amounts or unix seconds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from msgspec import field

from warpseal.ledger.outputs import LedgerOutput, OutputKind
from warpseal.resources.base import RewardType
from warpseal.resources.blocks import Proposer

UNKNOWN: Final = 0
TX_NAMES: Final = (
    "UNKNOWN",
    *(
        "AddValidatorTx",
        "AddSubnetValidatorTx",
        "AddDelegatorTx",
        "CreateChainTx",
        "CreateSubnetTx",
    ),
    *("ImportTx", "ExportTx", "AdvanceTimeTx", "RewardValidatorTx", "RemoveSubnetValidatorTx"),
    *("TransformSubnetTx", "AddPermissionlessValidatorTx", "AddPermissionlessDelegatorTx"),
    *("TransferSubnetOwnershipTx", "BaseTx", "ConvertSubnetToL1Tx", "RegisterL1ValidatorTx"),
    *("SetL1ValidatorWeightTx", "IncreaseL1ValidatorBalanceTx", "DisableL1ValidatorTx"),
    *("CreateAssetTx", "OperationTx"),
)
_TX_NUMBERS: Final = {name: number for number, name in enumerate(TX_NAMES)}
BLOCK_NAMES: Final = (
    "EvmBlock",
    *(
        "ApricotProposalBlock",
        "ApricotAbortBlock",
        "ApricotCommitBlock",
        "ApricotStandardBlock",
        "ApricotAtomicBlock",
    ),
    *(
        "BanffProposalBlock",
        "BanffAbortBlock",
        "BanffCommitBlock",
        "BanffStandardBlock",
        "StandardBlock",
    ),
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

# The number of a primary chain, or the id of another chain.
ChainRef = int | bytes


class TxDetail(msgspec.Struct, omit_defaults=True, gc=False):
    """The fields of a transaction that have no columns.

    inputs: keys of the outputs that it consumes, in its order.
    released: keys of the outputs that it releases.
    burned: burned amounts by key of the asset.
    l1_funded: asset and amount put into balances of L1 validators.
    source, destination: other chain of an import or export.
    manager: chain and address of the manager of an L1.
    l1: L1 validators after the transaction (key, weight, balance, change).
    owner: owner of a subnet (locktime, threshold, addresses).
    closes: key of the staking that it closes, or the id of a staking that is not indexed.
    bls: public key and proof of possession.
    signatures: signatures of all inputs, each once.
    signers: public key of each signature, empty without one.
    signed: places of the signatures of each input.
    accounts: EVM inputs or outputs (account, asset, amount, signatures).
    """

    inputs: tuple[int, ...] = field(name="i", default=())
    released: tuple[int, ...] = field(name="r", default=())
    burned: tuple[tuple[int, int], ...] = field(name="b", default=())
    l1_funded: tuple[int, int] | None = field(name="l", default=None)
    source: ChainRef | None = field(name="s", default=None)
    destination: ChainRef | None = field(name="d", default=None)
    memo: bytes = field(name="m", default=b"")
    node: int | None = field(name="n", default=None)
    subnet: int | None = field(name="u", default=None)
    manager: tuple[bytes, bytes] | None = field(name="g", default=None)
    l1: tuple[tuple[int, int, int, int], ...] = field(name="v", default=())
    owner: tuple[int, int, tuple[int, ...]] | None = field(name="o", default=None)
    closes: ChainRef | None = field(name="c", default=None)
    bls: bytes = field(name="k", default=b"")
    blockchain: int | None = field(name="h", default=None)
    asset: int | None = field(name="a", default=None)
    signatures: tuple[bytes, ...] = field(name="z", default=())
    signed: tuple[tuple[int, ...], ...] = field(name="y", default=())
    signers: tuple[bytes, ...] = field(name="w", default=())
    accounts: tuple[tuple[int, int, int, tuple[int, ...]], ...] = field(name="e", default=())
    is_approximate: bool = field(name="t", default=False)


class OutputDetail(msgspec.Struct, omit_defaults=True, gc=False):
    """The rare fields of an output.

    tx_id: ID of the transaction that made the output, if that is not indexed.
    """

    locktime: int = field(name="l", default=0)
    stakeable_locktime: int = field(name="s", default=0)
    group_id: int | None = field(name="g", default=None)
    payload: bytes | None = field(name="p", default=None)
    tx_id: bytes | None = field(name="i", default=None)


class StakeDetail(msgspec.Struct, omit_defaults=True, gc=False):
    """Keys of the addresses that a staking's rewards go to: its own, and those for delegations.

    bls: public key and proof of possession.
    """

    own: tuple[int, ...] = field(name="v", default=())
    of_delegations: tuple[int, ...] = field(name="d", default=())
    bls: bytes = field(name="k", default=b"")


encode: Final = msgspec.msgpack.Encoder().encode
decode_tx: Final = msgspec.msgpack.Decoder(TxDetail).decode
decode_output: Final = msgspec.msgpack.Decoder(OutputDetail).decode
decode_stake: Final = msgspec.msgpack.Decoder(StakeDetail).decode
# Threshold and keys of the addresses.
decode_owners: Final = msgspec.msgpack.Decoder(tuple[int, tuple[int, ...]]).decode
_decode_proposer: Final = msgspec.msgpack.Decoder(Proposer).decode

BLS_KEY_BYTES: Final = 48


def tx_number(name: str) -> int:
    """Return the number of a transaction's type; the number of UNKNOWN for a name without one."""
    return _TX_NUMBERS.get(name, UNKNOWN)


def flags_of(output: LedgerOutput, created_on: int, held_on: int) -> int:
    """Return the flags of an output.

    created_on, held_on: numbers of chains.
    """
    flags = (
        created_on
        | held_on << 2
        | _OUTPUT_NUMBERS[output.kind] << 4
        | _REWARD_NUMBERS[output.reward] << 9
    )
    if output.staked:
        flags |= _STAKED
    return flags if output.is_complete else flags | _INCOMPLETE


class OutputFlags(NamedTuple):
    """The flags of an output.

    created_on, held_on: numbers of the chains that made it, and where it can be spent.

    is_staked: a staking made the output.
    is_incomplete: only the input that spent the output is indexed.
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
    return OutputFlags(
        flags & 3, flags >> 2 & 3, kind, bool(flags & _STAKED), bool(flags & _INCOMPLETE), reward
    )


def encode_proposer(proposer: Proposer | None) -> bytes | None:
    """Return a proposer's bytes."""
    return None if proposer is None else encode(proposer)


def decode_proposer(raw: bytes | None) -> Proposer | None:
    """Return the proposer that `encode_proposer` wrote."""
    return None if raw is None else _decode_proposer(bytes(raw))
