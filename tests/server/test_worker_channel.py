"""Both ends of a channel, in one process."""

from __future__ import annotations

import signal
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gateway.server import worker_channel
from gateway.server.worker_channel import ParentChannel, WorkerHandle

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pair() -> Iterator[tuple[WorkerHandle, ParentChannel]]:
    near, far = socket.socketpair()
    with near, far:
        worker = WorkerHandle(0)
        worker.begin(near, SimpleNamespace())  # type: ignore[arg-type]
        yield worker, ParentChannel(far)


def test_a_worker_takes_connections_once_it_says_so(pair: tuple[WorkerHandle, ParentChannel]) -> None:
    worker, parent = pair
    with socket.create_server(("127.0.0.1", 0)) as given:
        assert not worker.hand_over(given, 1)
        parent.begin()
        assert worker.receive() == worker_channel.READY
        assert (worker.ready, worker.served) == (True, True)
        assert worker.hand_over(given, 1)
        taken = parent.take()
        assert taken is not None
        with taken:
            assert taken.getsockname() == given.getsockname()
    with pytest.raises(BlockingIOError):
        parent.take()
    assert (worker.connections, worker.given) == (1, 1)
    parent.count_closed()
    assert worker.receive() == worker_channel.CLOSED
    assert worker.connections == 0


def test_the_end_of_either_is_seen_by_the_other(pair: tuple[WorkerHandle, ParentChannel]) -> None:
    worker, parent = pair
    parent.begin()
    worker.receive()
    assert worker.channel is not None
    worker.channel.close()
    with pytest.raises(EOFError):
        parent.take()
    parent.count_closed()
    parent.tell_hung()
    assert worker.receive() is None
    assert not worker.ready
    assert WorkerHandle(1).receive() is None


def test_ends_that_a_full_channel_does_not_hold_are_told_later(
    pair: tuple[WorkerHandle, ParentChannel],
) -> None:
    worker, parent = pair
    parent.begin()
    worker.receive()
    count = 0
    while not parent._closed:
        parent.count_closed()
        count += 1
    told = b""
    while len(told) < count - 1:
        told += worker.receive() or b""
    parent.count_closed()
    assert worker.receive() == worker_channel.CLOSED * 2
    assert worker.connections == -count - 1


@pytest.mark.parametrize(
    ("ready", "number", "sent", "killed"),
    [
        (True, signal.SIGTERM, signal.SIGTERM, False),
        (True, signal.SIGKILL, signal.SIGKILL, True),
        (False, signal.SIGTERM, signal.SIGKILL, True),  # it has nothing to lose
    ],
)
def test_a_signal_is_passed_on_to_who_serves(ready: bool, number: int, sent: int, killed: bool) -> None:
    signals: list[int] = []
    process: Any = SimpleNamespace(returncode=None, send_signal=signals.append)
    worker = WorkerHandle(0, process=process, ready=ready)
    worker.signal(number)
    process.returncode = 0
    worker.signal(number)
    assert (signals, worker.killed) == ([sent], killed)
