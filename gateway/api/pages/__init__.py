"""The page at `/`: status and playground in one static file, which holds no secret and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)
# Nothing from elsewhere, nothing inline but what the file has, no page around it, no HTML made of text.
_POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src blob: data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


class StatusPage(NamedTuple):
    """A page as it is sent.

    Attributes:
        body: UTF-8.
        headers: by lower-case name, all of them; content-type and etag among them.
    """

    body: bytes
    headers: Mapping[str, str]


def load() -> StatusPage:
    """Read the page; its scripts and styles are allowed by their hashes."""
    text = importlib.resources.files(__name__).joinpath("index.html").read_text("utf-8")
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, inner in _INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    body = text.encode()
    headers = {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": _POLICY.format(**{kind: " ".join(of) for kind, of in hashes.items()}),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
        "etag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
    }
    return StatusPage(body, headers)
