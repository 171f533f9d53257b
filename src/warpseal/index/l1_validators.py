"""Pages of the validators of L1s.

Stored blocks have their owners, in the transactions that began the validations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from warpseal.chains.ids import Address
from warpseal.chains.p_blocks import parse_p_block
from warpseal.chains.p_txs import ConvertSubnetToL1Tx, RegisterL1ValidatorTx
from warpseal.chains.proposervm import inner_block
from warpseal.index.columns import BLS_KEY_BYTES
from warpseal.index.keys import P
from warpseal.index.l1_rows import L1ValidatorRow, read_l1_rows
from warpseal.index.read_session import ReadSession
from warpseal.resources.l1_validators import CurrentL1Validator, L1ValidatorOwner, L1ValidatorPage
from warpseal.resources.queries import PageRequest
from warpseal.resources.text import NetworkText, hex_text, node_text, shared_id_text
from warpseal.resources.transactions import BlsCredentials
from warpseal.warp.ids import NodeID, id_text
from warpseal.warp.l1_messages import PChainOwner

_MOST_SCANNED: Final = 2_000
"""Validators that are read for one page, most of which may be inactive."""
_AT_ONCE: Final = 100
_END: Final = 2**62

_Owners = tuple[PChainOwner, PChainOwner]
"""The owner of the remaining balance, and that of the deactivation."""


class L1ValidatorQuery(Struct, frozen=True):
    """Validators that match all given filters.

    has_inactive: validators without a balance and removed ones are listed as well.
    """

    validation_id: bytes | None = None
    node_id: bytes | None = None
    subnet_id: bytes | None = None
    has_inactive: bool = False


def l1_validators(
    session: ReadSession, text: NetworkText, query: L1ValidatorQuery, page: PageRequest
) -> L1ValidatorPage:
    """Return a page in an order that new validators do not change.

    A position is the id of a validation.
    """
    chains = session.rows("SELECT height FROM chains WHERE chain = ? AND height >= 0", P)
    if not chains:
        # The index is being made again.
        return L1ValidatorPage(())
    height = chains[0][0]
    matches: list[L1ValidatorRow] = []
    # Behind this validator the next page begins.
    last: int | None = None
    for number, row in enumerate(_scan(session, height, query, page), 1):
        is_match = query.has_inactive or row.balance > 0
        if is_match and len(matches) == page.size:
            last = matches[-1].validation
            break
        if is_match:
            matches.append(row)
        if number == _MOST_SCANNED:
            last = row.validation
            break
    session.load_ids([] if last is None else [last])
    position = None if last is None else (session.id_of(last),)
    return L1ValidatorPage(_describe(session, text, matches), position, height)


def _scan(
    session: ReadSession, height: int, query: L1ValidatorQuery, page: PageRequest
) -> Iterator[L1ValidatorRow]:
    """Yield the validators behind the position that match the ids of the query."""
    columns = {"validation": query.validation_id, "node": query.node_id, "subnet": query.subnet_id}
    ids = {column: raw for column, raw in columns.items() if raw is not None}
    position = [raw for raw in page.after or () if isinstance(raw, bytes)]
    keys = session.keys_of([*ids.values(), *position])
    if not all(raw in keys for raw in (*ids.values(), *position)):
        return
    same = "".join(f" AND v.{column} = ?" for column in ids)
    condition = f"v.validation < ?{same} ORDER BY v.validation DESC LIMIT ?"
    values = [keys[raw] for raw in ids.values()]
    before = keys[position[0]] if position else _END
    while rows := read_l1_rows(session, height, condition, before, *values, _AT_ONCE):
        yield from rows
        before = rows[-1].validation


def _describe(
    session: ReadSession, text: NetworkText, rows: Sequence[L1ValidatorRow]
) -> tuple[CurrentL1Validator, ...]:
    session.load_ids({key for row in rows for key in (row.validation, row.node, row.subnet)})
    owners: dict[bytes, _Owners] = {}
    for height in {row.began_in for row in rows}:
        owners |= _owners_in(session.raw_block(P, height))
    return tuple([_describe_row(session, text, row, owners) for row in rows])


def _describe_row(
    session: ReadSession, text: NetworkText, row: L1ValidatorRow, owners: dict[bytes, _Owners]
) -> CurrentL1Validator:
    validation_id = session.id_of(row.validation)
    remaining_balance_owner, deactivation_owner = owners[validation_id]
    public_key, proof = row.bls[:BLS_KEY_BYTES], row.bls[BLS_KEY_BYTES:]
    return CurrentL1Validator(
        validation_id=id_text(validation_id),
        validation_id_hex=hex_text(validation_id),
        node_id=node_text(NodeID(session.id_of(row.node))),
        subnet_id=shared_id_text(session.id_of(row.subnet)),
        weight=row.weight,
        remaining_balance=row.balance,
        creation_timestamp=row.start_s,
        bls_credentials=BlsCredentials(
            public_key=hex_text(public_key), proof_of_possession=hex_text(proof)
        ),
        remaining_balance_owner=_describe_owner(remaining_balance_owner, text),
        deactivation_owner=_describe_owner(deactivation_owner, text),
    )


def _owners_in(block: bytes) -> dict[bytes, _Owners]:
    """Return the owners of the validators that a block began, by validation id."""
    owners: dict[bytes, _Owners] = {}
    for tx in parse_p_block(inner_block(block)).txs:
        unsigned = tx.unsigned
        if isinstance(unsigned, ConvertSubnetToL1Tx):
            for validation_id, initial in zip(
                unsigned.validation_ids, unsigned.validators, strict=True
            ):
                owners[validation_id] = initial.remaining_balance_owner, initial.deactivation_owner
        elif isinstance(unsigned, RegisterL1ValidatorTx):
            request = unsigned.registration()
            owners[request.validation_id] = request.remaining_balance_owner, request.disable_owner
    return owners


def _describe_owner(owner: PChainOwner, text: NetworkText) -> L1ValidatorOwner:
    addresses = text.addresses(tuple([Address(raw) for raw in owner.addresses]))
    return L1ValidatorOwner(addresses=addresses, threshold=owner.threshold)
