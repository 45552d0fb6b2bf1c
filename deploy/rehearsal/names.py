"""`python -m deploy.rehearsal.names RECORDS CACHE_S ...`: an `ocr-gateway ...` with a resolver of its own.

RECORDS is a JSON file, name to addresses, as a cluster's DNS has them now. The gateway sees it through a
cache which keeps an answer for CACHE_S seconds, and that there is none as well, as those of a cluster do.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gateway import cli
from gateway.upstream import discovery

if TYPE_CHECKING:
    from collections.abc import Mapping


class Names:
    """A cache before a file of names."""

    def __init__(self, records: Path, cache_s: float) -> None:
        """Start empty.

        Args:
            records: see `publish`.
            cache_s: for how long an answer is kept.
        """
        self._records = records
        self._cache_s = cache_s
        self._kept: dict[str, tuple[float, frozenset[str]]] = {}

    async def addresses_of(self, host: str, port: int) -> frozenset[str]:
        """Resolve a name, as discovery.addresses_of does.

        Raises:
            OSError: it has no addresses.
        """
        until, answer = self._kept.get(host, (0.0, frozenset()))
        if time.monotonic() >= until:
            answer = frozenset(json.loads(self._records.read_text()).get(host, ()))
            self._kept[host] = time.monotonic() + self._cache_s, answer
        if not answer:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return answer


def publish(records: Path, names: Mapping[str, frozenset[str]]) -> None:
    """Write the names and their addresses, all at once."""
    fresh = records.with_suffix(".new")
    fresh.write_text(json.dumps({name: sorted(addresses) for name, addresses in names.items()}))
    fresh.replace(records)


if __name__ == "__main__":
    discovery.addresses_of = Names(Path(sys.argv[1]), float(sys.argv[2])).addresses_of
    sys.exit(cli.main(sys.argv[3:]))
