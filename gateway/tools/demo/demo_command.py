"""`ocr-gateway demo`: a route moves between depths as its load breathes, without a GPU."""

from __future__ import annotations

import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from gateway.tools.demo import scene, watch
from gateway.tools.demo.processes import ServiceFailed, free_port, interrupted_by_signals
from gateway.tools.output import nobody_reads

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_PORT = 8000
_EVERY_S = 2.0
_WINDOW_S = 10.0
_ROUTES = ("text", "key-value", "table")


def run(options: argparse.Namespace) -> int:
    """Run the demonstration until it is interrupted, or its minutes are over; return the exit status.

    1: a port is taken, or a part of it does not start or has ended.
    """
    interrupted_by_signals()
    try:
        wanted = scene.Scene(options.port or free_port(_PORT), prometheus=options.prometheus == "auto")
        _show(wanted, options.minutes * 60)
        say("ended")
    except KeyboardInterrupt:
        say("ended")
    except BrokenPipeError:  # `| head`
        nobody_reads(sys.stdout)
    except ServiceFailed as error:
        for line in str(error).splitlines():
            say(line, error=True)
        return 1
    return 0


def say(line: str, *, error: bool = False) -> None:
    """Print a line at once; an error goes to standard error."""
    print(f"simulated: {line}", file=sys.stderr if error else sys.stdout, flush=True)


def introduction(wanted: scene.Scene, running: scene.Running) -> Iterator[str]:
    """Yield where everything is, and what the lines mean."""
    yield f"status page  {wanted.url}/  (also /status, /metrics)"
    if running.prometheus:
        yield f"Prometheus   {running.prometheus}"
    yield f"the load goes from {wanted.few} requests to {wanted.many} and back every {wanted.period_s:g} s"
    yield (
        f"each route: the depth that most of its requests of the last {_WINDOW_S:g} s got, their share, "
        "its acceptance length"
    )
    yield "Ctrl-C ends everything"


def reading(url: str) -> watch.MetricsReading:
    """Read the gateway's metrics.

    Raises:
        ServiceFailed: it does not answer.
    """
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as page:  # noqa: S310 - our own address
            return watch.read(page.read().decode(), time.monotonic())
    except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
        raise ServiceFailed(f"the gateway's metrics cannot be read: {error}") from error


def _show(wanted: scene.Scene, seconds: float) -> None:
    say("every figure here is simulated: there is no GPU, and no image is read")
    with scene.running(wanted, say) as running:
        for line in introduction(wanted, running):
            say(line)
        lines, end = watch.StatusLines(_ROUTES, _WINDOW_S), time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(_EVERY_S)
            running.processes.require_alive()
            for line in lines.next(reading(wanted.url)):
                print(line, flush=True)
