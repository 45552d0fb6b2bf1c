from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gateway.config import parse
from gateway.policy.choose.gain import Crossover
from gateway.state.fleet import Fleet, sort_rules

if TYPE_CHECKING:
    from pathlib import Path

MTP3 = {"method": "mtp", "num_speculative_tokens": 3}
CONFIG = """
model: glm-ocr
model_path: zai-org/GLM-OCR
pools:
  deep: {speculative_config: {method: mtp, num_speculative_tokens: 3}, engines: [http://d:80]}
  plain: {engines: [http://p:80]}
routes:
  text: {schedule: [[1, 63, 3], [64, 4096, 0]]}
  table: {profile: table.json}
  key-value: {pools: [plain]}
sorting: {prompts: {table: ["^list the rows"]}}
"""
CURVES = {"deep": [[1, 150], [32, 2600], [256, 900]], "plain": [[1, 60], [64, 2600], [256, 4400]]}


def fleet(folder: Path, curves: Any = CURVES, **meta: Any) -> Fleet:
    profile = {"route": "table", "pools": curves, "meta": meta}
    (folder / "table.json").write_text(json.dumps(profile))
    return Fleet.of(parse(CONFIG, "routes.yaml", folder, {}))


def test_each_route_goes_by_the_best_it_has(tmp_path: Path) -> None:
    known = fleet(tmp_path)
    assert [known.chosen_by[route] for route in known.routes] == ["schedule", "profile", "load"]
    assert known.notes == ()


@pytest.mark.parametrize(
    ("sections", "note"),
    [
        (
            "limits: {inflight_bytes: 67108863}",
            "limits.inflight_bytes: bodies over half of it, 33,554,431 bytes",
        ),
        ("limits: {inflight_bytes: 67108864}", None),
        ("limits: {request_pixels: 99999999}", "limits.request_pixels: images over 99,999,999 pixels"),
        ("limits: {request_pixels: 100000000}", None),
        (
            "limits: {body_bytes: 20000000}\nremote_images: {allow_hosts: [images.example]}",
            "limits.body_bytes: remote images over 15,000,000 bytes",
        ),
        ("limits: {body_bytes: 20000000}", None),
        ("remote_images: {allow_hosts: [images.example]}", None),
    ],
)
def test_limits_of_which_one_never_lets_through_what_another_allows_are_noted(
    tmp_path: Path, sections: str, note: str | None
) -> None:
    plain = "model: m\npools: {p: {engines: [http://p:80]}}\nroutes: {text: {}}\n"
    notes = Fleet.of(parse(plain + sections, "routes.yaml", tmp_path, {})).notes
    assert [told.startswith(note or "") for told in notes] == [True] * (note is not None)


def test_crossovers_come_from_the_schedule_or_the_profile(tmp_path: Path) -> None:
    known = fleet(tmp_path)
    assert known.tables["deep"].crossover(0) == Crossover(64, left=True)
    by_profile = known.tables["deep"].crossover(1)
    assert by_profile.left
    assert 32 < by_profile.load < 80
    assert not known.tables["plain"].crossover(1).left
    assert known.wins["deep"][:2] == (((1, 63),), ((1, by_profile.load - 1),))
    assert known.wins["plain"] == (((64, 256),), ((by_profile.load, 256),), ())


def test_a_profile_that_lacks_a_pool_is_not_used_and_told(tmp_path: Path) -> None:
    known = fleet(tmp_path, {"deep": CURVES["deep"]})
    assert known.chosen_by["table"] == "load"
    assert "no curve of plain" in known.notes[0]


@pytest.mark.parametrize(
    ("meta", "told"),
    [
        ({"model": "another/model"}, "measured on model 'another/model', not on 'zai-org/GLM-OCR'"),
        ({"pools": {"deep": {**MTP3, "num_speculative_tokens": 1}}}, "pool deep was measured with"),
        ({"pools": {"plain": MTP3}}, "pool plain was measured with"),
    ],
)
def test_a_profile_measured_on_something_else_is_told(tmp_path: Path, meta: Any, told: str) -> None:
    (note,) = fleet(tmp_path, **meta).notes
    assert told in note
    assert note.startswith("routes.table.profile")


@pytest.mark.parametrize(
    "meta",
    [{"model": "glm-ocr"}, {"model": "zai-org/GLM-OCR", "pools": {"deep": MTP3, "plain": {}}}, {"pools": 7}],
)
def test_one_measured_on_the_same_is_not(tmp_path: Path, meta: Any) -> None:
    assert fleet(tmp_path, **meta).notes == ()


def test_engines_that_schedule_their_own_depth() -> None:
    table = "num_speculative_tokens_per_batch_size: [[1, 16, 9], [17, 64, 1], [65, 512, 0]]"
    text = CONFIG.replace("num_speculative_tokens: 3", f"num_speculative_tokens: 3, {table}")
    known = Fleet.of(parse(text.replace("{profile: table.json}", "{}"), "routes.yaml", None, {}))  # type: ignore[arg-type]
    assert [known.depth("deep", load) for load in (0, 16, 17, 65, 9999)] == [3, 3, 1, 0, 0]
    assert known.depth("plain", 5) == 0


def test_the_rules_of_sorting_are_the_configurations(tmp_path: Path) -> None:
    rules = sort_rules(fleet(tmp_path).config)
    assert rules.routes == ("text", "table", "key-value")
    assert rules.default == "text"
    assert rules.prompts["table"][0].search("list the rows")
