"""What `sweep --write` puts into a configuration, and how near the best fixed split the choice by it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from bench.choice import choosers, regret
from bench.choice.fleet import MAX_NUM_SEQS, ROUTES, Fleet, Pool
from gateway.config import load
from gateway.state.fleet import Fleet as ServedFleet
from gateway.tools.sweep import write
from gateway.tools.sweep.findings import findings
from tests.tools.sweep.synthetic import sweep

if TYPE_CHECKING:
    from pathlib import Path

FIT = "h100-9b"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A routes.yaml of a plain and a deep engine, with what a made-up sweep says of them."""
    deep = {"method": "mtp", "num_speculative_tokens": 3}
    pools = {
        "plain": {"engines": ["http://e0:8000"], "max_load": MAX_NUM_SEQS},
        "mtp3": {"engines": ["http://e3:8000"], "max_load": MAX_NUM_SEQS, "speculative_config": deep},
    }
    routes = {route: {"queue": {"max_waiting": 100_000, "max_wait_s": 100_000}} for route in ROUTES}
    path = tmp_path_factory.mktemp("written") / "routes.yaml"
    path.write_text("# ours\n" + yaml.safe_dump({"model": "glm-ocr", "pools": pools, "routes": routes}))
    results = sweep((0, 3), repeats=3, noise=0.05)
    write.apply(path, results, findings(results), {})
    return path


def test_the_gateway_goes_by_what_a_sweep_wrote(config: Path) -> None:
    assert config.read_text().startswith("# ours\n")
    fleet = ServedFleet.of(load(config))
    assert [fleet.chosen_by[route] for route in fleet.routes] == ["profile"] * 3
    assert not fleet.notes


@pytest.mark.parametrize(("kind", "clients"), [("table", 80), ("key-value", 128), ("mix", 256)])
def test_its_choice_is_near_the_best_split(config: Path, kind: str, clients: int) -> None:
    fleet = Fleet("deep + plain", (Pool("mtp3", 3), Pool("plain", 0)))
    trial = regret.Trial(FIT, fleet, regret.Cell(FIT, fleet.name, kind, clients).by_route())
    chosen = trial.run_rule(
        lambda world: choosers.Gateway(world, config.read_text(), config.parent, clients).poll(1.0)
    )
    assert chosen.rate > 0.95 * trial.best.rate
