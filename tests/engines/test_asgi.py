from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from gateway.engines.asgi import (
    DRAIN_SECONDS,
    answer_while_connected,
    make_server,
    read_body,
    request_id,
    send_whole,
)
from gateway.errors import BodyTooLarge
from tests.support import served

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable


def receiver(messages: Iterable[dict[str, Any]]) -> Callable[[], Awaitable[dict[str, Any]]]:
    waiting = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(waiting)

    return receive


def part(body: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_is_read_to_its_end() -> None:
    assert await read_body(receiver([part(b"ab", True), part(b"c", False)]), 3) == b"abc"


async def test_too_large_a_body_is_refused_before_its_end() -> None:
    found = await read_body(receiver([part(b"ab", True), part(b"cd", True)]), 3)
    assert isinstance(found, BodyTooLarge)


async def test_a_body_that_breaks_off_is_none() -> None:
    assert await read_body(receiver([part(b"ab", True), {"type": "http.disconnect"}]), 3) is None


@pytest.mark.parametrize(
    ("sent", "taken"), [(b"abc-1:2.x", True), (b"a b", False), (b"", False), (b"a" * 129, False)]
)
def test_a_sane_request_id_is_kept(sent: bytes, taken: bool) -> None:
    scope = {"type": "http", "headers": [(b"x-request-id", sent)]}
    found = request_id(scope)
    assert (found == sent.decode()) == taken
    assert found


async def test_an_answer_ends_when_its_client_leaves() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def answer() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        await read_body(receive, 100)
        await answer_while_connected(answer(), receive)

    async with served(_http(app)) as url, httpx.AsyncClient() as client:
        asking = asyncio.create_task(client.post(url, content=b"x"))
        await begun.wait()
        asking.cancel()
        async with asyncio.timeout(10):
            await ended.wait()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_failing_answer_fails() -> None:
    async def fail() -> None:
        raise KeyError("x")

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(KeyError):
        await answer_while_connected(fail(), receive)


async def test_a_whole_answer_tells_its_length() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send_whole(send, 418, b'{"a": 1}')

    async with served(_http(app)) as url, httpx.AsyncClient() as client:
        answer = await client.get(url)
    assert (answer.status_code, answer.json(), answer.headers["content-length"]) == (418, {"a": 1}, "8")


def test_a_server_drains_and_ends_on_signals() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server = make_server(lambda *_: None, host="127.0.0.1", port=0)  # type: ignore[arg-type, return-value]
        assert server.config.timeout_graceful_shutdown == DRAIN_SECONDS
        for number in before:
            handler = signal.getsignal(number)
            assert callable(handler)
            with pytest.raises(SystemExit):
                handler(number, None)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _http(app: Any) -> Any:
    async def call(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)
            return
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": message["type"] + ".complete"})
        await send({"type": "lifespan.shutdown.complete"})

    return call
