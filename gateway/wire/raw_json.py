"""JSON of which nothing is built before it is needed: members stay as they stand in the body."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

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


def sent(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """Read JSON that an engine sent; None where it is none, or another than it should be."""
    try:
        if not body.isascii():
            body.decode()  # what is passed over is not checked for this
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
