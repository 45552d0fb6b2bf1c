from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gateway.errors import ConfigError
from gateway.tools.sweep.curves import points_of
from gateway.tools.sweep.imported import windows
from gateway.tools.sweep.sweep_values import Spread, SweepCell, Window
from tests.wire.vllm.test_bench_results import RUN

if TYPE_CHECKING:
    from pathlib import Path


def file(folder: Path, name: str = "run.json", without: tuple[str, ...] = (), **changed: Any) -> str:
    path = folder / name
    run = {key: value for key, value in RUN.items() if key not in without}
    path.write_text(json.dumps(run | {"num_prompts": 40, "completed": 40} | changed))
    return str(path)


def refusal(*given: str, **allowed: Any) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        windows(given, **allowed)
    return refused.value.problems


def test_a_run_is_a_window_of_a_curve(tmp_path: Path) -> None:
    given = file(tmp_path)
    (window,) = windows([given])
    assert window.cell == SweepCell("table", "mtp3", 2)
    assert (window.rate, window.answered_rate, window.requests, window.seconds) == (128, 128, 40, 5)
    assert window.first_token_s == Spread(0.09, 0.074, 0.174, 0.203)
    assert window.request_s is None
    assert window.speculation is not None
    assert window.speculation.length == pytest.approx(2.67, abs=0.01)
    assert window.source == given
    assert window.valid
    assert not window.flags
    (point,) = points_of([window], "table")["mtp3"]
    assert (point.load, point.rate) == (2, 128)


def test_the_operator_says_what_a_file_does_not(tmp_path: Path) -> None:
    given = file(tmp_path, "a:b=c.json", without=("route", "pool"))
    (window,) = windows([f"key-value:plain={given}"])
    assert (window.cell.route, window.cell.pool, window.source) == ("key-value", "plain", given)
    assert "which route it belongs to is not told" in refusal(given)[0]


def test_the_operator_overrules_the_file(tmp_path: Path) -> None:
    (window,) = windows([f"text:plain={file(tmp_path)}"])
    assert (window.cell.route, window.cell.pool) == ("text", "plain")


def test_names_that_nobody_knows_are_refused(tmp_path: Path) -> None:
    given = file(tmp_path)
    assert refusal(given, routes=["text"]) == [f"{given}: unknown route 'table'; there are: text"]
    assert refusal(given, pools=["plain"]) == [f"{given}: unknown pool 'mtp3'; there are: plain"]
    assert windows([given], routes=["table"], pools=["mtp3"])


def test_runs_at_one_load_are_repeats_after_those_there_are(tmp_path: Path) -> None:
    first = windows([file(tmp_path, "1.json", duration=5.5)])
    more = windows([file(tmp_path, "2.json"), file(tmp_path, "3.json", duration=6.0)], taken=first)
    assert [window.cell.repeat for window in [*first, *more]] == [0, 1, 2]


def test_a_run_counts_once(tmp_path: Path) -> None:
    given = file(tmp_path, "1.json")
    again = file(tmp_path, "copy.json")
    assert len(windows([given, given, again])) == 1
    assert windows([again], taken=windows([given])) == []
    kept = msgspec.json.decode(msgspec.json.encode(windows([given])), type=list[Window])
    assert windows([again], taken=kept) == []


@pytest.mark.parametrize(
    ("run", "invalid", "errors"),
    [
        ({"failed": 1}, ("1 of 41 requests failed",), {"failed": 1}),
        (
            {"completed": 0, "failed": 40, "output_throughput": 0.0},
            ("40 of 40 requests failed", "no request was answered"),
            {"failed": 40},
        ),
        ({"max_concurrency": 64}, ("40 requests never made a load of 64",), {}),
    ],
)
def test_a_run_that_failed_or_never_reached_its_load_is_never_used(
    tmp_path: Path, run: dict[str, Any], invalid: tuple[str, ...], errors: dict[str, int]
) -> None:
    (window,) = windows([file(tmp_path, **run)])
    assert (window.invalid, window.errors) == (invalid, errors)


def test_a_short_run_is_flagged_for_its_end(tmp_path: Path) -> None:
    (window,) = windows([file(tmp_path, max_concurrency=8)])
    assert window.valid
    assert "only 40 requests at a load of 8" in window.flags[0]


def test_a_run_at_a_rate_is_an_open_loop_which_no_curve_takes(tmp_path: Path) -> None:
    (window,) = windows([file(tmp_path, request_rate=4.0, max_concurrency=None)])
    assert (window.cell.per_s, window.cell.load, window.flags) == (4.0, 40, ())
    assert points_of([window], "table") == {}


def test_every_file_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    good, bad = file(tmp_path), file(tmp_path, "bad.json", duration="long")
    (tmp_path / "no.json").write_text("{")
    told = refusal(good, bad, str(tmp_path / "no.json"), str(tmp_path / "none.json"), "")
    assert [line.rsplit("/", 1)[-1].partition(": ")[0] for line in told[:3]] == [
        "bad.json",
        "no.json",
        "none.json",
    ]
    assert "$.duration" in told[0]
    assert "not JSON" in told[1]
    assert "No such file" in told[2]
    assert told[3] == ": must be FILE or ROUTE:POOL=FILE"
