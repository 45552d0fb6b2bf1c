from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gateway.config import load
from gateway.errors import ConfigError
from gateway.state.fleet import Fleet
from gateway.tools.sweep import write
from gateway.tools.sweep.sweep_values import Results
from tests.tools.sweep.synthetic import findings, sweep

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.tools.sweep.sweep_values import Findings

TEXT = """\
# Our OCR fleet.
model: glm-ocr
pools:
  mtp3:
    speculative_config: {method: mtp, num_speculative_tokens: 3}
    engines: [http://vllm-mtp3:8000]   # two GPUs
    api_key: ${ENGINE_KEY}
  plain: {engines: [http://vllm-plain:8000]}
routes:
  text:
    schedule: [[1, 9, 3], [10, 4096, 0]]  # a guess
  table:
    # the long ones
    queue: {max_waiting: 64}
  key-value: {schedule: [[1, 63, 3], [64, 4096, 0]]}
sorting: {default: text}
"""
KEY = {"ENGINE_KEY": "secret"}
RESULTS = sweep((0, 3), ["text", "table"], simulated="")
FINDINGS = findings(RESULTS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "routes.yaml"
    path.write_bytes(TEXT.encode())
    return path


def apply(path: Path, results: Results = RESULTS, found: Findings = FINDINGS) -> list[str]:
    return write.apply(path, results, found, KEY)


def refusal(path: Path, results: Results = RESULTS, found: Findings = FINDINGS) -> list[str]:
    before = {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()}
    with pytest.raises(ConfigError) as refused:
        apply(path, results, found)
    assert {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()} == before
    with pytest.raises(ConfigError):
        write.preview(path, results, found, KEY)
    return refused.value.problems


def test_of_many_depths_swept_those_are_written_that_the_file_has(path: Path) -> None:
    many = sweep((0, 1, 3, 8), ["text", "table"], simulated="")
    kept, notes = write.permitted(path, many, KEY)
    assert notes == [f"pool {pool} is not in {path}: its windows are left out" for pool in ("mtp1", "mtp8")]
    apply(path, kept, findings(kept))
    config = load(path, KEY)
    assert [list(config.profiles[route].pools) for route in ("text", "table")] == [["plain", "mtp3"]] * 2
    assert {depth for _, _, depth in config.routes["table"].schedule} == {0, 3}


def test_the_gateway_goes_by_what_was_written(path: Path) -> None:
    told = apply(path)
    folder = path.parent / "profiles"
    assert told == [f"wrote {folder}/text.json", f"wrote {folder}/table.json", f"updated {path}"]
    config = load(path, KEY)
    assert config.routes["text"].schedule == tuple(
        (found.first, found.last, found.depth) for found in FINDINGS.routes["text"].schedule
    )
    fleet = Fleet.of(config)
    assert [fleet.chosen_by[route] for route in fleet.routes] == ["profile", "profile", "schedule"]
    assert fleet.notes == ()


def test_all_else_stays(path: Path) -> None:
    apply(path)
    text = path.read_text()
    assert [line for line in text.splitlines() if "schedule" not in line and "profile" not in line] == [
        line for line in TEXT.splitlines() if "schedule" not in line
    ]
    assert "# a guess" in text
    assert sorted(os.listdir(path.parent)) == ["profiles", "routes.yaml"]
    assert sorted(os.listdir(path.parent / "profiles")) == ["table.json", "text.json"]


def test_once_written_there_is_nothing_to_do(path: Path) -> None:
    apply(path)
    stamps = [file.stat().st_mtime_ns for file in (path, path.parent / "profiles/text.json")]
    assert apply(path) == [f"{path} and its profiles are up to date"]
    assert write.preview(path, RESULTS, FINDINGS, KEY) == ""
    assert [file.stat().st_mtime_ns for file in (path, path.parent / "profiles/text.json")] == stamps


def test_a_preview_shows_what_will_change_and_writes_nothing(path: Path, tmp_path: Path) -> None:
    shown = write.preview(path, RESULTS, FINDINGS, KEY)
    assert path.read_text() == TEXT
    assert os.listdir(tmp_path) == ["routes.yaml"]
    assert [line[1:] for line in shown.splitlines() if line.startswith("-")][1:] == [
        "    schedule: [[1, 9, 3], [10, 4096, 0]]  # a guess"
    ]


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch")
def test_a_preview_can_be_applied_by_hand(path: Path) -> None:
    subprocess.run(
        ["patch", "-s", path], input=write.preview(path, RESULTS, FINDINGS, KEY), text=True, check=True
    )
    patched = path.read_text()
    path.write_text(TEXT)
    apply(path)
    assert path.read_text() == patched


def test_a_patch_knows_a_file_without_a_last_line_end() -> None:
    assert write.diff("a\r\nb", "a\r\nc\n", "f").splitlines() == [
        "--- f",
        "+++ f",
        "@@ -1,2 +1,2 @@",
        " a",
        "-b",
        "\\ No newline at end of file",
        "+c",
    ]


def test_a_recommendation_the_route_cannot_follow_is_refused(path: Path) -> None:
    path.write_text(TEXT.replace("queue: {", "pools: [plain]\n    queue: {"))
    (told,) = refusal(path)
    assert told.startswith(
        f"{path} (updated):14: routes.table.schedule[0]: no pool of this route runs at depth 3"
    )


def test_pools_that_the_file_does_not_have_are_refused_where_they_will_stand(path: Path) -> None:
    path.write_text(TEXT.replace("mtp3:", "deep:"))
    told = refusal(path)
    assert f"{path} (updated):12: routes.text.profile: profiles/text.json: unknown pool 'mtp3'" in told[0]


def test_a_file_that_cannot_be_changed_is_left_as_it_is(path: Path) -> None:
    path.write_text(
        TEXT.replace("  text:\n", "  text: &text\n").replace(
            "{schedule: [[1, 63, 3], [64, 4096, 0]]}", "*text"
        )
    )
    (told,) = refusal(path)
    assert "cannot be updated in place" in told


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "none.yaml")[0]
    (tmp_path / "latin.yaml").write_bytes(b"# \xfcber\n")
    assert "cannot be read" in refusal(tmp_path / "latin.yaml")[0]


def test_a_folder_that_cannot_be_written_is_told_and_the_file_left(path: Path) -> None:
    (path.parent / "profiles").write_text("a file")
    with pytest.raises(ConfigError, match=r"profiles/text\.json: cannot be written"):
        apply(path)
    assert path.read_text() == TEXT


def test_what_is_half_written_is_taken_away(path: Path) -> None:
    (path.parent / "profiles/text.json").mkdir(parents=True)
    with pytest.raises(ConfigError, match="cannot be written"):
        apply(path)
    assert os.listdir(path.parent / "profiles") == ["text.json"]


def test_modes_and_links_stay(path: Path, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere" / "real.yaml"
    real.parent.mkdir()
    path.rename(real)
    real.chmod(0o640)
    path.symlink_to(real)
    apply(path)
    assert path.is_symlink()
    assert "profile: profiles/text.json" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "profiles/text.json").stat().st_mode & 0o777 == 0o644


def test_line_ends_and_marks_stay(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    apply(path)
    written = path.read_bytes()
    assert written.startswith(b"\xef\xbb\xbf# Our")
    assert written.count(b"\n") == written.count(b"\r\n")
    load(path, KEY)


def test_routes_without_a_recommendation_are_left_alone(path: Path) -> None:
    none = {route: replace(of, schedule=()) for route, of in FINDINGS.routes.items()}
    only = replace(FINDINGS, routes=none | {"table": FINDINGS.routes["table"]})
    apply(path, found=only)
    config = load(path, KEY)
    assert config.routes["text"].schedule == ((1, 9, 3), (10, 4096, 0))
    assert list(config.profiles) == ["table"]


def test_a_route_of_which_a_pool_was_not_measured_keeps_its_schedule(path: Path) -> None:
    windows = (w for w in RESULTS.windows if w.cell.route == "table" or w.cell.pool == "mtp3")
    some = Results(RESULTS.setting, tuple(windows))
    note = "route text keeps its schedule: nothing was measured of plain"
    assert write.preview(path, some, findings(some), KEY).startswith(f"# {note}\n---")
    assert apply(path, some, findings(some))[-1] == note
    config = load(path, KEY)
    assert config.routes["text"].schedule == ((1, 9, 3), (10, 4096, 0))
    assert list(config.profiles["text"].pools) == ["mtp3"]
    assert config.routes["table"].schedule != ()


def test_simulated_figures_are_said_to_be_so(path: Path) -> None:
    simulated = sweep((0, 3), ["text"])
    note = "the figures are SIMULATED, by fit h100-9b"
    assert note in write.preview(path, simulated, findings(simulated), KEY)
    assert note in apply(path, simulated, findings(simulated))


def test_a_profile_that_is_named_and_not_there_yet_is_no_hindrance(path: Path) -> None:
    path.write_text(TEXT.replace("# a guess", "# a guess\n    profile: profiles/text.json"))
    with pytest.raises(ConfigError):
        load(path, KEY)
    apply(path)
    assert json.loads((path.parent / "profiles/text.json").read_bytes())["route"] == "text"
    load(path, KEY)
