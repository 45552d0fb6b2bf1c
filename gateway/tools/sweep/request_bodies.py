"""Request bodies as each route's clients send them, at the cost of one copy each."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
import pybase64

from gateway.errors import ConfigError
from gateway.policy.sort.prompts import KEY_VALUE, TABLE, TEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from random import Random

# What key-value prompts ask for; rendered forms have these, too.
FIELDS = ("name", "address", "date", "number", "total")
_HUNYUAN_FIELDS = ", ".join(f"'{field}'" for field in FIELDS)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The text of a request, and its place beside the image.

    Attributes:
        text: the user's words.
        system: the system prompt, which may be empty; None for none.
        text_first: the text goes before the image.
    """

    text: str
    system: str | None = None
    text_first: bool = False


@dataclass(frozen=True, slots=True)
class Image:
    """An image file: its bytes, and their type such as `image/png`."""

    data: bytes
    mime: str


# GLM-OCR's, which stand in where a family has no prompt for a route.
_USUAL = {
    TEXT: Prompt("Text Recognition:"),
    TABLE: Prompt("Table Recognition:"),
    KEY_VALUE: Prompt("请按下列JSON格式输出图中信息:\n" + json.dumps(dict.fromkeys(FIELDS, ""))),
}
_MINERU_SYSTEM = "You are a helpful assistant."
# Tokens a chunk of vLLM's, beside first and last, which come at once; older versions pass it over. A client
# that has hundreds of streams would be slow with a chunk a token, and most OCR clients do not stream at all.
_STREAM = {"stream": True, "stream_options": {"include_usage": True}, "stream_interval": 16}
_DOTS = "<|img|><|imgpad|><|endofimg|>"
# By what a model's name holds, letters and digits only; the first that fits counts.
_FAMILIES: tuple[tuple[str, dict[str, Prompt]], ...] = (
    ("paddleocr", {TEXT: Prompt("OCR:")}),
    (
        "mineru",
        {
            TEXT: Prompt("\nText Recognition:", _MINERU_SYSTEM),
            TABLE: Prompt("\nTable Recognition:", _MINERU_SYSTEM),
        },
    ),
    (
        "hunyuanocr",
        {
            TEXT: Prompt("Extract the text in the image.", ""),
            TABLE: Prompt("Parse the table in the image into HTML.", ""),
            KEY_VALUE: Prompt(
                f"Extract the content of the fields: [{_HUNYUAN_FIELDS}] from the image "
                "and return it in JSON format.",
                "",
            ),
        },
    ),
    ("deepseekocr", {TEXT: Prompt("Free OCR.")}),
    ("dotsocr", {TEXT: Prompt(f"{_DOTS}Extract the text content from this image.")}),
    (
        "monkeyocr",
        {
            TEXT: Prompt("Please output the text content from the image."),
            TABLE: Prompt("This is the image of a table. Please output the table in html format."),
        },
    ),
    (
        "nanonets",
        {
            TEXT: Prompt(
                "Extract the text from the above document as if you were reading it naturally. "
                "Return the tables in html format. Return the equations in LaTeX representation."
            )
        },
    ),
    (
        "rolmocr",
        {
            TEXT: Prompt(
                "Return the plain text representation of this document as if you were reading it naturally."
            )
        },
    ),
    (
        "olmocr",
        {
            TEXT: Prompt(
                "Attached is one page of a document that you must process. Just return the plain text "
                "representation of this document as if you were reading it naturally. Convert equations to "
                "LateX and tables to HTML.",
                text_first=True,
            )
        },
    ),
    ("docling", {TEXT: Prompt("Convert this page to docling.")}),
    ("qwen", {TEXT: Prompt("Read all the text in the image.")}),
)


def prompt_of(route: str, model: str, overrides: Mapping[str, str]) -> Prompt:
    """Return what requests of a route say to a model, in the words and the order its own clients use.

    Unknown families, and routes for which a family has no prompt, get GLM-OCR's prompts.

    Args:
        route: whose requests.
        model: the model's name or path, or both; its family is recognised from that.
        overrides: operators' own texts by route.

    Raises:
        ConfigError: a route that no family has a prompt for, and no override.
    """
    plain = re.sub(r"[^a-z0-9]", "", model.lower())
    family = next((prompts for name, prompts in _FAMILIES if name in plain), {})
    usual = family.get(route) or _USUAL.get(route)
    text = overrides.get(route)
    if text is not None:
        return replace(usual or family.get(TEXT) or _USUAL[TEXT], text=text)
    if usual is None:
        raise ConfigError([f"no prompt is known for the route {route!r}; give one: --prompt {route}=TEXT"])
    return usual


def _fresh() -> str:
    return uuid4().hex


class RequestBodies:
    """Makes chat requests, every one with an image that is new to the engine although images repeat.

    The image part has a fresh `uuid` and the request a fresh `cache_salt`. vLLM knows an image by its uuid,
    in place of a hash of its content, in the processor's, the encoder's and the prefix cache, and the salt is
    part of a prefix's first block (sources of vLLM 0.32.0: renderers/chat_utils.py,
    multimodal/processing/inputs.py, v1/core/kv_cache_utils.py). So nothing is answered from a cache, as with
    documents that nobody has sent before. Temperature is 0, as in vLLM's recipes for OCR models.

    Args:
        model: the served name.
        prompt: what is said beside the image.
        images: taken in turn, in another random order each time round; at least one.
        max_tokens: the longest answer allowed.
        stream: ask for a stream, which ends with token usage; its chunks are large.
        rng: orders the images.
        fresh: returns a text that no request of any sweep has had: letters and digits, up to 128.
    """

    def __init__(
        self,
        model: str,
        prompt: Prompt,
        images: Sequence[Image],
        *,
        max_tokens: int,
        stream: bool,
        rng: Random,
        fresh: Callable[[], str] = _fresh,
    ) -> None:
        options = {"model": model, "max_tokens": max_tokens, "temperature": 0, **(_STREAM if stream else {})}
        system = [] if prompt.system is None else [{"role": "system", "content": prompt.system}]
        text = msgspec.json.encode({"type": "text", "text": prompt.text})
        before, after = (text + b",", b"") if prompt.text_first else (b"", b"," + text)
        turns = b"".join(msgspec.json.encode(message) + b"," for message in system)
        self._head = msgspec.json.encode(options)[:-1] + b',"cache_salt":"'
        self._middle = b'","messages":[%s{"role":"user","content":[%s{"type":"image_url","uuid":"' % (
            turns,
            before,
        )
        # The image's end and all behind it, so that a body takes one copy.
        self._tails = [
            b'","image_url":{"url":"data:%s;base64,%s"}}%s]}]}'
            % (image.mime.encode(), pybase64.b64encode(image.data), after)
            for image in images
        ]
        self._left: list[bytes] = []
        self._rng = rng
        self._fresh = fresh

    def next(self) -> bytes:
        """Return the next request's body."""
        if not self._left:
            self._left = self._rng.sample(self._tails, len(self._tails))
        identity = self._fresh().encode()
        return b"".join((self._head, identity, self._middle, identity, self._left.pop()))
