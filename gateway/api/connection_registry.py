"""All connections from clients: how many there may be, and which have taken too long."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from gateway.errors import GatewayError, RequestTimeout, Unavailable
from gateway.policy.admit.connection_limits import ADMIN_CONNECTIONS, heads_in_parts, overdue
from gateway.upstream.http1 import has_unread
from gateway.wire.http.phases import ENDED, ConnectionPhase

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gateway.config.schema import Limits
    from gateway.wire.http.messages import RequestReader

log = logging.getLogger(__name__)

# Connections beyond the limit that are being told so.
_REFUSED_AT_ONCE = 64
_LOG_S = 60.0
# nginx's lingering_timeout and lingering_time.
_LINGER_IDLE_S = 5.0
_LINGER_S = 30.0


class Registered(Protocol):
    """What is asked of a connection here: see `ClientConnection`."""

    phase: ConnectionPhase
    admin: bool
    placed: bool
    client: tuple[str, int] | None
    transport: asyncio.Transport
    written: int
    blocked: tuple[float, int] | None
    body_since: float
    heard_at: float
    ended_at: float
    reader: RequestReader

    @property
    def receiving(self) -> bool:
        """Whether more of a request's body is waited for."""

    @property
    def broken_off(self) -> bool:
        """Whether it ended before an answer did."""

    def note_read(self) -> None:
        """Note that the client has read all that was written."""

    def shutdown(self) -> None:
        """Close when nothing is under way, or as soon as nothing is."""

    def close(self) -> None:
        """Take no more requests; the client gets what has been written."""

    def refuse(self, error: GatewayError) -> None:
        """Answer with an error, and end."""

    def fail(self, error: GatewayError) -> None:
        """Refuse what has come of a request."""

    def abort(self) -> None:
        """Drop it, with all that waits to be sent."""


class ConnectionRegistry:
    """The connections of a server by what they wait for, and what has become of them.

    It is uvicorn's `server_state`, to which `connections`, `tasks`, `total_requests` and `default_headers`
    belong.

    Attributes:
        idle: without a request, since when; the first has waited longest, as in all of these.
        heads: with a part of a head, since when.
        busy: with a request, or an answer that the client has yet to read.
        leaving: answered for the last time, but maybe still sending.
        groups: all of these, by phase.
        places: taken, on the public port (False) and on the admin port (True).
        room: how many places there are on either.
        limits: those in force at the last check.
        refused: connections ended by the gateway, by reason.
    """

    def __init__(
        self,
        limits: Callable[[], Limits],
        capacity: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with none.

        Args:
            limits: returns those in force.
            capacity: returns how many clients may be connected.
            clock: seconds.
        """
        self.connections: set[Registered] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.total_requests = 0
        self.default_headers: list[tuple[bytes, bytes]] = []
        self.limits = limits()
        self.clock = clock
        self.idle: dict[Registered, float] = {}
        self.heads: dict[Registered, float] = {}
        self.busy: dict[Registered, float] = {}
        self.leaving: dict[Registered, float] = {}
        self.places: Counter[bool] = Counter()
        self.room = {False: capacity(), True: ADMIN_CONNECTIONS}
        self.refused: Counter[str] = Counter()
        self._find_limits = limits
        self._find_capacity = capacity
        self._logged: Counter[str] = Counter()
        self._logged_at = -_LOG_S
        self.groups: dict[ConnectionPhase, dict[Registered, float]] = {
            ConnectionPhase.IDLE: self.idle,
            ConnectionPhase.HEAD: self.heads,
            ConnectionPhase.EXCHANGE: self.busy,
            ConnectionPhase.LAST_ANSWER: self.busy,
            ConnectionPhase.UNREAD: self.busy,
            ConnectionPhase.LINGERING: self.leaving,
            ConnectionPhase.CLOSING: self.busy,
            ConnectionPhase.CLOSED: {},
        }

    def make_room(self, new: Registered) -> bool:
        """Whether a new connection gets the place of one that asks for nothing, or slowly; else end it."""
        if longest := self._longest(new.admin):
            self.refused["closed_for_room"] += 1
            longest.placed = False
            longest.abort()
            return True
        if len(self.connections) - self.places.total() > _REFUSED_AT_ONCE:
            self.refused["too_many_connections"] += 1
            new.abort()
        else:
            new.refuse(
                Unavailable(
                    "the gateway has as many connections as it may (limits.connections); retry shortly",
                    code="too_many_connections",
                    retry_after=1,
                )
            )
        return False

    def check(self) -> None:
        """End what has taken too long; to be called about twice a second."""
        now = self.clock()
        limits = self.limits = self._find_limits()
        self.room[False] = self._find_capacity()
        # Where the process itself is late, what has come in time may lie unread.
        for one in _before(self.idle, now - limits.keep_alive_s):
            if not has_unread(one.transport):
                one.close()
        for one in _before(self.heads, now - limits.header_s):
            if has_unread(one.transport) and now - self.heads[one] < 2 * limits.header_s:
                continue
            one.refuse(
                RequestTimeout(
                    f"the headers did not come within {limits.header_s:g} s (limits.header_s)",
                    code="header_timeout",
                )
            )
        self._check_transfers(now, limits.body_s)
        if now - self._logged_at >= _LOG_S and (news := self.refused - self._logged):
            log.warning(
                "connections ended by the gateway: %s",
                ", ".join(f"{count} {reason}" for reason, count in sorted(news.items())),
            )
            self._logged, self._logged_at = self.refused.copy(), now

    def check_heads(self) -> None:
        """End the longest of too many that have sent parts of a head; nearly all heads come in one piece."""
        if len(self.heads) > heads_in_parts(self.limits.header_bytes):
            self.refused["closed_for_room"] += 1
            next(iter(self.heads)).abort()

    def close_idle(self, now: float, patience_s: float) -> frozenset[tuple[str, int]]:
        """Close those that have been idle for so long; return the clients of the others, by host and port.

        While the gateway stops, all answers tell their clients to close, but for those that began before. So
        a connection that is not closed by its answer stays until it has been idle for as long as its client
        may keep it. One with unread bytes is not idle: they are a request.
        """
        for one in _before(self.idle, now - patience_s):
            if not has_unread(one.transport):
                one.close()
        others = (*self.idle, *self.heads, *self.busy)
        return frozenset(one.client for one in others if one.client and one.phase not in ENDED)

    def _check_transfers(self, now: float, body_s: float) -> None:
        """End those whose clients are too slow to send a body, to read an answer, or to leave."""
        for one in [*self.leaving, *self.busy]:
            if unsent := one.transport.get_write_buffer_size():
                sent = one.written - unsent
                since, before = one.blocked = one.blocked or (now, sent)
                # What was broken off is not kept for a slow reader: it counts as read no more.
                if overdue(now - since, 0 if one.broken_off else sent - before, body_s):
                    self.refused["answer_not_read"] += 1
                    one.abort()
                continue
            one.blocked = None
            if one.phase in ENDED:
                quiet_s = now - max(one.heard_at, one.ended_at)
                if quiet_s >= _LINGER_IDLE_S or now - one.ended_at >= _LINGER_S:
                    one.abort()
            elif one.phase is ConnectionPhase.UNREAD:
                one.note_read()
            elif one.receiving:
                _check_sending(one, now - one.body_since, body_s)

    def _longest(self, admin: bool) -> Registered | None:
        """Who makes room first: those that have had their answers, then who has not asked for longest."""
        if leaves := next((one for one in self.leaving if one.placed and one.admin is admin), None):
            return leaves
        first = [
            next(((since, one) for one, since in group.items() if one.admin is admin), None)
            for group in (self.idle, self.heads)
        ]
        return min(filter(None, first), key=lambda entry: entry[0], default=(0.0, None))[1]


def _check_sending(one: Registered, seconds: float, body_s: float) -> None:
    """Refuse a request whose body comes too slowly."""
    count = one.reader.body_bytes
    if (
        overdue(seconds, count, body_s)
        # Where the process itself is late, what has come in time may lie unread.
        and (overdue(seconds, count, 2 * body_s) or not has_unread(one.transport))
    ):
        one.fail(
            RequestTimeout(
                f"the body comes too slowly: {count:,} bytes in {seconds:.0f} s (limits.body_s)",
                code="body_timeout",
            )
        )


def _before(group: dict[Registered, float], end: float) -> list[Registered]:
    """Return those that have been in a group since before a time: the first ones."""
    found = []
    for one, since in group.items():
        if since > end:
            break
        found.append(one)
    return found
