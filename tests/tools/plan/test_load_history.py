from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ConfigError
from gateway.tools.plan.load_history import History, binned, read_csv

if TYPE_CHECKING:
    from pathlib import Path

ROUTES = ("text", "table")


def written(folder: Path, text: str) -> Path:
    path = folder / "day.csv"
    path.write_text(text)
    return path


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_csv(written(folder, text))
    return caught.value.problems


@pytest.mark.parametrize("head", ["seconds", "weight", "share"])
def test_rows_weigh_what_they_say(tmp_path: Path, head: str) -> None:
    found = read_csv(written(tmp_path, f"{head}, text, table\n\n30, 4, 2.5\n10, 100, 0\n"))
    assert found.routes == ROUTES
    assert found.rows == [(30, (4, 2.5)), (10, (100, 0))]
    assert found.source == "day.csv"


@pytest.mark.parametrize(
    ("first", "second", "third"),
    [
        ("0", "60", "90"),
        ("2026-11-02T08:00:00", "2026-11-02 08:01", "2026-11-02T09:01:30+01:00"),
    ],
)
def test_a_moment_lasts_until_the_next(tmp_path: Path, first: str, second: str, third: str) -> None:
    text = f"time,text,table\n{first},1,2\n{second},3,4\n{third},5,6\n"
    assert read_csv(written(tmp_path, text)).rows == [(60, (1, 2)), (30, (3, 4)), (30, (5, 6))]


def test_one_moment_is_a_load_too(tmp_path: Path) -> None:
    assert read_csv(written(tmp_path, "time,text\n5,7\n")).rows == [(1, (7,))]


def test_spreadsheets_mark_their_files(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    path.write_bytes(b"\xef\xbb\xbfseconds,text\r\n5,7\r\n")
    assert read_csv(path).rows == [(5, (7,))]


@pytest.mark.parametrize("cell", ["-1", "many", "nan", "inf", "", "1e9"])
def test_a_cell_that_is_no_number_of_requests_is_named(tmp_path: Path, cell: str) -> None:
    (told,) = problems(tmp_path, f"seconds,text,table\n10,1,2\n10,{cell},2\n")
    assert told.startswith(f"{tmp_path / 'day.csv'}:3: text: ")
    assert repr(cell) in told


def test_every_fault_has_its_line(tmp_path: Path) -> None:
    told = problems(tmp_path, "seconds,text\n-5,1\n5\n5,1,1\nx,1\n")
    assert [line.partition("day.csv:")[2][0] for line in told] == ["2", "3", "4", "5"]
    told = problems(tmp_path, "time,text\n10,1\n10,1\n5,1\nsoon,1\n")
    assert [line.partition("day.csv:")[2][0] for line in told] == ["5"]
    told = problems(tmp_path, "time,text\n10,1\n10,1\n5,1\n")
    assert [line.partition("day.csv:")[2][0] for line in told] == ["3", "4"]
    assert len(problems(tmp_path, "seconds,text\n" + "x,y\n" * 100)) == 20


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "a header and at least one row"),
        ("seconds,text\n", "a header and at least one row"),
        ("minutes,text\n1,1\n", "the first column is one of"),
        ("seconds\n1\n", "a column for each route"),
        ("seconds,text,text\n1,1,1\n", "a column for each route"),
        ("seconds,text,\n1,1,1\n", "a column for each route"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str, told: str) -> None:
    assert told in problems(tmp_path, text)[0]


def test_a_file_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        read_csv(tmp_path / "nowhere.csv")
    path = tmp_path / "day.csv"
    path.write_bytes(b"seconds,text\n\xff,1\n")
    with pytest.raises(ConfigError, match=r"day\.csv"):
        read_csv(path)
    monkeypatch.setattr("gateway.tools.plan.load_history._MOST_BYTES", 5)
    with pytest.raises(ConfigError, match="larger than"):
        read_csv(path)


def history(*rows: tuple[float, tuple[float, ...]], routes: tuple[str, ...] = ROUTES) -> History:
    return History(routes, rows, "day.csv")


def test_few_populations_stay_what_they_are() -> None:
    found = binned(history((30, (4, 2)), (10, (0, 0)), (60, (100, 0))), ("table", "text"))
    assert dict(zip(map(tuple, found.populations.tolist()), found.weights.tolist(), strict=True)) == {
        (2, 4): 0.3,
        (0, 0): 0.1,
        (0, 100): 0.6,
    }


def test_a_route_without_a_profile_is_named_with_those_that_have_one() -> None:
    with pytest.raises(ConfigError, match="no profile of text; the profiles are of table, forms"):
        binned(history((1, (4, 2))), ("table", "forms"))
    # One that never comes needs none.
    assert binned(history((1, (0, 2))), ("table", "forms")).populations.tolist() == [[2, 0]]


@pytest.mark.parametrize("rows", [[], [(5, (0, 0))], [(0, (5, 5))]])
def test_a_history_without_requests_says_nothing(rows: list[tuple[float, tuple[float, ...]]]) -> None:
    with pytest.raises(ConfigError, match="never a request"):
        binned(history(*rows), ROUTES)


@given(
    st.lists(
        st.tuples(st.floats(0.1, 100), st.tuples(st.integers(0, 300), st.integers(0, 300))),
        min_size=1,
        max_size=300,
    ).filter(lambda rows: any(any(counts) for _, counts in rows))
)
def test_many_populations_become_few_with_the_same_time_means_and_peaks(
    rows: list[tuple[float, tuple[float, ...]]],
) -> None:
    found = binned(history(*rows), ROUTES)
    weights = np.array([weight for weight, _ in rows])
    counts = np.array([row for _, row in rows], dtype=float)
    assert len(found.weights) <= 64
    assert found.weights.sum() == pytest.approx(1)
    assert (found.weights > 0).all()
    assert found.weights @ found.populations == pytest.approx(weights @ counts / weights.sum())
    assert found.populations.sum(axis=1).max() == pytest.approx(counts.sum(axis=1).max())
    assert found.populations.max(axis=0) == pytest.approx(counts.max(axis=0))


def test_of_many_routes_the_sums_are_told_apart() -> None:
    routes = tuple(f"r{place}" for place in range(7))
    rng = np.random.default_rng(1)
    rows = [(1.0, tuple(rng.integers(0, 2, 7) * rng.integers(0, 300, 7).astype(float))) for _ in range(2000)]
    found = binned(history(*rows, routes=routes), routes)
    assert len(found.weights) <= 64
    counts = np.array([row for _, row in rows])
    assert found.weights @ found.populations == pytest.approx(counts.mean(axis=0))
    assert found.populations.max(axis=0) == pytest.approx(counts.max(axis=0))
