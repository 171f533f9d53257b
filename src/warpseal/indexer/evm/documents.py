"""From the token URI of a contract to the fields of its document, or to the status that names the failure."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from warpseal.chains.evm.nft_document import DocumentFault, MalformedDocument, NftFields, image_document, parse_document
from warpseal.chains.evm.token_uri import InlineDocument, RemoteDocument, UriFault
from warpseal.indexer.evm.fetcher import IMAGE, DocumentFetcher, FetchedDocument, FetchFailed, FetchFault, FetchLane
from warpseal.resources.evm import MetadataStatus

log = logging.getLogger(__name__)

URI_STATUS: Final = {
    UriFault.MALFORMED: MetadataStatus.INVALID_TOKEN_URI,
    UriFault.UNKNOWN_SCHEME: MetadataStatus.INVALID_TOKEN_URI_SCHEME,
}
_FETCH_STATUS: Final = {
    FetchFault.UNREACHABLE: MetadataStatus.UNREACHABLE_TOKEN_URI,
    FetchFault.THROTTLED: MetadataStatus.THROTTLED_TOKEN_URI,
    FetchFault.TOO_LARGE: MetadataStatus.METADATA_CONTENT_TOO_LARGE,
}
_DOCUMENT_STATUS: Final = {
    DocumentFault.TOO_LARGE: MetadataStatus.METADATA_CONTENT_TOO_LARGE,
    DocumentFault.NOT_JSON: MetadataStatus.INVALID_METADATA_JSON,
    DocumentFault.NOT_AN_OBJECT: MetadataStatus.INVALID_METADATA,
}
# Of several failures the one that came furthest is reported, the last of these.
_PROGRESS: Final = (*_FETCH_STATUS.values(), *list(_DOCUMENT_STATUS.values())[1:])


@dataclass(frozen=True, slots=True)
class DocumentResult:
    """What an attempt to read a document led to. fields: only if the status is INDEXED.

    retry_after_s: that the server asks to wait, else None.
    """

    status: MetadataStatus
    fields: NftFields | None = None
    retry_after_s: float | None = None


def read_inline(document: InlineDocument, uri: str, filled_id: int | None) -> DocumentResult:
    """Return what a document inside its URI holds. filled_id: takes the place of `{id}` in it, of ERC-1155 tokens."""
    return _furthest(_parse(document.media_type, content, uri, filled_id) for content in document.contents)


async def read_remote(
    fetcher: DocumentFetcher,
    document: RemoteDocument,
    uri: str,
    filled_id: int | None,
    lane: FetchLane,
    timeout_s: float,
) -> DocumentResult:
    """Return what a document on a server holds. timeout_s: shared by its URLs, which are tried in order."""
    failures: list[DocumentResult] = []
    for url in document.urls:
        try:
            answer: FetchedDocument = await fetcher.fetch(url, lane, timeout_s / len(document.urls))
            result = _parse(answer.media_type, answer.content, uri, filled_id)
        except FetchFailed as error:
            # The path of a URL may hold a key.
            log.debug("metadata document was not read", extra={"host": url.host, "reason": str(error)})
            result = DocumentResult(_FETCH_STATUS[error.fault], retry_after_s=error.retry_after_s)
        if result.fields is not None:
            return result
        failures.append(result)
    return _furthest(failures)


def _parse(media_type: str, content: bytes, uri: str, filled_id: int | None) -> DocumentResult:
    if media_type.startswith(IMAGE):
        return DocumentResult(MetadataStatus.INDEXED, image_document(uri))
    try:
        return DocumentResult(MetadataStatus.INDEXED, parse_document(content, filled_id))
    except MalformedDocument as error:
        return DocumentResult(_DOCUMENT_STATUS[error.fault])


def _furthest(results: Iterable[DocumentResult]) -> DocumentResult:
    """Return the first result with fields, else the failure that came furthest; no gateway at all is no way there."""
    failure = DocumentResult(MetadataStatus.UNREACHABLE_TOKEN_URI)
    for result in results:
        if result.fields is not None:
            return result
        failure = max(failure, result, key=lambda known: _PROGRESS.index(known.status))
    return failure
