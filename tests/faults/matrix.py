"""What comes of each fault of an engine: the fault matrix as data, and its tables in docs/reliability.md.

`python -m tests.faults.matrix` writes the tables anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.hostile import FAULTS, Point

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PAGE = Path(__file__).parents[2] / "docs/reliability.md"


@dataclass(frozen=True)
class Outcome:
    """What follows from a fault.

    Attributes:
        client: what the client gets where no other engine is up, for the documentation.
        status: its HTTP status.
        code: `error.code`, of the answer or the event that ends the stream; None where it is the engine's.
        retried: the reason in `retries_total`, where another engine answers if one is up; "" where not.
        counted: the code in `requests_total` where it is not retried; 0 for the status.
        blamed: it counts against the engine's breaker.
        whole: the client has all of a good answer.
    """

    client: str
    status: int
    code: str | None = None
    retried: str = ""
    counted: int = 0
    blamed: bool = False
    whole: bool = False

    @property
    def booked(self) -> int:
        """The code in `requests_total`."""
        return self.counted or self.status


_REFUSED = "an error"
_LATER = "an error, with `Retry-After`"
_ENDED = "the stream so far, ended by an error event"
_TOLD = "the stream, the engine's own error event in it"

OUTCOMES = {
    "answered": Outcome("the answer", 200, whole=True),
    "unreachable": Outcome(_REFUSED, 502, "engine_unreachable", "unreachable", blamed=True),
    "no connection": Outcome(_REFUSED, 504, "connect_timeout", "connect_timeout", blamed=True),
    "died": Outcome(_REFUSED, 502, "engine_died", "died", blamed=True),
    "garbage": Outcome(_REFUSED, 502, "engine_garbage", "garbage", blamed=True),
    "garbled stream": Outcome(_REFUSED, 502, "bad_stream", "garbage", blamed=True),
    "strange status": Outcome(_REFUSED, 502, "engine_error", "garbage", blamed=True),
    "busy": Outcome(_LATER, 503, "engine_busy", "busy"),
    "stopping": Outcome(_LATER, 503, "engine_stopping", "stopping"),
    "bad gateway": Outcome(_REFUSED, 502, "engine_error", "bad_gateway", blamed=True),
    "gateway timeout": Outcome(_REFUSED, 504, "engine_slow", "gateway_timeout", blamed=True),
    "slow": Outcome(_REFUSED, 504, "engine_slow", blamed=True),
    "silent": Outcome(_REFUSED, 504, "engine_idle", blamed=True),
    "out of time": Outcome(_REFUSED, 504, "total_timeout", blamed=True),
    "too long": Outcome(_REFUSED, 502, "answer_too_long", "error"),
    "error": Outcome(_REFUSED, 502, "engine_error", "error"),
    "wrong key": Outcome(_REFUSED, 502, "engine_key", "key", blamed=True),
    "unknown path": Outcome(_REFUSED, 502, "engine_error", "refused", blamed=True),
    **{
        f"refused {code}": Outcome("the engine's answer, in OpenAI's shape", code, None, "rejected")
        for code in (400, 422)
    },
    "broken off": Outcome(_ENDED, 200, "engine_died", counted=502, blamed=True),
    "turned to garbage": Outcome(_ENDED, 200, "engine_garbage", counted=502, blamed=True),
    "garbled": Outcome(_ENDED, 200, "bad_stream", counted=502, blamed=True),
    "fell silent": Outcome(_ENDED, 200, "engine_idle", counted=504, blamed=True),
    "too late": Outcome(_ENDED, 200, "total_timeout", counted=504),
    "told failure": Outcome(_TOLD, 200, counted=502, blamed=True),
    "told refusal": Outcome(_TOLD, 200, counted=400),
    "no engine": Outcome(_LATER, 503, "no_engine"),
}


def _always(outcome: str, begun: str = "") -> dict[Point, str]:
    """The same whatever has been sent; something else once a stream has begun, if given."""
    return {point: begun if begun and point is Point.STREAM_BEGUN else outcome for point in Point}


def _hasty(stream: str = "slow") -> dict[Point, str]:
    """What runs into the nearest time limit."""
    return {**_always("out of time", "fell silent"), Point.STREAM: stream}


_ANSWERED, _GARBAGE, _DIED = (
    _always("answered"),
    _always("garbage", "broken off"),
    _always("died", "broken off"),
)

# By fault and point; points that a fault does not have are passed over.
_EXPECTED: dict[str, Mapping[Point, str]] = {
    "refused": _always("unreachable"),
    "no-connection": _always("no connection"),
    "stopped": _hasty(),
    "killed": _DIED,
    "paused": _hasty(),
    "closes": _DIED,
    "resets": _DIED,
    "half-closes": _DIED,
    "silent": _hasty(),
    "closes-after-head": _DIED,
    "resets-after-head": _DIED,
    "silent-after-head": _hasty("silent"),
    "trickles": _hasty(),
    "unread": _always("refused 400"),
    "byte-by-byte": _ANSWERED,
    "no-http": _GARBAGE,
    "http-0.9": _GARBAGE,
    "http-1.0": _ANSWERED,
    "endless-headers": _GARBAGE,
    "giant-header": _GARBAGE,
    "nul-header": _GARBAGE,
    "cr-header": _GARBAGE,
    "latin-1-header": _ANSWERED,
    "early-hints": _ANSWERED,
    "continues": _hasty(),
    "continue-flood": _hasty(),
    "101": _always("strange status"),
    "no-length": _ANSWERED,
    "short-length": _GARBAGE,
    "long-length": _DIED,
    "negative-length": _GARBAGE,
    "huge-length": _GARBAGE,
    "two-lengths": _GARBAGE,
    "length-and-chunks": _GARBAGE,
    "bad-chunk-size": _always("garbage", "turned to garbage"),
    "huge-chunk-size": _always("garbage", "turned to garbage"),
    "unfinished-chunk": _DIED,
    "no-last-chunk": _DIED,
    "chunk-extension": _ANSWERED,
    "two-answers": _ANSWERED,
    "late-answer": _ANSWERED,
    "204": _GARBAGE,
    "304": _always("strange status"),
    "302": _always("strange status"),
    **{code: _always(f"refused {code}") for code in ("400", "422")},
    "404": _always("unknown path"),
    "429": _always("busy"),
    "401": _always("wrong key"),
    "403": _always("wrong key"),
    "500": _always("error"),
    "502": _always("bad gateway"),
    "503": _always("busy"),
    "503-absurd": _always("busy"),
    "504": _always("gateway timeout"),
    "999": _always("error"),
    "stopping": _always("stopping"),
    **{f"400-{kind}": _always("refused 400") for kind in ("html", "empty", "invalid-utf-8")},
    "400-giant": _always("refused 400"),
    **{f"500-{kind}": _always("error") for kind in ("html", "empty", "invalid-utf-8", "deep", "giant")},
    **{f"503-{kind}": _always("busy") for kind in ("endless", "silent", "broken")},
    "garbage": _GARBAGE,
    "html": _GARBAGE,
    "empty": _GARBAGE,
    "truncated": _GARBAGE,
    "no-completion": _GARBAGE,
    "error-as-200": {**_GARBAGE, Point.WHOLE: "error"},
    "gigantic": _always("too long"),
    "endless": _always("too long"),
    "nan": _GARBAGE,
    "deep": _GARBAGE,
    "invalid-utf-8": _GARBAGE,
    "gzip": _GARBAGE,
    "gzip-bomb": _GARBAGE,
    "gzip-stream": _GARBAGE,
    "aborted": _DIED,
    "absurd-usage": _ANSWERED,
    "text-plain": _ANSWERED,
    "stream-as-text": _GARBAGE,
    "stream-unasked": _GARBAGE,
    "whole-unasked": _ANSWERED,
    "endless-tokens": _always("too late"),
    "comments": _hasty("silent"),
    "comment-flood": _always("garbage", "fell silent"),
    "no-done": _GARBAGE,
    "done-first": _GARBAGE,
    "after-done": _ANSWERED,
    "silent-after-done": _ANSWERED,
    "flood-after-done": _ANSWERED,
    "reset-after-done": _ANSWERED,
    "error-event": _always("bad gateway", "told failure"),
    "error-event-400": _always("told refusal"),
    "error-event-503": _always("busy", "told failure"),
    "error-event-bare": _always("bad gateway", "told failure"),
    "abort-event": _DIED,
    "word-error-abort": _always("died"),
    "no-json-event": _always("garbage", "answered"),
    "deep-event": _always("garbage", "answered"),
    "invalid-utf-8-event": _always("garbage", "answered"),
    "giant-event": _always("garbled stream", "garbled"),
    "carriage-returns": _ANSWERED,
    "mixed-line-ends": _ANSWERED,
    "byte-chunks": _ANSWERED,
    "byte-order-mark": _ANSWERED,
}
# What costs seconds: processes of their own, or time limits that have to pass.
SLOW = {(name, point) for name in ("killed", "paused", "503-silent") for point in Point}

# What a simulated engine can be made to suffer: what comes of it for an ordinary answer, and for a stream.
SIMULATED = {
    "none": ("answered", "answered"),
    "slow": ("answered", "answered"),
    "hang": ("out of time", "slow"),
    "die": ("died", "broken off"),
    "die_mid_stream": ("died", "broken off"),
    "garbage": ("garbage", "garbage"),
    "unavailable": ("busy", "busy"),
    "not_ready": ("no engine", "no engine"),
    "reset_counters": ("answered", "answered"),
    "sleep": ("no engine", "no engine"),
    "drain": ("stopping", "stopping"),
}

_BEGIN, _END = "<!-- the tables below: python -m tests.faults.matrix -->\n", "<!-- end of the tables -->\n"


def cells() -> Iterator[tuple[str, Point, str]]:
    """Every fault, the points at which it strikes, and the name of what comes of it."""
    for name, fault in FAULTS.items():
        for point in fault.steps:
            yield name, point, _EXPECTED[name][point]


def tables() -> str:
    """Return the tables, as they stand in the documentation."""
    return f"{_outcomes()}\n{_faults()}\n{_simulated()}"


def _outcomes() -> str:
    rows = [
        [
            "",
            "the client gets",
            "status",
            "`error.code`",
            "tried elsewhere (`retries_total`)",
            "`requests_total`",
            "counts",
        ]
    ]
    rows += [
        [
            f"**{name}**",
            one.client,
            str(one.status),
            f"`{one.code}`" if one.code else "",
            f"yes: `{one.retried}`" if one.retried else "no",
            f"{one.booked}, 200 if tried elsewhere" if one.retried else str(one.booked),
            "yes" if one.blamed else "no",
        ]
        for name, one in OUTCOMES.items()
    ]
    return _table(rows)


def _faults() -> str:
    found: dict[str, dict[Point, str]] = {}
    for name, point, outcome in cells():
        found.setdefault(name, {})[point] = outcome
    rows = [["the engine", *Point]]
    rows += [[FAULTS[name].what, *(by.get(point, "") for point in Point)] for name, by in found.items()]
    return _table(rows)


def _simulated() -> str:
    rows = [["fault of a simulated engine", "ordinary answer", "stream"]]
    return _table([*rows, *([f"`{kind}`", *outcomes] for kind, outcomes in SIMULATED.items())])


def _table(rows: Iterable[Iterable[str]]) -> str:
    head, *body = [f"| {' | '.join(row)} |\n" for row in rows]
    return "".join([head, f"|{'---|' * (head.count('|') - 1)}\n", *body])


def placed(page: str) -> str:
    """Return a page with the tables in their place."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{tables()}\n{_END}{after}"


if __name__ == "__main__":
    PAGE.write_text(placed(PAGE.read_text()))
