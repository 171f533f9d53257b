"""Signing blocks: the administrator adds, lists and removes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from warpseal.api.data import parameters as p
from warpseal.api.data.bodies import SigningBlockList
from warpseal.api.data.endpoints import BLOCK_KIND
from warpseal.api.data.request_context import RequestContext
from warpseal.api.http.errors import NotFound
from warpseal.api.http.responses import unstored_response
from warpseal.errors import InvalidRequest
from warpseal.resources.text import hex_text
from warpseal.store.values import SigningBlock, SigningBlockKind
from warpseal.warp.ids import id_text

if TYPE_CHECKING:
    from warpseal.store.signing_blocks import SigningBlocks

MAX_SIGNING_BLOCKS: Final = 1_000


async def list_blocks(context: RequestContext, signing_blocks: SigningBlocks) -> Response:
    """GET /v1/signing-blocks."""
    blocks = await signing_blocks.load()
    return unstored_response(SigningBlockList(signing_blocks=tuple(blocks)))


async def add(context: RequestContext, signing_blocks: SigningBlocks) -> Response:
    """POST /v1/signing-blocks."""
    fields = await context.read_fields()
    kind = SigningBlockKind(fields["kind"])
    value = await _read_value(context, kind, fields["value"])
    blocks = await signing_blocks.load()
    others = [block for block in blocks if (block.kind, block.value) != (kind, value)]
    if len(others) >= MAX_SIGNING_BLOCKS:
        raise InvalidRequest(
            "value", f"there are {MAX_SIGNING_BLOCKS} signing blocks already: remove one"
        )
    block = SigningBlock(kind, value, fields["reason"], int(context.now))
    await signing_blocks.add(block)
    return unstored_response(block, 201)


async def remove(context: RequestContext, signing_blocks: SigningBlocks) -> Response:
    """DELETE /v1/signing-blocks/{kind}/{value}."""
    texts = context.request.path_params
    kind = SigningBlockKind(str(p.read_value(BLOCK_KIND, texts["kind"])))
    value = await _read_value(context, kind, texts["value"])
    blocks = {(block.kind, block.value): block for block in await signing_blocks.load()}
    block = blocks.get((kind, value))
    if block is None:
        raise NotFound(f"no signing block of {kind} {value}; GET /v1/signing-blocks lists all")
    await signing_blocks.remove(block)
    return unstored_response(block)


async def _read_value(context: RequestContext, kind: SigningBlockKind, text: str) -> str:
    """Return a value in its canonical form. Raises InvalidRequest."""
    if kind is SigningBlockKind.SENDER:
        return hex_text(p.read_account("value", text))
    if kind is SigningBlockKind.MESSAGE_ID:
        return hex_text(p.read_id("value", text))
    return id_text(await context.chain_id_of("value", text))
