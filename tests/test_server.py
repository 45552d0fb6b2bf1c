"""The ports, signals and open files of a served gateway."""

from __future__ import annotations

import resource

import pytest

from bench.serving import ROOT
from gateway.app import Gateway
from gateway.config import parse
from gateway.server import Server, allow_many_connections

ONE = "model: m\npools: {p: {engines: [http://127.0.0.1:9]}}\nroutes: {text: {}}\n"


async def test_a_server_ends_even_if_its_drain_fails() -> None:
    gateway = Gateway(parse(ONE, "f", ROOT, {}))
    server = Server(gateway)
    server.server_state.idle = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        await server._drain(linger=False)
    assert server.should_exit


def test_the_limit_of_open_files_is_raised_to_what_is_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, before[1]))
        allow_many_connections()
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert (raised[0] > 1000, raised[1]) == (before[1] > 1000 or before[1] < 0, before[1])
        allow_many_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == raised
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
