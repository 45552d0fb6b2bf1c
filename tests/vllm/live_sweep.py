"""A small sweep of real vLLM servers by the real command: depths 0 and 3, two routes, three loads."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from gateway.config import load
from gateway.tools.sweep import sweep_file
from tests.vllm.engines import MODEL, Counts, Engine, started
from tests.vllm.traffic import PROMPTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from gateway.tools.sweep.sweep_values import Window

pytestmark = pytest.mark.timeout(1200)

ROUTES = ("text", "table")
LOADS = (1, 2, 4)
IMAGES = 24  # drawn by the command for each route
# With vLLM's caches, so that a page which comes again would be found there.
CACHES = ("--enable-prefix-caching", "--mm-processor-cache-gb=1")


class Sweep:
    """The command, on one configuration and into one folder."""

    def __init__(self, folder: Path, engines: Mapping[str, Engine]) -> None:
        self.config = folder / "routes.yaml"
        self.out = folder / "out"
        values = {
            "model": MODEL,
            "pools": {
                name: {"engines": [engine.url], "speculative_config": engine.speculative_config}
                for name, engine in engines.items()
            },
            "routes": {route: {} for route in ROUTES},
        }
        self.config.write_text("# Ours.\n" + yaml.safe_dump(values))

    def run(self, *options: str, routes: Sequence[str] = ROUTES) -> str:
        """Run it to its end; return what it said."""
        command = [
            sys.executable,
            "-m",
            "gateway.cli",
            "sweep",
            f"--config={self.config}",
            f"--out={self.out}",
        ]
        command += [f"--concurrency={','.join(map(str, LOADS))}", "--window=12", "--max-warmup=20"]
        command += ["--repeats-max=1", "--max-tokens=64", f"--routes={','.join(routes)}", *options]
        command += [f"--prompt={route}={PROMPTS[route]}" for route in ROUTES]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def windows(self) -> Sequence[Window]:
        return sweep_file.read(self.out).windows


@pytest.fixture(scope="module")
def engines(engine: Callable[..., Engine]) -> Iterator[dict[str, Engine]]:
    """One of depth 3 that tells each answer's speculation, and one of depth 0."""
    made = {
        "mtp3": engine(3, *CACHES, "--per-request-spec-decode-metrics=summary"),
        "plain": engine(0, *CACHES),
    }
    with started(*made.values()):
        yield made


@pytest.fixture(scope="module")
def truth() -> dict[str, Counts]:
    """What the engine's own counters said of each route's sweep."""
    return {}


@pytest.fixture(scope="module")
def swept(
    tmp_path_factory: pytest.TempPathFactory, engines: dict[str, Engine], truth: dict[str, Counts]
) -> Sweep:
    """One route after the other, so that the counters tell of one at a time."""
    sweep = Sweep(tmp_path_factory.mktemp("sweep"), engines)
    for route in ROUTES:
        before = engines["mtp3"].settled()
        print(sweep.run(routes=[route]))
        truth[route] = engines["mtp3"].settled() - before
    return sweep


def test_every_window_is_valid(swept: Sweep) -> None:
    found = [(window.cell.route, window.cell.pool, window.cell.load) for window in swept.windows]
    assert sorted(found) == sorted(
        (route, pool, n) for route in ROUTES for pool in ("mtp3", "plain") for n in LOADS
    )
    for window in swept.windows:
        assert (window.invalid, window.errors) == ((), {}), window
        assert window.requests > 0
        assert window.rate > 0


def test_acceptance_is_what_the_engines_counters_say(swept: Sweep, truth: dict[str, Counts]) -> None:
    for route in ROUTES:
        windows = [window for window in swept.windows if window.cell.route == route]
        deep = [window for window in windows if window.cell.pool == "mtp3"]
        assert [window.agree for window in deep] == [True] * len(LOADS)
        assert all(window.told is window.speculation is None for window in windows if window not in deep)
        for kind in ("told", "speculation"):
            of = [getattr(window, kind) for window in deep]
            length = 1 + sum(one.accepted for one in of) / sum(one.drafts for one in of)
            assert length == pytest.approx(truth[route].length, rel=0.01), (route, kind)


def test_no_page_comes_from_a_cache(swept: Sweep, engines: dict[str, Engine]) -> None:
    for engine in engines.values():
        sums = engine.sums()
        assert sums["vllm:mm_cache_queries_total"] > IMAGES  # they repeat
        assert sums["vllm:mm_cache_hits_total"] == 0
        assert sums["vllm:prefix_cache_queries_total"] > 0
        assert sums["vllm:prefix_cache_hits_total"] == 0
    assert [window.cached for window in swept.windows] == [0.0] * len(swept.windows)


def test_a_finished_sweep_has_nothing_left_and_writes_what_it_found(
    swept: Sweep, engines: dict[str, Engine]
) -> None:
    before, windows = engines["mtp3"].settled(), swept.windows
    said = swept.run("--write")
    assert swept.windows == windows
    assert engines["mtp3"].settled() == before
    for name in ("report.html", "windows.csv", "results.json"):
        assert (swept.out / name).stat().st_size > 0
        assert name in said
    assert swept.config.read_text().startswith("# Ours.\n")
    config = load(swept.config)
    for route in ROUTES:
        points = config.profiles[route].pools
        assert {name: [point[0] for point in curve] for name, curve in points.items()} == {
            "mtp3": list(LOADS),
            "plain": list(LOADS),
        }
