"""Log lines for people (text) or for machines (json); fields travel in `extra={"fields": {...}}`."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]


class _Formatter(logging.Formatter):
    def __init__(self, kind: LogFormat) -> None:
        super().__init__()
        self._kind = kind

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = getattr(record, "fields", {})
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if self._kind == "json":
            line = {
                "at": at,
                "level": record.levelname,
                "logger": record.name,
                "message": record.getMessage(),
            }
            return json.dumps({**line, **fields, **({"trace": trace} if trace else {})}, default=str)
        told = "".join(f" {name}={value}" for name, value in fields.items() if value not in ("", None))
        return f"{at} {record.levelname:<7} {record.getMessage()}{told}" + (f"\n{trace}" if trace else "")


def configure(kind: LogFormat, level: str = "info") -> None:
    """Send everything from a level up to standard error in one format; other libraries' from INFO up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(kind))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("gateway").setLevel(level.upper())
