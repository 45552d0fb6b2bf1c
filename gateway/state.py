"""The only mutable store: which engines are up, and the leases that occupy them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.model import Engine, EngineView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType
    from typing import Self


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All engines, and requests in flight by route, at one moment."""

    engines: tuple[EngineView, ...]
    in_flight: Mapping[str, int]


class Lease:
    """A request's place on an engine: taken by `with`, given back exactly once however the block ends."""

    def __init__(self, state: State, route: str, engine: Engine) -> None:
        self._state = state
        self._route = route
        self.engine = engine

    def __enter__(self) -> Self:
        self._state._occupy(self._route, self.engine, +1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state._occupy(self._route, self.engine, -1)


class State:
    """Engines and leases of one process; not shared between threads."""

    def __init__(self, engines: Iterable[Engine], routes: Iterable[str]) -> None:
        self._engines = {engine.name: engine for engine in engines}
        self._up: dict[str, bool | None] = dict.fromkeys(self._engines)
        self._load: Counter[str] = Counter()
        self._in_flight: Counter[str] = Counter(dict.fromkeys(routes, 0))

    def views(self, pools: Iterable[str]) -> list[EngineView]:
        """Return the engines of the named pools as they are now."""
        wanted = frozenset(pools)
        return [
            EngineView(engine, bool(self._up[name]), self._load[name])
            for name, engine in self._engines.items()
            if engine.pool in wanted
        ]

    def snapshot(self) -> Snapshot:
        """Return everything at this moment."""
        pools = {engine.pool for engine in self._engines.values()}
        return Snapshot(tuple(self.views(pools)), dict(self._in_flight))

    def lease(self, route: str, engine: Engine) -> Lease:
        """Return the lease by which a request of `route` occupies `engine` while it is entered."""
        return Lease(self, route, engine)

    def mark(self, engine: str, *, up: bool) -> bool:
        """Note whether an engine answers; tell whether that is news."""
        changed = self._up[engine] != up
        self._up[engine] = up
        return changed

    def _occupy(self, route: str, engine: Engine, change: int) -> None:
        self._load[engine.name] += change
        self._in_flight[route] += change
