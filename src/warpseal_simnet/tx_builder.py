"""Builds the bytes of P-Chain and X-Chain transactions and blocks.

Source of truth: avalanchego `vms/platformvm/txs`, `vms/platformvm/block`, `vms/secp256k1fx`.
Credentials have the form of signatures but are not made with a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from warpseal.warp.codec import pack_sized, pack_u32, pack_u64, pack_versioned
from warpseal.warp.ids import NodeID, SubnetID, ValidationID
from warpseal.warp.l1_messages import ConversionData

# The owner of every UTXO and every subnet: the funded address of local networks.
OWNER: Final = bytes.fromhex("3cb7d3842e8cee6a0ebd09f1fe884f6861e1b29c")
EVM_VM: Final = b"subnetevm".ljust(32, b"\x00")
FEE_NAVAX: Final = 10_000

# 43 is the first id that no release up to 1.15.3 has.
_TYPES: Final = {
    "CreateChainTx": 15,
    "CreateSubnetTx": 16,
    "AddPermissionlessDelegatorTx": 26,
    "BaseTx": 34,
    "ConvertSubnetToL1Tx": 35,
    "RegisterL1ValidatorTx": 36,
    "SetL1ValidatorWeightTx": 37,
    "IncreaseL1ValidatorBalanceTx": 38,
    "DisableL1ValidatorTx": 39,
    "FutureTx": 43,
}
_ADD_VALIDATOR: Final = 25
_NO_SIGNER: Final = 27
_SIGNER: Final = 28
_X_BASE_TYPE: Final = 0
_COMMIT_BLOCK: Final = 2
_STANDARD_BLOCK: Final = 32
_INPUT: Final = 5
_OUTPUT: Final = 7
_CREDENTIAL: Final = 9
_AUTHORISATION: Final = 10
_OWNERS: Final = 11
_NO_OWNER: Final = pack_u32(0) + pack_u32(0)
_ONE_OWNER: Final = pack_u64(0) + pack_u32(1) + pack_u32(1) + OWNER
_FIRST_KEY: Final = pack_u32(1) + pack_u32(0)


@dataclass(frozen=True, slots=True)
class Utxo:
    """An output that can be spent."""

    tx_id: bytes
    index: int
    amount_navax: int


@dataclass(frozen=True, slots=True)
class Wallet:
    """The owner of the UTXOs that pay for a chain's transactions.

    chain_id, asset_id: 32 bytes.
    """

    network_id: int
    chain_id: bytes
    asset_id: bytes


@dataclass(frozen=True, slots=True)
class TxDraft:
    """The content of a transaction without its inputs and outputs.

    body: the bytes behind the base.
    funded_navax: balances that the transaction gives to L1 validators, or its stake.
    authorisation_signatures: the number of signatures in the credential behind the input's
        credential; None if there is no such credential.
    """

    kind: str
    body: bytes = b""
    funded_navax: int = 0
    authorisation_signatures: int | None = None
    fee_navax: int = FEE_NAVAX

    @property
    def burned_navax(self) -> int:
        """The amount that the transaction takes out of the wallet."""
        return self.funded_navax + self.fee_navax


@dataclass(frozen=True, slots=True)
class Funding:
    """The balance of an initial validator, and the proof of possession of its key (96 bytes)."""

    proof: bytes
    balance_navax: int


def create_subnet() -> TxDraft:
    """Return the transaction that makes a subnet; its id is the subnet's."""
    return TxDraft("CreateSubnetTx", pack_u32(_OWNERS) + _ONE_OWNER)


def create_chain(subnet_id: SubnetID, name: str, genesis: bytes) -> TxDraft:
    """Return the transaction that makes an EVM blockchain; its id is the blockchain's."""
    text = name.encode()
    body = (
        subnet_id
        + len(text).to_bytes(2, "big")
        + text
        + EVM_VM
        + pack_u32(0)
        + pack_sized(genesis)
        + _authorisation(1)
    )
    return TxDraft("CreateChainTx", body, authorisation_signatures=1)


def create_genesis_chain(wallet: Wallet, name: str, vm_name: bytes, fx_id: bytes) -> bytes:
    """Return the transaction of a genesis that makes an empty chain of the Primary Network.

    fx_id: 32 bytes, the only part that differs between networks of one id.
    """
    text = name.encode()
    base = (
        pack_u32(wallet.network_id) + wallet.chain_id + pack_u32(0) + pack_u32(0) + pack_sized(b"")
    )
    body = bytes(32) + len(text).to_bytes(2, "big") + text + vm_name.ljust(32, b"\x00")
    # The genesis of the X-Chain lists its assets: none.
    rest = (
        pack_u32(1)
        + fx_id
        + pack_sized(pack_versioned(pack_u32(0)))
        + _authorisation(0)
        + pack_u32(0)
    )
    return pack_versioned(pack_u32(_TYPES["CreateChainTx"]), base, body, rest)


def create_genesis_validator(
    wallet: Wallet,
    node_id: NodeID,
    weight: int,
    signer: tuple[bytes, bytes] | None,
    time_unix_s: int,
) -> bytes:
    """Return the transaction of a genesis that adds a validator of the Primary Network.

    signer: the BLS key and its proof of possession; None if the validator has no key.
    time_unix_s: the start of the stake, which lasts ten years.
    """
    base = (
        pack_u32(wallet.network_id) + wallet.chain_id + pack_u32(0) + pack_u32(0) + pack_sized(b"")
    )
    end_unix_s = time_unix_s + 10 * 365 * 86_400
    terms = node_id + pack_u64(time_unix_s) + pack_u64(end_unix_s) + pack_u64(weight) + bytes(32)
    key = pack_u32(_NO_SIGNER) if signer is None else pack_u32(_SIGNER) + b"".join(signer)
    stake = pack_u32(1) + wallet.asset_id + _output(weight)
    owners = (pack_u32(_OWNERS) + _ONE_OWNER) * 2
    return pack_versioned(
        pack_u32(_ADD_VALIDATOR), base, terms, key, stake, owners, pack_u32(20_000), pack_u32(0)
    )


def convert(data: ConversionData, fundings: Sequence[Funding]) -> TxDraft:
    """Return the transaction that converts a subnet.

    fundings: the balances in the order of the data's validators.
    """
    validators = [
        pack_sized(validator.node_id)
        + pack_u64(validator.weight)
        + pack_u64(funding.balance_navax)
        + validator.public_key
        + funding.proof
        + _NO_OWNER
        + _NO_OWNER
        for validator, funding in zip(data.validators, fundings, strict=True)
    ]
    head = (
        data.subnet_id
        + data.manager_chain_id
        + pack_sized(data.manager_address)
        + pack_u32(len(validators))
    )
    funded = sum(funding.balance_navax for funding in fundings)
    return TxDraft(
        "ConvertSubnetToL1Tx", head + b"".join(validators) + _authorisation(1), funded, 1
    )


def register(balance_navax: int, proof: bytes, signed_message: bytes) -> TxDraft:
    """Return the registration of an L1 validator."""
    return TxDraft(
        "RegisterL1ValidatorTx",
        pack_u64(balance_navax) + proof + pack_sized(signed_message),
        balance_navax,
    )


def set_weight(signed_message: bytes) -> TxDraft:
    """Return the change of an L1 validator's weight; weight 0 removes it."""
    return TxDraft("SetL1ValidatorWeightTx", pack_sized(signed_message))


def increase_balance(validation_id: ValidationID, balance_navax: int) -> TxDraft:
    """Return the funding of an L1 validator."""
    return TxDraft(
        "IncreaseL1ValidatorBalanceTx", validation_id + pack_u64(balance_navax), balance_navax
    )


def disable(validation_id: ValidationID) -> TxDraft:
    """Return the deactivation of an L1 validator, by an owner of no keys."""
    return TxDraft(
        "DisableL1ValidatorTx", validation_id + _authorisation(0), authorisation_signatures=0
    )


def delegate(node_id: NodeID, weight: int, time_unix_s: int, asset_id: bytes) -> TxDraft:
    """Return a stake with a validator of the Primary Network.

    weight: the stake, nAVAX; time_unix_s: the start of the stake, which lasts a year.
    """
    end_unix_s = time_unix_s + 365 * 86_400
    terms = node_id + pack_u64(time_unix_s) + pack_u64(end_unix_s) + pack_u64(weight) + bytes(32)
    stake = pack_u32(1) + asset_id + _output(weight)
    body = terms + stake + pack_u32(_OWNERS) + _ONE_OWNER
    return TxDraft("AddPermissionlessDelegatorTx", body, weight)


def base() -> TxDraft:
    """Return a payment to the same owner."""
    return TxDraft("BaseTx")


def transaction(wallet: Wallet, utxo: Utxo, draft: TxDraft) -> bytes:
    """Return a signed P-Chain transaction that spends one UTXO."""
    return _signed(_TYPES[draft.kind], wallet, utxo, draft)


def x_transaction(wallet: Wallet, utxo: Utxo) -> bytes:
    """Return a signed X-Chain payment to the same owner that spends one UTXO."""
    return _signed(_X_BASE_TYPE, wallet, utxo, base())


def change(utxo: Utxo, draft: TxDraft, raw: bytes) -> Utxo:
    """Return the utxo that a transaction gives back."""
    return Utxo(sha256(raw).digest(), 0, utxo.amount_navax - draft.burned_navax)


def unspent_output(wallet: Wallet, utxo: Utxo) -> bytes:
    """Return a UTXO as nodes hand it out."""
    return pack_versioned(
        utxo.tx_id, pack_u32(utxo.index), wallet.asset_id, _output(utxo.amount_navax)
    )


def standard_block(
    time_unix_s: int, parent_id: bytes, height: int, transactions: Sequence[bytes]
) -> bytes:
    """Return a block since Banff; the transactions go in without their codec version."""
    head = pack_u64(time_unix_s) + parent_id + pack_u64(height) + pack_u32(len(transactions))
    return pack_versioned(pack_u32(_STANDARD_BLOCK), head, *(raw[2:] for raw in transactions))


def genesis(
    utxos: Sequence[Utxo],
    wallet: Wallet,
    time_unix_s: int,
    supply_navax: int,
    validators: Sequence[bytes],
    chains: Sequence[bytes],
) -> bytes:
    """Return a genesis with utxos, validators and chains."""
    outputs = (
        utxo.tx_id
        + pack_u32(utxo.index)
        + wallet.asset_id
        + _output(utxo.amount_navax)
        + pack_sized(b"")
        for utxo in utxos
    )
    times = pack_u64(time_unix_s) + pack_u64(supply_navax)
    return pack_versioned(
        pack_u32(len(utxos)),
        *outputs,
        _genesis_transactions(validators),
        _genesis_transactions(chains),
        times,
        b"\x00\x00",
    )


def _genesis_transactions(raws: Sequence[bytes]) -> bytes:
    # Inside a genesis a transaction goes without its codec version.
    return pack_u32(len(raws)) + b"".join(raw[2:] for raw in raws)


def genesis_block(genesis_bytes: bytes) -> bytes:
    """Return block 0: the commit of a genesis."""
    return pack_versioned(pack_u32(_COMMIT_BLOCK), sha256(genesis_bytes).digest(), pack_u64(0))


def _signed(type_id: int, wallet: Wallet, utxo: Utxo, draft: TxDraft) -> bytes:
    if utxo.amount_navax < draft.burned_navax:
        raise ValueError(f"{utxo.amount_navax} nAVAX do not pay for {draft.burned_navax}")
    unsigned = pack_versioned(
        pack_u32(type_id), _base(wallet, utxo, utxo.amount_navax - draft.burned_navax), draft.body
    )
    counts = [1] if draft.authorisation_signatures is None else [1, draft.authorisation_signatures]
    credentials = (_credential(unsigned, number, count) for number, count in enumerate(counts))
    return unsigned + pack_u32(len(counts)) + b"".join(credentials)


def _base(wallet: Wallet, utxo: Utxo, back_navax: int) -> bytes:
    output = wallet.asset_id + _output(back_navax)
    spent = (
        utxo.tx_id
        + pack_u32(utxo.index)
        + wallet.asset_id
        + pack_u32(_INPUT)
        + pack_u64(utxo.amount_navax)
        + _FIRST_KEY
    )
    return (
        pack_u32(wallet.network_id)
        + wallet.chain_id
        + pack_u32(1)
        + output
        + pack_u32(1)
        + spent
        + pack_sized(b"")
    )


def _output(amount_navax: int) -> bytes:
    return pack_u32(_OUTPUT) + pack_u64(amount_navax) + _ONE_OWNER


def _authorisation(count: int) -> bytes:
    return (
        pack_u32(_AUTHORISATION)
        + pack_u32(count)
        + b"".join(pack_u32(index) for index in range(count))
    )


def _credential(unsigned: bytes, number: int, count: int) -> bytes:
    digest = sha256(unsigned + pack_u32(number)).digest()
    signature = digest + sha256(digest).digest() + bytes([digest[0] & 1])
    return pack_u32(_CREDENTIAL) + pack_u32(count) + signature * count
