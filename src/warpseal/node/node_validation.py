"""The current validation of one node and its connection, as another node reports them.

Source of truth: avalanchego `vms/platformvm/api/static_service.go`, `vms/platformvm/reward/calculator.go` (Split),
`network/peer/info.go`.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec

from warpseal.chains.ids import Address, TxID, parse_address
from warpseal.history.staking import ActiveState, BlsKey, Rewards, Validation
from warpseal.node.json_values import u64
from warpseal.warp.ids import NodeID, SubnetID, parse_id, parse_node_id

_SHARES: Final = 1_000_000
_SHARES_OF_A_PERCENT: Final = 10_000
_KEY_BYTES: Final = 48
_PROOF_BYTES: Final = 96
_MAX_TEXT: Final = 64


@dataclass(frozen=True, slots=True)
class NodeValidation:
    """A current validation. Amounts in nAVAX, or the subnet's asset; uptime: percent, as the node sees it.

    fee_shares: of 1,000,000; None if delegation is not possible. delegated_rewards: potential rewards of each
    delegation; accrued: the fee share of delegations that ended.
    """

    tx_id: TxID
    node_id: NodeID
    staked: int
    start: int
    end: int
    fee_shares: int | None
    potential: int
    accrued: int
    delegator_count: int
    delegated: int
    delegated_rewards: tuple[int, ...]
    reward_addresses: tuple[Address, ...]
    bls: BlsKey | None
    uptime: float | None

    def validation(self, subnet_id: SubnetID, total_stake: int) -> Validation:
        """Return it as the Data API describes it. total_stake: of the subnet."""
        shares = self.fee_shares
        delegator_shares = _SHARES - (shares or 0)
        fees = sum(reward - delegator_shares * reward // _SHARES for reward in self.delegated_rewards)
        return Validation(
            tx_id=self.tx_id,
            node_id=self.node_id,
            subnet_id=subnet_id,
            staked=self.staked,
            start=self.start,
            end=self.end,
            fee_shares=shares,
            bls=self.bls,
            state=ActiveState(
                delegator_count=self.delegator_count,
                total_stake=total_stake,
                delegated=None if shares is None else self.delegated,
                potential=Rewards(self.potential, self.accrued + fees, self.reward_addresses),
            ),
        )


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """The status of a peer at a node; uptime in percent."""

    version: str = ""
    observed_uptime: float = 0.0
    benched_on: frozenset[str] = frozenset()

    def benched(self, chain: str) -> float:
        """Return the percentage of a chain's requests that are not sent to the peer: 100 if it is benched, else 0."""
        return 100.0 if chain in self.benched_on else 0.0


class _Owner(msgspec.Struct):
    addresses: list[str] = []


class _Signer(msgspec.Struct):
    public_key: str = msgspec.field(name="publicKey")
    proof: str = msgspec.field(name="proofOfPossession")


class _Delegator(msgspec.Struct, rename="camel"):
    potential_reward: int | str = 0


class _Validator(msgspec.Struct, rename="camel", kw_only=True):
    start_time: int | str
    end_time: int | str = 0
    weight: int | str
    tx_id: str = msgspec.field(name="txID", default="")
    node_id: str = msgspec.field(name="nodeID")
    validation_reward_owner: _Owner | None = None
    potential_reward: int | str = 0
    accrued_delegatee_reward: int | str = 0
    delegation_fee: str | None = None
    uptime: str | None = None
    signer: _Signer | None = None
    delegator_count: int | str = 0
    delegator_weight: int | str = 0
    delegators: list[_Delegator] | None = None


class _Validators(msgspec.Struct):
    validators: list[_Validator] | None = None


class _Peer(msgspec.Struct):
    version: str = ""
    observed_uptime: int | str = msgspec.field(name="observedUptime", default=0)
    benched: list[str] | None = None


class _Peers(msgspec.Struct):
    peers: list[_Peer] | None = None


def decode_validations(result: bytes) -> tuple[NodeValidation, ...]:
    """Return the validations of getCurrentValidators without those of L1s, which have no stake. Raises ValueError."""
    listed = msgspec.json.decode(result, type=_Validators).validators or ()
    return tuple(_validation(validator) for validator in listed if validator.tx_id)


def decode_peer_status(result: bytes) -> PeerStatus:
    """Return the peer's status in the result of info.peers, empty if it is not connected. Raises ValueError."""
    peers = msgspec.json.decode(result, type=_Peers).peers or []
    if not peers:
        return PeerStatus()
    peer = peers[0]
    return PeerStatus(
        peer.version.removeprefix("avalanchego/")[:_MAX_TEXT],
        float(min(100, u64(peer.observed_uptime))),
        frozenset(chain[:_MAX_TEXT] for chain in peer.benched or ()),
    )


def _validation(validator: _Validator) -> NodeValidation:
    owner = validator.validation_reward_owner or _Owner()
    return NodeValidation(
        tx_id=TxID(parse_id(validator.tx_id)),
        node_id=parse_node_id(validator.node_id),
        staked=u64(validator.weight),
        start=u64(validator.start_time),
        end=u64(validator.end_time),
        fee_shares=None if validator.delegation_fee is None else _shares(validator.delegation_fee),
        potential=u64(validator.potential_reward),
        accrued=u64(validator.accrued_delegatee_reward),
        delegator_count=u64(validator.delegator_count),
        delegated=u64(validator.delegator_weight),
        delegated_rewards=tuple(u64(delegator.potential_reward) for delegator in validator.delegators or ()),
        reward_addresses=tuple(parse_address(text)[1] for text in owner.addresses),
        bls=_bls(validator.signer),
        uptime=None if validator.uptime is None else float(_percent(validator.uptime)),
    )


def _shares(percent: str) -> int:
    return min(_SHARES, int(_percent(percent) * _SHARES_OF_A_PERCENT))


def _percent(text: str) -> Decimal:
    """Return a percentage of 0..100. Raises ValueError."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"no percentage: {text[:_MAX_TEXT]!r}") from None
    if not number.is_finite() or not 0 <= number <= 100:
        raise ValueError(f"no percentage: {text[:_MAX_TEXT]!r}")
    return number


def _bls(signer: _Signer | None) -> BlsKey | None:
    if signer is None:
        return None
    key, proof = (bytes.fromhex(text.removeprefix("0x")) for text in (signer.public_key, signer.proof))
    if (len(key), len(proof)) != (_KEY_BYTES, _PROOF_BYTES):
        raise ValueError("a BLS key or its proof has a wrong length")
    return BlsKey(key, proof)
