"""The account of what requests under way hold in memory: their bodies, their images, whole answers."""

from __future__ import annotations

from collections import Counter

from gateway.errors import Unavailable
from gateway.policy.admit.memory_share import may_hold

FULL = "memory_full"

_RETRY_AFTER_S = 2


class BodyMemory:
    """Bytes held, by client; not shared between threads.

    Attributes:
        limit: bytes that may be held in all.
        total: bytes held in all.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._own: Counter[str] = Counter()

    def resize(self, limit: int) -> None:
        """Take over how many bytes may be held in all; what is held stays."""
        self.limit = limit

    def claim(self, client: str) -> MemoryClaim:
        """Open the account of one request of a client."""
        return MemoryClaim(self, client)

    def _change(self, client: str, by: int) -> None:
        self.total += by
        self._own[client] += by
        if not self._own[client]:
            del self._own[client]


class MemoryClaim:
    """What one request holds, until it is closed.

    Attributes:
        size: bytes held.
    """

    def __init__(self, memory: BodyMemory, client: str) -> None:
        self._memory = memory
        self._client = client
        self.size = 0

    def check_room(self, more: int) -> None:
        """Check that so many bytes more could be held as things stand; nothing is counted yet.

        Raises:
            Unavailable: they could not (code `memory_full`).
        """
        memory = self._memory
        if 2 * (memory.total + more) <= memory.limit:
            return  # whoever holds it: no client's share is less
        if not may_hold(more, own=memory._own[self._client], total=memory.total, limit=memory.limit):
            raise _full(memory.limit)

    def add(self, more: int) -> None:
        """Count bytes that are about to be kept.

        Raises:
            Unavailable: the client holds its share of the memory already (code `memory_full`).
        """
        self.check_room(more)
        self._keep(more)

    def add_answer(self, more: int) -> None:
        """Count bytes of an engine's answer: work that is done gets whatever memory there is.

        Raises:
            Unavailable: there is none left (code `memory_full`).
        """
        if self._memory.total + more > self._memory.limit:
            raise _full(self._memory.limit)
        self._keep(more)

    def release(self, fewer: int) -> None:
        """Give bytes back that are kept no more; at the most what is held."""
        fewer = min(fewer, self.size)
        self.size -= fewer
        self._memory._change(self._client, -fewer)

    def _keep(self, more: int) -> None:
        self.size += more
        self._memory._change(self._client, more)

    def close(self) -> None:
        """Give all of it back."""
        self.release(self.size)


def _full(limit: int) -> Unavailable:
    return Unavailable(
        f"requests under way fill the {limit:,} bytes of memory that there are for them, or your share of it "
        "(limits.inflight_bytes); retry when some have been answered",
        code=FULL,
        retry_after=_RETRY_AFTER_S,
    )
