import asyncio

import pytest

from bench import bookkeeping
from bench.bookkeeping import Books


def test_what_is_measured_is_what_a_request_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"ENGINES": (2,), "ROUTES": (3,), "PAGES": ((2, 3),), "TURNS": 1, "CALLS": 5}.items():
        monkeypatch.setattr(bookkeeping, name, value)
    bookkeeping.main()
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("   3 routes,   2 engines: places ") for line in lines)
    assert any("2 engines and 3 routes" in line for line in lines)


def test_the_books_balance() -> None:
    books = Books(16, 3)
    for _ in range(50):
        books.places()
        books.accounts()
        books.counts()
    snapshot = books.state.snapshot()
    assert sum(route.in_flight for route in snapshot.routes.values()) == bookkeeping.IN_FLIGHT
    assert (books.state.requests.open, books.state.memory.total) == (0, 0)
    took, longest = asyncio.run(books.page())
    assert took >= 0 < longest
    page = asyncio.run(books.metrics.page("text/plain"))[0].decode()
    counted = [
        float(line.split()[-1])
        for line in page.splitlines()
        if line.startswith("ocr_gateway_requests_total{")
    ]
    assert sum(counted) == 50
