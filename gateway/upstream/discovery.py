"""Which engines a configuration names: by URL, and by the addresses that names resolve to."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from gateway.config import EMBEDDED
from gateway.model import Engine
from gateway.policy.fail.resolution import Addresses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from gateway.config import Config

log = logging.getLogger(__name__)

_BY_NAME = "dns+"
_PORTS = {"http": 80, "https": 443}
# The longest that one turn waits for a resolver.
_PATIENCE_S = 5.0
# Engines that one name may have: each is asked for its health every second, and a liar knows no end.
_MOST = 1024
# A name that has not resolved yet is asked for this often: its engines may be starting too.
_EAGER_S = 1.0


@dataclass(slots=True)
class _Name:
    """One `dns+` entry from answer to answer; `failing` while its resolver does."""

    url: SplitResult
    addresses: Addresses = field(default_factory=Addresses)
    failing: bool = False


class Discovery:
    """Knows the engines of the configuration it watches; `run` keeps them as the resolver has them."""

    def __init__(
        self,
        config: Config,
        on_change: Callable[[], None],
        rng: Random,
        resolve: Callable[[str, int], Awaitable[frozenset[str]]] | None = None,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """Prepare to resolve.

        Args:
            config: watched first.
            on_change: called when `engines` has changed by what a name resolves to.
            rng: keeps many gateways from asking in step.
            resolve: returns the addresses of a host and port, or raises; `addresses_of` unless given.
            patience_s: seconds after which a resolver that is still at it counts as failing.
        """
        self._on_change = on_change
        self._rng = rng
        self._resolve = resolve or addresses_of
        self._patience_s = patience_s
        self._names: dict[str, _Name] = {}
        self._told: frozenset[tuple[str, str]] = frozenset()
        self._changed = asyncio.Event()
        self.watch(config)

    def watch(self, config: Config) -> None:
        """Take over a configuration; names it shares with the last keep their addresses."""
        self._config = config
        entries = [entry for pool in config.pools.values() for entry in pool.engines]
        self._names = {
            entry: self._names.get(entry) or _Name(urlsplit(entry.removeprefix(_BY_NAME)))
            for entry in entries
            if entry.startswith(_BY_NAME)
        }
        self._changed.set()

    def engines_of(self, entry: str) -> tuple[str, ...]:
        """Return the base URLs that an entry of `pools.*.engines` other than `embedded` stands for now."""
        name = self._names.get(entry)
        if name is None:
            return (entry,)
        port = _port(name.url)
        return tuple(
            f"{name.url.scheme}://{f'[{address}]' if ':' in address else address}:{port}"
            for address in name.addresses.current
        )

    def engines(self, embedded_url: str | None = None) -> tuple[Engine, ...]:
        """Return every engine by now; of two entries with the same address, the first has it.

        Args:
            embedded_url: where the embedded engine listens; without it there is none.
        """
        found: dict[tuple[str | None, int], Engine] = {}
        doubles: set[tuple[str, str]] = set()
        for pool_name, pool in self._config.pools.items():
            for entry in pool.engines:
                if entry == EMBEDDED:
                    if embedded_url:
                        found[EMBEDDED, 0] = Engine(EMBEDDED, embedded_url, pool_name, pool.depth)
                    continue
                for base in self.engines_of(entry):
                    url = urlsplit(base)
                    place = url.hostname, _port(url)
                    # Always with its port, so that no two engines have one name, and none the embedded one's.
                    name = f"{url.netloc.removesuffix(f':{place[1]}')}:{place[1]}"
                    engine = Engine(name, base, pool_name, pool.depth, pool.api_key)
                    if found.setdefault(place, engine) is not engine:
                        doubles.add((entry, base))
        self._tell(frozenset(doubles))
        return tuple(found.values())

    def pending(self) -> frozenset[str]:
        """Return the pools with a name that has not been answered for yet."""
        return frozenset(
            pool_name
            for pool_name, pool in self._config.pools.items()
            for entry in pool.engines
            if (name := self._names.get(entry)) and not (name.failing or name.addresses.known)
        )

    async def run(self) -> None:
        """Resolve the names watched, every `polling.resolve_s` of the configuration, until cancelled."""
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
                # One that has not answered in time goes on: never two for one name.
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
            if failing:
                log.warning("%s cannot be resolved: %s", name.url.netloc, trouble or "it has no addresses")
            else:
                log.info("%s can be resolved again", name.url.netloc)
        name.addresses = name.addresses.after(answer)
        if name.addresses.current != before or self.pending() != pending:
            self._on_change()

    def _tell(self, doubles: frozenset[tuple[str, str]]) -> None:
        for entry, base in sorted(doubles - self._told):
            log.warning("%s yields %s, which is an engine already; it is counted once", entry, base)
        self._told = doubles


async def addresses_of(host: str, port: int) -> frozenset[str]:
    """Resolve a name: its IPv4 addresses, or where it has none its IPv6 addresses.

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
    """What a finished lookup gave, or else what its trouble was."""
    try:
        answer = lookup.result()
        return (answer, "") if len(answer) <= _MOST else (None, f"{len(answer):,} addresses, over {_MOST:,}")
    except Exception as error:  # resolvers differ in what they raise, and none may end the watch
        return None, str(error) or type(error).__name__


def _port(url: SplitResult) -> int:
    return url.port or _PORTS[url.scheme]
