"""P-Chain transactions of every type, and the signed transaction.

Source of truth: avalanchego `vms/platformvm/{txs,signer,stakeable}`; for the type ids
`vms/platformvm/txs/codec.go`, `vms/platformvm/block/codec.go`; ACP-77 for L1s, ACP-236 for
auto-renewed validators (Helicon, on Fuji since 2026-07-28 15:00 UTC, on Mainnet since 2026-09-22
15:00 UTC). Times are unix seconds, durations seconds, weights and amounts nAVAX (or the smallest
unit of an elastic subnet's asset), shares, rates and fees parts per million. Staked outputs are
returned when the staker leaves: as outputs of the staking transaction, behind its base outputs. The
id of a subnet or blockchain is the id of the transaction that created it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, TypeAlias

from msgspec import Struct

from warpseal.chains.codec import (
    U32,
    AsInterface,
    Bytes32,
    FixedBytes,
    ListOfFixed,
    StructCodec,
    TypeRegistry,
    Uint8,
    Uint32,
    Uint64,
)
from warpseal.chains.components import (
    Authority,
    BaseTx,
    Credential,
    ExportTx,
    ImportTx,
    Input,
    LockIn,
    LockOut,
    OutputOwners,
    Owner,
    SignedTx,
    TransferableOutput,
    TransferInput,
    TransferOutput,
    TxCodec,
    UserTx,
)
from warpseal.chains.ids import AssetID, TxID
from warpseal.warp.ids import ChainID, NodeID, SubnetID, ValidationID
from warpseal.warp.l1_messages import (
    ConversionData,
    ConversionValidator,
    L1ValidatorWeight,
    PChainOwner,
    RegisterL1Validator,
    bootstrap_validation_id,
)
from warpseal.warp.message import AddressedCall, SignedMessage

Proof: TypeAlias = Annotated[bytes, FixedBytes(96)]
BalanceOwner: TypeAlias = Annotated[
    PChainOwner,
    StructCodec(
        PChainOwner, {"threshold": U32, "addresses": ListOfFixed(FixedBytes(20), "addresses")}
    ),
]


class RewardType(StrEnum):
    """The receiver of a reward, or a validator's fee from its delegators."""

    VALIDATOR = "VALIDATOR"
    DELEGATOR = "DELEGATOR"
    VALIDATOR_FEE = "VALIDATOR_FEE"


class StakingTerms(Struct, frozen=True):
    """A node, its weight and its staking period.

    start_s: ignored since Durango, when a staking period starts at the accepting block's time.
    """

    node_id: NodeID
    start_s: Uint64
    end_s: Uint64
    weight: Uint64


class SubnetValidator(Struct, frozen=True):
    """A staker of a subnet; the Primary Network's id is all zeros."""

    validator: StakingTerms
    subnet_id: SubnetID


class NoSigner(Struct, frozen=True):
    """A staker without a BLS key."""


class ProofOfPossession(Struct, frozen=True):
    """A BLS key, compressed, and the proof that the staker has its secret."""

    public_key: Annotated[bytes, FixedBytes(48)]
    proof: Proof


Signer: TypeAlias = Annotated[NoSigner | ProofOfPossession, AsInterface("a signer")]


class InitialValidator(Struct, frozen=True):
    """A validator of a conversion.

    node_id: 20 bytes if valid.
    balance: nAVAX; 0 makes the validator start inactive.
    """

    node_id: bytes
    weight: Uint64
    balance: Uint64
    signer: ProofOfPossession
    remaining_balance_owner: BalanceOwner
    deactivation_owner: BalanceOwner


class CreateSubnetTx(UserTx, frozen=True):
    """Creates a permissioned subnet."""

    owner: Owner


class CreateChainTx(UserTx, frozen=True):
    """Creates a blockchain on a subnet."""

    subnet_id: SubnetID
    chain_name: str
    vm_id: Bytes32
    fx_ids: tuple[Bytes32, ...]
    genesis: bytes
    subnet_auth: Authority


class TransformSubnetTx(UserTx, frozen=True):
    """Makes a permissioned subnet elastic. The terms of its stakers."""

    subnet_id: SubnetID
    asset_id: AssetID
    initial_supply: Uint64
    maximum_supply: Uint64
    min_consumption_rate: Uint64
    max_consumption_rate: Uint64
    min_validator_stake: Uint64
    max_validator_stake: Uint64
    min_stake_duration_s: Uint32
    max_stake_duration_s: Uint32
    min_delegation_fee: Uint32
    min_delegator_stake: Uint64
    max_validator_weight_factor: Uint8
    uptime_requirement: Uint32
    subnet_auth: Authority


class TransferSubnetOwnershipTx(UserTx, frozen=True):
    """Gives a permissioned subnet a new owner."""

    subnet_id: SubnetID
    subnet_auth: Authority
    new_owner: Owner


class AddValidatorTx(UserTx, frozen=True):
    """A validator joins the Primary Network without a BLS key (before Durango)."""

    validator: StakingTerms
    stake: tuple[TransferableOutput, ...]
    rewards_owner: Owner
    delegation_shares: Uint32


class AddDelegatorTx(UserTx, frozen=True):
    """A delegator stakes with a validator of the Primary Network (before Durango)."""

    validator: StakingTerms
    stake: tuple[TransferableOutput, ...]
    rewards_owner: Owner


class AddSubnetValidatorTx(UserTx, frozen=True):
    """The subnet's owner adds a validator to a permissioned subnet."""

    validator: SubnetValidator
    subnet_auth: Authority


class AddPermissionlessValidatorTx(UserTx, frozen=True):
    """A validator joins the Primary Network or an elastic subnet."""

    validator: SubnetValidator
    signer: Signer
    stake: tuple[TransferableOutput, ...]
    validator_rewards_owner: Owner
    delegator_rewards_owner: Owner
    delegation_shares: Uint32


class AddPermissionlessDelegatorTx(UserTx, frozen=True):
    """A delegator stakes with a validator of the Primary Network or of an elastic subnet."""

    validator: SubnetValidator
    stake: tuple[TransferableOutput, ...]
    rewards_owner: Owner


class RemoveSubnetValidatorTx(UserTx, frozen=True):
    """The subnet's owner removes a validator of a permissioned subnet."""

    node_id: NodeID
    subnet_id: SubnetID
    subnet_auth: Authority


class AdvanceTimeTx(Struct, frozen=True):
    """Proposes a new chain time (before Banff). It has no inputs and no credentials."""

    time_s: Uint64


class RewardValidatorTx(Struct, frozen=True):
    """Proposes to end a staking, with its reward if committed.

    It has no inputs and no credentials.
    """

    staking_tx_id: TxID


class ConvertSubnetToL1Tx(UserTx, frozen=True):
    """Turns a permissioned subnet into an L1.

    From then on a contract on the manager chain controls the validators.
    """

    subnet_id: SubnetID
    manager_chain_id: ChainID
    manager_address: bytes
    validators: tuple[InitialValidator, ...]
    subnet_auth: Authority

    @property
    def conversion_id(self) -> bytes:
        """The 32 bytes that the P-Chain attests after the conversion.

        They commit to the validators in the order of the transaction.
        """
        validators: list[ConversionValidator] = []
        for initial in self.validators:
            key = initial.signer.public_key
            validators.append(ConversionValidator(initial.node_id, key, initial.weight))
        manager = (self.manager_chain_id, self.manager_address)
        return ConversionData(self.subnet_id, *manager, tuple(validators)).conversion_id

    @property
    def validation_ids(self) -> tuple[ValidationID, ...]:
        """The validation id of each initial validator, in the order of the transaction."""
        indices = range(len(self.validators))
        return tuple(bootstrap_validation_id(self.subnet_id, index) for index in indices)


class RegisterL1ValidatorTx(UserTx, frozen=True):
    """Registers a validator of an L1.

    balance: nAVAX.
    message: bytes of a signed Warp message.
    """

    balance: Uint64
    proof_of_possession: Proof
    message: bytes

    def signed_message(self) -> SignedMessage:
        """Return the Warp message that the L1's manager sent. Raises MalformedMessage."""
        return SignedMessage.parse(self.message)

    def registration(self) -> RegisterL1Validator:
        """Return the registration that the manager requested. Raises MalformedMessage."""
        return RegisterL1Validator.parse(_called(self.message))


class SetL1ValidatorWeightTx(UserTx, frozen=True):
    """Changes the weight of an L1's validator, or removes it with weight 0.

    message: bytes of a signed Warp message.
    """

    message: bytes

    def signed_message(self) -> SignedMessage:
        """Return the Warp message that the L1's manager sent. Raises MalformedMessage."""
        return SignedMessage.parse(self.message)

    def change(self) -> L1ValidatorWeight:
        """Return the weight change that the manager requested. Raises MalformedMessage."""
        return L1ValidatorWeight.parse(_called(self.message))


class IncreaseL1ValidatorBalanceTx(UserTx, frozen=True):
    """Adds `balance` nAVAX to the balance from which an L1's validator pays its fee."""

    validation_id: ValidationID
    balance: Uint64


class DisableL1ValidatorTx(UserTx, frozen=True):
    """Makes an L1's validator inactive and refunds its balance; its weight stays."""

    validation_id: ValidationID
    disable_auth: Authority


def _called(message: bytes) -> bytes:
    return AddressedCall.parse(SignedMessage.parse(message).unsigned.payload).payload


class AddAutoRenewedValidatorTx(UserTx, frozen=True):
    """A validator joins the Primary Network for cycles of `period_s` seconds.

    node_id: 20 bytes if valid.
    """

    node_id: bytes
    signer: Signer
    stake: tuple[TransferableOutput, ...]
    validator_rewards_owner: Owner
    delegator_rewards_owner: Owner
    validator_authority: Owner
    delegation_shares: Uint32
    auto_compound_reward_shares: Uint32
    period_s: Uint64


class SetAutoRenewedValidatorConfigTx(UserTx, frozen=True):
    """Changes the renewal of a validator.

    staking_tx_id: the transaction by which it joined.
    """

    staking_tx_id: TxID
    auth: Authority
    auto_compound_reward_shares: Uint32
    period_s: Uint64


class RewardAutoRenewedValidatorTx(Struct, frozen=True):
    """Proposes to end a cycle, at `end_s`, with its reward if committed.

    It has no inputs and no credentials.
    """

    staking_tx_id: TxID
    end_s: Uint64


PUnsignedTx: TypeAlias = UserTx | AdvanceTimeTx | RewardValidatorTx | RewardAutoRenewedValidatorTx
PSignedTx: TypeAlias = SignedTx[PUnsignedTx, Credential]

# The ids 6 and 8 are not used.
P_TYPES: Final = TypeRegistry(
    {
        0: "ApricotProposalBlock",
        1: "ApricotAbortBlock",
        2: "ApricotCommitBlock",
        3: "ApricotStandardBlock",
        4: "ApricotAtomicBlock",
        5: TransferInput,
        7: TransferOutput,
        9: Credential,
        10: Input,
        11: OutputOwners,
        12: AddValidatorTx,
        13: AddSubnetValidatorTx,
        14: AddDelegatorTx,
        15: CreateChainTx,
        16: CreateSubnetTx,
        17: ImportTx,
        18: ExportTx,
        19: AdvanceTimeTx,
        20: RewardValidatorTx,
        21: LockIn,
        22: LockOut,
        23: RemoveSubnetValidatorTx,
        24: TransformSubnetTx,
        25: AddPermissionlessValidatorTx,
        26: AddPermissionlessDelegatorTx,
        27: NoSigner,
        28: ProofOfPossession,
        29: "BanffProposalBlock",
        30: "BanffAbortBlock",
        31: "BanffCommitBlock",
        32: "BanffStandardBlock",
        33: TransferSubnetOwnershipTx,
        34: BaseTx,
        35: ConvertSubnetToL1Tx,
        36: RegisterL1ValidatorTx,
        37: SetL1ValidatorWeightTx,
        38: IncreaseL1ValidatorBalanceTx,
        39: DisableL1ValidatorTx,
        40: AddAutoRenewedValidatorTx,
        41: SetAutoRenewedValidatorConfigTx,
        42: RewardAutoRenewedValidatorTx,
    }
)
_FIRST_HELICON_TYPE: Final = 40

P_TX: Final[TxCodec[PUnsignedTx, Credential]] = TxCodec(
    P_TYPES.interface("a transaction", PUnsignedTx), P_TYPES.interface("a credential", Credential)
)
parse_p_tx = P_TX.parse


def api_type(tx: PSignedTx) -> str:
    """Return the name of the type in the public data API.

    A type that clients of that API do not know is `UNKNOWN`.
    """
    return "UNKNOWN" if tx.type_id >= _FIRST_HELICON_TYPE else tx.kind
