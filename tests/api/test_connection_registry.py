"""How many connections there may be, which make room, and which have taken too long."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
import uvloop

from tests.api.listening import BEGUN, HEALTH, SMALL, Held, request
from tests.support import until

if TYPE_CHECKING:
    from tests.api.listening import Listening

pytestmark = pytest.mark.asyncio(loop_scope="module")
LOOP = uvloop.new_event_loop  # that of `serve`: how connections end is a matter of the loop's


async def test_slow_headers_end_in_time_and_in_vain(it: Listening) -> None:
    first, second = await it.connect(), await it.connect()
    first.send(b"POST /v1/cha")
    await until(lambda: len(it.connections.heads) == 1)
    it.later(6)
    first.send(b"t")
    second.send(b"\r\nGET")
    await until(lambda: len(it.connections.heads) == 2)
    it.later(5)
    assert await first.error() == (408, "header_timeout")
    second.send(b" /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await second.answer())[0] == 200
    second.writer.close()


@pytest.mark.parametrize("before", [b"", HEALTH], ids=["that never sent a byte", "after an answer"])
async def test_idle_connections_are_closed_without_a_word(it: Listening, before: bytes) -> None:
    client = await it.connect()
    client.send(before)
    if before:
        await client.answer()
    await until(lambda: it.connections.idle)
    it.later(74)
    await asyncio.sleep(0)
    assert not client.reader.at_eof()
    it.later(2)
    await client.ended()
    await it.gone()


async def test_what_came_in_time_counts_where_the_process_itself_is_late(it: Listening) -> None:
    slow, sending = await it.connect(), await it.connect()
    slow.send(HEALTH[:10])
    sending.send(request()[:-5])
    await until(lambda: it.connections.heads and it.connections.busy)
    slow.send(HEALTH[10:])
    it.later(19)  # before the event loop has read what came
    assert (await slow.answer())[0] == 200
    slow.send(HEALTH)
    sending.send(SMALL[-5:])
    it.later(40)
    assert (await slow.answer())[0] == 200
    assert (await sending.answer())[0] == 200
    await until(lambda: len(it.connections.idle) == 2)
    sending.send(HEALTH)
    it.later(80)
    assert (await sending.answer())[0] == 200
    await slow.ended()
    sending.writer.close()


@pytest.mark.parametrize("sent", [b"", HEALTH, BEGUN, BEGUN + b"content-length: 9\r\n\r\n"])
async def test_who_asks_for_nothing_makes_room_and_else_the_new_one_is_told(
    it: Listening, sent: bytes
) -> None:
    await it.configure("{connections: 2}")
    it.engine.behave = held = Held()
    held_by = it.connections
    silent, busy = await it.connect(), await it.connect()
    silent.send(sent)
    busy.send(request())
    await until(lambda: it.engine.running and len(held_by.busy) == 1)
    if sent:
        await until(lambda: held_by.heads or held_by.leaving or it.server.server_state.total_requests)
    newer = await it.connect()
    await silent.reader.read()
    newer.send(request())
    await until(lambda: len(held_by.busy) == 2)
    told = []
    for _ in range(2):  # one that was told so does not make room itself
        refused = await it.connect()
        status, headers, body = await refused.answer()
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        told.append(refused)
    held.go_on.set()
    assert (await busy.answer())[0] == (await newer.answer())[0] == 200
    last = await it.connect()
    last.send(HEALTH)
    assert (await last.answer())[0] == 200
    for client in (silent, busy, newer, *told, last):
        client.writer.transport.abort()


async def test_those_who_are_told_that_there_is_no_room_are_bounded_too(it: Listening) -> None:
    await it.configure("{connections: 1}")
    it.engine.behave = Held()
    first = await it.connect()
    first.send(request())
    await until(lambda: it.connections.busy)
    told = [await it.connect() for _ in range(65)]
    ends = await asyncio.gather(*(client.reader.read() for client in told), return_exceptions=True)
    assert [b"503" in end for end in ends if isinstance(end, bytes)].count(True) == 64
    assert len(it.connections.connections) <= 66
    for client in (first, *told):
        client.writer.transport.abort()


async def test_heads_that_never_end_are_bounded_all_together(it: Listening) -> None:
    await it.configure("{header_bytes: 1048576}")
    slow = [await it.connect() for _ in range(64)]
    for number, client in enumerate(slow, 1):
        client.send(BEGUN)
        await until(lambda: len(it.connections.heads) == number)  # noqa: B023
    another = await it.connect()
    another.send(BEGUN)
    assert await slow[0].reader.read() == b""
    another.send(b"\r\n")
    assert (await another.answer())[0] == 200
    for client in (*slow, another):
        client.writer.transport.abort()


async def test_a_flood_of_bad_requests_is_one_line_a_minute(
    it: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        client = await it.connect()
        client.send(b"secret\r\n\r\n")
        assert await client.error() == (400, "bad_http")
        it.later(1)
    it.later(60)
    lines = [
        record.getMessage() for record in caplog.records if record.name == "gateway.api.connection_registry"
    ]
    assert lines == [
        "connections ended by the gateway: 1 bad_http",
        "connections ended by the gateway: 19 bad_http",
    ]


async def test_a_connection_is_idle_when_nothing_has_come_for_a_while(it: Listening) -> None:
    client = await it.connect()
    ours = frozenset({client.writer.get_extra_info("sockname")})
    await until(lambda: it.connections.close_idle(it.clock(), 10) == ours)
    client.send(request())
    await client.answer()
    await until(lambda: it.connections.close_idle(it.clock() + 9, 10) == ours)
    client.send(request())
    assert it.connections.close_idle(it.clock() + 30, 10) == ours  # it has been sent, and not been read
    await client.answer()
    await until(lambda: not it.connections.close_idle(it.clock() + 30, 10))
    await client.ended()
