"""JSON of which no more is built than is needed: members stay as they stand, and images are cut out first.

Base64 text in a JSON string means nothing to a JSON parser: a body that it is cut out of is valid where the
whole is, and says the same. What is left is read in a hundredth of the time. That the text is nothing but
base64 is seen by decoding it, which costs 0.1 ms a MB.
"""

from __future__ import annotations

import binascii
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pybase64

from gateway.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

# A member that is not there.
NULL = msgspec.Raw(b"null")
# More elements than any request has that a model's context can hold; reading them would block for seconds.
MAX_ELEMENTS = 50_000
# Members that are longer are the engine's alone: what is built of them is kept while images are looked at,
# and takes up to four times their bytes.
_MAX_MEMBER_BYTES = 2**20
_AT = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)

MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
STRING = msgspec.json.Decoder(str)
ANY = msgspec.json.Decoder()

# What image, decoded already, is worth keeping until it is looked at: as text, in bytes. Also what is decoded
# at a time, so that nothing large is built of a larger one; a multiple of four.
KEPT_BYTES = 4 * 1024 * 1024
# To cut a shorter one out costs as much as to read it.
LEAST_BYTES = 4096
# More of what may begin one, or more left of a body, than requests with images have: it is read as it is.
_MAX_TRIED = 256
_MAX_LEFT_BYTES = 256 * 1024

_START = b'"data:'
_HEADER = re.compile(rb'"data:[^\x00-\x20",;\\\x7f-\xff]{0,64};base64,')
# Stands, with a number behind it, where a text was; a body that holds one itself is left as it is.
_MARK = b"\x7f"


@dataclass(slots=True)
class Lifted:
    """What is left of a body, and what was cut out of it.

    Attributes:
        skeleton: the body with a mark for the base64 text of each large data URL.
        texts: these URLs as they stand in the body, quotes included, by what stands for them in the skeleton.
        image: what the only one of them decodes to, where that is short; for whoever takes it away.
    """

    skeleton: bytes
    texts: Mapping[bytes, memoryview]
    image: bytes | None = None


def lift(body: bytes, most: int) -> Lifted | None:
    """Cut large data URLs out of a JSON text; None where there are none, more than `most`, or odd ones.

    A text and what is left of it are both JSON or both not, and then differ in the URLs alone.
    """
    view = memoryview(body)
    left: list[bytes | memoryview] = []
    texts: dict[bytes, memoryview] = {}
    image = None
    start = at = cut = 0
    for _ in range(_MAX_TRIED):
        if (at := body.find(_START, at, cut + _MAX_LEFT_BYTES)) < 0:
            break
        header = _HEADER.match(body, at)
        if header is None:
            at += len(_START)
            continue
        begin, end = header.end(), body.find(b'"', header.end())
        if end - begin < LEAST_BYTES:
            at = begin
            continue
        if len(texts) == most:
            return None
        image = None  # before the next is decoded
        try:
            image = _decoded(view[begin:end])
        except binascii.Error:
            return None
        mark = b"%s%d" % (_MARK, len(texts))
        left += (view[start:begin], mark)
        texts[b'%s%s"' % (header.group(), mark)] = view[at : end + 1]
        start = at = end
        cut += end - begin
    else:
        return None
    if not texts or len(body) - cut > _MAX_LEFT_BYTES:
        return None
    skeleton = b"".join((*left, view[start:]))
    if skeleton.count(_MARK) > len(texts):
        return None
    return Lifted(skeleton, texts, image if len(texts) == 1 else None)


def _decoded(text: memoryview) -> bytes | None:
    """Return what a text decodes to where it is kept; else only see that it is base64."""
    if len(text) <= KEPT_BYTES:
        return pybase64.b64decode(text, validate=True)
    for start in range(0, len(text), KEPT_BYTES):
        pybase64.b64decode(text[start : start + KEPT_BYTES], validate=True)
    return None


def elements(text: bytes) -> int:
    """Return what reading JSON costs, nested lists without a comma included."""
    return sum(map(text.count, (b",", b"[", b"{")))


def is_set(member: msgspec.Raw) -> bool:
    """Whether a member is there, and not null."""
    # Most are absent, and asking for the default itself first is a third of the work.
    return member is not NULL and bytes(member) != b"null"


def member_of(raw: bytes | msgspec.Raw) -> Any:
    """Build a small member; None where it is none, or cannot be built."""
    return built(raw) if raw is not NULL and len(memoryview(raw)) <= _MAX_MEMBER_BYTES else None


def object_of(raw: bytes | msgspec.Raw) -> Mapping[str, Any]:
    """Build a small member that is an object; an empty one where it is none."""
    value = member_of(raw)
    return value if isinstance(value, dict) else {}


def built(raw: bytes | msgspec.Raw) -> Any:
    """Build a member; None where it cannot be: that is left to the engine to refuse."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def decode(decoder: msgspec.json.Decoder[Any], body: bytes | msgspec.Raw) -> Any:
    """Read a request's JSON.

    Raises:
        BadRequest: it is none, or has a field of another type; `param` names it.
    """
    try:
        # Members that are passed over are not checked for this, and would fail on rewriting or at the engine.
        if isinstance(body, bytes) and not body.isascii():
            body.decode()
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        at = _AT.search(str(error))
        param = at.group(1) if at else None
        raise BadRequest(f"{param or 'the body'}: {_AT.sub('', str(error))}", param=param) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply", code="invalid_json") from error


def decode_body(decoder: msgspec.json.Decoder[Any], text: bytes) -> Any:
    """Read a whole request; see `decode`.

    Raises:
        BadRequest: as `decode`, or it has more elements than any real one.
    """
    if elements(text) > MAX_ELEMENTS:
        raise BadRequest(f"the body has more than {MAX_ELEMENTS:,} elements", code="invalid_json")
    return decode(decoder, text)
