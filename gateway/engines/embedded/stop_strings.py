"""An answer ends where one of the request's stop strings would come, however its text arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST = 16
_MAX_CHARS = 256


class StopStrings:
    """Cuts a text at the first stop string.

    Attributes:
        hit: the stop string that ended the text; None before.
    """

    def __init__(self, stops: Sequence[str], *, keep: bool = False) -> None:
        """Look out for stop strings; `keep`: the one that is found belongs to the answer."""
        self._stops = stops
        self._keep = keep
        self._held = ""
        self.hit: str | None = None

    def feed(self, text: str) -> str:
        """Return as much of the text so far as is sure to stand before a stop string."""
        if not self._stops:
            return text
        text = self._held + text
        places = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            # The one that is complete first, as if the text came letter by letter.
            place, self.hit = min(places, key=lambda found: (found[0] + len(found[1]), found[0]))
            self._held = ""
            return text[: place + len(self.hit) if self._keep else place]
        # The longest end that may be a stop string's beginning.
        longest = min(max(map(len, self._stops)) - 1, len(text))
        held = next((size for size in range(longest, 0, -1) if self._may_begin(text[-size:])), 0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def rest(self) -> str:
        """Return what was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held

    def _may_begin(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self._stops)


def stop_strings(stop: Any) -> tuple[str, ...]:
    """Read a request's `stop`: a string, or a list of them.

    Raises:
        BadRequest: it is neither, or has an empty string, too many or too long ones.
    """
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not (isinstance(stops, list) and all(isinstance(one, str) for one in stops)):
        raise BadRequest("`stop` must be a string or a list of strings", param="stop")
    if not all(stops):
        raise BadRequest("`stop` cannot contain an empty string", param="stop")
    if len(stops) > _MOST or any(len(one) > _MAX_CHARS for one in stops):
        raise BadRequest(f"`stop` may have {_MOST} strings of up to {_MAX_CHARS} characters", param="stop")
    return tuple(stops)
