"""A request and its answer, without sockets: bytes in, bytes out."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.request_cycle import RequestCycle
from tests.api.fed import LIMIT, fed, takes

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator


@given(st.binary(max_size=LIMIT), st.booleans(), st.randoms())
async def test_a_body_taken_in_one_piece_is_what_was_sent_however_it_is_cut(
    body: bytes, chunked: bool, rng: random.Random
) -> None:
    def cut(data: bytes, most: int) -> Iterator[bytes]:
        while data:
            size = rng.randint(1, rng.choice([3, most]))
            yield data[:size]
            data = data[size:]

    body *= rng.choice([1, LIMIT // max(len(body), 1)])
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % len(body)
    framed = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in cut(body, LIMIT)) + b"0\r\n\r\n"
    sent, _ = await fed(
        [*cut(b"POST / HTTP/1.1\r\nhost: x\r\n%b\r\n\r\n" % framing + (framed if chunked else body), LIMIT)],
        takes,
    )
    assert sent.startswith(b"HTTP/1.1 200 ")
    assert sent.partition(b"\r\n\r\n")[2] == body


@pytest.mark.parametrize("piece", [1, 1000, LIMIT])
async def test_of_a_body_over_the_limit_no_more_is_kept(piece: int) -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%b\r\n" % (piece, bytes(piece))
    sent, over = await fed([head, *[chunk] * (LIMIT // piece + 3)], takes)
    assert sent.startswith(b"HTTP/1.1 413 ")
    assert over


async def test_a_body_taken_in_one_piece_that_stops_coming_is_refused_in_time() -> None:
    sent, over = await fed([b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf"], takes)
    assert sent.startswith(b"HTTP/1.1 408 ")
    assert over


async def test_a_body_in_pieces_of_two_bytestakes_no_more_memory_than_is_counted() -> None:
    pieces = 5000
    cycle: Any = RequestCycle.__new__(RequestCycle)
    cycle._parts, cycle._length, cycle._limit, cycle._keep = [], 0, 10 * pieces, None
    tracemalloc.start()
    try:
        for number in range(pieces):
            cycle.take(number.to_bytes(2, "big"))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert b"".join(cycle._parts) == b"".join(number.to_bytes(2, "big") for number in range(pieces))
    assert most < 8 * 2 * pieces


GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
PART = {"type": "http.response.body", "body": b"h", "more_body": True}
REST = {"type": "http.response.body", "body": b"i"}


def says(*messages: dict[str, Any], fault: BaseException | None = None) -> Any:
    """An application that sends messages, whatever it is asked, and fails then where told."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)
        if fault:
            raise fault

    return app


async def test_an_answer_is_sent_as_asgi_has_it_and_more_requests_may_follow() -> None:
    sent, _ = await fed([GET, GET], says(START, PART, REST))
    assert sent == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi" * 2


@pytest.mark.parametrize(
    ("method", "version", "sent"),
    [
        (b"GET", b"1.1", b"transfer-encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n"),
        (b"GET", b"1.0", b"connection: close\r\n\r\nhi"),
        (b"HEAD", b"1.1", b"\r\n"),
        (b"HEAD", b"1.0", b"connection: close\r\n\r\n"),
    ],
)
async def test_an_answer_of_unknown_length_is_framed_as_its_client_understands(
    method: bytes, version: bytes, sent: bytes
) -> None:
    head = b"%b / HTTP/%b\r\nhost: x\r\n\r\n" % (method, version)
    start = {"type": "http.response.start", "status": 200}
    assert (await fed([head], says(start, PART, REST)))[0] == b"HTTP/1.1 200 OK\r\n" + sent


@pytest.mark.parametrize(
    ("app", "trouble"),
    [
        (says(), "left without its whole answer"),
        (says(fault=KeyError("secret")), "failed unexpectedly"),
        (says(PART), "failed unexpectedly"),  # no answer has begun
        (says({**START, "headers": [(b"x", b"a\nb")]}), "failed unexpectedly"),
        (says(START), "left without its whole answer"),
    ],
    ids=["no answer", "a fault", "no start", "a header of two lines", "a start alone"],
)
async def test_what_gets_no_answer_is_a_fault_that_its_client_is_told(
    caplog: pytest.LogCaptureFixture, app: Any, trouble: str
) -> None:
    sent, over = await fed([GET], app)
    assert over
    assert trouble in caplog.text
    assert b"secret" not in sent
    if sent:
        assert sent.startswith(b"HTTP/1.1 500 ")
        assert json.loads(sent.partition(b"\r\n\r\n")[2])["error"]["code"] == "internal_error"
        assert b"connection: close\r\n" in sent


@pytest.mark.parametrize(
    ("app", "sent"),
    [
        (says(START, PART, fault=KeyError()), b"h"),
        (says(START, PART), b"h"),
        (says(START, PART, PART, PART, PART), b"hh"),
        (says(START, PART, {**REST, "body": b""}), b"h"),
        (says(START, PART, START, REST), b"h"),
        (says(START, PART, REST, REST), b"hi"),
    ],
    ids=["a fault", "no end", "too long", "too short", "two starts", "two ends"],
)
async def test_an_answer_that_goes_wrong_breaks_off(
    caplog: pytest.LogCaptureFixture, app: Any, sent: bytes
) -> None:
    answer, over = await fed([GET], app)
    assert answer.partition(b"\r\n\r\n")[2] == sent
    assert over
    assert "a request" in caplog.text


async def test_an_application_that_is_cancelled_tells_its_client_too() -> None:
    sent, over = await fed([GET], says(fault=asyncio.CancelledError()))
    assert sent.startswith(b"HTTP/1.1 500 ")
    assert over


@pytest.mark.parametrize("rest", [b"", b"llo", b"\0"])
async def test_an_answer_to_half_a_request_is_the_connections_last(rest: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhe"
    sent, over = await fed([head, rest, GET], says(START, PART, REST))
    assert sent == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi"
    assert over


async def test_an_application_that_does_not_read_is_told_when_its_client_has_left() -> None:
    told: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        told.append((await receive())["type"])
        told.append((await receive())["type"])
        await send(START)
        await send(REST)

    sent, _ = await fed([GET], app)
    assert (told, sent) == (["http.request", "http.disconnect"], b"")
