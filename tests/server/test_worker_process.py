from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

import uvloop

from bench.serving import ROOT
from gateway.config import parse
from gateway.server.app import Gateway
from gateway.server.worker_channel import ParentChannel, WorkerHandle
from gateway.server.worker_process import WorkerServer, numbered
from tests.support import until

if TYPE_CHECKING:
    import pytest

LOOP = uvloop.new_event_loop
ONE = "model: m\npools: {p: {engines: [http://127.0.0.1:9]}}\nroutes: {text: {}}\n"


def test_every_line_of_a_workers_log_has_its_number(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("gateway.tests")
    caplog.handler.addFilter(named := numbered(3))
    try:
        log.warning("one", extra={"fields": {"status": 200}})
        log.warning("two")
    finally:
        caplog.handler.removeFilter(named)
    assert [record.__dict__["fields"] for record in caplog.records] == [
        {"worker": 3, "status": 200},
        {"worker": 3},
    ]


async def test_a_worker_serves_connections_of_its_parent_and_tells_when_they_end() -> None:
    near, far = socket.socketpair()
    worker = WorkerHandle(0, near)
    server = WorkerServer(Gateway(parse(ONE, "f", ROOT, {})), "127.0.0.1", 0, ParentChannel(far))
    with near, far:
        serving = asyncio.create_task(server._serve())
        await until(lambda: server.started)
        worker.receive()
        client, accepted = socket.socketpair()
        with accepted:
            assert worker.hand_over(accepted, 1)
        reader, writer = await asyncio.open_connection(sock=client)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        near.setblocking(False)
        await until(lambda: (worker.receive() or True) and not worker.connections)
        server.should_exit = True
        await serving
