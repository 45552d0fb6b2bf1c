from __future__ import annotations

import io

import pytest

from gateway.tools.ocr.document_result import DocumentResult
from gateway.tools.ocr.ocr_progress import DocumentTally, ProgressBar
from tests.tools.ocr.stub import page
from tests.tools.support import Terminal


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def read(*indices: int, expected: int = 4, broken: int = -1) -> DocumentResult:
    return DocumentResult(expected, {index: page(index, broken=index == broken) for index in indices})


def test_a_tally_adds_up() -> None:
    tally = DocumentTally(4)
    assert (tally.done, tally.share) == (0, 0.0)
    tally.skip("a.pdf")
    tally.under_way["b.pdf"] = read(0, 1)
    tally.under_way["c.pdf"] = DocumentResult()
    assert (tally.done, tally.share) == (1, (1 + 0.5) / 4)
    tally.finish("b.pdf", read(0, 1, 2, 3, broken=2))
    tally.fail("c.pdf", "is encrypted")
    last = read(0, expected=1)
    last.pages[0]["ocr"]["finish_reason"] = "length"
    tally.finish("d.pdf", last)
    assert (tally.done, tally.share, tally.pages) == (4, 1.0, 4)
    summary = list(tally.summary(2.0))
    assert summary == [
        "1 document read, 2 failed, all or in part, 1 skipped, whose results were there; "
        "4 pages in 2.0 s, 2.0 pages/s",
        "failed: b.pdf, page 2: the page cannot be rendered (bad_page)",
        "failed: c.pdf: is encrypted",
        "cut short at the longest answer: d.pdf, page 0",
    ]


def test_an_empty_tally_divides_by_nothing() -> None:
    assert DocumentTally(0).share == 0.0
    assert list(DocumentTally(1).summary(0.0)) == ["0 documents read; 0 pages in 0.0 s, 0.0 pages/s"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    return Clock()


def test_a_terminal_shows_a_bar_of_one_line_which_goes_in_the_end(clock: Clock) -> None:
    stream, tally = Terminal(), DocumentTally(2)
    with ProgressBar(stream, tally, clock) as show:
        tally.under_way["scan\x1b[2J of a long name that goes on and on and on.pdf"] = read(0, 1)
        clock.now += 2.0
        show.update()
        drawn = stream.getvalue().rpartition("\r")[2]
        assert drawn.startswith("\x1b[K[######..................] 0 of 2 documents, 2 pages")
        assert len(drawn.removeprefix("\x1b[K")) <= 59
        assert "\x1b[2J" not in drawn
        length = len(stream.getvalue())
        show.update()  # at once again
        assert len(stream.getvalue()) == length
        show.line("a.pdf: 3 pages")
        assert "a.pdf: 3 pages" not in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")
    assert "\n" not in stream.getvalue()
    clock.now += 1.0
    tally.fail("b.pdf", "is encrypted")
    assert "1 of 2 documents, 2 pages, 0.7 pages/s, 1 failed" in show.bar(clock.now)


@pytest.mark.parametrize(("stream", "term"), [(io.StringIO(), "xterm"), (Terminal(), "dumb")])
def test_elsewhere_each_document_is_a_line(
    stream: io.StringIO, term: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    with ProgressBar(stream, DocumentTally(1), clock) as show:
        show.update()
        show.line("a.pdf: 3 pages")
    assert stream.getvalue() == "a.pdf: 3 pages\n"
