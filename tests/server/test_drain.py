"""When a stop has waited long enough; tests/server/test_app.py has it over sockets."""

from __future__ import annotations

from bench.serving import ROOT
from gateway.config import parse
from gateway.server.app import Gateway
from gateway.server.drain import drain

ONE = "model: m\npools: {p: {engines: [http://127.0.0.1:9]}}\nroutes: {text: {}}\n"


class Arrivals:
    """Connections of which one goes when its turn comes, and one is always new."""

    def __init__(self) -> None:
        self.looks = 0

    def close_idle(self, now: float, patience_s: float) -> frozenset[tuple[str, int]]:
        self.looks += 1
        return frozenset({("::1", self.looks), *([("::1", 0)] if self.looks < 4 else [])})


async def test_connections_that_go_on_arriving_do_not_hold_the_stop_up() -> None:
    gateway, arrivals = Gateway(parse(ONE + "server: {drain_s: 3600}", "f", ROOT, {})), Arrivals()
    await drain(gateway.state, arrivals, linger=False)  # type: ignore[arg-type]
    assert arrivals.looks == 4
    assert gateway.state.requests.kept == {("::1", 0), ("::1", 1)}
