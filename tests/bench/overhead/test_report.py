from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from bench.overhead import report, results
from bench.overhead.report import DOCUMENT, Figures, filled
from bench.serving import ROOT

if TYPE_CHECKING:
    from pathlib import Path

EVERYTHING = ROOT / "bench/results/overhead.md"
PERCENTILES = {"count": 100, "p50": 1.0, "p95": 2.0, "p99": 3.0, "max": 4.0}


def run(peer: str, case: str, *, cpu: float | None = 1.0, by: float = 0.0, **other: Any) -> dict[str, Any]:
    """A measurement: CPU milliseconds a request, and by how much all times are longer than the least."""
    times = {name: value + by for name, value in PERCENTILES.items()}
    streamed = "stream" in case
    return {
        "peer": peer,
        "case": case,
        "round": 0,
        "answered": 1000,
        "events": 64000 if streamed else 0,
        "broken": 0,
        "refused": 0,
        "statuses": {"200": 1000},
        "requests_s": 500.0,
        "cpu_s_per_1000": cpu,
        "cpu_s_per_1000_events": cpu / 64 if cpu and streamed else None,
        "latency_ms": times,
        "outside_ms": times,
        "first_event_ms": times if streamed else None,
        "event_delay_ms": times if streamed else None,
        "rss_mib": 100.0,
        "resting_mib": 50.0,
        "body_bytes": 1_500_000,
        "share": {"gateway": 0.9, "harness": 0.5, "gateway_foreign": 0.0, "harness_foreign": 0.0},
        **other,
    }


def figures(*runs: dict[str, Any], **other: Any) -> Figures:
    names = dict.fromkeys(entry["peer"] for entry in runs)
    about = {"when": "2026-01-01", "processor": "a processor", "cores": 2, "kernel": "6", "python": "3.11"}
    return Figures(
        {
            "measured": {**about, "rounds": 1, "seconds": 2.0},
            "peers": [{"name": name, "version": "1", "lacks": "something"} for name in names],
            "skipped": {},
            "runs": runs,
            **other,
        }
    )


def row(table: str, name: str) -> list[str]:
    """The cells of a table's first row with this name, without the name."""
    line = next(line for line in table.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


@pytest.mark.parametrize("document", [DOCUMENT, EVERYTHING], ids=lambda path: path.name)
def test_the_documents_say_what_the_results_say(document: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        report.main(["--check", "--document", str(document)])
    assert not ended.value.code


def test_the_results_have_a_place_for_everything() -> None:
    marks = re.findall(r"<!-- (\w+): python -m bench\.overhead\.report -->", EVERYTHING.read_text())
    assert sorted(marks) == sorted(figures(run("direct", "1 kB x 1", cpu=None)).blocks())


def test_only_what_stands_between_marks_is_replaced() -> None:
    document = "before\n<!-- cpu: python -m bench.overhead.report -->\nold\n<!-- end -->\nafter <!-- end -->"
    new = filled(document, {"cpu": "new"})
    assert new == document.replace("\nold\n", "\n\nnew\n\n")
    assert filled(new, {"cpu": "new"}) == new


def test_a_mark_of_nothing_is_an_error() -> None:
    with pytest.raises(KeyError):
        filled("<!-- nothing: python -m bench.overhead.report -->\n<!-- end -->", {})


def test_medians_of_the_rounds_count() -> None:
    rounds = [run("nginx", "1 kB x 1", cpu=cpu, requests_s=10 / cpu) for cpu in (1.0, 2.0, 9.0)]
    (cell,) = results.medians(rounds).values()
    assert (cell["cpu_s_per_1000"], cell["requests_s"], cell["rounds"]) == (2.0, 5.0, 3)
    assert cell["spread"] == 4.0
    assert cell["samples"] == 3000


def test_the_added_time_stands_beside_the_cost() -> None:
    found = figures(
        run("direct", "200 kB paced x 32", cpu=None),
        run("ocr-gateway", "200 kB paced x 32", cpu=1.0, by=1.5),
        run("fastapi-httpx", "200 kB paced x 32", cpu=8.0, by=20),
    )
    assert row(found.delays(), "`ocr-gateway`") == ["1.50 / 1.50 / 1.50"]
    assert row(found.everything(), "`fastapi-httpx`")[:6] == ["500", "20.0", "20.0", "20.0", "8.00", "100"]


def test_ratios_are_of_the_rival_over_ours() -> None:
    found = figures(
        *(run("ocr-gateway", case, cpu=0.5) for case in ("200 kB x 32", "200 kB x 256")),
        *(run("fastapi-httpx", case, cpu=5.0) for case in ("200 kB x 32", "200 kB x 256")),
        *(run("nginx", case, cpu=0.25) for case in ("200 kB x 32", "200 kB x 256")),
    )
    assert row(found.ratios(), "`fastapi-httpx`") == ["10.00", "10.00"]
    assert row(found.ratios(), "`nginx`") == ["0.50", "0.50"]


def test_a_gateway_that_refuses_has_no_figures() -> None:
    refusing = run("haproxy", "1 kB x 32", statuses={"200": 900, "503": 100})
    found = figures(run("ocr-gateway", "1 kB x 32"), refusing)
    assert row(found.cpu(), "`haproxy`") == ["-"]
    assert row(found.everything(), "`haproxy`")[0] == "failed"
    assert "`haproxy`, 1 kB x 32: 100 x 503" in found.trouble()
    assert figures(run("ocr-gateway", "1 kB x 32")).trouble() == "None."
    mute = run("litellm", "1 kB x 32", answered=0, statuses={}, cpu=None, outside_ms=None)
    assert "`litellm`, 1 kB x 32: nothing in time" in figures(mute).trouble()
    assert row(figures(mute).everything(), "`litellm`")[0] == "failed"


def test_broken_and_refused_answers_are_failures() -> None:
    found = run("nginx", "1 kB x 32", broken=2, refused=1, statuses={"200": 5, "502": 4})
    assert results.failed(found) == 7
    assert results.failures(found) == "4 x 502, 2 x broken, 1 x refused"


def test_it_shows_where_the_clients_were_the_limit() -> None:
    busy = {"gateway": 0.5, "harness": 0.9, "gateway_foreign": 0.0, "harness_foreign": 0.05}
    found = figures(run("nginx", "1 kB x 32", share=busy), run("haproxy", "1 kB x 32"))
    assert row(found.requests(), "`nginx`") == ["500†"]
    assert row(found.requests(), "`haproxy`") == ["500"]


def test_it_shows_where_clients_had_no_answer() -> None:
    found = figures(run("haproxy", "8 MB x 256", answered=255), run("nginx", "8 MB x 256", answered=256))
    assert row(found.requests(), "`haproxy`") == ["500‡"]
    assert row(found.requests(), "`nginx`") == ["500"]


def test_a_busy_machine_is_reported() -> None:
    share = {"gateway": 0.2, "harness": 0.1, "gateway_foreign": 0.7, "harness_foreign": 0.1}
    assert "The machine was busy" in figures(run("nginx", "1 kB x 32", share=share)).circumstances()
    assert "The machine was busy" not in figures(run("nginx", "1 kB x 32")).circumstances()


def test_what_was_not_installed_is_named() -> None:
    found = figures(run("nginx", "1 kB x 32"), skipped={"litellm": "/home/venv/litellm"})
    assert found.rivals().endswith("Not installed, so not measured: `litellm`.")


def test_goals_are_judged_by_the_figures() -> None:
    cases = ("200 kB x 32", "200 kB paced x 32", "200 kB stream x 32", "200 kB stream x 256")
    found = figures(
        *(run("direct", case, cpu=None) for case in cases),
        *(run("ocr-gateway", case, cpu=1.0, by=3.0) for case in cases),
        run("ocr-gateway", "1.5 MB held x 256", rss_mib=800),
        run("vllm-router", "200 kB x 32", cpu=0.8),
        run("asgi-aiohttp", "200 kB x 32", cpu=0.5),
        run("asgi-aiohttp", "200 kB stream x 32", cpu=2.0),
        run("fastapi-httpx", "200 kB x 32", cpu=4.0),
        run("fastapi-httpx", "200 kB stream x 32", cpu=0.5),
    )
    goals = {
        line.split(" | ")[0].strip("| "): line.split(" | ")[1:]
        for line in found.blocks()["goals"].splitlines()
    }
    assert goals["CPU a request, 200 kB x 32: at most 0.2 of `fastapi-httpx`'s"] == ["0.25", "**no** |"]
    assert goals["CPU a request, 200 kB x 32: at most 1.4 of `vllm-router`'s"] == ["1.2", "yes |"]
    python = goals["CPU a request: less than every rival in Python, in every case"]
    assert python == ["`fastapi-httpx`: 0.25 x (200 kB x 32) to 2.00 x (200 kB stream x 32)", "**no** |"]
    floor = goals["CPU a request beside `asgi-aiohttp`, which passes bytes on and does no more"]
    assert floor == ["0.50 x (200 kB stream x 32) to 2.00 x (200 kB x 32); less in 1 of 2", "- |"]
    assert goals["added p99, 200 kB paced x 32 (the core is not full): under 5 ms"] == ["3.0 ms", "yes |"]
    assert goals["added time to the first event, 200 kB stream x 32: under 2 ms (median)"] == [
        "3.00 ms",
        "**no** |",
    ]
    assert goals["200 kB stream x 256: no event under way for more than 50 ms at p99"] == ["6.0 ms", "yes |"]
    memory = next(goal for goal in goals if goal.startswith("peak memory"))
    assert "692 MiB" in memory
    assert goals[memory] == ["800 MiB", "**no** |"]


def test_new_results_replace_those_of_the_same_case_only(tmp_path: Path) -> None:
    def whole(*runs: dict[str, Any], skipped: dict[str, str]) -> dict[str, Any]:
        names = [{"name": name} for name in dict.fromkeys(entry["peer"] for entry in runs)]
        return {"measured": {}, "peers": names, "skipped": skipped, "runs": list(runs)}

    path = tmp_path / "deep" / "results.json"
    old = whole(
        run("nginx", "1 kB x 1"), run("nginx", "1 kB x 32"), skipped={"haproxy": "a file", "smg": "b"}
    )
    results.write(path, old)
    new = whole(run("nginx", "1 kB x 32", cpu=7.0), run("haproxy", "1 kB x 1"), skipped={})
    results.write(path, new, keep=True)
    found = results.read(path)
    assert [(one["peer"], one["case"], one["cpu_s_per_1000"]) for one in found["runs"]] == [
        ("nginx", "1 kB x 1", 1.0),
        ("nginx", "1 kB x 32", 7.0),
        ("haproxy", "1 kB x 1", 1.0),
    ]
    assert [peer["name"] for peer in found["peers"]] == ["nginx", "haproxy"]
    assert found["skipped"] == {"smg": "b"}
    results.write(path, new)
    assert len(results.read(path)["runs"]) == 2


def test_tables_and_plots_are_written(tmp_path: Path) -> None:
    document, figures_file = tmp_path / "performance.md", tmp_path / "results.json"
    document.write_text("<!-- cpu: python -m bench.overhead.report -->\n<!-- end -->\n")
    runs = [
        run(name, case) for name in ("direct", "ocr-gateway") for case in ("200 kB x 32", "200 kB paced x 32")
    ]
    made = figures(*runs)
    found = {"measured": made.about, "peers": made.peers, "skipped": {}, "runs": runs}
    results.write(figures_file, found)
    arguments = ["--results", str(figures_file), "--document", str(document)]
    with pytest.raises(SystemExit, match=r"performance\.md is not what"):
        report.main([*arguments, "--check"])
    report.main(arguments)
    assert row(document.read_text(), "`ocr-gateway`") == ["1.00"]
    assert {path.name for path in (tmp_path / "images").iterdir()} == {
        "performance-cpu.png",
        "performance-delays.png",
    }
