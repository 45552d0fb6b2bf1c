"""A page as a chat completion: the request that an engine gets for it, and the engine's answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pybase64

from gateway.errors import EngineFailed, EngineRefused
from gateway.wire import openai

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.model import Buffer


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]


_COMPLETION = msgspec.json.Decoder(_Completion)


def image_url(jpeg: Buffer) -> bytes:
    """Return a JPEG as a data URL."""
    return b"data:image/jpeg;base64,%s" % pybase64.b64encode(jpeg)


def chat_request(
    model: str, urls: Iterable[Buffer], text: str, response_format: bytes | None = None
) -> bytes:
    """Return the body of a chat completion of images, as data URLs, and a text behind them."""
    parts = [b'{"type":"image_url","image_url":{"url":"%s"}},' % url for url in urls]
    return b"".join(
        (
            b'{"model":%s,"messages":[{"role":"user","content":[' % msgspec.json.encode(model),
            *parts,
            b'{"type":"text","text":%s}]}]' % msgspec.json.encode(text),
            b',"response_format":%s' % response_format if response_format else b"",
            b"}",
        )
    )


def read_text(body: bytes) -> tuple[str, str | None]:
    """Return the text of an engine's answer, and why it ended.

    Raises:
        EngineFailed: it is no chat completion.
    """
    try:
        choice = _COMPLETION.decode(body).choices[0]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError) as error:
        raise EngineFailed("the engine's answer is no completion", code="engine_garbage") from error
    return choice.message.content or "", choice.finish_reason


def refusal(status: int, body: bytes) -> EngineRefused:
    """Return an engine's own refusal of a page, a 4xx and its body, as an error."""
    message = openai.read_error_message(body) or f"the engine refused it with HTTP {status}"
    return EngineRefused(message, status=status)
