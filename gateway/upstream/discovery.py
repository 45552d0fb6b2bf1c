"""The engines of a configuration: those named by URL, and those at the addresses that names resolve to."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from gateway.config import EMBEDDED
from gateway.connect_failure import Cause
from gateway.model import Engine
from gateway.policy.fail.resolution import MAX_ADDRESSES, Addresses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from gateway.config import Config

log = logging.getLogger(__name__)

_BY_NAME = "dns+"
_PORTS = {"http": 80, "https": 443}
# After so long a lookup counts as failed for now; it goes on.
_PATIENCE_S = 5.0
# How often a name without addresses is looked up: its engines may be starting.
_EAGER_S = 1.0


@dataclass(slots=True)
class _Name:
    """One `dns+` entry, its addresses so far, and whether and why its last lookup failed."""

    url: SplitResult
    addresses: Addresses = field(default_factory=Addresses)
    failing: bool = False
    trouble: str = ""


class Discovery:
    """Knows the engines of a configuration; `run` keeps looking its names up."""

    def __init__(
        self,
        config: Config,
        on_change: Callable[[], None],
        rng: Random,
        resolve: Callable[[str, int], Awaitable[frozenset[str]]] | None = None,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """Look nothing up yet.

        Args:
            config: the first configuration.
            on_change: called when a name's addresses, and so `engines`, have changed.
            rng: spreads the lookups of several gateways.
            resolve: returns the addresses of a host and port, or raises; `addresses_of` unless given.
            patience_s: seconds after which an unanswered lookup counts as failed.
        """
        self._on_change = on_change
        self._rng = rng
        self._resolve = resolve or addresses_of
        self._patience_s = patience_s
        self._names: dict[str, _Name] = {}
        self._logged_twice: frozenset[tuple[str, str]] = frozenset()
        self._changed = asyncio.Event()
        self.watch(config)

    def watch(self, config: Config) -> None:
        """Change to a configuration; names that the last one had, too, keep their addresses."""
        self._config = config
        entries = [entry for pool in config.pools.values() for entry in pool.engines]
        self._names = {
            entry: self._names.get(entry) or _Name(urlsplit(entry.removeprefix(_BY_NAME)))
            for entry in entries
            if entry.startswith(_BY_NAME)
        }
        self._changed.set()

    def engines_of(self, entry: str) -> tuple[str, ...]:
        """Return the base URLs that an entry of `pools.*.engines`, other than `embedded`, stands for now."""
        name = self._names.get(entry)
        if name is None:
            return (entry,)
        port = _port(name.url)
        return tuple(
            f"{name.url.scheme}://{f'[{address}]' if ':' in address else address}:{port}{name.url.path}"
            for address in name.addresses.current
        )

    def engines(self, embedded_url: str | None = None) -> tuple[Engine, ...]:
        """Return every engine known now; where two entries share an address and path, the first has it.

        Args:
            embedded_url: where the embedded engine listens; without it there is none.
        """
        found: dict[tuple[str | None, int, str], Engine] = {}
        listed_twice: set[tuple[str, str]] = set()
        for pool_name, pool in self._config.pools.items():
            for entry in pool.engines:
                if entry == EMBEDDED:
                    if embedded_url:
                        found[EMBEDDED, 0, ""] = Engine(EMBEDDED, embedded_url, pool_name, pool.depth)
                    continue
                for base in self.engines_of(entry):
                    url = urlsplit(base)
                    place = url.hostname, _port(url), url.path
                    # Always with its port, so that no two engines have one name, and none the embedded one's.
                    name = f"{url.netloc.removesuffix(f':{place[1]}')}:{place[1]}{url.path}"
                    authorities = self._config.authorities.get(pool_name, "")
                    engine = Engine(name, base, pool_name, pool.depth, pool.api_key, authorities)
                    if found.setdefault(place, engine) is not engine:
                        listed_twice.add((entry, base))
        self._log_twice(frozenset(listed_twice))
        return tuple(found.values())

    def pending(self) -> frozenset[str]:
        """Return the pools with a name whose first lookup has neither succeeded nor failed yet."""
        return frozenset(
            pool_name
            for pool_name, pool in self._config.pools.items()
            for entry in pool.engines
            if (name := self._names.get(entry)) and not (name.failing or name.addresses.known)
        )

    def unresolved(self) -> dict[str, tuple[str, ...]]:
        """Return, by pool, its names that have no address now, each with the reason."""
        found = {
            pool_name: tuple(
                f"{name.url.netloc}: {name.trouble}"
                for entry in pool.engines
                if (name := self._names.get(entry)) and name.failing and not name.addresses.current
            )
            for pool_name, pool in self._config.pools.items()
        }
        return {pool_name: names for pool_name, names in found.items() if names}

    async def run(self) -> None:
        """Look the names up, each every `polling.resolve_s` of the configuration, until cancelled."""
        running: dict[str, tuple[_Name, asyncio.Task[None]]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                for entry, (name, task) in list(running.items()):
                    if self._names.get(entry) is not name:
                        del running[entry]
                        task.cancel()
                for entry, name in self._names.items():
                    if entry not in running:
                        running[entry] = name, tasks.create_task(self._follow(name))
                await self._changed.wait()

    async def _follow(self, name: _Name) -> None:
        lookup: asyncio.Future[frozenset[str]] | None = None
        try:
            while True:
                # A lookup that has not answered in time goes on: there are never two for one name.
                lookup = lookup or asyncio.ensure_future(
                    self._resolve(name.url.hostname or "", _port(name.url))
                )
                if (await asyncio.wait([lookup], timeout=self._patience_s))[0]:
                    done, lookup = lookup, None
                    self._answered(name, *_result(done))
                else:
                    self._answered(name, None, f"no answer in {self._patience_s:.1f} s")
                pause = self._config.polling.resolve_s
                if not name.addresses.current:
                    pause = min(pause, _EAGER_S)
                await asyncio.sleep(pause * self._rng.uniform(0.8, 1.2))
        finally:
            if lookup:
                lookup.cancel()

    def _answered(self, name: _Name, answer: frozenset[str] | None, trouble: str) -> None:
        before, pending = name.addresses.current, self.pending()
        failing = not answer
        if failing != name.failing:
            name.failing = failing
            name.trouble = (trouble or "it has no addresses") if failing else ""
            if failing:
                log.warning("%s cannot be resolved: %s; %s", name.url.netloc, name.trouble, Cause.NAME.advice)
            else:
                log.info("%s can be resolved again", name.url.netloc)
        name.addresses = name.addresses.after(answer)
        if name.addresses.current != before or self.pending() != pending:
            self._on_change()

    def _log_twice(self, listed_twice: frozenset[tuple[str, str]]) -> None:
        for entry, base in sorted(listed_twice - self._logged_twice):
            log.warning("%s yields %s, which is an engine already; it is counted once", entry, base)
        self._logged_twice = listed_twice


async def addresses_of(host: str, port: int) -> frozenset[str]:
    """Return a name's IPv4 addresses, or its IPv6 addresses where it has no others.

    Never both: an engine with two addresses would be taken for two engines.

    Raises:
        OSError: the name cannot be resolved.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    by_family = {
        wanted: frozenset(str(address[0]) for family, _, _, _, address in found if family == wanted)
        for wanted in (socket.AF_INET, socket.AF_INET6)
    }
    return by_family[socket.AF_INET] or by_family[socket.AF_INET6]


def _result(lookup: asyncio.Future[frozenset[str]]) -> tuple[frozenset[str] | None, str]:
    """Return the addresses that a finished lookup gave, or None and what went wrong."""
    try:
        answer = lookup.result()
        if len(answer) > MAX_ADDRESSES:
            return None, f"{len(answer):,} addresses, over {MAX_ADDRESSES:,}"
    except Exception as error:  # resolvers differ in what they raise, and no error may end the lookups
        return None, getattr(error, "strerror", "") or str(error) or type(error).__name__
    return answer, ""


def _port(url: SplitResult) -> int:
    return url.port or _PORTS[url.scheme]
