"""P-Chain transactions of every type, and the signed transaction.

Source of truth: avalanchego `vms/platformvm/txs/*.go`, ACP-77 for L1s, ACP-236 for auto-renewed validators (Helicon,
not yet active on a public network). Shares, rates and fees are parts per million, durations seconds. Staked outputs are
returned when the staker leaves: as outputs of the staking transaction, behind its base outputs. The id of a subnet or
blockchain is the id of the transaction that created it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from warpseal.chains.codec import ID, SIZED, TEXT, U8, U32, U64, Interface, ListOf, ListOfFixed, Struct
from warpseal.chains.components import (
    CREDENTIAL,
    CREDENTIAL_TYPE,
    BaseFields,
    Credential,
    Input,
    OutputOwners,
    TransferableInput,
    TransferableOutput,
)
from warpseal.chains.ids import AssetID, TxID
from warpseal.chains.p_components import (
    AUTHORITY,
    BASE,
    INITIAL_VALIDATOR,
    INPUTS,
    NODE_ID,
    OUTPUTS,
    OWNER,
    P_TYPE_NAMES,
    PROOF,
    SIGNER,
    SUBNET_VALIDATOR,
    VALIDATOR,
    InitialValidator,
    Signer,
    StakingTerms,
    SubnetValidator,
)
from warpseal.chains.signed_tx import SignedTx, TxCodec
from warpseal.warp.ids import ChainID, NodeID, SubnetID, ValidationID
from warpseal.warp.l1_messages import (
    ConversionData,
    ConversionValidator,
    L1ValidatorWeight,
    RegisterL1Validator,
    bootstrap_validation_id,
)
from warpseal.warp.message import AddressedCall, SignedMessage


@dataclass(frozen=True, slots=True)
class BaseTx:
    """Moves funds within the chain."""

    base: BaseFields


@dataclass(frozen=True, slots=True)
class ImportTx:
    """Spends outputs that another chain exported. Credentials: of the base inputs, then of the imported ones."""

    base: BaseFields
    source_chain_id: ChainID
    imported_inputs: tuple[TransferableInput, ...]


@dataclass(frozen=True, slots=True)
class ExportTx:
    """Exports outputs to another chain; their indices follow those of the base outputs."""

    base: BaseFields
    destination_chain_id: ChainID
    exported_outputs: tuple[TransferableOutput, ...]


BASE_TX: Final = Struct(BaseTx, base=BASE)
IMPORT_TX: Final = Struct(ImportTx, base=BASE, source_chain_id=ID, imported_inputs=INPUTS)
EXPORT_TX: Final = Struct(ExportTx, base=BASE, destination_chain_id=ID, exported_outputs=OUTPUTS)


@dataclass(frozen=True, slots=True)
class CreateSubnetTx:
    """Creates a permissioned subnet."""

    base: BaseFields
    owner: OutputOwners


@dataclass(frozen=True, slots=True)
class CreateChainTx:
    """Creates a blockchain on a subnet. vm_id and fx_ids: 32 bytes each."""

    base: BaseFields
    subnet_id: SubnetID
    chain_name: str
    vm_id: bytes
    fx_ids: tuple[bytes, ...]
    genesis: bytes
    subnet_auth: Input


@dataclass(frozen=True, slots=True)
class TransformSubnetTx:
    """Makes a permissioned subnet elastic. The terms of its stakers."""

    base: BaseFields
    subnet_id: SubnetID
    asset_id: AssetID
    initial_supply: int
    maximum_supply: int
    min_consumption_rate: int
    max_consumption_rate: int
    min_validator_stake: int
    max_validator_stake: int
    min_stake_duration_s: int
    max_stake_duration_s: int
    min_delegation_fee: int
    min_delegator_stake: int
    max_validator_weight_factor: int
    uptime_requirement: int
    subnet_auth: Input


@dataclass(frozen=True, slots=True)
class TransferSubnetOwnershipTx:
    """Gives a permissioned subnet a new owner."""

    base: BaseFields
    subnet_id: SubnetID
    subnet_auth: Input
    new_owner: OutputOwners


CREATE_SUBNET_TX: Final = Struct(CreateSubnetTx, base=BASE, owner=OWNER)
CREATE_CHAIN_TX: Final = Struct(
    CreateChainTx,
    base=BASE,
    subnet_id=ID,
    chain_name=TEXT,
    vm_id=ID,
    fx_ids=ListOfFixed(ID, "fx ids"),
    genesis=SIZED,
    subnet_auth=AUTHORITY,
)
TRANSFORM_SUBNET_TX: Final = Struct(
    TransformSubnetTx,
    base=BASE,
    subnet_id=ID,
    asset_id=ID,
    initial_supply=U64,
    maximum_supply=U64,
    min_consumption_rate=U64,
    max_consumption_rate=U64,
    min_validator_stake=U64,
    max_validator_stake=U64,
    min_stake_duration_s=U32,
    max_stake_duration_s=U32,
    min_delegation_fee=U32,
    min_delegator_stake=U64,
    max_validator_weight_factor=U8,
    uptime_requirement=U32,
    subnet_auth=AUTHORITY,
)
TRANSFER_SUBNET_OWNERSHIP_TX: Final = Struct(
    TransferSubnetOwnershipTx, base=BASE, subnet_id=ID, subnet_auth=AUTHORITY, new_owner=OWNER
)


@dataclass(frozen=True, slots=True)
class AddValidatorTx:
    """A validator joins the Primary Network without a BLS key (before Durango)."""

    base: BaseFields
    validator: StakingTerms
    stake: tuple[TransferableOutput, ...]
    rewards_owner: OutputOwners
    delegation_shares: int


@dataclass(frozen=True, slots=True)
class AddDelegatorTx:
    """A delegator stakes with a validator of the Primary Network (before Durango)."""

    base: BaseFields
    validator: StakingTerms
    stake: tuple[TransferableOutput, ...]
    rewards_owner: OutputOwners


@dataclass(frozen=True, slots=True)
class AddSubnetValidatorTx:
    """The subnet's owner adds a validator to a permissioned subnet."""

    base: BaseFields
    validator: SubnetValidator
    subnet_auth: Input


@dataclass(frozen=True, slots=True)
class AddPermissionlessValidatorTx:
    """A validator joins the Primary Network or an elastic subnet."""

    base: BaseFields
    validator: SubnetValidator
    signer: Signer
    stake: tuple[TransferableOutput, ...]
    validator_rewards_owner: OutputOwners
    delegator_rewards_owner: OutputOwners
    delegation_shares: int


@dataclass(frozen=True, slots=True)
class AddPermissionlessDelegatorTx:
    """A delegator stakes with a validator of the Primary Network or of an elastic subnet."""

    base: BaseFields
    validator: SubnetValidator
    stake: tuple[TransferableOutput, ...]
    rewards_owner: OutputOwners


@dataclass(frozen=True, slots=True)
class RemoveSubnetValidatorTx:
    """The subnet's owner removes a validator of a permissioned subnet."""

    base: BaseFields
    node_id: NodeID
    subnet_id: SubnetID
    subnet_auth: Input


@dataclass(frozen=True, slots=True)
class AdvanceTimeTx:
    """Proposes a new chain time (before Banff). It has no inputs and no credentials."""

    time_s: int


@dataclass(frozen=True, slots=True)
class RewardValidatorTx:
    """Proposes to end a staking, with its reward if committed. It has no inputs and no credentials."""

    staking_tx_id: TxID


ADD_VALIDATOR_TX: Final = Struct(
    AddValidatorTx, base=BASE, validator=VALIDATOR, stake=OUTPUTS, rewards_owner=OWNER, delegation_shares=U32
)
ADD_DELEGATOR_TX: Final = Struct(AddDelegatorTx, base=BASE, validator=VALIDATOR, stake=OUTPUTS, rewards_owner=OWNER)
ADD_SUBNET_VALIDATOR_TX: Final = Struct(
    AddSubnetValidatorTx, base=BASE, validator=SUBNET_VALIDATOR, subnet_auth=AUTHORITY
)
ADD_PERMISSIONLESS_VALIDATOR_TX: Final = Struct(
    AddPermissionlessValidatorTx,
    base=BASE,
    validator=SUBNET_VALIDATOR,
    signer=SIGNER,
    stake=OUTPUTS,
    validator_rewards_owner=OWNER,
    delegator_rewards_owner=OWNER,
    delegation_shares=U32,
)
ADD_PERMISSIONLESS_DELEGATOR_TX: Final = Struct(
    AddPermissionlessDelegatorTx, base=BASE, validator=SUBNET_VALIDATOR, stake=OUTPUTS, rewards_owner=OWNER
)
REMOVE_SUBNET_VALIDATOR_TX: Final = Struct(
    RemoveSubnetValidatorTx, base=BASE, node_id=NODE_ID, subnet_id=ID, subnet_auth=AUTHORITY
)
ADVANCE_TIME_TX: Final = Struct(AdvanceTimeTx, time_s=U64)
REWARD_VALIDATOR_TX: Final = Struct(RewardValidatorTx, staking_tx_id=ID)


@dataclass(frozen=True, slots=True)
class ConvertSubnetToL1Tx:
    """Turns a permissioned subnet into an L1; a contract on the manager chain controls its validators."""

    base: BaseFields
    subnet_id: SubnetID
    manager_chain_id: ChainID
    manager_address: bytes
    validators: tuple[InitialValidator, ...]
    subnet_auth: Input

    @property
    def conversion_data(self) -> ConversionData:
        """The data that the conversion id commits to, its validators in the order of the transaction."""
        validators = tuple(ConversionValidator(v.node_id, v.signer.public_key, v.weight) for v in self.validators)
        return ConversionData(self.subnet_id, self.manager_chain_id, self.manager_address, validators)

    @property
    def conversion_id(self) -> bytes:
        """The 32 bytes that the P-Chain attests after the conversion."""
        return self.conversion_data.conversion_id

    @property
    def validation_ids(self) -> tuple[ValidationID, ...]:
        """The validation id of each initial validator, in the order of the transaction."""
        return tuple(bootstrap_validation_id(self.subnet_id, index) for index in range(len(self.validators)))


@dataclass(frozen=True, slots=True)
class RegisterL1ValidatorTx:
    """Registers a validator of an L1. message: a signed Warp message; balance: nAVAX; proof: 96 bytes."""

    base: BaseFields
    balance: int
    proof_of_possession: bytes
    message: bytes

    def signed_message(self) -> SignedMessage:
        """Return the Warp message that the L1's manager sent. Raises MalformedMessage."""
        return SignedMessage.parse(self.message)

    def registration(self) -> RegisterL1Validator:
        """Return the registration that the manager requested. Raises MalformedMessage."""
        return RegisterL1Validator.parse(_called(self.message))


@dataclass(frozen=True, slots=True)
class SetL1ValidatorWeightTx:
    """Changes the weight of an L1's validator, or removes it with weight 0. message: a signed Warp message."""

    base: BaseFields
    message: bytes

    def signed_message(self) -> SignedMessage:
        """Return the Warp message that the L1's manager sent. Raises MalformedMessage."""
        return SignedMessage.parse(self.message)

    def change(self) -> L1ValidatorWeight:
        """Return the weight change that the manager requested. Raises MalformedMessage."""
        return L1ValidatorWeight.parse(_called(self.message))


@dataclass(frozen=True, slots=True)
class IncreaseL1ValidatorBalanceTx:
    """Adds `balance` nAVAX to the balance from which an L1's validator pays its fee."""

    base: BaseFields
    validation_id: ValidationID
    balance: int


@dataclass(frozen=True, slots=True)
class DisableL1ValidatorTx:
    """Makes an L1's validator inactive and refunds its balance; its weight stays."""

    base: BaseFields
    validation_id: ValidationID
    disable_auth: Input


CONVERT_SUBNET_TO_L1_TX: Final = Struct(
    ConvertSubnetToL1Tx,
    base=BASE,
    subnet_id=ID,
    manager_chain_id=ID,
    manager_address=SIZED,
    validators=ListOf(INITIAL_VALIDATOR, "validators"),
    subnet_auth=AUTHORITY,
)
REGISTER_L1_VALIDATOR_TX: Final = Struct(
    RegisterL1ValidatorTx, base=BASE, balance=U64, proof_of_possession=PROOF, message=SIZED
)
SET_L1_VALIDATOR_WEIGHT_TX: Final = Struct(SetL1ValidatorWeightTx, base=BASE, message=SIZED)
INCREASE_L1_VALIDATOR_BALANCE_TX: Final = Struct(IncreaseL1ValidatorBalanceTx, base=BASE, validation_id=ID, balance=U64)
DISABLE_L1_VALIDATOR_TX: Final = Struct(DisableL1ValidatorTx, base=BASE, validation_id=ID, disable_auth=AUTHORITY)


def _called(message: bytes) -> bytes:
    return AddressedCall.parse(SignedMessage.parse(message).unsigned.payload).payload


@dataclass(frozen=True, slots=True)
class AddAutoRenewedValidatorTx:
    """A validator joins the Primary Network for cycles of `period_s` seconds. node_id: 20 bytes if valid."""

    base: BaseFields
    node_id: bytes
    signer: Signer
    stake: tuple[TransferableOutput, ...]
    validator_rewards_owner: OutputOwners
    delegator_rewards_owner: OutputOwners
    validator_authority: OutputOwners
    delegation_shares: int
    auto_compound_reward_shares: int
    period_s: int


@dataclass(frozen=True, slots=True)
class SetAutoRenewedValidatorConfigTx:
    """Changes the renewal of a validator. staking_tx_id: the transaction by which it joined."""

    base: BaseFields
    staking_tx_id: TxID
    auth: Input
    auto_compound_reward_shares: int
    period_s: int


@dataclass(frozen=True, slots=True)
class RewardAutoRenewedValidatorTx:
    """Proposes to end a cycle, at `end_s`, with its reward if committed. It has no inputs and no credentials."""

    staking_tx_id: TxID
    end_s: int


ADD_AUTO_RENEWED_VALIDATOR_TX: Final = Struct(
    AddAutoRenewedValidatorTx,
    base=BASE,
    node_id=SIZED,
    signer=SIGNER,
    stake=OUTPUTS,
    validator_rewards_owner=OWNER,
    delegator_rewards_owner=OWNER,
    validator_authority=OWNER,
    delegation_shares=U32,
    auto_compound_reward_shares=U32,
    period_s=U64,
)
SET_AUTO_RENEWED_VALIDATOR_CONFIG_TX: Final = Struct(
    SetAutoRenewedValidatorConfigTx,
    base=BASE,
    staking_tx_id=ID,
    auth=AUTHORITY,
    auto_compound_reward_shares=U32,
    period_s=U64,
)
REWARD_AUTO_RENEWED_VALIDATOR_TX: Final = Struct(RewardAutoRenewedValidatorTx, staking_tx_id=ID, end_s=U64)


PUnsignedTx: TypeAlias = (
    BaseTx
    | ImportTx
    | ExportTx
    | AddValidatorTx
    | AddDelegatorTx
    | AddSubnetValidatorTx
    | AddPermissionlessValidatorTx
    | AddPermissionlessDelegatorTx
    | RemoveSubnetValidatorTx
    | AdvanceTimeTx
    | RewardValidatorTx
    | CreateSubnetTx
    | CreateChainTx
    | TransformSubnetTx
    | TransferSubnetOwnershipTx
    | ConvertSubnetToL1Tx
    | RegisterL1ValidatorTx
    | SetL1ValidatorWeightTx
    | IncreaseL1ValidatorBalanceTx
    | DisableL1ValidatorTx
    | AddAutoRenewedValidatorTx
    | SetAutoRenewedValidatorConfigTx
    | RewardAutoRenewedValidatorTx
)
PSignedTx: TypeAlias = SignedTx[PUnsignedTx, Credential]

_LAYOUTS: Final[Mapping[int, Struct[Any]]] = {
    12: ADD_VALIDATOR_TX,
    13: ADD_SUBNET_VALIDATOR_TX,
    14: ADD_DELEGATOR_TX,
    15: CREATE_CHAIN_TX,
    16: CREATE_SUBNET_TX,
    17: IMPORT_TX,
    18: EXPORT_TX,
    19: ADVANCE_TIME_TX,
    20: REWARD_VALIDATOR_TX,
    23: REMOVE_SUBNET_VALIDATOR_TX,
    24: TRANSFORM_SUBNET_TX,
    25: ADD_PERMISSIONLESS_VALIDATOR_TX,
    26: ADD_PERMISSIONLESS_DELEGATOR_TX,
    33: TRANSFER_SUBNET_OWNERSHIP_TX,
    34: BASE_TX,
    35: CONVERT_SUBNET_TO_L1_TX,
    36: REGISTER_L1_VALIDATOR_TX,
    37: SET_L1_VALIDATOR_WEIGHT_TX,
    38: INCREASE_L1_VALIDATOR_BALANCE_TX,
    39: DISABLE_L1_VALIDATOR_TX,
    40: ADD_AUTO_RENEWED_VALIDATOR_TX,
    41: SET_AUTO_RENEWED_VALIDATOR_CONFIG_TX,
    42: REWARD_AUTO_RENEWED_VALIDATOR_TX,
}
_FIRST_HELICON_TYPE: Final = 40
_UNSIGNED: Final[Interface[PUnsignedTx]] = Interface("a transaction", _LAYOUTS, P_TYPE_NAMES)
_CREDENTIAL: Final[Interface[Credential]] = Interface("a credential", {CREDENTIAL_TYPE: CREDENTIAL}, P_TYPE_NAMES)

P_TX: Final[TxCodec[PUnsignedTx, Credential]] = TxCodec(_UNSIGNED, _CREDENTIAL)


def parse_p_tx(raw: bytes) -> PSignedTx:
    """Return the signed transaction whose bytes, codec version first, are exactly `raw`.

    Raises MalformedChainBytes, or its subclass UnknownType for an unknown type id.
    """
    return P_TX.parse(raw)


def api_type(tx: PSignedTx) -> str:
    """Return the public data API's name of the type; `UNKNOWN` for types that its clients do not know."""
    return "UNKNOWN" if tx.type_id >= _FIRST_HELICON_TYPE else tx.kind
