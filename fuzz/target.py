"""One entry for a fuzzer: the first byte chooses a parser, the others are what it reads.

A parser may refuse bytes with its documented error, and nothing else; of what it reads, its laws hold.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.config import parse as parse_config
from gateway.config.api_keys import MIN_KEY_LENGTH, parse_keys
from gateway.errors import BadImage, BadRequest, ConfigError, EngineFailed
from gateway.wire import mistral, openai, responses, sse
from gateway.wire.http import head, trace_context
from gateway.wire.image import headers, pixels, remote_url, structure
from gateway.wire.mistral import page_tables
from gateway.wire.vllm import bench_results, engine

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_EVENT_BYTES = 512
_MAX_PIXELS = 250_000
_SIDE = 64


class Broken(Exception):
    """A law that does not hold."""


def one(data: bytes) -> None:
    """Read one input.

    Raises:
        Broken: a law does not hold. Anything else that is raised is an error that is not documented.
    """
    if data:
        PARSERS[data[0] % len(PARSERS)](data[1:])


def _must(holds: object, law: str) -> None:
    if not holds:
        raise Broken(law)


def _events(data: bytes) -> None:
    """A stream's events, cut in two anywhere."""
    at, stream = (data[0] if data else 0), data[1:]
    wholes = [_fed(stream), _fed(stream[:at], stream[at:])]
    for events, rest in wholes:
        _must(b"".join(events) + rest == stream, "no byte of a stream is lost or added")
    told = [[sse.event_data(event) for event in events] for events, _ in wholes]
    said = [[one for one in each if one is not None] for each in told]
    _must(said[0] == said[1], "events do not depend on how their bytes arrive")
    for one in said[0]:
        if b"\n" not in one and b"\r" not in one:
            _must(sse.event_data(sse.data_event(one)) == one, "data that is written is read")
    splitter = sse.EventSplitter(_MAX_EVENT_BYTES)
    with contextlib.suppress(EngineFailed):
        for start in range(0, len(stream), 100):
            splitter.feed(stream[start : start + 100])
        _must(len(splitter.rest()) <= _MAX_EVENT_BYTES, "what waits for its end is bounded")


def _fed(*pieces: bytes) -> tuple[list[bytes], bytes]:
    splitter = sse.EventSplitter()
    events = [event for piece in pieces for event in splitter.feed(piece)]
    return events, splitter.rest()


def _chat(data: bytes) -> None:
    _request(data, partial(openai.parse_request, chat=True, max_images=4))


def _text(data: bytes) -> None:
    _request(data, partial(openai.parse_request, chat=False, max_images=4))


def _response(data: bytes) -> None:
    _request(data, partial(responses.parse_request, max_images=4))


def _request(data: bytes, parse: Callable[[bytes], openai.CompletionRequest]) -> None:
    try:
        request = parse(data)
    except BadRequest as error:
        _must(len(error.message) < 1000, "a refusal is short")
        _must(json.loads(openai.error_body(error))["error"]["message"], "a refusal can be told")
        return
    _must(len(request.images) <= 4, "images are bounded")
    mended = {part.raw: b'"data:image/png;base64,AAAA"' for part in request.images}
    for renamed, repaired in ((None, {}), ("model", {}), (None, mended), ("model", mended)):
        body = b"".join(openai.rewritten(request, model=renamed, repaired=repaired))
        again = parse(body)
        _must(again.facts == request.facts, "what decides the route is passed on")
        _must(again.model == (renamed or request.model), "the model is the one wanted")
        _must((again.stream, again.merged) == (request.stream, request.merged), "a stream stays one")
        _must(again.include_usage or not request.stream, "a stream always tells its usage")
        _must(len(again.images) == len(request.images), "no image is lost")
        _must(not repaired or all(part.raw in repaired.values() for part in again.images), "URLs are mended")


def _answer(data: bytes) -> None:
    openai.read_chunk(data)
    openai.read_answer(data)
    _must(len(openai.read_error_message(data)) <= 500, "an engine's message is bounded")


def _response_answer(data: bytes) -> None:
    responses.read_answer(data)
    told = responses.read_chunk(data)
    _must(told.error_status == 0 or 400 <= told.error_status < 600, "an error's status is one")
    event = responses.error_event(EngineFailed("m"), told.place + 1)
    _must(
        json.loads(sse.event_data(event) or b"")["sequence_number"] == told.place + 1, "events are numbered"
    )


def _metrics(data: bytes) -> None:
    for read in (engine.read_metrics, engine.read_work):
        with contextlib.suppress(ValueError):
            read(data)
    with contextlib.suppress(ValueError):
        found = engine.read_metrics(data)
        positions = [len(one.accepted_per_position) for one in found.speculation.values()]
        _must(max(positions, default=0) <= 128, "positions are bounded")


def _speculation(data: bytes) -> None:
    found = engine.read_speculation(data)
    _must(found is None or (found.adds_up and (found.length or 1) >= 1), "figures that are told add up")
    with contextlib.suppress(ValueError):
        engine.read_version(data)


def _data_url(data: bytes) -> None:
    try:
        url = headers.parse_data_url(data)
    except BadImage:
        return
    if url.repaired is not None:
        again = headers.parse_data_url(url.repaired)
        _must((again.data, again.repaired) == (url.data, None), "what is mended needs no mending")


def _image(data: bytes) -> None:
    try:
        info = headers.inspect(data, max_pixels=_MAX_PIXELS)
    except BadImage:
        return
    _must(info.width * info.height <= _MAX_PIXELS, "pixels are bounded")
    with contextlib.suppress(BadImage):
        _must(max(pixels.thumbnail(data, _SIDE).shape) <= _SIDE, "a thumbnail is one")


def _bench(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        bench_results.read(data)


def _config(data: bytes) -> None:
    try:
        parse_config(data.decode("utf-8", "replace"), "routes.yaml", _NOWHERE, {"KEY": "secret"}, keys=False)
    except ConfigError as error:
        _must(all(line.startswith("routes.yaml:") for line in error.problems), "problems tell where they are")


def _keys(data: bytes) -> None:
    words = {word for word in data.decode("utf-8", "replace").split() if len(word) >= MIN_KEY_LENGTH}
    try:
        keys = parse_keys(data, "keys")
    except ConfigError as error:
        told = {word for line in error.problems for word in line.split()}
        _must(not words & told, "a problem shows no key")
    else:
        _must(0 < len(keys.names) <= len(keys), "each name has a key")
        _must(not any(word in repr(keys) for word in words), "keys are not shown")


def _head(data: bytes) -> None:
    line, *lines = data.split(b"\n")
    headers = [(name.lower(), value) for name, _, value in (one.partition(b":") for one in lines)]
    method, _, version = line.partition(b" ")
    told = version.decode("latin-1")
    with contextlib.suppress(BadRequest):
        head.check(told, method, headers)
    plain = head.without_upgrade(told, method, b"/", headers)
    _, *kept = plain.split(b"\r\n")
    _must(not any(one.startswith(b"upgrade:") for one in kept), "no upgrade is left")


def _url(data: bytes) -> None:
    remote_url.is_remote(data)
    url = remote_url.parse_remote(data)
    if url is None:
        return
    _must(len(url.text) <= remote_url.MAX_LENGTH + 16 and url.text.isascii(), "a URL is bounded and plain")
    _must(remote_url.parse_remote(url.text.encode()) == url, "a URL in its one spelling is the same")
    for location in (data.decode("latin-1"), url.target, "//a/b", "../c", "ftp://x/"):
        led = remote_url.redirected(url, location)
        _must(led is None or led.scheme in ("http", "https"), "a redirect stays within http")
        _must(led is None or (url.scheme, led.scheme) != ("https", "http"), "a redirect stays encrypted")


def _trace(data: bytes) -> None:
    names = (b"traceparent", b"tracestate")
    lines = data.split(b"\n")[:8]
    told = trace_context.read([(names[number % 2], line) for number, line in enumerate(lines)])
    _must(sum(map(len, told.values())) <= 1024, "what is passed on is bounded")
    _must(all(value.isascii() and value.isprintable() for value in told.values()), "and plain")
    again = trace_context.read([(name.encode(), value.encode()) for name, value in told.items()])
    _must(again == told, "and valid itself")


def _structure(data: bytes) -> None:
    with contextlib.suppress(BadImage):
        structure.check_structure(data)
        plain = structure.without_texts(data)
        _must(len(plain) <= len(data), "nothing is added")
        _must(structure.without_texts(plain) == plain, "what has no texts stays as it is")
        if data[:4] in (b"II*\0", b"MM\0*"):
            structure.has_second_page(data)


def _document(data: bytes) -> None:
    _ocr(mistral.parse_json, data)


def _form(data: bytes) -> None:
    _ocr(lambda body: mistral.parse_form(body, "multipart/form-data; boundary=x"), data)


def _ocr(parse: Callable[[bytes], mistral.DocumentRequest], data: bytes) -> None:
    try:
        request = parse(data)
        with contextlib.suppress(BadRequest):
            mistral.kind_of(request.data or b"", request.param)
        pages = mistral.chosen_pages(request.pages, 100, 10)
    except BadRequest as error:
        _must(len(error.message) < 1000, "a refusal is short")
        _must(json.loads(openai.error_body(error))["error"]["message"], "a refusal can be told")
        return
    _must(pages == sorted(set(pages)) and pages[-1] < 100 and len(pages) <= 10, "pages are there, each once")
    _must((request.data is None) != (request.url is None), "a document is here or elsewhere")
    _must(
        request.annotation is None or json.loads(request.annotation)["json_schema"], "a schema is passed on"
    )


def _tables(data: bytes) -> None:
    page = data.decode("utf-8", "replace")
    for wanted in ("html", "markdown"):
        text, found = page_tables.lift_tables(page, wanted)
        _must(all(f"[{one.id}]({one.id})" in text for one in found), "a table leaves a link")


_NOWHERE = Path(tempfile.gettempdir(), "there-is-no-such-folder")
# The corpus refers to these by their places: new ones go to the end.
PARSERS: tuple[Callable[[bytes], None], ...] = (
    *(_events, _chat, _text, _answer, _metrics, _speculation, _data_url, _image, _bench),
    *(_config, _keys, _head, _url, _trace, _structure),
    *(_document, _form, _tables),
    *(_response, _response_answer),
)
