"""Bodies of the aggregation endpoints and of the preflight, as the OpenAPI document describes them.

The handlers do not use these types; tests validate the answers of daemons against them. Each has a twin in kebab case
if `/aggregate-signatures` sends it: the document derives it.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, field

from warpseal.delivery.candidates import HeightLabel
from warpseal.delivery.report import QuorumSource
from warpseal.delivery.statement import StatementRefusal
from warpseal.delivery.warp_rules import SignerSource
from warpseal.l1.request import HeightSource
from warpseal.messages.verification import SignatureRefusal
from warpseal.resources.base import UNSET, Resource, UnsetType

_Percent: TypeAlias = Annotated[int, Meta(ge=0, le=100)]


class AggregateSignaturesRequest(Resource, frozen=True, gc=False, kw_only=True):
    """A message to be signed, a justification, or both. Keys in kebab case mean the same."""

    message: Annotated[str, Meta(description="Hex of the unsigned message, with or without 0x.")] | UnsetType = UNSET
    justification: Annotated[str, Meta(description="Hex of the justification.")] | UnsetType = UNSET
    signing_subnet_id: (
        Annotated[str, Meta(description="Base58-check or hex; by default the subnet of the source chain.")] | UnsetType
    ) = UNSET
    quorum_percentage: (
        Annotated[_Percent, Meta(description="By default 67, or that of the destination.")] | UnsetType
    ) = UNSET
    quorum_percentage_buffer: (
        Annotated[_Percent, Meta(description="By default 0; quorum and buffer are at most 100 together.")] | UnsetType
    ) = UNSET
    p_chain_height: (
        Annotated[
            int,
            Meta(ge=0, description="By default the proposed height, as with 0; or that of the destination."),
        ]
        | UnsetType
    ) = UNSET
    timeout_seconds: Annotated[float, Meta(ge=0, description="How long the caller waits.")] | UnsetType = UNSET
    destination_blockchain_id: (
        Annotated[str, Meta(description="The chain that has to accept the message: base58-check or hex.")] | UnsetType
    ) = UNSET
    report: (
        Annotated[bool, Meta(description="Return the report on the destination, and a message for its next epoch.")]
        | UnsetType
    ) = UNSET


class DestinationEpoch(Resource, frozen=True, gc=False, kw_only=True):
    """The epoch of the next block of a destination. Times are Unix seconds.

    sealed_from: the first block at or after it is the last one of the epoch.
    """

    number: int
    start_time: int
    p_chain_height: str
    sealed_from: int


class DestinationQuorum(Resource, frozen=True, gc=False, kw_only=True):
    """The quorum that counts, and where it comes from."""

    percentage: int
    source: QuorumSource


class WeightAtHeight(Resource, frozen=True, gc=False, kw_only=True):
    """The weight of the signers in the validator set of one P-Chain height. epoch: the one that the height is of."""

    epoch: HeightLabel
    p_chain_height: str
    signed_weight: str
    required_weight: str
    total_weight: str
    verifies: bool


class DeliveryAdvice(Resource, frozen=True, gc=False, kw_only=True):
    """What has to happen on a destination whose epoch is pinned to another validator set.

    blocks_before: blocks to be built before the one with the message. not_before: Unix seconds; earlier blocks do not
    end the epoch. text: the same in words.
    """

    pinned_height: str
    needed_height: str
    blocks_before: int
    not_before: int
    text: str


class DestinationReport(Resource, frozen=True, gc=False, kw_only=True):
    """What decides whether a destination accepts the message.

    signed_by: why this subnet signs. epoch: left out before Granite. verifies_now, serves_next: left out if the set is
    not known. advice: left out if the next block accepts the message.
    """

    destination_blockchain_id: str
    signing_subnet_id: str
    signed_by: SignerSource
    p_chain_height: str
    p_chain_height_source: HeightSource
    quorum: DestinationQuorum
    heights: tuple[WeightAtHeight, ...]
    epoch: DestinationEpoch | UnsetType = UNSET
    verifies_now: bool | UnsetType = UNSET
    serves_next: bool | UnsetType = UNSET
    advice: DeliveryAdvice | UnsetType = UNSET


class NextSignedMessage(Resource, frozen=True, gc=False, kw_only=True):
    """A second message, for the predicted height of the next epoch. error: the code, if it was not signed."""

    p_chain_height: str
    predicted: bool
    signed_message: str | UnsetType = UNSET
    error: str | UnsetType = UNSET


class SignedMessage(Resource, frozen=True, gc=False, kw_only=True):
    """The signed message, hex without 0x.

    report: if the request asks for it. next: a message for the next epoch, if it needs another one.
    """

    signed_message: str
    report: DestinationReport | UnsetType = UNSET
    next: NextSignedMessage | UnsetType = UNSET


class KebabSignedMessage(SignedMessage, frozen=True, gc=False, kw_only=True):
    """The signed message as the reference aggregator writes it: all keys in kebab case."""


class PresentStatement(Resource, frozen=True, gc=False, kw_only=True):
    """What the P-Chain states about a validation now: that it is not registered, or its nonce and weight."""

    registered: bool | UnsetType = UNSET
    nonce: str | UnsetType = UNSET
    weight: str | UnsetType = UNSET


class SupersededStatement(Resource, frozen=True, gc=False, kw_only=True):
    """What replaces a statement that is not true any more.

    by_tx_hash: the transaction that changed it. message, justification: hex with 0x; the message that states it.
    """

    now: PresentStatement
    by_tx_hash: str | UnsetType = UNSET
    p_chain_height: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    justification: str | UnsetType = UNSET


class SignedL1Message(SignedMessage, frozen=True, gc=False, kw_only=True):
    """The signed message of a transaction. superseded: what replaces it, if it is not true any more."""

    superseded: SupersededStatement | UnsetType = UNSET


class CallToTest(Resource, frozen=True, gc=False, kw_only=True):
    """A call of a contract at the destination, executed without being sent."""

    to: Annotated[str, Meta(description="The contract.")]
    from_: Annotated[str, Meta(description="The caller; by default the zero address.")] | UnsetType = field(
        name="from", default=UNSET
    )
    data: Annotated[str, Meta(description="Hex; by default empty.")] | UnsetType = UNSET
    gas: Annotated[int, Meta(ge=1, le=50_000_000, description="By default 5000000.")] | UnsetType = UNSET


class VerifyRequest(Resource, frozen=True, gc=False, kw_only=True):
    """A signed message and the chain that is to verify it. Keys in kebab case mean the same."""

    signed_message: Annotated[str, Meta(description="Hex of the signed message, with or without 0x.")]
    destination_blockchain_id: Annotated[str, Meta(description="Base58-check or hex.")]
    signing_subnet_id: (
        Annotated[str, Meta(description="Base58-check or hex; by default the one that the destination demands.")]
        | UnsetType
    ) = UNSET
    quorum_percentage: (
        Annotated[_Percent, Meta(description="Counts if it is higher than that of the destination.")] | UnsetType
    ) = UNSET
    call: CallToTest | UnsetType = UNSET


class PreflightDestination(Resource, frozen=True, gc=False, kw_only=True):
    """The destination as its next block verifies. signing_subnet_id: left out if the message determines none."""

    destination_blockchain_id: str
    p_chain_height: str
    p_chain_height_source: HeightSource
    quorum: DestinationQuorum
    signing_subnet_id: str | UnsetType = UNSET
    signed_by: SignerSource | UnsetType = UNSET
    epoch: DestinationEpoch | UnsetType = UNSET


class PreflightSigner(Resource, frozen=True, gc=False, kw_only=True):
    """A signer. index: its position in the canonical set. node_ids: at most 8."""

    index: int
    node_ids: tuple[str, ...]
    weight: str


class PreflightHeight(Resource, frozen=True, gc=False, kw_only=True):
    """The verification with the validator set of one P-Chain height.

    number: of the epoch, left out if the height is of none. verifies: null if the set could not be read. reason: the
    first check that fails. The weights and signers (at most 100) are left out without a set.
    """

    epoch: HeightLabel
    p_chain_height: str
    verifies: bool | None
    number: int | UnsetType = UNSET
    predicted: bool | UnsetType = UNSET
    reason: SignatureRefusal | UnsetType = UNSET
    signed_weight: str | UnsetType = UNSET
    required_weight: str | UnsetType = UNSET
    total_weight: str | UnsetType = UNSET
    signature_valid: bool | UnsetType = UNSET
    signer_count: int | UnsetType = UNSET
    signers: tuple[PreflightSigner, ...] | UnsetType = UNSET


class PreflightStatement(Resource, frozen=True, gc=False, kw_only=True):
    """Whether the destination takes the statement of the message now, as far as nodes can tell.

    kind: of the message. accepted: null if it is not known.
    """

    kind: str
    accepted: bool | None
    text: str
    reason: StatementRefusal | UnsetType = UNSET


class PreflightCall(Resource, frozen=True, gc=False, kw_only=True):
    """The result of the tested call. succeeded: null if no node executed it. result, revert_data: hex with 0x."""

    succeeded: bool | None
    note: str
    result: str | UnsetType = UNSET
    revert_data: str | UnsetType = UNSET
    error: str | UnsetType = UNSET


class PreflightAnswer(Resource, frozen=True, gc=False, kw_only=True):
    """Whether the next block of the destination would accept a signed message, and why not.

    verifies_now: the signature alone. verifies_at: of the heights. reason: why the message is refused now: that of the
    current height, else that of the statement; left out if nothing is known against it.
    """

    verifies_now: bool
    verifies_at: tuple[HeightLabel, ...]
    message_id: str
    network_id: int
    source_blockchain_id: str
    destination: PreflightDestination
    heights: tuple[PreflightHeight, ...]
    statement: PreflightStatement
    reason: str | UnsetType = UNSET
    reason_text: str | UnsetType = UNSET
    advice: DeliveryAdvice | UnsetType = UNSET
    call: PreflightCall | UnsetType = UNSET
