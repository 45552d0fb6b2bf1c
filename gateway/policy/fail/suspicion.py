"""Whose fault a refusal is that may be the request's or the engine's: an unexplained 4xx, a plain 5xx.

Time is an argument, in seconds of any clock that does not run backwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

# One engine's refusals cost at most so many second opinions: a client that sends nothing but bad requests
# has each engine asked twice a second at the most.
_ASK_EVERY_S = 1.0
_ENOUGH_CLIENTS = 2


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What an engine's refusals say of it by now.

    Attributes:
        refusals: in a row, since its last success.
        since: when the first of them came; infinity without any.
        clients: some of those who met them, at most two.
        asked_at: when another engine was last asked for a second opinion.
        pending: that engine has not answered yet.
        confirmed: another engine answered what this one refused.
    """

    refusals: int = 0
    since: float = math.inf
    clients: frozenset[str] = frozenset()
    asked_at: float = -math.inf
    pending: bool = False
    confirmed: bool = False

    def after_refusal(self, client: str, now: float) -> Suspicion:
        """Return it after one more refusal, of a request of `client`."""
        clients = self.clients if len(self.clients) >= _ENOUGH_CLIENTS else self.clients | {client}
        return replace(self, refusals=self.refusals + 1, since=min(self.since, now), clients=clients)

    def after_success(self) -> Suspicion:
        """Return it after an answer: all that was suspected is over."""
        return Suspicion(asked_at=self.asked_at, pending=self.pending)

    def may_ask(self, now: float) -> bool:
        """Whether another engine may be asked to answer what this one has refused."""
        return not (self.confirmed or self.pending) and now - self.asked_at >= _ASK_EVERY_S

    def asked(self, now: float) -> Suspicion:
        """Return it once another engine has been asked."""
        return replace(self, asked_at=now, pending=True)

    def heard(self, *, other_answered: bool) -> Suspicion:
        """Return it once the other engine has answered the request, or has not."""
        return replace(self, pending=False, confirmed=self.confirmed or other_answered)

    @property
    def must_rest(self) -> bool:
        """Whether the engine gets nothing until the other has answered: else all would go where all fails."""
        return self.pending and self.refusals > 1

    def is_engines(self, failures: int, peers_succeeded_at: float) -> bool:
        """Return whether the engine, and not what it is asked, is at fault.

        Args:
            failures: refusals in a row that are too many, where another engine succeeds meanwhile and more
                than one client meets them.
            peers_succeeded_at: when another engine of the route last answered a request.
        """
        if self.confirmed:
            return True
        shared = len(self.clients) >= _ENOUGH_CLIENTS and self.refusals >= failures
        return shared and peers_succeeded_at > self.since
