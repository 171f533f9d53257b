"""The small network of made-up histories: its numbers, its genesis, and what its transactions are
made of.
"""

from __future__ import annotations

from random import Random

from tests.ledger.model_parts import DAY_S, Rules
from warpseal.chains.components import (
    BaseFields,
    Input,
    LockOut,
    Output,
    OutputOwners,
    TransferableOutput,
    TransferOutput,
    Utxo,
)
from warpseal.chains.ids import Address, AssetID, TxID
from warpseal.chains.p_blocks import GenesisUtxo, PGenesis, parse_p_genesis
from warpseal.chains.p_txs import (
    P_TX,
    AddValidatorTx,
    CreateChainTx,
    ProofOfPossession,
    PSignedTx,
    StakingTerms,
)
from warpseal.ledger.params import L1FeeConfig, Parameters, RewardConfig, UpgradeTimes
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, NodeID
from warpseal.warp.l1_messages import PChainOwner
from warpseal.warp.message import AddressedCall, SignedMessage, UnsignedMessage

NETWORK_ID = 88
NAVAX = 10**9
BEGIN_S = 1_600_000_000
AVAX = AssetID(b"\x0a" * 32)
TOKEN = AssetID(b"\x0b" * 32)
NO_BASE = BaseFields(NETWORK_ID, P_CHAIN, (), (), b"")
CHAIN_TXS = tuple(
    P_TX.build(
        CreateChainTx(
            NO_BASE, PRIMARY_NETWORK, name, name.encode().ljust(32, b"\x00"), (), b"", Input(())
        )
    )
    for name in ("avm", "evm")
)
"""The transactions of the genesis that create the X- and the C-Chain.

Histories use ids that are easy to read.
"""
X_CHAIN, C_CHAIN = ChainID(b"\x0c" * 32), ChainID(b"\x0d" * 32)
BANFF_S = BEGIN_S + DAY_S
UPGRADES = UpgradeTimes(
    apricot_5_s=BEGIN_S + DAY_S // 2,
    cortina_s=BEGIN_S + 3 * DAY_S,
    durango_s=BEGIN_S + 5 * DAY_S,
    etna_s=BEGIN_S + 7 * DAY_S,
)
# Few validators are many here, and prices double fast, so that balances run out.
FEE = L1FeeConfig(target=3, min_price=512, excess_conversion=20_000)
# A short year, so that rewards are large enough for every branch of their split.
REWARDS = RewardConfig(120_000, 100_000, 20 * DAY_S, 720_000_000 * NAVAX)
PARAMS = Parameters(NETWORK_ID, AVAX, X_CHAIN, C_CHAIN, UPGRADES, REWARDS, FEE)


def genesis(seed: int) -> PGenesis:
    """Return a first state: some hundred million AVAX, a token, two validators, the X- and the
    C-Chain.
    """
    random = Random(seed)
    outputs: list[tuple[AssetID, Output]] = [
        (AVAX, paid(random, 20_000_000 * NAVAX)) for _ in range(6)
    ]
    outputs += [(TOKEN, paid(random, 10**15)) for _ in range(3)]
    outputs.append((AVAX, LockOut(BEGIN_S + 5 * DAY_S, paid(random, 5_000_000 * NAVAX))))
    utxos = tuple(
        GenesisUtxo(Utxo(TxID(bytes(32)), index, asset, output), b"")
        for index, (asset, output) in enumerate(outputs)
    )
    validators = tuple(_first_validator(random, days) for days in (2, 6))
    genesis = PGenesis(utxos, validators, CHAIN_TXS, BEGIN_S, 360_000_000 * NAVAX, "", b"")
    return parse_p_genesis(genesis.encode())


def _first_validator(random: Random, days: int) -> PSignedTx:
    stake = (TransferableOutput(AVAX, paid(random, 2000 * NAVAX)),)
    validator = StakingTerms(
        NodeID(random.randbytes(20)), BEGIN_S, BEGIN_S + days * DAY_S, 2000 * NAVAX
    )
    return P_TX.build(AddValidatorTx(empty_base(), validator, stake, random_owner(random), 20_000))


def rules() -> Rules:
    """Return the numbers of these histories for the model."""
    return Rules(
        avax=AVAX,
        cortina_s=UPGRADES.cortina_s,
        durango_s=UPGRADES.durango_s,
        etna_s=UPGRADES.etna_s,
        target=FEE.target,
        min_price=FEE.min_price,
        conversion=FEE.excess_conversion,
        period_s=REWARDS.minting_period_s,
    )


def random_owner(random: Random) -> OutputOwners:
    """Return one of a few owners."""
    count = random.choice((1, 1, 1, 2))
    addresses = tuple(sorted(Address(bytes([random.randrange(1, 6)]) * 20) for _ in range(count)))
    return OutputOwners(
        random.choice((0, 0, BEGIN_S)),
        random.randrange(1, count + 1),
        tuple(dict.fromkeys(addresses)),
    )


def paid(random: Random, amount: int) -> TransferOutput:
    """Return an output of a random owner."""
    owner = random_owner(random)
    return TransferOutput(amount, owner.locktime, owner.threshold, owner.addresses)


def empty_base() -> BaseFields:
    """Return a transaction's beginning without inputs and outputs."""
    return NO_BASE


def l1_owner(random: Random) -> PChainOwner:
    """Return who owns an L1 validator."""
    return PChainOwner(1, (bytes([random.randrange(1, 6)]) * 20,))


def bls_key(random: Random) -> ProofOfPossession:
    """Return a BLS key that is not verified here."""
    return ProofOfPossession(random.randbytes(48), random.randbytes(96))


def warp(chain_id: ChainID, address: bytes, payload: bytes) -> bytes:
    """Return a signed message of an L1's manager, whose signature is not verified here."""
    unsigned = UnsignedMessage.build(NETWORK_ID, chain_id, AddressedCall(address, payload).encode())
    return SignedMessage(unsigned, b"\x01", bytes(96)).encode()
