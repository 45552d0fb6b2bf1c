from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING

import httpx
import pytest

from gateway import cli
from gateway.config import load
from gateway.errors import ConfigError
from gateway.tools.sweep.request_bodies import Image
from gateway.tools.sweep.sweep_file import SweepFile, read
from gateway.tools.sweep.sweep_values import SweepCell
from tests.support import png
from tests.tools.sweep.support import engines
from tests.tools.sweep.synthetic import sweep
from tests.wire.vllm.test_bench_results import RUN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gateway.tools.sweep.sweep_values import Window

# Windows are short: nothing here asks what they say.
SHORT = ["--routes", "text", "--window", "8", "--max-warmup", "4", "--repeats-max", "1"]
GRID = [SweepCell("text", pool, load) for pool in ("depth0", "depth3") for load in (1, 4)]
ROUTES = """\
model: glm-ocr
pools:
  plain: {engines: [PLAIN]}
  mtp3:   # as the recipe has it
    speculative_config: {method: mtp, num_speculative_tokens: 3}
    engines: [DEEP]
routes:
  text: {}   # short answers
  table: {schedule: [[1, 4096, 0]]}
sorting: {default: text}
"""


@pytest.fixture(scope="module")
def urls() -> Iterator[list[str]]:
    with engines([0, 3]) as found:
        yield found


@pytest.fixture(autouse=True)
def one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """To draw them takes seconds."""
    monkeypatch.setattr(
        "gateway.tools.sweep.documents.rendered", lambda *_: [Image(png("a page"), "image/png")] * 3
    )


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def by_depth(urls: list[str], out: Path, *options: str) -> list[str]:
    named = [f"--engine={depth}={url}" for depth, url in zip((0, 3), urls, strict=True)]
    return ["sweep", *named, "--out", str(out), "--concurrency", "1,4", *SHORT, *options]


def test_it_measures_every_cell_once_goes_on_after_a_kill_and_reports(
    urls: list[str], out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add = SweepFile.add

    def killed(store: SweepFile, window: Window) -> None:
        add(store, window)
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(SweepFile, "add", killed)
        assert cli.main(by_depth(urls, out)) == 130
    told = capsys.readouterr()
    assert "pool depth3: depth 3; 1 engine, version" in told.out
    assert "the same command goes on from there" in told.err
    before = read(out).windows
    assert 1 <= len(before) < len(GRID)
    assert not (out / "report.html").exists()

    assert cli.main(by_depth(urls, out)) == 0

    results = read(out)
    assert sorted(window.cell for window in results.windows) == sorted(GRID)
    assert results.windows[: len(before)] == before
    assert all(window.valid for window in results.windows)
    assert results.setting.simulated == "h100-9b"
    assert results.setting.routes["text"].rendered
    told = capsys.readouterr()
    assert "SIMULATED" in told.out
    assert "text: output tokens per second of one engine" in told.out
    assert (out / "report.html").read_text().count("simulated") > 0

    assert cli.main(by_depth(urls, out, "--dry-run")) == 0
    assert f"{len(GRID)} windows of 8 s done, about 0 to go" in capsys.readouterr().out
    assert cli.main(by_depth(urls, out, "--max-tokens", "7")) == 1
    assert "measured with max_tokens of route text 4096, now it is 7" in capsys.readouterr().err


def test_a_request_error_makes_the_cell_invalid_and_the_command_fail(
    urls: list[str], out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = f"{urls[0]}/faults"
    httpx.post(fault, json={"kind": "unavailable", "probability": 0.5}).raise_for_status()
    try:
        status = cli.main(["sweep", "--engine", f"0={urls[0]}", "--out", str(out), "--concurrency=4", *SHORT])
    finally:
        httpx.post(fault, json={"kind": "none"}).raise_for_status()
    assert status == 1
    windows = read(out).windows
    assert [window.cell for window in windows] == [SweepCell("text", "depth0", 4)] * 2
    assert not any(window.valid for window in windows)
    told = capsys.readouterr()
    assert "INVALID: " in told.out
    assert "http_503" in told.out
    assert "no valid window: there is nothing to conclude, and nothing to write" in told.err
    assert "no valid window: text on depth0: 4 at a time" in told.err


def test_a_dry_run_checks_the_engines_and_sends_nothing(
    urls: list[str], out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [re.findall(r"request_success.*", httpx.get(f"{url}/metrics").text) for url in urls]
    # A route's prompt may be given where the route is not chosen this time.
    assert cli.main(by_depth(urls, out, "--dry-run", "--prompt=table=Read it")) == 0
    told = capsys.readouterr().out
    assert "sweep of glm-ocr: text; 1, 4 requests at a time on one engine" in told
    assert re.search(r"0 windows of 8 s done, about 4 to go: some \d+ s, some \d+ requests", told)
    assert not out.exists()
    assert before == [re.findall(r"request_success.*", httpx.get(f"{url}/metrics").text) for url in urls]


def test_engines_that_are_not_what_they_should_be_are_named_at_once(
    urls: list[str], out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swapped = by_depth([urls[1], urls[0]], out)
    assert cli.main(swapped) == 1
    told = capsys.readouterr().err
    assert "it speculates" in told
    assert "it does not speculate" in told
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "0=http://a:1", "--config", "r.yaml"], "--engine: give engines or a --config"),
        (["--engine", "0=http://a:1", "--pools", "depth0"], "--pools: the engines given are the pools"),
        (["--engine", "0=http://a:1", "--write"], "--write and --diff want the --config"),
        (["--engine", "0=http://a:1", "--prompt", "tables=Go"], "--prompt: there is no route 'tables'"),
        (["--engine", "0=http://a:1", "--routes", "stamps"], "no prompt is known for the route 'stamps'"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--engine", "0=http://a:1", "--report-only"], "No such file"),
        (["--engine", "0=http://a:1", "--images", "nowhere"], "nowhere"),
        (["--engine", "0=http://a:1", "--concurrency", "1000,2000"], "every load is above max_load"),
    ],
)
def test_options_that_cannot_be_are_refused(
    out: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sweep", "--out", str(out), *options]) == 1
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_more_requests_than_open_files_are_refused_before_any_is_sent(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gateway.server.listen.allow_many_connections", lambda: None)
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 1024))
    ten = [f"--engine=0=http://10.0.0.{number}:1" for number in range(10)]
    assert cli.main(["sweep", "--out", str(out), *ten]) == 1
    assert "10 engines get up to 2,560 requests at a time, for which 1,024 open files are too few: " in (
        capsys.readouterr().err
    )
    assert not out.exists()


def test_a_folder_that_cannot_be_one_is_named(
    urls: list[str], out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out.write_text("not a folder")
    assert cli.main(by_depth(urls, out)) == 1
    assert capsys.readouterr().err == f"{out}: File exists\n"


def test_a_full_disk_ends_the_sweep_with_the_file_it_filled(
    urls: list[str], out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(store: SweepFile, window: Window) -> None:
        raise ConfigError([f"{store.path}: No space left on device"])

    monkeypatch.setattr(SweepFile, "add", full)
    assert cli.main(by_depth(urls, out)) == 1
    assert capsys.readouterr().err == f"{out}/sweep.jsonl: No space left on device\n"


def configured(tmp_path: Path, out: Path) -> Path:
    """A sweep of the pools of a routes.yaml, as measured."""
    results = sweep(depths=(0, 3), routes=("table",), loads=(1, 32, 128), repeats=2, noise=0.01)
    with SweepFile(out) as store:
        store.open(results.setting)
        for window in results.windows:
            store.add(window)
    path = tmp_path / "routes.yaml"
    path.write_text(ROUTES.replace("PLAIN", "http://a:1").replace("DEEP", "http://b:1"))
    return path


def test_a_configuration_gets_what_was_found(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gateway.tools.sweep.report.write", lambda *_: [])
    path = configured(tmp_path, out)
    report_only = ["sweep", "--config", str(path), "--out", str(out), "--report-only"]
    before = path.read_text()
    assert cli.main([*report_only, "--diff"]) == 0
    told = capsys.readouterr().out
    assert "+    schedule" in told or "+  table" in told
    assert "would not change" not in told
    assert path.read_text() == before
    assert cli.main([*report_only, "--write"]) == 0
    assert "profiles/table.json" in capsys.readouterr().out
    config = load(path)
    assert config.profiles.keys() == {"table"}
    assert config.routes["table"].schedule[0][2] == 3
    assert "# as the recipe has it" in path.read_text()
    assert cli.main([*report_only, "--diff"]) == 0
    assert "would not change" in capsys.readouterr().out


def test_results_of_vllm_bench_serve_are_reported_the_same_way(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gateway.tools.sweep.report.write", lambda *_: [])
    files = []
    for pool, rate in (("depth0", 1000.0), ("depth3", 2000.0)):
        file = tmp_path / f"{pool}.json"
        file.write_text(json.dumps({**RUN, "num_prompts": 40, "completed": 40, "output_throughput": rate}))
        files.append(f"text:{pool}={file}")
    bench = ["sweep", "--engine=0=http://a:1", "--engine=3=http://b:1", "--routes=text", f"--out={out}"]
    assert cli.main([*bench, "--from-vllm-bench", *files]) == 0
    results = read(out)
    assert {window.cell.pool: window.rate for window in results.windows} == {"depth0": 1000, "depth3": 2000}
    assert "text: output tokens per second of one engine" in capsys.readouterr().out
    assert cli.main([*bench, "--from-vllm-bench", *files]) == 0
    assert read(out) == results


def test_a_failure_of_the_program_is_not_taken_for_an_interruption(
    urls: list[str], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(store: SweepFile, window: Window) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(SweepFile, "add", broken)
    with pytest.raises(ExceptionGroup, match="TaskGroup") as caught:
        cli.main(by_depth(urls, out))
    assert caught.group_contains(OSError, match="the disk is full")
