"""The header Retry-After."""

from __future__ import annotations

import re

_SECONDS = re.compile(r"[0-9]{1,9}")


def retry_after_s(value: str | None) -> int | None:
    """Read a Retry-After in seconds (RFC 9110, 10.2.3); None where there is none, a date, or nonsense."""
    return int(value) if value and _SECONDS.fullmatch(value) else None
