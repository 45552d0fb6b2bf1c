"""What an error may show of a value or a key: in YAML's words, short, on one line, and never a credential."""

from __future__ import annotations

import datetime
import difflib
import itertools
import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

NOT_SHOWN = "a value (not shown)"
KEY_NOT_SHOWN = "(a key that is not shown)"

_CHARS = 60
# What may have swallowed a value, such as `api_key s3cr3t` without its colon, is not shown.
_NAME = re.compile(r"[^\s=:]{1,63}")
# Of an unknown key only this is: anything else may be a value that stands in a key's place.
_WORD = re.compile(r"[A-Za-z_-]{1,40}")
# Names that are compared with a misspelt one.
_COMPARED = 100


def shown(value: object) -> str:
    """Return a value as an error names it."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case dict():
            return "a section" if value else "an empty section"
        case list() | tuple():
            return "a list" if value else "an empty list"
        case bytes():
            return "binary data"
        case datetime.date():
            return f"the date {value.isoformat()}"
        case float() if not math.isfinite(value):
            return {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan")
        case str():
            return _shown_text(value)
    return shortened(repr(value))


def _shown_text(text: str) -> str:
    """Return a text without what stands before an @ or, in a URL, behind a ?."""
    start, at, rest = text.rpartition("@")
    if at:
        scheme, slashes, _ = start.partition("//")
        text = f"{scheme if slashes else ''}{slashes}...@{rest}"
    address, query, _ = text.partition("?")
    if query and "//" in address:
        text = f"{address}?..."
    return shortened(repr(text[: 2 * _CHARS]))


def shortened(text: str, chars: int = _CHARS) -> str:
    """Return a text on one line and of so many characters at most."""
    start = text[: chars + 1]
    line = start if start.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in start)
    return line if len(line) <= chars else f"{line[: chars - 3]}..."


def shown_name(name: str) -> str:
    """Return a name, such as a route's, that the file has for a key."""
    return name if name.isprintable() and _NAME.fullmatch(name) else KEY_NOT_SHOWN


def shows_key(key: str, allowed: Iterable[str], *, valueless: bool) -> bool:
    """Return whether an unknown key may be shown: whether it is certain to be a misspelt or invented key.

    Args:
        key: which.
        allowed: those that are known.
        valueless: nothing stands behind it, so that it may be a value itself.
    """
    return bool(_WORD.fullmatch(key)) and (not valueless or bool(resembling(key, allowed)))


def resembling(name: str, allowed: Iterable[str]) -> str | None:
    """Return the one of some names that a misspelt one is most like; None where it is like none."""
    near = (one for one in allowed if abs(len(one) - len(name)) <= len(one))
    return next(iter(difflib.get_close_matches(name, itertools.islice(near, _COMPARED), n=1)), None)


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return a question to put behind an error about a misspelt name; empty where it is like none."""
    guess = resembling(name, allowed)
    return f" - did you mean {guess!r}?" if guess else ""
