"""Which of a name's addresses are engines, by the answers its resolver gives."""

from __future__ import annotations

from dataclasses import dataclass

# No fleet is this large; an answer that is comes from somewhere else.
MAX_ADDRESSES = 1024


@dataclass(frozen=True, slots=True)
class Addresses:
    """A name's addresses by now.

    An address goes only after two answers in a row that lack it: one may come of a resolver that lags behind.

    Attributes:
        known: those in use, at most MAX_ADDRESSES.
        missed: those of them that the last answer lacked.
    """

    known: frozenset[str] = frozenset()
    missed: frozenset[str] = frozenset()

    @property
    def current(self) -> tuple[str, ...]:
        """The addresses in use, sorted."""
        return tuple(sorted(self.known))

    def after(self, answer: frozenset[str] | None) -> Addresses:
        """Return the addresses after one more answer.

        Args:
            answer: what the name resolves to. None or nothing means that the resolver failed, which says
                nothing of engines: all stay, and their health tells who lives.
        """
        if not answer:
            return self
        kept = self.known - (self.missed - answer)
        room = MAX_ADDRESSES - len(kept)
        return Addresses(kept.union(sorted(answer - kept)[:room]), kept - answer)
