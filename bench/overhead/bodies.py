"""The requests: the same bytes for every gateway, with whole images and a prompt that ours sorts by."""

from __future__ import annotations

import base64
import functools
import io
import json
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "ocr-model"
PROMPT = "Text Recognition:"
SIZES = {
    "1 kB": 1_000,
    "200 kB": 200_000,
    "1.5 MB": 1_500_000,
    "8 MB": 8_000_000,
}
_SYSTEM = "You read documents. "


def body(size: str, *, stream: bool = False) -> bytes:
    """Return a chat request of about so many bytes: text alone, or nearly all of it a JPEG of noise."""
    wanted = SIZES[size]
    parts: list[dict[str, object]] = [{"type": "text", "text": PROMPT}]
    messages: list[dict[str, object]] = [{"role": "user", "content": parts}]
    if wanted < SIZES["200 kB"]:
        messages.insert(0, {"role": "system", "content": _SYSTEM * (wanted * 7 // 10 // len(_SYSTEM))})
    else:
        picture = base64.b64encode(scan(wanted * 3 // 4 - 300)).decode()
        parts.insert(0, {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{picture}"}})
    request: dict[str, object] = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": 1024,
        "temperature": 0.0,
    }
    if stream:
        request["stream"] = True
    return json.dumps(request).encode()


def write(folder: Path, size: str, *, stream: bool = False) -> Path:
    """Write a request's body to a file for `load` unless it is there; return its path."""
    path = folder / f"{size.replace(' ', '')}{'-stream' if stream else ''}.json"
    if not path.exists():
        path.write_bytes(body(size, stream=stream))
    return path


@functools.cache
def scan(size: int) -> bytes:
    """Return a valid JPEG of noise of about so many bytes."""
    return _jpeg(1_000_000 * size // len(_jpeg(1_000_000)))


def _jpeg(pixels: int) -> bytes:
    buffer = io.BytesIO()
    side = round(pixels**0.5)
    Image.effect_noise((side, side), 40).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
