"""Token buckets: how much of a limit by the minute is left, and when enough of it will be.

A bucket holds a minute's worth and fills evenly, so who has rested may take that much at once; in t seconds
no more passes than the limit times (1 + t / 60).
"""

from __future__ import annotations

from typing import NamedTuple

MINUTE_S = 60.0
# By which share of the limit rounding may be off: who waits as long as told is not told to wait again.
_ROUNDING = 1e-9


class Bucket(NamedTuple):
    """What is left of a limit.

    Attributes:
        limit: what may be taken in a minute.
        left: what could be taken at once,
        at: at this time, in seconds.
    """

    limit: int
    left: float
    at: float

    @classmethod
    def full(cls, limit: int, now: float) -> Bucket:
        """Return one from which nothing has been taken."""
        return cls(limit, float(limit), now)

    def filled(self, now: float) -> Bucket:
        """Return it as it is at a later time; one that goes back changes nothing."""
        if now <= self.at:
            return self
        grown = self.left + (now - self.at) * self.limit / MINUTE_S
        return Bucket(self.limit, min(float(self.limit), grown), now)

    def limited(self, limit: int, now: float) -> Bucket:
        """Return it under another limit: what has been used counts against that, too."""
        filled = self.filled(now)
        used = self.limit - filled.left
        return Bucket(limit, max(0.0, limit - used), filled.at)

    def taken(self, amount: int, now: float) -> Bucket | None:
        """Return what remains when an amount is taken; None where it is not there."""
        filled = self.filled(now)
        if amount > filled.left + self.limit * _ROUNDING:
            return None
        return Bucket(self.limit, max(0.0, filled.left - amount), filled.at)

    def wait_s(self, amount: int, now: float) -> float:
        """Return the seconds until an amount, of at most the limit, will be there if nobody takes any."""
        return max(0.0, amount - self.filled(now).left) * MINUTE_S / self.limit

    def reset_s(self, now: float) -> float:
        """Return the seconds until it is full again if nobody takes any."""
        return self.wait_s(self.limit, now)
