from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gateway.errors import ConfigError
from gateway.tools.plan.engine_kinds import depth, ranges, read
from gateway.tools.sweep.profile_files import profiles
from tests.tools.sweep.synthetic import sweep

if TYPE_CHECKING:
    from pathlib import Path

POINTS = [[1, 130, 2], [32, 2400, 60], [128, 900, 40]]
MTP3 = {"method": "mtp", "num_speculative_tokens": 3}
META: dict[str, Any] = {"model": "glm-ocr", "gpu": "H100", "engine_version": "0.30.1"}


def write(folder: Path, route: str, name: str = "", **meta: Any) -> Path:
    path = folder / (name or f"{route}.json")
    pools = {"mtp3": POINTS, "plain": [[1, 70, 1], [128, 3100, 50]]}
    configs = {"pools": {"mtp3": MTP3, "plain": {}}}
    path.write_text(json.dumps({"route": route, "pools": pools, "meta": {**META, **configs, **meta}}))
    return path


def problems(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder)
    return "\n".join(caught.value.problems)


def test_what_a_sweep_writes_is_read(tmp_path: Path) -> None:
    for route, profile in profiles(sweep(depths=(0, 3))).items():
        (tmp_path / f"{route}.json").write_bytes(profile)
    found = read(tmp_path)
    assert set(found.routes) == {"text", "key-value", "table"}
    assert {kind.name for kind in found.kinds} == {"plain", "mtp3"}
    assert all(curve for kind in found.kinds for curve in kind.curves)
    assert {pool: depth(config) for pool, config in found.configs.items()} == {"plain": 0, "mtp3": 3}
    assert found.simulated
    assert "glm-ocr" in found.source


def test_measured_profiles_are_called_measured(tmp_path: Path) -> None:
    write(tmp_path, "table")
    found = read(tmp_path)
    assert not found.simulated
    assert found.source == "glm-ocr, H100, 0.30.1"
    assert found.notes == ()


@pytest.mark.parametrize("meta", [{"simulated": "h100-9b"}, {"source": "simulated, h100-9b"}])
def test_simulated_ones_are_known_by_what_they_say(tmp_path: Path, meta: dict[str, Any]) -> None:
    write(tmp_path, "table", **meta)
    assert read(tmp_path).simulated


def test_a_route_without_a_pool_has_no_curve_there(tmp_path: Path) -> None:
    write(tmp_path, "table")
    path = write(tmp_path, "text")
    profile = json.loads(path.read_text())
    del profile["pools"]["plain"]
    path.write_text(json.dumps(profile))
    found = read(tmp_path)
    (plain,) = (kind for kind in found.kinds if kind.name == "plain")
    assert [bool(curve) for curve in plain.curves] == [route == "table" for route in found.routes]


def test_engines_with_their_own_schedule_are_not_smoothed_across_it(tmp_path: Path) -> None:
    own = {**MTP3, "num_speculative_tokens_per_batch_size": [[1, 31, 3], [32, 256, 0]]}
    write(tmp_path, "table", pools={"mtp3": own})
    kinds = {kind.name: kind for kind in read(tmp_path).kinds}
    (curve,) = kinds["mtp3"].curves
    assert curve is not None
    assert curve.breaks == (32,)
    assert ranges(own) == ((1, 31, 3), (32, 256, 0))
    assert read(tmp_path).configs["plain"] is None
    assert depth(None) is None
    assert ranges({"method": 7}) == ()
    assert depth({"num_speculative_tokens": "many", "method": "mtp"}) is None


def test_no_profiles(tmp_path: Path) -> None:
    assert "no profiles here" in problems(tmp_path)
    assert "no profiles here" in problems(tmp_path / "nowhere")
    # What else a sweep writes is passed over.
    (tmp_path / "results.json").write_text('{"setting": {}}')
    (tmp_path / "list.json").write_text("[]")
    assert "no profiles here" in problems(tmp_path)
    write(tmp_path, "table")
    assert read(tmp_path).routes == ("table",)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write(tmp_path, "table")
    (tmp_path / "text.json").write_text("{")
    (tmp_path / "other.json").write_text('{"route": "other", "pools": {"plain": [[0, 5]]}, "meta": {}}')
    told = problems(tmp_path)
    assert "text.json" in told
    assert "other.json: pools" in told


def test_profiles_of_different_models_or_gpus_do_not_mix(tmp_path: Path) -> None:
    write(tmp_path, "table")
    write(tmp_path, "text", model="paddleocr-vl", gpu="A100")
    told = problems(tmp_path)
    assert "different models: glm-ocr (table.json), paddleocr-vl (text.json)" in told
    assert "different gpus: H100 (table.json), A100 (text.json)" in told


def test_simulated_and_measured_do_not_mix(tmp_path: Path) -> None:
    write(tmp_path, "table")
    write(tmp_path, "text", simulated="h100-9b")
    assert "text.json is simulated" in problems(tmp_path)


def test_a_pool_is_one_config(tmp_path: Path) -> None:
    write(tmp_path, "table")
    write(tmp_path, "text", pools={"mtp3": {**MTP3, "num_speculative_tokens": 2}, "plain": {}})
    assert "pool 'mtp3' had different speculative configs" in problems(tmp_path)


def test_a_route_has_one_profile(tmp_path: Path) -> None:
    write(tmp_path, "table")
    write(tmp_path, "table", "again.json")
    assert "route 'table' has a profile already" in problems(tmp_path)


def test_what_is_doubtful_is_noted(tmp_path: Path) -> None:
    write(tmp_path, "table", gpu="")
    path = write(tmp_path, "text", engine_version="0.31.0", gpu="")
    profile = json.loads(path.read_text())
    profile["pools"]["plain"] = [[1, 70], [128, 3100]]
    path.write_text(json.dumps(profile))
    notes = "\n".join(read(tmp_path).notes)
    assert "different engine_versions: 0.30.1 (table.json), 0.31.0 (text.json)" in notes
    assert "not told by table.json, text.json: on which gpu it was measured" in notes
    assert "without a standard error are taken to be 5% off: text.json" in notes
