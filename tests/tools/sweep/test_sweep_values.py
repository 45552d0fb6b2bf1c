import msgspec

from gateway.model import Speculation
from gateway.tools.sweep.sweep_values import DeeperDraft, Spread, SweepCell, Window


def test_a_window_is_the_same_after_a_trip_through_json() -> None:
    window = Window(
        cell=SweepCell("table", "mtp3", 32),
        engine="e:8000",
        started="2026-01-02T03:04:05Z",
        seconds=120.0,
        errors={"http_500": 1},
        request_s=Spread(1, 1, 2, 3),
        speculation=Speculation(10, 25, 30, (10.0, 9.0, 6.0)),
        invalid=("1 request failed",),
    )
    assert msgspec.json.decode(msgspec.json.encode(window), type=Window) == window
    assert not window.valid


def test_cells_sort_by_route_pool_and_load() -> None:
    cells = [
        SweepCell("text", "b", 10),
        SweepCell("text", "a", 32),
        SweepCell("text", "a", 10, 1),
        SweepCell("text", "a", 10),
    ]
    assert sorted(cells) == [cells[3], cells[2], cells[1], cells[0]]


def test_deeper_pays_where_it_wins_more_tokens_than_it_costs_time() -> None:
    assert DeeperDraft(1, 1, 3, tokens=1.5, time=1.2, accepted=(0.9, 0.6)).pays
    assert not DeeperDraft(64, 1, 3, tokens=1.5, time=1.6, accepted=(0.9, 0.6)).pays
