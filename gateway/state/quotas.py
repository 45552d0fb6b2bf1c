"""The API keys in force, what they have used of their limits, and what came of it; a part of the state."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from gateway.config import KeyLimits, Keys
from gateway.errors import BodyTooLarge, RateLimited
from gateway.policy.admit.token_bucket import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.config import Config

_UNLIMITED = KeyLimits()
_CODE = "rate_limit_exceeded"
# Nobody knows when a request of the same key will end.
_CONCURRENT_RETRY_S = 1


class Quotas:
    """Counts by the names of the configured keys, and of no other; not shared between threads.

    Attributes:
        keys: those in force.
        requests: requests that have ended, by name and status; the name is empty where no key was given, or
            an unknown one.
        image_bytes: bytes of images that came, decoded, by name.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without keys; `clock` returns the time in seconds."""
        self.keys = Keys()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.image_bytes: Counter[str] = Counter()
        self._clock = clock
        self._uses: dict[str, _KeyUse] = {}

    def configure(self, config: Config) -> None:
        """Take limits over: they hold for what runs and has been used already, too."""
        self.keys = config.keys
        limits, names, now = config.auth.limits, self.keys.names, self._clock()
        self._uses = {name: self._uses.get(name) or _KeyUse(name) for name in names}
        for name, use in self._uses.items():
            use.limit(limits.get(name) or limits.get("*") or _UNLIMITED, now)
        for key in [key for key in self.requests if key[0] not in ("", *names)]:
            del self.requests[key]
        for name in [name for name in self.image_bytes if name not in names]:
            del self.image_bytes[name]

    def open_use(self, name: str) -> QuotaUse:
        """Return what books one request of a key, or of none."""
        # A key that has been taken out meanwhile was good when the request came.
        return QuotaUse(self._uses.get(name) or _KeyUse(name), self._clock)

    def count_request(self, name: str, code: int, image_bytes: int = 0) -> None:
        """Count a request."""
        if name in self._uses or not name:
            self.requests[name, code] += 1
        if image_bytes and name in self._uses:
            self.image_bytes[name] += image_bytes

    def in_flight(self, name: str) -> int:
        """Return how many requests of a key are in."""
        return self._uses[name].in_flight if name in self._uses else 0


class _KeyUse:
    """What one key uses, counted with and without limits, so that limits that come later find it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.limits = _UNLIMITED
        self.in_flight = 0
        self.buckets: dict[str, Bucket] = {}

    def limit(self, limits: KeyLimits, now: float) -> None:
        self.limits = limits
        wanted = {"requests": limits.requests_per_minute, "image-bytes": limits.image_bytes_per_minute}
        self.buckets = {
            kind: self.buckets[kind].limited(limit, now) if kind in self.buckets else Bucket.full(limit, now)
            for kind, limit in wanted.items()
            if limit
        }


class QuotaUse:
    """One request of a key, from its receipt to its end."""

    def __init__(self, use: _KeyUse, clock: Callable[[], float]) -> None:
        self._use = use
        self._clock = clock
        self._in = False

    def admit(self) -> None:
        """Take a place, which is the request's until `release`.

        Raises:
            RateLimited: the key has as many requests here, or has sent as many in the last minute, as it may.
        """
        most = self._use.limits.concurrent
        if most is not None and self._use.in_flight >= most:
            raise RateLimited(
                f"the key {self._use.name!r} has {most:,} requests here already (auth.limits: concurrent)",
                code=_CODE,
                retry_after=_CONCURRENT_RETRY_S,
            )
        self._take("requests", 1)
        self._in = True
        self._use.in_flight += 1

    def add_image_bytes(self, image_bytes: int) -> None:
        """Book the images that the request has brought.

        Raises:
            BodyTooLarge: they are more than the key may send in a whole minute.
            RateLimited: they are more than it may send now.
        """
        most = self._use.limits.image_bytes_per_minute
        if most is not None and image_bytes > most:
            raise BodyTooLarge(
                f"the request's images are {image_bytes:,} bytes, and the key {self._use.name!r} may send "
                f"{most:,} in a minute (auth.limits: image_bytes_per_minute); send fewer or smaller ones",
                code="image_bytes_over_limit",
            )
        self._take("image-bytes", image_bytes)

    def release(self) -> None:
        """Give the place back; once, however often it is called."""
        if self._in:
            self._in = False
            self._use.in_flight -= 1

    def headers(self) -> dict[str, str]:
        """Return how the key stands with its limits, in the form of OpenAI's headers."""
        return dict(self._headers(self._clock())) if self._use.buckets else {}

    def _headers(self, now: float) -> Iterator[tuple[str, str]]:
        for kind, bucket in self._use.buckets.items():
            filled = bucket.filled(now)
            yield f"x-ratelimit-limit-{kind}", str(filled.limit)
            yield f"x-ratelimit-remaining-{kind}", str(int(filled.left))
            yield f"x-ratelimit-reset-{kind}", f"{math.ceil(filled.reset_s(now) * 1000) / 1000:g}s"

    def _take(self, kind: str, amount: int) -> None:
        bucket = self._use.buckets.get(kind)
        if bucket is None:
            return
        now = self._clock()
        rest = bucket.taken(amount, now)
        if rest is None:
            raise RateLimited(
                f"the key {self._use.name!r} may send {bucket.limit:,} {kind.replace('-', ' ')} a minute "
                f"(auth.limits: {kind.replace('-', '_')}_per_minute); too few are left of them now",
                code=_CODE,
                retry_after=max(1, math.ceil(bucket.wait_s(amount, now))),
            )
        self._use.buckets[kind] = rest
