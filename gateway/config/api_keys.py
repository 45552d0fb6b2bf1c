"""The file of API keys: who may use the gateway, as digests of keys and the names of their owners.

A line is `NAME KEY` or `NAME sha256:HEX`, the SHA-256 of a key; one that begins with `#` is a comment. A name
may have several keys, so that one can be replaced by another without a moment in which neither is known.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import TYPE_CHECKING

from gateway.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

MIN_KEY_LENGTH = 16
_MAX_PROBLEMS = 100

# A name is shorter than most keys are, so that a key in a name's place is not taken for one and shown.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@-]{0,29}[A-Za-z0-9])?")
_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")
_KEY = re.compile(r"[!-~]+")
_NOBODY = bytes(32)
# The hash of an unset variable: it would let in whoever sends no key.
_EMPTY = hashlib.sha256(b"").digest()


class Keys:
    """Digests of API keys and their owners' names; never the keys themselves. It is never changed."""

    __slots__ = ("_owners", "names")

    def __init__(self, owners: Mapping[bytes, str] | None = None) -> None:
        """Copy what is given.

        Args:
            owners: the owner's name by a key's SHA-256.
        """
        self._owners = {digest: (digest, name) for digest, name in (owners or {}).items()}
        self.names = frozenset((owners or {}).values())

    def owner(self, key: bytes) -> str | None:
        """Return the name of a key's owner; None where it has none.

        The time this takes reveals nothing: a dict hashes digests differently in each process, and the digest
        found is compared in constant time.
        """
        digest = hashlib.sha256(key).digest()
        known, name = self._owners.get(digest, (_NOBODY, None))
        return name if hmac.compare_digest(known, digest) else None

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._owners)

    def __repr__(self) -> str:
        return f"Keys({len(self)} of {len(self.names)} names)"


def parse_keys(content: bytes, file: str) -> Keys:
    """Read a file of keys.

    Args:
        content: the file's.
        file: names it in errors.

    Raises:
        ConfigError: with every problem found, by file and line; it quotes nothing, since what is wrong may be
            a key.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = content.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{file}:{at}: is not UTF-8 text"]) from None
    problems: list[str] = []
    owners: dict[bytes, str] = {}
    lines: dict[bytes, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if len(problems) >= _MAX_PROBLEMS:
            problems.append(f"{file}:{number}: there are more problems from here on")
            break
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        read = _read(words)
        if isinstance(read, str):
            problems.append(f"{file}:{number}: {read}")
            continue
        name, digest = read
        if digest in lines:
            problems.append(f"{file}:{number}: the key of line {lines[digest]} stands here again")
        lines.setdefault(digest, number)
        owners[digest] = name
    if not owners and not problems:
        problems.append(f"{file}:1: holds no key, so that nobody could be let in")
    if problems:
        raise ConfigError(problems)
    return Keys(owners)


def _read(words: list[str]) -> tuple[str, bytes] | str:
    """Return a line's name and its key's digest, or what is wrong with the line."""
    if len(words) != 2:
        return "a line is `NAME KEY` or `NAME sha256:HEX`"
    name, key = words
    if not _NAME.fullmatch(name):
        return "a name is letters, digits, '-', '_', '.' and '@', at most 31, and stands before its key"
    if key.lower().startswith("sha256:"):
        hashed = _HASHED.fullmatch(key)
        if not hashed:
            return "a hashed key is sha256: and 64 hex digits"
        digest = bytes.fromhex(hashed[1])
        return (name, digest) if digest != _EMPTY else "the hash is that of an empty key"
    if not _KEY.fullmatch(key):
        return "a key is printable ASCII characters"
    if len(key) < MIN_KEY_LENGTH:
        return f"a key needs at least {MIN_KEY_LENGTH} characters: `openssl rand -hex 32` makes a good one"
    return name, hashlib.sha256(key.encode()).digest()
