"""The fuzzer's entry: an input's first byte chooses a parser, which reads the others.

A parser may raise its documented error and nothing else; for what it accepts, its properties are checked.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.config import parse as parse_config
from gateway.config.api_keys import MIN_KEY_LENGTH, parse_keys
from gateway.errors import BadImage, BadRequest, ConfigError, EngineFailed
from gateway.model import Speculation
from gateway.wire import mistral, openai, responses, sse
from gateway.wire.http import messages, trace_context
from gateway.wire.image import headers, pixels, remote_url, structure
from gateway.wire.mistral import page_tables
from gateway.wire.vllm import bench_results, engine

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_EVENT_BYTES = 512
_MAX_PIXELS = 250_000
_SIDE = 64
_SLOW_S = 5
# Longer than what an input can be made to hold by chance.
_PLANTED = "planted-7c1f0b9a4e53"


class BrokenPropertyError(Exception):
    """A parser's property does not hold."""


def run_input(data: bytes) -> None:
    """Have a parser read one input.

    Raises:
        BrokenPropertyError: a property does not hold. Any other exception is one that is not documented.
    """
    if data:
        PARSERS[data[0] % len(PARSERS)](data[1:])


def _check(holds: object, claim: str) -> None:
    if not holds:
        raise BrokenPropertyError(claim)


def _events(data: bytes) -> None:
    """A stream's events, cut in two anywhere."""
    at, stream = (data[0] if data else 0), data[1:]
    splits = [_split(stream), _split(stream[:at], stream[at:])]
    for events, rest in splits:
        _check(b"".join(events) + rest == stream, "no byte of a stream is lost or added")
    whole, in_two = ([sse.event_data(event) for event in events] for events, _ in splits)
    values = [value for value in whole if value is not None]
    _check(values == [value for value in in_two if value is not None], "events do not depend on reads")
    for value in values:
        if b"\n" not in value and b"\r" not in value:
            _check(sse.event_data(sse.data_event(value)) == value, "data that is written is read")
    splitter = sse.EventSplitter(_MAX_EVENT_BYTES)
    with contextlib.suppress(EngineFailed):
        for start in range(0, len(stream), 100):
            splitter.feed(stream[start : start + 100])
        _check(len(splitter.rest()) <= _MAX_EVENT_BYTES, "an unfinished event is bounded")


def _split(*pieces: bytes) -> tuple[list[bytes], bytes]:
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
        _check(len(error.message) < 1000, "a refusal is short")
        _check(json.loads(openai.error_body(error))["error"]["message"], "a refusal has a message")
        return
    _check(len(request.images) <= 4, "images are bounded")
    repairs = {part.raw: b'"data:image/png;base64,AAAA"' for part in request.images}
    for renamed, repaired in ((None, {}), ("model", {}), (None, repairs), ("model", repairs)):
        body = b"".join(openai.rewritten(request, model=renamed, repaired=repaired))
        again = parse(body)
        _check(again.facts == request.facts, "the facts that decide the route stay the same")
        _check(again.model == (renamed or request.model), "the model is the one wanted")
        _check((again.stream, again.merged) == (request.stream, request.merged), "a stream stays one")
        _check(again.include_usage or not request.stream, "a stream always asks for usage")
        _check(len(again.images) == len(request.images), "no image is lost")
        _check(
            not repaired or all(part.raw in repaired.values() for part in again.images), "URLs are repaired"
        )


def _answer(data: bytes) -> None:
    openai.read_chunk(data)
    openai.read_answer(data)
    _check(len(openai.read_error_message(data)) <= 500, "an engine's message is bounded")


def _response_answer(data: bytes) -> None:
    responses.read_answer(data)
    chunk = responses.read_chunk(data)
    _check(chunk.error_status == 0 or 400 <= chunk.error_status < 600, "an error has an error's status")
    event = responses.error_event(EngineFailed("m"), chunk.place + 1)
    number = json.loads(sse.event_data(event) or b"")["sequence_number"]
    _check(number == chunk.place + 1, "events are numbered")


def _metrics(data: bytes) -> None:
    for read in (engine.read_metrics, engine.read_work):
        with contextlib.suppress(ValueError):
            read(data)
    with contextlib.suppress(ValueError):
        found = engine.read_metrics(data)
        positions = [len(one.accepted_per_position) for one in found.speculation.values()]
        _check(max(positions, default=0) <= 128, "positions are bounded")


def _speculation(data: bytes) -> None:
    found = engine.read_speculation(data)
    _check(
        not isinstance(found, Speculation) or (found.adds_up and (found.length or 1) >= 1),
        "speculation figures add up",
    )
    with contextlib.suppress(ValueError):
        engine.read_version(data)


def _data_url(data: bytes) -> None:
    try:
        url = headers.parse_data_url(data)
    except BadImage:
        return
    if url.repaired is not None:
        again = headers.parse_data_url(url.repaired)
        _check((again.data, again.repaired) == (url.data, None), "a repaired URL is valid")


def _image(data: bytes) -> None:
    try:
        info = headers.inspect(data, max_pixels=_MAX_PIXELS)
    except BadImage:
        return
    _check(info.width * info.height <= _MAX_PIXELS, "pixels are bounded")
    with contextlib.suppress(BadImage):
        _check(max(pixels.thumbnail(data, _SIDE).shape) <= _SIDE, "a thumbnail is small")


def _bench(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        bench_results.read(data)


def _config(data: bytes) -> None:
    began, told = time.process_time(), list[str]()
    text = data.decode("utf-8", "replace")
    try:
        told += parse_config(text, "routes.yaml", _NOWHERE, {"KEY": _PLANTED}, keys=False).notes
    except ConfigError as error:
        told = error.problems
        _check(all(line.startswith("routes.yaml:") for line in told), "problems have a line")
    _check(time.process_time() - began < _SLOW_S, "a configuration is read or refused soon")
    _check(len(told) <= 101 and all(len(line) < 1000 for line in told), "problems are few and short")
    _check(all(line.isprintable() for line in told), "a problem is one line")
    _check(_PLANTED not in "".join(told), "no value of a variable is told")


def _keys(data: bytes) -> None:
    words = {word for word in data.decode("utf-8", "replace").split() if len(word) >= MIN_KEY_LENGTH}
    try:
        keys = parse_keys(data, "keys")
    except ConfigError as error:
        shown = {word for line in error.problems for word in line.split()}
        _check(not words & shown, "a problem shows no key")
    else:
        _check(0 < len(keys.names) <= len(keys), "each name has a key")
        _check(not any(word in repr(keys) for word in words), "keys are not shown")


def _head(data: bytes) -> None:
    line, *lines = data.split(b"\n")
    headers = [(name.lower(), value) for name, _, value in (one.partition(b":") for one in lines)]
    method, _, version = line.partition(b" ")
    version_text = version.decode("latin-1")
    with contextlib.suppress(BadRequest):
        messages.check(version_text, method, headers)
    plain = messages.without_upgrade(version_text, method, b"/", headers)
    _, *kept = plain.split(b"\r\n")
    _check(not any(one.startswith(b"upgrade:") for one in kept), "no upgrade is left")


def _url(data: bytes) -> None:
    remote_url.is_remote(data)
    url = remote_url.parse_remote(data)
    if url is None:
        return
    _check(len(url.text) <= remote_url.MAX_LENGTH + 16 and url.text.isascii(), "a URL is bounded and ASCII")
    _check(remote_url.parse_remote(url.text.encode()) == url, "a normalised URL is stable")
    for location in (data.decode("latin-1"), url.target, "//a/b", "../c", "ftp://x/"):
        to = remote_url.redirected(url, location)
        _check(to is None or to.scheme in ("http", "https"), "a redirect stays within HTTP")
        _check(to is None or (url.scheme, to.scheme) != ("https", "http"), "a redirect stays encrypted")


def _trace(data: bytes) -> None:
    names = (b"traceparent", b"tracestate")
    lines = data.split(b"\n")[:8]
    passed = trace_context.read([(names[number % 2], line) for number, line in enumerate(lines)])
    _check(sum(map(len, passed.values())) <= 1024, "what is passed on is bounded")
    _check(all(value.isascii() and value.isprintable() for value in passed.values()), "it is printable ASCII")
    again = trace_context.read([(name.encode(), value.encode()) for name, value in passed.items()])
    _check(again == passed, "it is valid itself")


def _structure(data: bytes) -> None:
    with contextlib.suppress(BadImage):
        structure.check_structure(data)
        plain = structure.without_texts(data)
        _check(len(plain) <= len(data), "nothing is added")
        _check(structure.without_texts(plain) == plain, "an image without texts is unchanged")
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
        _check(len(error.message) < 1000, "a refusal is short")
        _check(json.loads(openai.error_body(error))["error"]["message"], "a refusal has a message")
        return
    _check(pages == sorted(set(pages)) and pages[-1] < 100 and len(pages) <= 10, "pages exist, each once")
    _check((request.data is None) != (request.url is None), "a document has data or a URL")
    _check(
        request.annotation is None or json.loads(request.annotation)["json_schema"], "a schema is passed on"
    )


def _tables(data: bytes) -> None:
    page = data.decode("utf-8", "replace")
    for wanted in ("html", "markdown"):
        text, found = page_tables.lift_tables(page, wanted)
        _check(all(f"[{one.id}]({one.id})" in text for one in found), "a table leaves a link")


_NOWHERE = Path(tempfile.gettempdir(), "there-is-no-such-folder")
# The corpus's inputs name these by their index: add new ones at the end.
PARSERS: tuple[Callable[[bytes], None], ...] = (
    *(_events, _chat, _text, _answer, _metrics, _speculation, _data_url, _image, _bench),
    *(_config, _keys, _head, _url, _trace, _structure),
    *(_document, _form, _tables),
    *(_response, _response_answer),
)
