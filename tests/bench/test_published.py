from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from bench.published import Measured, chosen, configured, figures, gains
from gateway.config import load
from gateway.state.fleet import Fleet
from gateway.tools.sweep import write
from gateway.tools.sweep.findings import findings
from tests.tools.sweep.synthetic import sweep

if TYPE_CHECKING:
    from pathlib import Path


def written(path: Path, depths: tuple[int, ...] = (0, 3)) -> Path:
    """A routes.yaml for engines of some depths, with what a made-up sweep says of them."""
    engines: Any = [SimpleNamespace(depth=depth, url=f"http://e{depth}:8000") for depth in depths]
    path.write_text("# ours\n" + configured(engines))
    results = sweep(depths, repeats=3, noise=0.05)
    write.apply(path, results, findings(results), {})
    return path


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("written") / "routes.yaml")


def test_the_gateway_goes_by_what_a_sweep_wrote(config: Path) -> None:
    assert config.read_text().startswith("# ours\n")
    fleet = Fleet.of(load(config))
    assert [fleet.chosen_by[route] for route in fleet.routes] == ["profile"] * 3
    assert not fleet.notes


@pytest.mark.parametrize(("kind", "clients"), [("table", 80), ("key-value", 128), ("mix", 256)])
def test_its_choice_is_near_the_best_split(config: Path, kind: str, clients: int) -> None:
    assert chosen(config, kind, clients) > 0.95


def test_published_figure_model_and_sweep_stand_side_by_side() -> None:
    measured = Measured(sweep((0, 1, 3, 16), noise=0.0))
    rows = [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in figures(measured)]
    deepest = next(row for row in rows if row[0] == "table, depth 16, 32 requests: tokens/s")
    assert deepest[1] == "607"
    assert deepest[2] == deepest[3]
    assert next(row for row in rows if row[0].startswith("tokens a pass, depth 8"))[3] == "-"
    for model, found in zip(gains(measured)[2::2], gains(measured)[3::2], strict=True):
        assert model.split("|")[2:] == found.split("|")[2:]
