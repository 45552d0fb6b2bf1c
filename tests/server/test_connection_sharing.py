from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from gateway.server import worker_channel
from gateway.server.connection_sharing import ConnectionSharing
from gateway.server.worker_channel import WorkerHandle
from tests.support import until

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def two_workers() -> Iterator[tuple[list[WorkerHandle], list[tuple[socket.socket, socket.socket]]]]:
    """Two workers that take connections, and of each the parent's end of its channel and its own."""
    workers = [WorkerHandle(number) for number in range(2)]
    ends = [socket.socketpair() for _ in workers]
    with contextlib.ExitStack() as stack:
        for worker, (own, far) in zip(workers, ends, strict=True):
            stack.enter_context(own)
            stack.enter_context(far)
            own.setblocking(False)
            worker.channel, worker.ready = own, True
        yield workers, ends


async def test_connections_go_to_the_worker_with_the_fewest_that_takes_them() -> None:
    with two_workers() as (workers, ends):
        sharing = ConnectionSharing(workers)

        def given() -> list[int]:
            assert sharing.give(ends[0][0])
            return [worker.connections for worker in workers]

        assert [given() for _ in range(4)] == [[1, 0], [1, 1], [2, 1], [2, 2]]
        ends[0][1].send(worker_channel.CLOSED * 2)
        workers[0].receive()
        assert [given(), given(), given()] == [[1, 2], [2, 2], [2, 3]]
        ends[0][1].close()  # it has died, which nobody has noticed yet
        assert given() == [2, 4]
        workers[0].receive()
        assert not workers[0].ready
        while sharing.give(ends[0][0]):  # one that takes none is full at some time
            pass
        assert ends[1][1].recv(1) == worker_channel._CONNECTION


def test_a_worker_that_drains_gets_connections_only_where_all_do() -> None:
    with two_workers() as (workers, ends):
        sharing = ConnectionSharing(workers)
        ends[0][1].send(worker_channel.DRAINING)
        workers[0].receive()
        for _ in range(3):
            assert sharing.give(ends[0][0])
        assert [worker.connections for worker in workers] == [0, 3]
        ends[1][1].send(worker_channel.DRAINING)
        workers[1].receive()
        assert sharing.give(ends[0][0])
        assert [worker.connections for worker in workers] == [1, 3]


async def test_connections_wait_for_a_worker_that_takes_them() -> None:
    worker = WorkerHandle(0)
    sharing = ConnectionSharing([worker])
    await sharing.bind("127.0.0.1", 0)
    url = sharing.listen()
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        worker.channel = near
        clients = [socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) for _ in range(3)]
        await until(lambda: sharing._waiting)
        worker.ready = True
        await until(lambda: worker.connections == 3)
    sharing.close()
    for client in clients:
        client.close()


@pytest.mark.parametrize(("host", "url"), [("127.0.0.1", "http://127.0.0.1:"), ("::1", "http://[::1]:")])
async def test_the_url_is_one_that_clients_take(host: str, url: str) -> None:
    sharing = ConnectionSharing([])
    await sharing.bind(host, 0)
    assert sharing.listen().startswith(url)
    sharing.close()


async def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="already in use"):
        await ConnectionSharing([]).bind(*taken.getsockname())
