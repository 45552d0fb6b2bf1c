"""A request and its answer, without sockets: bytes in, bytes out."""

from __future__ import annotations

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
