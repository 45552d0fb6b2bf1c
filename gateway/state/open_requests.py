"""The requests being dealt with, and whether the gateway still takes new ones."""

from __future__ import annotations


class OpenRequests:
    """Counts requests from their receipt to the last byte of their answers; knows how far a stop has come.

    Attributes:
        open: how many there are.
        closing: the gateway is about to stop: work is taken, but clients had better go elsewhere.
        draining: no new work is taken, but for
        kept: clients, by host and port, of connections that could not be told to close before.
    """

    def __init__(self) -> None:
        self.open = 0
        self.closing = self.draining = False
        self.kept: frozenset[tuple[str, int]] = frozenset()

    def begin(self) -> None:
        """Count a request."""
        self.open += 1

    def end(self) -> None:
        """Count one less."""
        self.open -= 1

    def announce_stop(self) -> None:
        """Note that the gateway is about to stop."""
        self.closing = True

    def drain(self, kept: frozenset[tuple[str, int]]) -> None:
        """Take new work from these connections only."""
        self.draining, self.kept = True, kept
