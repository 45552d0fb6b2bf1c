"""Records of requests, for the tests of what is written from them."""

from __future__ import annotations

from typing import Any

from gateway.model import RequestRecord


def record(**known: Any) -> RequestRecord:
    """A request that was refused before anything was known of it, but for `known`."""
    fields = {"at": 1e9, "request_id": "id", "path": "/v1/chat/completions", "code": 400, "seconds": 1.0}
    return RequestRecord(**{**fields, **known})
