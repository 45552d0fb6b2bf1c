from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

import pytest

from gateway import cli
from gateway.tools.plan import plan_command, prometheus_history
from gateway.tools.plan.load_history import History
from gateway.tools.plan.plan_options import arguments
from gateway.tools.sweep.profile_files import profiles
from tests.tools.sweep.synthetic import sweep

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Profiles as a sweep writes them, and a load."""
    found = tmp_path_factory.mktemp("plan")
    for route, profile in profiles(sweep(depths=(0, 3), loads=(1, 10, 32, 80, 128, 256))).items():
        (found / f"{route}.json").write_bytes(profile)
    (found / "day.csv").write_text("seconds,text,table\n3000,2,2\n600,80,120\n")
    return found


def planned(folder: Path, *more: str, load: str = "") -> int:
    arguments = ["plan", "--profiles", str(folder), "--load", load or str(folder / "day.csv"), *more]
    return cli.main(arguments)


def test_a_recommendation_from_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(folder, "--engines", "2") == 0
    out = capsys.readouterr().out
    assert out.startswith("With 2 engines: ")
    assert "simulated profiles" in out
    assert planned(folder, "--engines", "2") == 0
    assert capsys.readouterr().out == out


def test_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(folder, "--engines", "2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["recommended"]["engines"].values()) == 2
    assert found["profiles"] == "simulated"


def test_weights_change_what_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = []
    for weights in ((), ("--weight", "text=3", "--weight", "table=3")):
        assert planned(folder, "--engines", "1", "--json", *weights) == 0
        rates.append(json.loads(capsys.readouterr().out)["recommended"]["tokens_per_s"])
    assert rates[1] == pytest.approx(3 * rates[0])


def test_from_prometheus(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def history(url: str, *, model: str | None, since_s: float, step_s: float, now: float) -> History:
        assert (url, model, since_s, step_s) == ("http://prometheus:9090", "glm-ocr", 3600, 30)
        assert now > 1.7e9
        return History(("table",), [(30, (7.0,))], url)

    monkeypatch.setattr(prometheus_history, "history", history)
    options = ("--engines", "1", "--model", "glm-ocr", "--since", "1h", "--step", "30s")
    assert planned(folder, *options, load="http://prometheus:9090") == 0
    assert "Load: http://prometheus:9090; 7.0 requests" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "more", "told"),
    [
        ("seconds,text\n5,-1\n", (), "load.csv:2: text: "),
        ("seconds,text,receipts\n5,1,1\n", (), "no profile of receipts; the profiles are of "),
        ("seconds,text\n5,0\n", (), "never a request"),
        ("seconds,text\n5,1\n", ("--weight", "receipts=2"), "--weight: there is no profile of receipts"),
    ],
)
def test_bad_input_is_told_in_words(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    rows: str,
    more: tuple[str, ...],
    told: str,
) -> None:
    (tmp_path / "load.csv").write_text(rows)
    assert planned(folder, "--engines", "2", *more, load=str(tmp_path / "load.csv")) == 1
    assert told in capsys.readouterr().err


def test_without_profiles_or_load(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(tmp_path, "--engines", "2", load=str(folder / "day.csv")) == 1
    assert "no profiles here" in capsys.readouterr().err
    assert planned(folder, "--engines", "2", load=str(tmp_path / "none.csv")) == 1
    assert "none.csv" in capsys.readouterr().err


def test_a_route_that_no_fleet_serves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for route, pool in (("text", "a"), ("table", "b")):
        profile = {"route": route, "pools": {pool: [[1, 50, 1], [64, 900, 9]]}, "meta": {}}
        (tmp_path / f"{route}.json").write_text(json.dumps(profile))
    (tmp_path / "day.csv").write_text("seconds,text,table\n5,1,1\n")
    assert planned(tmp_path, "--engines", "1", load=str(tmp_path / "day.csv")) == 1
    assert "no fleet of 1 serves every route" in capsys.readouterr().err


def test_people_are_told_that_it_takes_a_while(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = argparse.ArgumentParser()
    arguments(parser)
    options = parser.parse_args(
        ["--profiles", str(folder), "--load", str(folder / "day.csv"), "--engines", "1"]
    )
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert plan_command.run(options) == 0
    assert "some seconds" in capsys.readouterr().err
