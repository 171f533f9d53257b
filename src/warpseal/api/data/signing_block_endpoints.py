"""Signing blocks: the administrator adds, lists and removes them."""

from __future__ import annotations

from starlette.responses import Response

from warpseal.api.data import parameters as p
from warpseal.api.data.bodies import SigningBlockList
from warpseal.api.data.errors import SigningBlocksNotEnabled
from warpseal.api.data.request_context import RequestContext
from warpseal.api.http.errors import NotFound
from warpseal.api.http.responses import unstored_response
from warpseal.errors import InvalidRequest
from warpseal.messages.signing_blocks import MAX_SIGNING_BLOCKS, SigningBlocks
from warpseal.resources.text import hex_text
from warpseal.store.values import SigningBlock, SigningBlockKind
from warpseal.warp.ids import id_text


async def list_or_add(context: RequestContext) -> Response:
    """GET or POST /v1/signing-blocks."""
    signing_blocks = _signing_blocks(context)
    if context.request.method == "POST":
        return await _add(context, signing_blocks)
    return unstored_response(SigningBlockList(signing_blocks=tuple(await signing_blocks.load())))


async def remove(context: RequestContext) -> Response:
    """DELETE /v1/signing-blocks/{kind}/{value}."""
    signing_blocks, texts = _signing_blocks(context), context.request.path_params
    kind = SigningBlockKind(str(p.BLOCK_KIND.read("kind", texts["kind"])))
    value = await _read_value(context, kind, texts["value"])
    blocks = [block for block in await signing_blocks.load() if (block.kind, block.value) == (kind, value)]
    if not blocks:
        raise NotFound(f"no signing block of {kind} {value}; GET /v1/signing-blocks lists all")
    await signing_blocks.remove(blocks[0])
    return unstored_response(blocks[0])


async def _add(context: RequestContext, signing_blocks: SigningBlocks) -> Response:
    fields = await context.read_fields()
    kind = SigningBlockKind(fields["kind"])
    value = await _read_value(context, kind, fields["value"])
    if len(await signing_blocks.load()) >= MAX_SIGNING_BLOCKS:
        reason = f"there are {MAX_SIGNING_BLOCKS} signing blocks, and no more are allowed: remove one"
        raise InvalidRequest("value", reason)
    block = SigningBlock(kind, value, fields["reason"], int(context.now))
    await signing_blocks.add(block)
    return unstored_response(block, 201)


async def _read_value(context: RequestContext, kind: SigningBlockKind, text: str) -> str:
    """Return a value in its one form. Raises InvalidRequest."""
    if kind is SigningBlockKind.SENDER:
        return hex_text(p.read_account("value", text))
    if kind is SigningBlockKind.MESSAGE_ID:
        return hex_text(p.read_id("value", text))
    chain_id = await context.services.evm.find_id(text)
    if chain_id is None:
        raise InvalidRequest("value", "no blockchain id, and no EVM chain id or alias of a chain that is served here")
    return id_text(chain_id)


def _signing_blocks(context: RequestContext) -> SigningBlocks:
    if context.services.signing_blocks is None:
        raise SigningBlocksNotEnabled
    return context.services.signing_blocks
