"""URLs of remote images, read so strictly that no two parsers can see another host in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from gateway.hosts import canonical

if TYPE_CHECKING:
    from collections.abc import Container

    from gateway.model import Buffer

# Signed URLs of object stores are the longest, with about 2,000 characters.
MAX_LENGTH = 4096
_DEFAULT_PORTS = {"http": 80, "https": 443}

_URL = re.compile(
    r"(?P<scheme>[Hh][Tt][Tt][Pp][Ss]?)://"
    r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9.-]{1,253})(?::(?P<port>[0-9]{1,5}))?"
    # No backslash, which some parsers take for a slash.
    r"(?:(?P<target>/[!-\"$-\[\]-~]*)(?:#[!-~]*)?)?"
)


@dataclass(frozen=True, slots=True)
class RemoteUrl:
    """An http(s) URL without credentials and fragment; `host` is canonical, `target` begins with a slash."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def text(self) -> str:
        """The URL in one spelling."""
        return f"{self.scheme}://{self.host}:{self.port}{self.target}"

    def is_listed(self, hosts: Container[str]) -> bool:
        """Whether it is of a `host`, at its scheme's own port, or of a `host:port` among `hosts`."""
        usual = self.port == _DEFAULT_PORTS[self.scheme]
        return f"{self.host}:{self.port}" in hosts or (usual and self.host in hosts)


def is_remote(url: Buffer) -> bool:
    """Whether a URL is meant to be fetched over http(s), well-formed or not."""
    return bytes(url[:16]).lstrip().lower().startswith((b"http:", b"https:"))


def parse_remote(url: bytes) -> RemoteUrl | None:
    """Read an http(s) URL; None for one that is not plain: only ASCII, a proper host, no credentials."""
    found = _URL.fullmatch(url.decode("latin-1")) if len(url) <= MAX_LENGTH else None
    if found is None:
        return None
    scheme = found["scheme"].lower()
    host = canonical(found["host"])
    port = int(found["port"] or _DEFAULT_PORTS[scheme])
    return RemoteUrl(scheme, host, port, found["target"] or "/") if host and 0 < port < 65536 else None


def redirected(url: RemoteUrl, location: str) -> RemoteUrl | None:
    """Return where a redirect leads; None where that is no plain http(s) URL, or from https to http."""
    try:
        target = parse_remote(urljoin(url.text, location).encode())
    except ValueError:  # neither a URL, nor text
        return None
    return None if target and (url.scheme, target.scheme) == ("https", "http") else target
