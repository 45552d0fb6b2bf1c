from typing import Any

import pytest

from bench.serving import ROOT
from gateway import cli


def test_a_simulated_engine_runs_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served: list[Any] = []
    monkeypatch.setattr(
        "gateway.engines.simulated.simulated_server.main",
        lambda fit, **options: served.append((fit.name, options)),
    )
    fit = str(ROOT / "gateway/engines/simulated/fits/h100-9b.json")
    assert cli.main(["simulated-engine", "--model-file", fit]) == 0
    schedule = ["--depth", "3", "--schedule", "[[1, 16, 3], [17, 512, 0]]", "--time-scale", "10"]
    assert cli.main(["simulated-engine", "--model-file", "slow-verify", *schedule]) == 0
    (first, options), (second, scheduled) = served
    assert (first, options["depth"], options["schedule"], options["per_request"]) == (
        "h100-9b",
        0,
        None,
        True,
    )
    assert (second, scheduled["depth"], scheduled["time_scale"]) == ("slow-verify", 3, 10.0)
    assert scheduled["schedule"] == [[1, 16, 3], [17, 512, 0]]
    assert "simulated engine, fit slow-verify" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model-file", "none.json"], "none.json"),
        (["--depth", "99"], "0 to 16"),
        (["--depth", "1", "--schedule", "[[2, 3, 1]]"], "starts at 1"),
        (["--depth", "1", "--schedule", "[]"], "starts at 1"),
        (["--depth", "1", "--schedule", "7"], "list"),
    ],
)
def test_a_simulated_engine_refuses_what_it_cannot_run(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["simulated-engine", *options]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--time-scale", "0"], ["--schedule", "{"], ["--time-scale", "inf"]])
def test_wrong_options_of_a_simulated_engine_are_usage_errors(options: list[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["simulated-engine", *options])
