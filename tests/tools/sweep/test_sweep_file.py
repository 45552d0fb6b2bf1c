import errno
import os
from pathlib import Path

import msgspec
import pytest

from gateway.errors import ConfigError
from gateway.tools.sweep.sweep_file import NAME, SweepFile, read
from gateway.tools.sweep.sweep_values import RequestShape, Results, Setting, SweepCell, SweptPool, Window

SETTING = Setting(
    model="glm-ocr",
    pools={"plain": SweptPool(0), "mtp3": SweptPool(3, {"method": "mtp", "num_speculative_tokens": 3})},
    routes={"text": RequestShape("Text Recognition:", 3, True, 4096)},
    loads=(1, 10),
    window_s=120,
    started="2026-01-02T03:04:05Z",
    tool="0",
)


def window(load: int = 1, pool: str = "plain") -> Window:
    return Window(
        cell=SweepCell("text", pool, load), engine="e:1", started="2026-01-02T03:05:05Z", seconds=120
    )


def changed(**values: object) -> Setting:
    return msgspec.structs.replace(SETTING, **values)


def test_what_was_measured_is_there_when_the_sweep_goes_on(tmp_path: Path) -> None:
    with SweepFile(tmp_path / "new") as file:
        assert file.open(SETTING).windows == ()
        file.add(window(1))
        file.add(window(10))
        assert read(tmp_path / "new").windows == (window(1), window(10))
    with SweepFile(tmp_path / "new") as file:
        results = file.open(changed(started="2026-02-02T00:00:00Z"))
        file.add(window(1, "mtp3"))
    assert results.setting == SETTING
    assert results.windows == (window(1), window(10))
    assert len(read(tmp_path / "new").windows) == 3


def test_wherever_a_kill_cut_the_file_off_the_sweep_goes_on_from_its_last_whole_window(
    tmp_path: Path,
) -> None:
    with SweepFile(tmp_path) as file:
        file.open(SETTING)
        file.add(window(1))
    whole = (tmp_path / NAME).read_bytes()
    for length in {*range(0, len(whole), 9), len(whole) - 1, len(whole)}:
        (tmp_path / NAME).write_bytes(whole[:length])
        left = (window(1),) if length == len(whole) else ()
        with SweepFile(tmp_path) as file:
            assert file.open(SETTING) == Results(SETTING, left)
            file.add(window(10))
        assert read(tmp_path) == Results(SETTING, (*left, window(10)))


def test_a_full_disk_is_an_answer_and_costs_no_window_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with SweepFile(tmp_path) as file:
        file.open(SETTING)
        file.add(window(1))
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(ConfigError, match="No space left on device"):
            file.add(window(10))
    assert read(tmp_path).windows[0] == window(1)


def test_pools_routes_and_loads_may_come(tmp_path: Path) -> None:
    """One GPU is enough: its engine is started at another depth, and the same sweep goes on."""
    with SweepFile(tmp_path) as file:
        file.open(SETTING)
        file.add(window())
    later = changed(
        pools={
            "plain": SweptPool(0, engines=2),
            "mtp1": SweptPool(1, {"method": "mtp", "num_speculative_tokens": 1}),
        },
        routes={"table": RequestShape("Table Recognition:", 3, True, 4096)},
        loads=(1, 32),
    )
    with SweepFile(tmp_path) as file:
        setting = file.open(later).setting
    assert list(setting.pools) == ["plain", "mtp3", "mtp1"]
    assert setting.pools["plain"].engines == 2
    assert list(setting.routes) == ["text", "table"]
    assert setting.loads == (1, 10, 32)
    assert (read(tmp_path).setting, read(tmp_path).windows) == (setting, (window(),))


def test_the_gpu_need_be_named_once(tmp_path: Path) -> None:
    with SweepFile(tmp_path) as file:
        file.open(SETTING)
        assert file.preview(changed(gpu="1x H100")).setting.gpu == "1x H100"
    with SweepFile(tmp_path) as file:
        file.open(changed(gpu="1x H100"))
    with SweepFile(tmp_path) as file:
        assert file.open(SETTING).setting.gpu == "1x H100"
        with pytest.raises(ConfigError, match="measured with gpu '1x H100', now it is '1x L40S'"):
            file.preview(changed(gpu="1x L40S"))


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (changed(model="dots-ocr"), "measured with model 'glm-ocr', now it is 'dots-ocr'"),
        (changed(window_s=60), "window_s 120.0, now it is 60"),
        (changed(simulated="h100-9b"), "simulated '', now it is 'h100-9b'"),
        (changed(pools={"plain": SweptPool(1)}), "depth of pool plain 0, now it is 1"),
        (
            changed(routes={"text": RequestShape("OCR:", 3, True, 4096)}),
            "prompt of route text 'Text Recognition:'",
        ),
        (
            changed(routes={"text": RequestShape("Text Recognition:", 3, True, 4096, False)}),
            "streamed of route text",
        ),
        (
            changed(routes={"text": RequestShape("Text Recognition:", 3, True, 4096, images_digest="other")}),
            "images_digest of route text '', now it is 'other'",
        ),
    ],
)
def test_what_cannot_stand_side_by_side_is_refused(tmp_path: Path, now: Setting, said: str) -> None:
    with SweepFile(tmp_path) as file:
        file.open(SETTING)
    before = (tmp_path / NAME).read_bytes()
    with SweepFile(tmp_path) as file, pytest.raises(ConfigError) as refused:
        file.open(now)
    assert said in refused.value.problems[0]
    assert "another --out" in refused.value.problems[0]
    assert (tmp_path / NAME).read_bytes() == before


def test_two_sweeps_do_not_write_to_one_file(tmp_path: Path) -> None:
    with SweepFile(tmp_path) as first, SweepFile(tmp_path) as second:
        first.open(SETTING)
        with pytest.raises(ConfigError, match="another sweep"):
            second.open(SETTING)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        (b"", "nothing in it"),
        (b"hello\n", ":1: not a line of a sweep"),
        (b"my notes", ":1: not a line of a sweep"),
        (b'{"windows": []}\n', ":1: not a line of a sweep"),
        (b'{"window":' + msgspec.json.encode(window()) + b"}\n", "setting is missing"),
    ],
)
def test_what_is_no_sweep_is_said_to_be_none(tmp_path: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / NAME).write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        read(tmp_path)
    assert said in refused.value.problems[0]
    if content:
        with SweepFile(tmp_path) as file, pytest.raises(ConfigError):
            file.open(SETTING)
        assert (tmp_path / NAME).read_bytes() == content
