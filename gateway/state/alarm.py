"""One call at a moment that may be changed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

# A loop's timer may go off a little early, and would be set again for next to no time.
_LEAST_S = 0.001


class Timer(Protocol):
    """What a scheduler returns of a call to come, such as asyncio's TimerHandle."""

    def cancel(self) -> None:
        """Have the call not made."""


class Alarm:
    """Calls back once, at the moment last set.

    Attributes:
        timer: of the call to come; None where none is.
    """

    def __init__(
        self, call_later: Callable[[float, Callable[[], None]], Timer], call: Callable[[], None]
    ) -> None:
        """Prepare.

        Args:
            call_later: has a function called in so many seconds, as an event loop does.
            call: that function; nothing is set when it is called.
        """
        self._call_later = call_later
        self._call = call
        self.timer: Timer | None = None
        self._at = math.inf

    def set(self, at: float, now: float) -> None:
        """Set the moment; infinity for none."""
        if at == self._at:
            return
        self.clear()
        if at < math.inf:
            self._at = at
            self.timer = self._call_later(max(at - now, _LEAST_S), self._ring)

    def clear(self) -> None:
        """Have no call made."""
        self._at = math.inf
        if self.timer:
            self.timer.cancel()
            self.timer = None

    def _ring(self) -> None:
        self.timer, self._at = None, math.inf
        self._call()
