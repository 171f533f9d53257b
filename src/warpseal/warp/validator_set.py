"""The canonical validator set, with keys, weights and signer bits, and the quorum.

Source of truth: avalanchego `snow/validators/warp.go`, `vms/platformvm/warp/signature.go`. Integers
only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, NamedTuple

from msgspec import Struct

from warpseal.warp.codec import pack_u32, pack_u64
from warpseal.warp.ids import NODE_ID_BYTES, NodeID, node_id_text

PUBLIC_KEY_BYTES: Final = 48
MAX_WEIGHT: Final = 2**64 - 1
DEFAULT_QUORUM: Final = 67
"""Percent of the total weight that must sign, unless a destination or a caller names another."""
_COMPRESSED_FLAG: Final = 0x80
_INFINITY_FLAG: Final = 0x40
_MAX_LISTED: Final = 10
_NAVAX_PER_AVAX: Final = 10**9


class InvalidValidatorSet(ValueError):
    """The members make no canonical set.

    A sum overflows, a key or node id is malformed, or a node is listed twice.
    """


class ValidatorEntry(NamedTuple):
    """One member of a subnet's set.

    public_key: 48 bytes, compressed, or None for weight that cannot sign.
    """

    node_id: NodeID
    public_key: bytes | None
    weight: int


MemberPair = tuple[ValidatorEntry | None, ValidatorEntry | None]
"""A member as the index and as the nodes list it; None if a side does not list it."""


class Validator(Struct, frozen=True):
    """One key of the set.

    public_key: 48 bytes, compressed.
    node_ids: all nodes that hold the key, ascending.
    """

    public_key: bytes
    weight: int
    node_ids: tuple[NodeID, ...]


@dataclass(frozen=True, slots=True)
class CanonicalValidatorSet:
    """Keyed validators in canonical order, and the weight of all members.

    The position of a validator is its signer bit.

    total_weight includes members without a key. Built by `build_canonical_set`, which checks it.
    """

    validators: tuple[Validator, ...]
    total_weight: int
    _digest: bytes | None = field(default=None, init=False, repr=False, compare=False)
    _by_node: dict[NodeID, int] | None = field(default=None, init=False, repr=False, compare=False)
    _by_key: dict[bytes, int] | None = field(default=None, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.validators)

    @property
    def keyless_weight(self) -> int:
        """Weight of members without a key, which can never sign."""
        return self.total_weight - sum(validator.weight for validator in self.validators)

    @property
    def digest(self) -> bytes:
        """SHA-256 (32 bytes) over total, keys, weights and node ids: equal for equal sets."""
        if self._digest is None:
            object.__setattr__(self, "_digest", _digest_of(self))
        assert self._digest is not None
        return self._digest

    @property
    def node_ids(self) -> Iterable[NodeID]:
        """Every node that holds a key of this set, each once, in canonical order of the keys."""
        return self._nodes().keys()

    def index_of_node(self, node_id: NodeID) -> int | None:
        """Return the canonical index of the key that this node holds."""
        return self._nodes().get(node_id)

    def index_of_key(self, public_key: bytes) -> int | None:
        """Return the canonical index of a compressed key (48 bytes)."""
        if self._by_key is None:
            keys = {validator.public_key: index for index, validator in enumerate(self.validators)}
            object.__setattr__(self, "_by_key", keys)
        assert self._by_key is not None
        return self._by_key.get(public_key)

    def weight_of(self, indices: Iterable[int]) -> int:
        """Return the summed weight of the validators at canonical `indices`, each given once."""
        return sum(self.validators[index].weight for index in indices)

    def _nodes(self) -> dict[NodeID, int]:
        if self._by_node is None:
            nodes = {
                node: index
                for index, validator in enumerate(self.validators)
                for node in validator.node_ids
            }
            object.__setattr__(self, "_by_node", nodes)
        assert self._by_node is not None
        return self._by_node


def canonical_sort_key(public_key: bytes) -> bytes:
    """Return the key that sorts validators in canonical order, from a compressed G1 point.

    public_key: 48 bytes; the top three bits are flags, the third meaning "y is the larger root".
    Returns 49 bytes: x with the flags cleared, then that flag. Canonical order sorts the
    uncompressed x||y; for equal x the larger y is the flagged one, so both orders agree, and raw
    compressed bytes do not.
    """
    return bytes([public_key[0] & 0x1F]) + public_key[1:] + bytes([public_key[0] >> 5 & 1])


def build_canonical_set(
    entries: Iterable[tuple[NodeID, bytes | None, int]],
) -> CanonicalValidatorSet:
    """Return the canonical set of members (node id, compressed key or None, weight), in any order.

    Equal keys are merged with their weights and nodes; a member without a key counts in the total
    only.
    Raises InvalidValidatorSet.
    """
    total = 0
    weights: dict[bytes, int] = {}
    nodes: dict[bytes, list[NodeID]] = {}
    for node_id, public_key, weight in entries:
        if not 0 <= weight <= MAX_WEIGHT:
            raise InvalidValidatorSet("a weight does not fit 64 bits")
        total += weight
        if public_key is not None:
            weights[public_key] = weights.get(public_key, 0) + weight
            nodes.setdefault(public_key, []).append(node_id)
    merged = (Validator(key, weight, tuple(sorted(nodes[key]))) for key, weight in weights.items())
    validators = tuple(sorted(merged, key=_validator_sort_key))
    if total > MAX_WEIGHT:
        raise InvalidValidatorSet("the total weight exceeds 64 bits")
    node_ids: set[NodeID] = set()
    for validator in validators:
        for node_id in validator.node_ids:
            if len(node_id) != NODE_ID_BYTES or node_id in node_ids:
                raise InvalidValidatorSet(
                    f"node id {node_id.hex()[:64]} is malformed or listed twice"
                )
            node_ids.add(node_id)
    return CanonicalValidatorSet(validators, total)


def differing_members(
    indexed: Iterable[ValidatorEntry], of_nodes: Iterable[ValidatorEntry]
) -> tuple[MemberPair, ...]:
    """Return the members that the index and the nodes list differently, by node id."""
    first, second = ({entry.node_id: entry for entry in entries} for entries in (indexed, of_nodes))
    pairs = ((first.get(node_id), second.get(node_id)) for node_id in sorted({*first, *second}))
    return tuple(pair for pair in pairs if pair[0] != pair[1])


def describe_members(pairs: Sequence[MemberPair]) -> str:
    """Return differing members in words, the first ones by name; "" if there are none."""
    texts = [
        f"{node_id_text(member.node_id)}: index {_describe_member(*pair)}, nodes"
        f" {_describe_member(*pair[::-1])}"
        for pair in pairs[:_MAX_LISTED]
        if (member := pair[0] or pair[1]) is not None
    ]
    more = len(pairs) - len(texts)
    return "; ".join(texts) + (f"; and {more} more" if more else "")


def _describe_member(entry: ValidatorEntry | None, other: ValidatorEntry | None) -> str:
    """Return the weight of a member, and its key if the other one has another key."""
    if entry is None:
        return "absent"
    if other is None or entry.public_key == other.public_key:
        return f"weight {entry.weight}"
    key = "no key" if entry.public_key is None else f"key {entry.public_key.hex()}"
    return f"weight {entry.weight} with {key}"


def required_weight(total: int, percentage: int) -> int:
    """Return the least weight that is at least `percentage` percent of `total`."""
    return -(-total * percentage // 100)


def weight_text(weight: int, *, is_stake: bool) -> str:
    """Return a weight for people, with two decimals if it is at least an AVAX.

    is_stake: the weight is stake of the Primary Network, nAVAX; weights of L1s have no unit.
    """
    if not is_stake:
        return f"{weight:,}"
    avax, navax = divmod(weight, _NAVAX_PER_AVAX)
    digits = f"{navax:09}"
    fraction = (digits[:2] if avax else digits).rstrip("0")
    return f"{avax:,}.{fraction} AVAX" if fraction else f"{avax:,} AVAX"


def has_quorum(signed: int, total: int, percentage: int) -> bool:
    """Return whether `signed` weight is `percentage` percent of `total`, as verifiers do."""
    return percentage * total <= 100 * signed


def _validator_sort_key(validator: Validator) -> bytes:
    return _checked_sort_key(validator.public_key)


def _checked_sort_key(public_key: bytes) -> bytes:
    if len(public_key) != PUBLIC_KEY_BYTES:
        raise InvalidValidatorSet(
            f"a public key has {len(public_key)} bytes, not {PUBLIC_KEY_BYTES}"
        )
    if public_key[0] & (_COMPRESSED_FLAG | _INFINITY_FLAG) != _COMPRESSED_FLAG:
        raise InvalidValidatorSet("a public key is not a compressed finite point")
    return canonical_sort_key(public_key)


def _digest_of(members: CanonicalValidatorSet) -> bytes:
    parts = [pack_u64(members.total_weight), pack_u32(len(members.validators))]
    for validator in members.validators:
        parts += [
            validator.public_key,
            pack_u64(validator.weight),
            pack_u32(len(validator.node_ids)),
            *validator.node_ids,
        ]
    return sha256(b"".join(parts)).digest()
