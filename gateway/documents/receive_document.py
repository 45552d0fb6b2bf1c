"""A document is received: its request read, and the document itself fetched where it lies elsewhere."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from gateway.errors import BadImage, BadRequest
from gateway.images.fetch import refused
from gateway.model import SortFacts
from gateway.policy.sort import evidence
from gateway.request.receive import alias_of
from gateway.wire import mistral
from gateway.wire.image import remote_url

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.images.fetch import ImageFetcher
    from gateway.model import Buffer, SortDecision
    from gateway.policy.sort.evidence import SortRules
    from gateway.request.progress import IncomingRequest, RequestProgress
    from gateway.wire.mistral import DocumentRequest

_JSON, _FORM = "application/json", "multipart/form-data"
# To read a larger body takes longer than the event loop may be kept.
_INLINE_BYTES = 1024 * 1024
# What the parser finds wrong with a form is told to its client.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


class ReceivedDocument(NamedTuple):
    """What is asked for, and the document."""

    request: DocumentRequest
    data: Buffer


async def receive(progress: RequestProgress, config: Config, fetcher: ImageFetcher) -> ReceivedDocument:
    """Receive a document.

    Args:
        progress: the request that it comes with.
        config: its limits hold.
        fetcher: fetches documents that lie elsewhere.

    Raises:
        BadRequest: the request cannot be read, or the document is not to be had.
        BodyTooLarge: the body is over the limit.
        ClientLeft: the client left before the body's end.
        Unavailable: there is no room for it now.
    """
    incoming, held = progress.incoming, progress.held
    kind = incoming.content_type.partition(";")[0].strip().lower()
    if kind not in (_JSON, _FORM):
        raise BadRequest(
            f"the content type must be {_JSON} or {_FORM}", param="content-type", code="bad_content_type"
        )
    body = await incoming.read(config.limits.body_bytes, held)
    parse = partial(mistral.parse_json, body)
    if kind == _FORM:
        parse = partial(mistral.parse_form, body, incoming.content_type)
    request = parse() if len(body) <= _INLINE_BYTES else await asyncio.to_thread(parse)
    data = request.data or b""
    if request.url is not None:
        data = await _fetched(request.url, request.param, progress, fetcher)
    else:
        held.add(len(data))
    held.release(len(body))
    return ReceivedDocument(request, data)


def chosen_route(
    incoming: IncomingRequest, model: str | None, rules: SortRules, name: str
) -> SortDecision | None:
    """Return the route that the client chose for all pages; None where it chose none.

    Args:
        incoming: may name it in a header.
        model: the requested model, which may be an alias of a route.
        rules: know the routes.
        name: the configured model's.

    Raises:
        UnknownModel: neither the model nor an alias is named.
        BadRequest: there is no such route.
    """
    alias = alias_of(model, name)
    if alias is None and incoming.route_header is None:
        return None
    return evidence.sort(SortFacts(header=incoming.route_header, alias=alias), rules)


async def _fetched(raw: bytes, param: str, progress: RequestProgress, fetcher: ImageFetcher) -> bytes:
    try:
        url = remote_url.parse_remote(raw)
        if url is None:
            raise refused("its URL is no plain http(s) URL: ASCII, a host, no credentials")
        fetcher.check(url)
        return await fetcher.fetch(url, progress.incoming.client, progress.held.add)
    except BadImage as error:
        raise error.named(param, f"`{param}`: ") from error
