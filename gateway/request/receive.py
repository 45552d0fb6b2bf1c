"""Receive: a request's body is parsed, its images are checked or fetched; and what an engine gets of it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from gateway.errors import BadImage, BadRequest, UnknownModel
from gateway.images.fetch import failed, refused
from gateway.images.inspector import INLINE_BYTES
from gateway.wire import openai, responses
from gateway.wire.image import headers, remote_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

    from gateway.config import Config, Limits, Timeouts
    from gateway.images.fetch import ImageFetcher
    from gateway.images.inspector import ImageInspector
    from gateway.model import Buffer, SortFacts
    from gateway.request.record import RequestProgress
    from gateway.state.requests import MemoryClaim
    from gateway.telemetry.tracing import Trace
    from gateway.wire.image.headers import DataUrl, T
    from gateway.wire.image.remote_url import RemoteUrl
    from gateway.wire.openai import CompletionRequest, Dialect
    from gateway.wire.openai.parts import ImagePart

RESPONSES_PATH = "/v1/responses"
# To read a larger body takes longer than the event loop may be kept: 1 ms for 8 MB, 5 ms for 32 MB.
_INLINE_BYTES = 8 * 1024 * 1024
_FETCHES_AT_ONCE = 4


class CheckedImages(NamedTuple):
    """What sorting needs to know of a request's images, all of which are checked.

    Attributes:
        first: the first image's data URL, as the engine gets it; None where there is no image.
        first_weight: how much memory it takes to decode the first image, in bytes.
    """

    first: Buffer | None
    first_weight: int


class ReceivedRequest(NamedTuple):
    """A request that has been read and checked.

    It holds nothing beside the body that would be as large: what it has been parsed into may have copies of
    its images' text.

    Attributes:
        facts: what sorting needs to know.
        images: what sorting needs to know of its images.
        body: as an engine gets it, in pieces.
        stream: a stream is asked for.
        strip_usage: the gateway asks for the usage chunk, and the client did not: it does not get it.
        merged: its stream's chunks carry several steps each, as the client wished.
    """

    facts: SortFacts
    images: CheckedImages
    body: tuple[Buffer, ...]
    stream: bool
    strip_usage: bool
    merged: bool


class Receiver:
    """Receives requests; holds no state of its own."""

    def __init__(self, vision: ImageInspector, fetcher: ImageFetcher) -> None:
        self._vision = vision
        self._fetcher = fetcher

    async def receive(self, progress: RequestProgress, config: Config) -> ReceivedRequest:
        """Read a request and check it.

        Raises:
            BadRequest: its body or an image is wrong, or an image is not to be had; `param` names the part.
            BodyTooLarge: the body is over the limit.
            ClientLeft: the client left before the body's end.
            Unavailable: there is no room for it now.
            UnknownModel: the model it names is not the configured one.
        """
        incoming, limits = progress.incoming, config.limits
        if incoming.content_type.partition(";")[0].strip().lower() != "application/json":
            raise BadRequest(
                "the content type must be application/json", param="content-type", code="bad_content_type"
            )
        body = await incoming.read(limits.body_bytes, progress.held)
        arrived = time.perf_counter()
        parse = _parser(incoming.path, body, limits.images_per_request)
        completion = parse() if len(body) <= _INLINE_BYTES else await asyncio.to_thread(parse)
        facts, alias = completion.facts, alias_of(completion.model, config.model)
        if alias is not None or incoming.route_header is not None:
            facts = replace(facts, header=incoming.route_header, alias=alias)
        images = _Images(completion.images, limits, incoming.client, progress.held.add, self._vision)
        await images.check(self._fetcher)
        checked = time.perf_counter()
        progress.overhead["receive"] = checked - arrived
        if images.remote:
            with progress.stage("fetch"):
                await images.fetch(self._fetcher, limits.body_bytes - len(body))
            progress.overhead["fetch"] = time.perf_counter() - checked
        progress.image_bytes = images.encoded_bytes
        fetched = time.perf_counter()
        model = None if alias is None else config.model
        pieces = openai.rewritten(completion, model=model, repaired=images.repaired)
        progress.overhead["forward"] = time.perf_counter() - fetched
        return ReceivedRequest(
            facts,
            images.checked(),
            pieces,
            completion.stream,
            strip_usage=not completion.include_usage,
            merged=completion.merged,
        )


class _Images:
    """A request's images while they are checked.

    Attributes:
        remote: those to fetch, each once, by their URL as it stands.
        encoded_bytes: of those checked so far.
        repaired: image URLs to replace, JSON text by JSON text.
    """

    def __init__(
        self,
        parts: Sequence[ImagePart],
        limits: Limits,
        client: str,
        keep: Callable[[int], None],
        vision: ImageInspector,
    ) -> None:
        """Check nothing yet; `keep` is called with the length of what is about to be held, and may raise."""
        self.remote: dict[bytes, tuple[ImagePart, RemoteUrl]] = {}
        self.encoded_bytes = 0
        self.repaired: dict[bytes, bytes] = {}
        self._pixels = 0
        self._first: Buffer | None = None
        self._first_weight = 0
        self._parts = parts
        self._limits = limits
        self._client = client
        self._keep = keep
        self._vision = vision

    def checked(self) -> CheckedImages:
        """Return what has been found."""
        return CheckedImages(self._first, self._first_weight)

    async def check(self, fetcher: ImageFetcher) -> None:
        """Check the images that came along, and whether the others may be fetched.

        Raises:
            BadImage: one that is refused; `param` names its part.
        """
        inline: list[ImagePart] = []
        for part in self._parts:
            if bytes(part.url[:5]) == b"data:" or not remote_url.is_remote(part.url):
                inline.append(part)
                continue
            raw = bytes(part.url)
            try:
                url = remote_url.parse_remote(raw)
                if url is None:
                    raise refused("its URL is no plain http(s) URL: ASCII, a host, no credentials")
                fetcher.check(url)
            except BadImage as error:
                raise _named(error, part) from error
            self.remote.setdefault(raw, (part, url))
        until = asyncio.get_running_loop().time() + self._vision.patience_s
        for part in inline:
            data, part.data = part.data, None
            if data is None:
                await self._inspect(part, headers.parse_data_url, part.url, until)
            else:
                await self._inspect(part, headers.from_whole_url, data, until)

    async def fetch(self, fetcher: ImageFetcher, left: int) -> None:
        """Fetch the images that are remote, and check them.

        Args:
            fetcher: fetches them.
            left: by how many bytes the request may grow.

        Raises:
            BadImage: one that is refused, or not to be had; `param` names its part.
            Unavailable: there is no room for it now.
        """
        few = asyncio.Semaphore(_FETCHES_AT_ONCE)

        def keep(count: int) -> None:
            nonlocal left
            count = count * 4 // 3  # as base64 text
            left -= count
            if left < 0:
                limit = self._limits.body_bytes
                raise failed(f"the request with its images is over {limit:,} bytes (limits.body_bytes)")
            self._keep(count)

        async def one(part: ImagePart, url: RemoteUrl) -> bytes:
            async with few:
                try:
                    return await fetcher.fetch(url, self._client, keep)
                except BadImage as error:
                    raise _named(error, part) from error

        try:
            async with asyncio.TaskGroup() as group:
                tasks = {raw: group.create_task(one(*asked)) for raw, asked in self.remote.items()}
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        until = asyncio.get_running_loop().time() + self._vision.patience_s
        for part in self._parts:
            if remote_url.is_remote(part.url):
                await self._inspect(part, headers.as_data_url, tasks[bytes(part.url)].result(), until)

    async def _inspect(self, part: ImagePart, make: Callable[[T], DataUrl], data: T, until: float) -> None:
        limits, client = self._limits, self._client
        try:
            if len(data) <= INLINE_BYTES:
                url, info = headers.read(make, data, max_pixels=limits.image_pixels)
            else:
                url, info = await self._vision.read(make, data, max_pixels=limits.image_pixels, client=client)
            self.encoded_bytes += len(url.data)
            self._pixels += info.width * info.height
            if self._pixels > limits.request_pixels:
                raise BadImage(
                    f"with it the request has {self._pixels:,} pixels; at most {limits.request_pixels:,} in "
                    "all are accepted (limits.request_pixels)",
                    code="image_too_large",
                )
            mended = make is headers.parse_data_url and url.repaired is not None
            if mended or not info.complete:
                await self._vision.decode(url.data, until, weight=info.decoding_bytes, client=client)
        except BadImage as error:
            raise _named(error, part) from error
        if url.repaired is None:
            whole = part.url
        else:
            text = self.repaired[part.raw] = b'"%s"' % url.repaired
            whole = memoryview(text)[1:-1]
        if part is self._parts[0]:
            self._first, self._first_weight = whole, info.decoding_bytes


def alias_of(model: str | None, name: str) -> str | None:
    """Return the route behind `NAME:route`; None for NAME itself.

    Raises:
        UnknownModel: it is neither.
    """
    if model is None or model == name:
        return None
    if model.startswith(f"{name}:"):
        return model.removeprefix(f"{name}:")
    raise UnknownModel(
        f"the model {model[:64]!r} does not exist here; use {name!r}, or {name}:ROUTE to choose a route",
        param="model",
        code="model_not_found",
    )


def _parser(path: str, body: bytes, most: int) -> Callable[[], CompletionRequest]:
    """What parses the body of an endpoint's request, which may have so many images."""
    if path == RESPONSES_PATH:
        return partial(responses.parse_request, body, max_images=most)
    is_chat = path.endswith("/chat/completions")
    return partial(openai.parse_request, body, chat=is_chat, max_images=most)


def _named(error: BadImage, part: ImagePart) -> BadImage:
    return error.named(part.param, f"{part.param}: ")


@dataclass(slots=True)
class EngineRequest:
    """What is sent to an engine, and to another where that one fails.

    Attributes:
        path: the endpoint, on the gateway as on the engine.
        request_id: goes along to the engine.
        body: as the engine gets it, in pieces; empty once it will not be sent again.
        held: the account of what the request holds in memory.
        answer_bytes: the most bytes of an answer that is not streamed.
        stream: a stream is asked for.
        strip_usage: see ReceivedRequest.
        merged: see ReceivedRequest.
        timeouts: the route's.
        dialect: how its answers are read.
        context: the trace context that goes along, as headers.
        trace: the request's spans; None where it is not traced.
    """

    path: str
    request_id: str
    body: tuple[Buffer, ...]
    held: MemoryClaim
    answer_bytes: int
    stream: bool
    strip_usage: bool
    merged: bool
    timeouts: Timeouts
    dialect: Dialect
    context: Mapping[str, str]
    trace: Trace | None

    @classmethod
    def of(cls, received: ReceivedRequest, progress: RequestProgress, config: Config, route: str) -> Self:
        """Return what is sent for a request that has been sorted into a route."""
        path = progress.incoming.path
        return cls(
            path=path,
            request_id=progress.incoming.request_id,
            body=received.body,
            held=progress.held,
            answer_bytes=config.limits.answer_bytes,
            stream=received.stream,
            strip_usage=received.strip_usage,
            merged=received.merged,
            timeouts=config.routes[route].timeouts,
            dialect=responses.RESPONSES if path == RESPONSES_PATH else openai.COMPLETIONS,
            context=progress.context,
            trace=progress.trace,
        )

    def drop_body(self) -> None:
        """Let go of the body: an answer to it has begun, which may take long."""
        self.held.release(sum(map(len, self.body)))
        self.body = ()
