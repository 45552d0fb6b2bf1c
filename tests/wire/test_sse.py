import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import EngineFailed
from gateway.wire.sse import EventSplitter, data_event, event_data

STREAMS = st.lists(
    st.sampled_from([b"data: a", b"\n", b"\r\n", b"\r", b": note", b"data:", b"id: 7"]), max_size=30
)


def told(events: list[bytes]) -> list[bytes]:
    return [data for event in events if (data := event_data(event)) is not None]


@given(STREAMS.map(b"".join), st.lists(st.integers(1, 7), max_size=40))
def test_events_do_not_depend_on_how_the_bytes_arrive_and_none_is_lost(
    stream: bytes, sizes: list[int]
) -> None:
    splitter = EventSplitter()
    events: list[bytes] = []
    start = 0
    for size in [*sizes, len(stream)]:
        events += splitter.feed(stream[start : start + size])
        start += size
    rest = splitter.rest()
    assert b"".join(events) + rest == stream
    assert splitter.rest() == b""
    assert told(events) == told(EventSplitter().feed(stream))


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_whole_events_come_out_as_they_complete(newline: bytes) -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1" + newline) == []
    assert splitter.feed(newline + b"data: 2") == [b"data: 1" + 2 * newline]
    assert splitter.feed(2 * newline) == [b"data: 2" + 2 * newline]


@pytest.mark.parametrize("blank", [b"\n\r\n", b"\r\n\n", b"\n\r", b"\r\r\n"])
def test_line_ends_may_differ(blank: bytes) -> None:
    assert EventSplitter().feed(b"data: 1" + blank + b"data: 2\r\ndata: 3" + blank)[1].startswith(b"data: 2")


def test_an_endless_event_is_refused() -> None:
    splitter = EventSplitter(max_event_bytes=10)
    with pytest.raises(EngineFailed):
        splitter.feed(b"data: 0123456789")


def test_data_of_an_event() -> None:
    assert event_data(data_event(b'{"a":1}')) == b'{"a":1}'
    assert event_data(b"id: 3\r\ndata:one\r\ndata: two\r\n\r\n") == b"one\ntwo"
    assert event_data(b"data\n\n") == b""
    assert event_data(b": keep-alive\n\n") is None
