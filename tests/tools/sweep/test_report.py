import csv
import io
from pathlib import Path

import msgspec

from gateway.model import Speculation
from gateway.tools.sweep.report import Written, table, write
from gateway.tools.sweep.sweep_values import Cell, Results
from tests.tools.sweep.synthetic import findings, sweep


def small(**options: object) -> Results:
    return sweep(**({"routes": ("table",), "depths": (0, 3), "loads": (1, 64)} | options))  # type: ignore[arg-type]


def rows(results: Results) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table(results))))


def test_page_plots_and_data_are_written_again_over_what_was_there(tmp_path: Path) -> None:
    results = small()
    folder = tmp_path / "new" / "out"
    first = write(results, findings(results), folder)
    before = {path: path.read_bytes() for path in first}
    again = write(results, findings(results), folder)

    names = ["report.html", "windows.csv", "results.json"]
    names += [f"table-{kind}.png" for kind in ("throughput", "latency", "acceptance", "tokens")]
    assert [path.name for path in first] == names
    assert sorted(folder.iterdir()) == sorted(first)
    assert before == {path: path.read_bytes() for path in again}


def test_results_and_findings_come_back_from_json(tmp_path: Path) -> None:
    results = small()
    found = findings(results)
    write(results, found, tmp_path)

    read = msgspec.json.decode((tmp_path / "results.json").read_bytes(), type=Written)

    assert read == Written(results, found)


def test_routes_are_no_paths_and_do_not_overwrite_each_other(tmp_path: Path) -> None:
    results = small(routes=("../a", "__/a", "表"), depths=(0,))
    written = write(results, findings(results), tmp_path)

    pictures = [path for path in written if path.suffix == ".png"]
    assert len(pictures) == len(set(pictures)) == 6
    assert all(path.parent == tmp_path for path in pictures)


def test_the_csv_has_a_row_a_window_and_a_column_a_figure() -> None:
    results = small(repeats=2)
    read = rows(results)

    assert len(read) == len(results.windows)
    for row, window in zip(read, results.windows, strict=True):
        assert (row["route"], row["pool"], row["load"], row["repeat"]) == (
            window.cell.route,
            window.cell.pool,
            str(window.cell.load),
            str(window.cell.repeat),
        )
        assert float(row["rate"]) == window.rate
        assert window.request_s
        assert float(row["request_s_p95"]) == window.request_s.p95
    assert read[-1]["depth"] == "3"
    told = results.windows[-1].speculation
    assert told
    assert float(read[-1]["speculation_length"]) == told.length
    assert float(read[-1]["speculation_accepted_3"]) == told.accepted_per_position[2]


def test_what_a_window_lacks_is_empty_in_the_csv_and_the_columns_stay() -> None:
    results = small(depths=(0,), streamed=False)
    read = rows(results)

    assert read[0]["first_token_s_p99"] == ""
    assert read[0]["speculation_drafts"] == ""
    assert "told_length" in read[0]


def test_invalid_windows_stand_in_the_csv_with_their_reasons_and_errors() -> None:
    results = small(depths=(3,), loads=(1, 64))
    first, second = results.windows
    first = msgspec.structs.replace(
        first,
        invalid=("1 request failed", "foreign, traffic"),
        errors={"http_500": 1, "timeout": 2},
        flags=("x",),
    )
    second = msgspec.structs.replace(
        second, cell=Cell("table", "stray", 8, 0, 2.5), speculation=Speculation(4, 2)
    )
    read = rows(Results(results.setting, (first, second)))

    assert read[0]["valid"] == "False"
    assert read[0]["invalid"] == "1 request failed; foreign, traffic"
    assert (read[0]["errors"], read[0]["errors_by_kind"]) == ("3", "http_500: 1; timeout: 2")
    assert read[0]["flags"] == "x"
    assert (read[1]["per_s"], read[1]["depth"]) == ("2.5", "")
    assert read[1]["speculation_draft_tokens"] == read[1]["speculation_accepted_1"] == ""


def test_a_sweep_without_a_window_is_written_too(tmp_path: Path) -> None:
    results = Results(small().setting, ())

    assert [path.name for path in write(results, findings(results), tmp_path)] == [
        "report.html",
        "windows.csv",
        "results.json",
    ]
