"""Exports of an EVM index hold every row of the plain model, in order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.index.evm.fixtures import IS_ERC721, index_url, open_writer
from tests.index.evm.histories import History
from tests.index.evm.model import EvmModel
from warpseal.index.evm.export import ExportSubject, export_rows
from warpseal.index.read_session import ReadSession
from warpseal.resources.text import account_text, hex_text
from warpseal.store.access import open_read_only


def export(url: str, subject: ExportSubject) -> list[dict[str, Any]]:
    """Return all rows of a subject."""
    with open_read_only(index_url(url)) as connection, connection.snapshot():
        return list(export_rows(ReadSession(connection), subject))


def test_an_export_has_every_row_of_the_model(
    any_index_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpseal.index.evm.export._ROWS_PER_READ", 7)
    history, model = History(5), EvmModel(IS_ERC721)
    blocks = history.blocks(40)
    with open_writer(any_index_url) as writer:
        writer.set_interfaces(IS_ERC721)
        writer.write(blocks)
    for block in blocks:
        model.add(block)

    assert [row["blockHash"] for row in export(any_index_url, ExportSubject.BLOCKS)] == [
        hex_text(block.hash) for block in blocks
    ]
    assert export(any_index_url, ExportSubject.TRANSFERS) == [
        {
            "blockNumber": str(block.number),
            "blockTimestamp": block.time,
            "txHash": hex_text(block.tx_hashes[move.tx_index]),
            "logIndex": move.log_index,
            "contractAddress": account_text(move.contract),
            "ercType": move.standard.value,
            "tokenId": str(move.token_id),
            "from": account_text(move.sender),
            "to": account_text(move.recipient),
            "value": str(move.amount),
        }
        for block, move in model.moves
    ]
    held = [
        (account_text(owner), account_text(contract), standard.value, str(token_id), str(amount))
        for (contract, standard, token_id), holders in model.holders.items()
        for owner, amount in holders.items()
    ]
    holdings = [tuple(row.values()) for row in export(any_index_url, ExportSubject.HOLDINGS)]
    assert sorted(holdings) == sorted(held)
    creations = [
        (account_text(item.address), str(number), hex_text(tx_hash), account_text(item.sender))
        for (number, _, _), (item, tx_hash) in sorted(model.created.items())
    ]
    contracts = export(any_index_url, ExportSubject.CONTRACTS)
    columns = ("address", "blockNumber", "txHash", "deployerAddress")
    assert [tuple(row[name] for name in columns) for row in contracts] == creations
