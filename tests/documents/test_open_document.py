from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from bench.serving import SHARED
from gateway.documents.open_document import OpenDocument
from gateway.documents.render_process import RenderSettings
from gateway.errors import BadImage, BadRequest, Unavailable
from gateway.wire.mistral import kind_of
from tests import pdf
from tests.support import encoded, picture

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SLOW_PAGES = SHARED / "faults/slow-tiling.pdf"
PAGES = pdf.document(["one", "two", "three"], broken={1})


@asynccontextmanager
async def opened(data: bytes = PAGES, **limits: Any) -> AsyncIterator[OpenDocument]:
    settings = RenderSettings(kind_of(data, "file"), len(data), dpi=72, max_side=2400, max_pixels=10_000_000)
    async with OpenDocument(data, settings, **limits) as renderer:
        yield renderer


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_document_has_a_process_of_its_own_that_ends_with_it() -> None:
    async with opened() as renderer, opened(encoded(picture("x"), "PNG")) as other:
        assert (renderer.pages, other.pages) == (3, 1)
        first, last = await renderer.page(0), await renderer.page(2)
        assert (first.width, first.height, first.dpi) == (612, 792, 72)
        assert first.jpeg.startswith(b"\xff\xd8")
        assert first.jpeg != last.jpeg
        pid, its = renderer.pid, other.pid
        assert pid
        assert its
        assert pid != its
    assert gone(pid)
    assert gone(its)


async def test_a_page_that_cannot_be_rendered_costs_no_other() -> None:
    async with opened() as renderer:
        pid = renderer.pid
        with pytest.raises(BadImage, match="missing from the document") as raised:
            await renderer.page(1)
        assert raised.value.code == "invalid_page"
        assert await renderer.page(2)
        assert renderer.pid == pid


async def test_a_document_that_cannot_be_opened_is_refused_and_its_process_gone() -> None:
    renderer = OpenDocument(b"%PDF-", RenderSettings("pdf", 5, dpi=72, max_side=2400, max_pixels=10**7))
    with pytest.raises(BadRequest, match="cannot be read") as raised:
        await renderer.__aenter__()
    assert (raised.value.param, raised.value.code) == ("document", "invalid_document")
    assert renderer.pid is None


async def test_a_process_that_dies_costs_its_page_and_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as renderer:
        pid = renderer.pid
        assert pid
        os.kill(pid, signal.SIGSTOP)
        page = asyncio.create_task(renderer.page(0))
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(BadRequest, match="ended its process") as raised:
            await page
        assert raised.value.code == "render_failed"
        assert f"exit status {-signal.SIGKILL}" in caplog.text
        assert await renderer.page(0)
        assert renderer.pid not in (None, pid)


async def test_one_that_is_stuck_is_killed_and_a_document_that_goes_on_so_is_given_up() -> None:
    async with opened() as renderer:
        for _ in range(3):
            await renderer.page(0)
            pid = renderer.pid
            assert pid
            os.kill(pid, signal.SIGSTOP)
            renderer._page_s = 0.01
            with pytest.raises(BadRequest, match=r"took over 0\.01 s"):
                await renderer.page(0)
            renderer._page_s = 60
            assert gone(pid)
        with pytest.raises(BadRequest, match="3 times"):
            await renderer.page(0)
        assert renderer.pid is None


@pytest.mark.skipif(not SLOW_PAGES.exists(), reason="the shared files are not here")
async def test_pages_that_take_too_much_cpu_cost_only_their_document(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened(SLOW_PAGES.read_bytes()) as renderer:
        for _ in range(3):
            with pytest.raises(BadRequest, match="5 s of CPU"):
                await renderer.page(0)
        with pytest.raises(BadRequest, match="3 times"):
            await renderer.page(0)
    assert caplog.text.count(f"exit status {-signal.SIGXCPU}") == 3


async def test_opening_has_its_time_too(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(BadRequest, match="opening the document took over"):
        async with opened(opening_s=0.001):
            pass
    assert "at opening one: TimeoutError" in caplog.text


async def test_who_gives_up_a_page_leaves_no_answer_for_the_next() -> None:
    async with opened() as renderer:
        pid = renderer.pid
        assert pid
        os.kill(pid, signal.SIGSTOP)
        page = asyncio.create_task(renderer.page(0))
        await asyncio.sleep(0)
        page.cancel()
        with pytest.raises(asyncio.CancelledError):
            await page
        assert gone(pid)
        assert (await renderer.page(2)).jpeg != (await renderer.page(0)).jpeg


async def test_memory_is_bounded_and_the_page_says_so() -> None:
    large = encoded(picture("large", (4000, 4000)), "PNG")
    settings = RenderSettings("image", len(large), dpi=72, max_side=2400, max_pixels=10**8)
    async with OpenDocument(large, settings, room=2**25) as renderer:
        with pytest.raises(BadRequest, match=r"memory|ended its process") as raised:
            await renderer.page(0)
        assert raised.value.code == "render_failed"


async def test_where_none_can_be_started_the_client_may_come_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(Unavailable) as raised:
        async with opened():
            pass
    assert (raised.value.code, raised.value.retry_after) == ("documents_busy", 5)
    assert "cannot be started" in caplog.text


@pytest.mark.parametrize("answer", ["nonsense", '{"pages": "7"}', "x" * 100_000, ""])
async def test_nonsense_is_no_answer(
    answer: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executable = tmp_path / "python"
    executable.write_text(f"#!/bin/sh\necho '{answer}'\nexec cat >/dev/null\n")
    executable.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(executable))
    with pytest.raises(BadRequest) as raised:
        async with opened():
            pass
    assert raised.value.code == "render_failed"
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "told",
    [
        '{"size": 999999999999}',
        '{"size": 4, "width": 0, "height": 9}',
        '{"size": -1}',
        '{"size": 5, "width": 1}',
    ],
)
async def test_a_page_that_none_can_be_is_no_page(
    told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    executable = tmp_path / "python"
    executable.write_text(f"#!/bin/sh\necho '{{\"pages\": 1}}'\necho '{told}'\nexec cat >/dev/null\n")
    executable.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(executable))
    async with opened() as renderer:
        with pytest.raises(BadRequest) as raised:
            await renderer.page(0)
        assert raised.value.code == "render_failed"
