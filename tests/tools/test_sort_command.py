import json
from pathlib import Path

import pytest

from bench.serving import SHARED
from gateway import cli
from tests.support import encoded, picture
from tests.tools.support import CONFIG

LINES = "\n".join(["the quick brown fox jumps over the lazy dog and runs away"] * 12)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.png"
    path.write_bytes(encoded(picture(LINES, (620, 330)), "PNG"))
    return path


def test_sort_prints_route_reason_confidence_and_time(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sort", "--config", CONFIG, str(page)]) == 0
    route, reason, confidence, milliseconds, unit, image = capsys.readouterr().out.split()
    assert (route, reason, unit, image) == ("text", "image", "ms", str(page))
    assert 0 < float(confidence) <= 1
    assert float(milliseconds) > 0


def test_sort_takes_the_prompt_into_account(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sort", "--config", CONFIG, "--json", "--prompt", "Table Recognition:", str(page)]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["route"], row["reason"], row["confidence"]) == ("table", "prompt", 1.0)


def test_sort_reports_what_it_cannot_read_and_goes_on(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "no.png").write_bytes(b"no picture")
    images = [str(tmp_path / "none.png"), str(tmp_path / "no.png"), str(page)]
    assert cli.main(["sort", "--config", CONFIG, *images]) == 1
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 1
    assert cli.main(["sort", "--config", CONFIG, "--prompt", "OCR:", images[0]]) == 1
    assert "none.png" in told.err
    assert "not a readable" in told.err


@pytest.mark.skipif(not SHARED.exists(), reason="the shared test images are not here")
def test_sort_refuses_a_bomb_by_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    bomb = str(SHARED / "images/nasty/18_bomb_20000x20000.png")
    assert cli.main(["sort", "--config", CONFIG, bomb]) == 1
    assert "20000 x 20000 pixels" in capsys.readouterr().err
