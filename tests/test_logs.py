import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest

from gateway import logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.level, root.handlers[:])
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


def line(kind: Literal["text", "json"], capsys: pytest.CaptureFixture[str]) -> str:
    logs.configure(kind)
    log = logging.getLogger("gateway.access")
    log.info("request", extra={"fields": {"code": 200, "engine": "", "route": "text"}})
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("fault")
    return capsys.readouterr().err


def test_json_lines_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = map(json.loads, line("json", capsys).splitlines())
    assert first.items() >= {"message": "request", "code": 200, "route": "text", "level": "INFO"}.items()
    assert "ValueError: boom" in second["trace"]


def test_text_lines_leave_out_what_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, *trace = line("text", capsys).splitlines()
    assert first.endswith("INFO    request code=200 route=text")
    assert second.endswith("ERROR   fault")
    assert trace[-1] == "ValueError: boom"
