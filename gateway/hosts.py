"""Hosts as URLs name them, each in one spelling."""

from __future__ import annotations

import ipaddress
import re

_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NAME_LENGTH = 253
# What resolvers read as a part of an IPv4 address (URL Standard: "ends in a number").
_NUMBER = re.compile("[0-9]+|0x[0-9a-f]*")


def canonical(host: str) -> str | None:
    """Return a host in lower case, an IPv6 address in brackets and at its shortest; None if it is neither.

    A name is ASCII, without a trailing dot. An IPv4 address is four decimal numbers: whatever else a resolver
    might take for one, such as `127.1`, `0x7f.0.0.1` or `2130706433`, is no host.
    """
    if host.startswith("[") and host.endswith("]") and "%" not in host:
        try:
            return f"[{ipaddress.IPv6Address(host[1:-1])}]"
        except ValueError:
            return None
    name = host.lower() if host.isascii() else ""
    if len(name) > _NAME_LENGTH or not _NAME.fullmatch(name):
        return None
    return name if not _NUMBER.fullmatch(name.rpartition(".")[2]) or address(name) else None


def address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a canonical host is; None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
