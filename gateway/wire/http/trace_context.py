"""W3C Trace Context: which request of whose trace a request belongs to, as its headers tell it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# https://www.w3.org/TR/trace-context: version 00 ends here; later ones may go on behind another dash.
_PARENT = re.compile(
    rb"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-[0-9a-f]{2}(?P<more>-[!-~]*)?"
)
_MOST_PARENT, _MOST_STATE = 256, 512
_PRINTABLE = re.compile(rb"[ -~]+")


def read(headers: Iterable[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """Return the valid `traceparent` of a request, and its `tracestate`, as they may be passed on.

    Args:
        headers: names in lower case, and values.

    Returns:
        Nothing where there is no parent, or it is wrong, too long or told twice: a state by itself means
        nothing. A state that is wrong or too long is left away.
    """
    parents: list[bytes] = []
    states: list[bytes] = []
    for name, value in headers:
        if name == b"traceparent":
            parents.append(value)
        elif name == b"tracestate":
            states.append(value)
    if len(parents) != 1 or not _is_parent(parents[0]):
        return {}
    known = {"traceparent": parents[0].decode()}
    state = b",".join(states)
    if len(state) <= _MOST_STATE and _PRINTABLE.fullmatch(state):
        known["tracestate"] = state.decode()
    return known


def _is_parent(value: bytes) -> bool:
    found = _PARENT.fullmatch(value) if len(value) <= _MOST_PARENT else None
    if found is None or found["version"] == b"ff" or (found["version"] == b"00" and found["more"]):
        return False
    return found["trace"].strip(b"0") != b"" and found["span"].strip(b"0") != b""
