"""Rows of an EVM chain's index as resources: a page of them in a few statements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import UnsetType
from msgspec.structs import asdict

from warpseal.chains.evm.nft_document import NftFields
from warpseal.index.evm.documents import RECENT_S, decode_fields
from warpseal.index.evm.keys import (
    ERC_TYPES,
    STATUSES,
    collection_of,
    decode_text,
    height_of,
    is_erc1155,
    number_of,
    tx_key_of,
    unpack,
)
from warpseal.index.evm.records import MAX_PAGE_BYTES, MissingResults
from warpseal.index.evm.rows import BlockRow, CreationRow, HoldingRow, OwnerRow, TransferRow
from warpseal.index.evm.tokens import id_of_row
from warpseal.index.read_session import ReadSession
from warpseal.resources import evm
from warpseal.resources.base import UNSET, or_unset
from warpseal.resources.text import account_text, hex_text

TokenRow = TypeVar("TokenRow", TransferRow, HoldingRow, OwnerRow)

_ZERO_ADDRESS: Final = bytes(20)
_NO_FIELDS: Final = NftFields()
_SIZES: Final = "SELECT token, size FROM documents WHERE token IN {keys}"
_DOCUMENTS: Final = """
    SELECT token, status, updated_at, uri, fields
    FROM documents
    WHERE token IN {keys}
"""
_TOKENS: Final = "SELECT number, short, id FROM tokens WHERE number IN {keys}"
_COLLECTIONS: Final = "SELECT number, contract, standards FROM collections WHERE number IN {keys}"
_STANDARDS: Final = "SELECT contract, standards FROM collections WHERE contract IN {keys}"
_INCONSISTENT: Final = "SELECT collection FROM inconsistent WHERE collection IN {keys}"
_HELD: Final = "SELECT token FROM owners WHERE token IN {keys}"
# The last column is the time of the block at which the contract was called; NULL at the newest
# block, whose results are current.
_CONTRACTS: Final = """
    SELECT
        contract,
        due_from IS NOT NULL,
        erc_type,
        name,
        symbol,
        decimals,
        (
            SELECT time
            FROM blocks
            WHERE number = contracts.height AND number < (SELECT max(number) FROM blocks)
        )
    FROM contracts
    WHERE contract IN {keys}
"""
_BLOCKS: Final = "SELECT number, hash, time FROM blocks WHERE number IN {keys}"
_TX_HASHES: Final = "SELECT key, hash FROM txs WHERE key IN {keys}"

# A contract with an empty text is called again after this time.
_EMPTY_RESULT_S: Final = 600
_STANDARD_TYPES: Final = (
    evm.ErcType.UNKNOWN,
    evm.ErcType.ERC721,
    evm.ErcType.ERC1155,
    evm.ErcType.UNKNOWN,
)


def read_addresses(session: ReadSession, keys: Set[int]) -> dict[int, bytes]:
    """Return addresses by key; key 0 is the zero address."""
    session.load_ids(keys - {0})
    return {key: session.id_of(key) if key else _ZERO_ADDRESS for key in keys}


class ContractRow(NamedTuple):
    """The results of calls of a contract; None without any.

    called_at: time of the block at which the contract was called; None of the newest block.
    """

    is_due: bool
    erc_type: evm.ErcType | None
    name: str | None
    symbol: str | None
    decimals: int | None
    called_at: int | None

    def is_old(self, now: float) -> bool:
        """Return whether the contract is called again.

        It is after ten minutes if a text is empty, else after a day.
        """
        if self.called_at is None:
            return False
        is_empty = self.erc_type is evm.ErcType.UNKNOWN or "" in (self.name, self.symbol)
        kept_s = _EMPTY_RESULT_S if is_empty else RECENT_S
        return now - self.called_at > kept_s


UNKNOWN_CONTRACT: Final = ContractRow(False, None, None, None, None, None)


class _DocumentRow(NamedTuple):
    status: evm.MetadataStatus
    updated_at: int
    uri: str
    fields: NftFields


def read_contracts(session: ReadSession, contracts: Iterable[int]) -> dict[int, ContractRow]:
    """Return the rows of contracts that were created here or have NFT transfers, by their keys."""
    rows = session.by_keys(_CONTRACTS, contracts)
    return {
        contract: ContractRow(
            bool(is_due),
            None if erc_type is None else ERC_TYPES[erc_type],
            None if name is None else decode_text(name),
            None if symbol is None else decode_text(symbol),
            decimals,
            called_at,
        )
        for contract, is_due, erc_type, name, symbol, decimals, called_at in rows
    }


class ResourceReader:
    """The resources of one page, and their missing results.

    now: unix seconds.
    """

    def __init__(self, session: ReadSession, now: float) -> None:
        self._session = session
        self._now = now
        self._token_ids: dict[int, int] = {}
        self._collections: dict[int, tuple[int, int]] = {}
        self._contracts: dict[int, ContractRow] = {}
        self._documents: dict[int, _DocumentRow] = {}
        self._inconsistent: frozenset[int] = frozenset()
        self._missing_contracts: set[int] = set()
        self._missing_tokens: set[int] = set()
        self._old_tokens: set[int] = set()
        self._old_contracts: set[int] = set()

    @property
    def missing(self) -> MissingResults:
        """The results that the resources lack."""
        return MissingResults(
            frozenset(self._missing_contracts),
            frozenset(self._missing_tokens),
            frozenset(self._old_tokens),
            frozenset(self._old_contracts),
        )

    def within_page(self, rows: Sequence[TokenRow], size: int) -> Sequence[TokenRow]:
        """Return the first rows whose documents fit on a page of this size; at least one row."""
        first = rows[:size]
        sizes = dict(self._session.by_keys(_SIZES, {row.token for row in first}))
        total = 0
        for count, row in enumerate(first):
            total += sizes.get(row.token, 0)
            if total > MAX_PAGE_BYTES and count:
                return first[:count]
        return first

    def collectibles(
        self, chain_id: str, owner: bytes, rows: Sequence[HoldingRow]
    ) -> tuple[evm.CollectibleBalance, ...]:
        """Return the NFTs that an address holds."""
        self._load_tokens([row.token for row in rows])
        owner_text = account_text(owner)
        return tuple(
            [
                evm.CollectibleBalance(
                    chain_id=chain_id,
                    balance=UNSET if row.balance is None else str(unpack(row.balance)),
                    owner_address=owner_text,
                    **self._token_fields(row.token),
                )
                for row in rows
            ]
        )

    def tokens(self, rows: Sequence[OwnerRow]) -> tuple[evm.NftToken, ...]:
        """Return tokens with their owners."""
        self._load_tokens([row.token for row in rows])
        # The holder of an ERC-1155 token is a number of holders.
        owners = {row.token: row.holder for row in rows if not is_erc1155(row.token) and row.holder}
        self._session.load_ids(owners.values())
        tokens = []
        for row in rows:
            owner: str | UnsetType = UNSET
            if row.token in owners:
                owner = self._address_text(owners[row.token])
            tokens.append(evm.NftToken(owner_address=owner, **self._token_fields(row.token)))
        return tuple(tokens)

    def transfers(self, rows: Sequence[TransferRow]) -> tuple[evm.Erc1155Transfer, ...]:
        """Return ERC-1155 transfers."""
        session = self._session
        self._load_tokens([row.token for row in rows])
        holders = {key for row in rows for key in (row.sender, row.recipient) if key}
        session.load_ids(holders)
        self._load_contracts(holders)
        heights = {height_of(row.key) for row in rows}
        blocks = {
            number: (block_hash, time)
            for number, block_hash, time in session.by_keys(_BLOCKS, heights)
        }
        hashes = _tx_hashes(session, {tx_key_of(row.key, row.tx_index) for row in rows})
        transfers = []
        for row in rows:
            number = height_of(row.key)
            block_hash, time = blocks[number]
            transfers.append(
                evm.Erc1155Transfer(
                    block_number=str(number),
                    block_timestamp=time,
                    block_hash=hex_text(block_hash),
                    tx_hash=hashes[tx_key_of(row.key, row.tx_index)],
                    sender=self._holder(row.sender),
                    to=self._holder(row.recipient),
                    log_index=row.log_index,
                    value="1" if row.amount is None else str(unpack(row.amount)),
                    erc1155_token=self._transferred(row.token),
                )
            )
        return tuple(transfers)

    def deployments(self, rows: Sequence[CreationRow]) -> tuple[evm.DeployedContract, ...]:
        """Return created contracts."""
        session = self._session
        session.load_ids(
            {key for row in rows for key in (row.contract, row.sender, row.factory) if key}
        )
        contracts = {row.contract for row in rows}
        self._load_contracts(contracts)
        standards = dict(session.by_keys(_STANDARDS, contracts))
        hashes = _tx_hashes(session, {row.tx for row in rows})
        deployments = []
        for row in rows:
            contract = self._contract(row.contract)
            factory: str | UnsetType = UNSET
            if row.factory is not None:
                factory = self._address_text(row.factory)
            details = evm.DeploymentDetails(
                tx_hash=hashes[row.tx],
                deployer_address=self._address_text(row.sender),
                deployer_contract_address=factory,
            )
            deployments.append(
                evm.DeployedContract(
                    address=self._address_text(row.contract),
                    erc_type=contract.erc_type or _STANDARD_TYPES[standards.get(row.contract, 0)],
                    name=or_unset(contract.name),
                    symbol=or_unset(contract.symbol),
                    decimals=or_unset(contract.decimals),
                    deployment_details=details,
                )
            )
        return tuple(deployments)

    def _load_tokens(self, tokens: Iterable[int]) -> None:
        """Load tokens with their contracts and documents."""
        session, keys = self._session, set(tokens)
        by_number = {number_of(token): token for token in keys}
        for token_number, short, raw in session.by_keys(_TOKENS, by_number):
            self._token_ids[by_number[token_number]] = id_of_row(short, raw)
        numbers = {collection_of(token) for token in keys}
        for number, contract, standards in session.by_keys(_COLLECTIONS, numbers):
            self._collections[number] = (contract, standards)
        contracts = {contract for contract, _ in self._collections.values()}
        session.load_ids(contracts - {0})
        self._load_contracts(contracts)
        for key, status, updated_at, uri, fields in session.by_keys(_DOCUMENTS, keys):
            decoded = _NO_FIELDS if fields is None else decode_fields(bytes(fields))
            self._documents[key] = _DocumentRow(
                STATUSES[status], updated_at, decode_text(uri), decoded
            )
            if updated_at < self._now - RECENT_S:
                self._old_tokens.add(key)
        self._correct_missing()
        fetched = {
            key
            for key, row in self._documents.items()
            if row.status is not evm.MetadataStatus.UNINDEXED
        }
        self._missing_tokens = keys - fetched
        inconsistent = session.by_keys(_INCONSISTENT, numbers)
        self._inconsistent = frozenset(number for (number,) in inconsistent)

    def _correct_missing(self) -> None:
        """Replace the status of ERC-1155 tokens that were missing and have a holder since."""
        missing = [
            key
            for key, row in self._documents.items()
            if row.status is evm.MetadataStatus.MISSING_TOKEN and is_erc1155(key)
        ]
        for (key,) in self._session.by_keys(_HELD, missing):
            status = evm.MetadataStatus.INVALID_TOKEN_URI
            self._documents[key] = self._documents[key]._replace(status=status)
            self._old_tokens.add(key)

    def _load_contracts(self, contracts: Iterable[int]) -> None:
        self._contracts |= read_contracts(self._session, contracts)

    def _contract(self, contract: int) -> ContractRow:
        row = self._contracts.get(contract, UNKNOWN_CONTRACT)
        if row.is_due:
            self._missing_contracts.add(contract)
        elif row.is_old(self._now):
            self._old_contracts.add(contract)
        return row

    def _token_fields(self, token: int) -> dict[str, Any]:
        """Return the fields of NftToken but the owner."""
        number, is_1155 = collection_of(token), is_erc1155(token)
        contract, _ = self._collections[number]
        row = self._contract(contract)
        document = self._documents.get(token)
        return {
            "address": self._address_text(contract),
            "name": row.name or "",
            "symbol": row.symbol or "",
            "erc_type": evm.ErcType.ERC1155 if is_1155 else evm.ErcType.ERC721,
            "token_id": str(self._token_ids[token]),
            "token_uri": "" if document is None else document.uri,
            "metadata": _metadata(document, has_attributes=True, is_1155=is_1155),
            "events_inconsistent": True if number in self._inconsistent else UNSET,
        }

    def _transferred(self, token: int) -> evm.Erc1155Token:
        contract, _ = self._collections[collection_of(token)]
        document = self._documents.get(token)
        return evm.Erc1155Token(
            address=self._address_text(contract),
            erc_type=evm.ErcType.ERC1155,
            token_id=str(self._token_ids[token]),
            token_uri="" if document is None else document.uri,
            metadata=_metadata(document, has_attributes=False, is_1155=True),
        )

    def _holder(self, key: int) -> evm.TokenHolder:
        row = self._contracts.get(key, UNKNOWN_CONTRACT)
        if row.erc_type in (None, evm.ErcType.UNKNOWN):
            return evm.TokenHolder(address=self._address_text(key))
        return evm.TokenHolder(
            address=self._address_text(key),
            name=or_unset(row.name),
            symbol=or_unset(row.symbol),
            decimals=or_unset(row.decimals),
        )

    def _address_text(self, key: int) -> str:
        return account_text(self._session.id_of(key) if key else _ZERO_ADDRESS)


def block_resource(
    row: BlockRow, parent_hash: bytes, chain_id: str, earlier_txs: int | None
) -> evm.EvmBlock:
    """Return a block.

    earlier_txs: number of transactions before the first indexed block; None if it is not counted.
    """
    return evm.EvmBlock(
        chain_id=chain_id,
        block_number=str(row.number),
        block_hash=hex_text(row.hash),
        parent_hash=hex_text(parent_hash),
        block_timestamp=row.time,
        tx_count=row.tx_count,
        gas_used=str(unpack(row.gas_used)),
        gas_limit=str(unpack(row.gas_limit)),
        base_fee="0" if row.base_fee is None else str(unpack(row.base_fee)),
        gas_cost="0" if row.gas_cost is None else str(unpack(row.gas_cost)),
        fees_spent=str(unpack(row.fees_spent)),
        cumulative_transactions=UNSET if earlier_txs is None else str(earlier_txs + row.txs),
    )


def _tx_hashes(session: ReadSession, keys: Iterable[int]) -> dict[int, str]:
    return {key: hex_text(raw) for key, raw in session.by_keys(_TX_HASHES, keys)}


def _metadata(
    document: _DocumentRow | None, *, has_attributes: bool, is_1155: bool
) -> evm.NftMetadata:
    if document is None:
        return evm.NftMetadata(index_status=evm.MetadataStatus.UNINDEXED)
    fields = {name: or_unset(value) for name, value in asdict(document.fields).items()}
    if not has_attributes:
        del fields["attributes"]
    if not is_1155:
        del fields["decimals"], fields["properties"]
    updated_at = document.updated_at or UNSET
    return evm.NftMetadata(
        index_status=document.status, metadata_last_updated_timestamp=updated_at, **fields
    )
