"""What stands around an image's pixels, walked before a library reads it.

Libraries read every comment, text and tag of a file on opening it: thousands of them, or a few that unpack to
millions of bytes, are seconds of work behind some kilobytes. Real files have a dozen.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Literal

import numpy as np

from gateway.errors import BadImage

if TYPE_CHECKING:
    from collections.abc import Iterator

_JPEG, _PNG, _GIF = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", (b"GIF87a", b"GIF89a")
_TIFF = frozenset((b"II*\0", b"MM\0*", b"II\0*", b"MM*\0", b"II+\0"))

# Colour profiles and Photoshop's metadata come in segments of 64 KB.
_MAX_SEGMENTS = 512
_MAX_JUNK = 4096
_MAX_CHUNKS = 64
_MAX_PACKED_CHUNKS = 16
# The shortest chunk of pixels that encoders write.
_CHUNK_BYTES = 512
_MAX_BLOCKS = 2048
_MAX_TAGS = 1000
# Numbers in all tags: strips of one row each have two, and no page has 20,000 rows.
_MAX_NUMBERS = 40_000

_SCAN = b"\xda"
# Frames whose first scan is their only one, if all components are in it (T.81, table B.1), and the others.
_SEQUENTIAL = (b"\xc0", b"\xc1")
_OTHER_FRAMES = frozenset(bytes([0xC0 + code]) for code in (2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15))
# A usual JPEG's segments before its pixels: tables, frames of one or more scans, labels, comments.
_QUANTISATION = b"\xdb"
_FRAME = frozenset((b"\xc0", b"\xc1", b"\xc2"))
_LABELS = frozenset((b"\xe0", b"\xee"))
_UNREAD = frozenset((b"\xc4", b"\xdd", b"\xfe"))
_USUAL_BYTES = 4096
# Markers without a length behind them.
_BARE = frozenset(bytes([code]) for code in (0, 1, *range(0xD0, 0xDA)))
_UNPACKED = frozenset((b"zTXt", b"iTXt", b"iCCP"))
_FRAMES = frozenset((b"fcTL", b"fdAT"))
_CHUNK = struct.Struct(">I4s")
# Bytes of a value, by its type; the first four are kept as they are.
_SIZES = {
    1: 1,
    2: 1,
    6: 1,
    7: 1,
    3: 2,
    8: 2,
    4: 4,
    9: 4,
    11: 4,
    13: 4,
    5: 8,
    10: 8,
    12: 8,
    16: 8,
    17: 8,
    18: 8,
}
_BYTES = frozenset((1, 2, 6, 7))


def check_structure(data: bytes) -> None:
    """See whether reading an image's parts is as quick as it should be.

    Raises:
        BadImage: it has more parts than any real image.
    """
    if data.startswith(_JPEG):
        _segments(data)
    elif data.startswith(_PNG):
        _check_chunks(data)
    elif data.startswith(_GIF):
        _check_blocks(data)
    elif data[:4] in _TIFF:
        _check_tags(data)


def without_texts(data: bytes, *, header_only: bool = False) -> bytes:
    """Return a PNG without what would be unpacked only to be thrown away; other formats as they are.

    Args:
        data: an image.
        header_only: what stands behind the first pixels may stay: it is not read.
    """
    if not data.startswith(_PNG):
        return data
    kept, start = [], 0
    for at, kind, end in _chunks(data, b"IDAT" if header_only else b"IEND"):
        if kind in _UNPACKED:
            kept.append(data[start:at])
            start = end
    return b"".join((*kept, data[start:])) if kept else data


def usual_jpeg(data: bytes) -> tuple[int, int, bool] | None:
    """Width and height of a JPEG, and whether it has one scan; None where it is not a most usual one.

    One that has nothing but the usual before its pixels is opened by Pillow, too; but that reads its tables,
    which takes 40 us, and 150 among all else that a gateway does.
    """
    head = data[:_USUAL_BYTES]
    at, size, components = 2 if head.startswith(_JPEG) else len(head), (0, 0), b""
    while head[at : at + 1] == b"\xff":
        marker, length = head[at + 1 : at + 2], int.from_bytes(head[at + 2 : at + 4], "big")
        body = head[at + 4 : at + 2 + length]
        if len(body) != length - 2:
            break
        if marker == _SCAN:
            return (*size, body[:1] == components) if all(size) else None
        if marker in _FRAME:
            # 8 bits, and grey, colours or CMYK.
            if any(size) or body[:1] != b"\x08" or body[5:6] not in (b"\1", b"\3", b"\4"):
                break
            if len(body) != 6 + 3 * body[5]:
                break
            size = int.from_bytes(body[3:5], "big"), int.from_bytes(body[1:3], "big")
            components = body[5:6] if marker in _SEQUENTIAL else b""
        elif marker in _LABELS:
            if len(body) < 12:
                break
        elif marker == _QUANTISATION:
            if not _are_tables(body):
                break
        elif marker not in _UNREAD:
            break
        at += 2 + length
    return None


def count_scans(data: bytes) -> int:
    """How many scans a JPEG has, each of which costs a pass over all pixels.

    Counted, by their marks anywhere, only where a decoder looks for a second one at all. A pass over the
    pixels' bytes costs 1.2 ms a MB by `bytes.count`, and 0.2 ms so.
    """
    heads = dict(_segments(data))
    frame, scan = next((heads[kind] for kind in _SEQUENTIAL if kind in heads), 0), heads.get(_SCAN, 0)
    all_in_one = data[frame + 7 : frame + 8] == data[scan + 2 : scan + 3]
    if frame and scan and all_in_one and heads.keys().isdisjoint(_OTHER_FRAMES):
        return 1
    return sum(
        int(np.count_nonzero(np.frombuffer(data, "<u2", (len(data) - first) // 2, first) == 0xDAFF))
        for first in (0, 1)
    )


def has_second_page(data: bytes) -> bool:
    """Whether a TIFF says where another page begins."""
    first = _directory(data)
    following = first.following()
    return following not in (0, first.at) and _directory(data, following).count > 0


def _segments(data: bytes) -> list[tuple[bytes, int]]:
    """A JPEG's segments up to its first scan: the mark of each, and where its length stands."""
    found = []
    at, junk = 2, 0
    for _ in range(_MAX_SEGMENTS):
        if data[at : at + 1] == b"\xff" != data[at + 1 : at + 2]:
            marker, at = data[at + 1 : at + 2], at + 2
        else:
            window = data[at : at + _MAX_JUNK + 2]
            start = window.find(b"\xff")
            behind = window[start:].lstrip(b"\xff") if start >= 0 else b""
            junk += max(0, len(window) - len(behind) - 1)
            if junk > _MAX_JUNK:
                raise _too_many("bytes between its segments")
            marker, at = behind[:1], at + len(window) - len(behind) + 1
        found.append((marker, at))
        if marker in (_SCAN, b""):
            return found
        if marker not in _BARE:
            at += int.from_bytes(data[at : at + 2], "big")
    raise _too_many("segments")


def _are_tables(body: bytes) -> bool:
    at = 0
    while at < len(body):
        at += 129 if body[at] >> 4 else 65
    return at == len(body)


def _chunks(data: bytes, last: bytes = b"IEND") -> list[tuple[int, bytes, int]]:
    """A PNG's chunks up to the first of a kind: where each begins, its kind, and where it ends."""
    found = []
    at, most = 8, _MAX_CHUNKS + len(data) // _CHUNK_BYTES
    while at + 8 <= len(data):
        length, kind = _CHUNK.unpack_from(data, at)
        end = at + 12 + length
        found.append((at, kind, end))
        if kind == last:
            break
        if len(found) > most:
            raise _too_many("chunks")
        at = end
    return found


def _check_chunks(data: bytes) -> None:
    # Lower-case: nothing that pixels need.
    extra = [kind for _, kind, _ in _chunks(data) if kind[0] & 0x20 and kind not in _FRAMES]
    if len(extra) > _MAX_CHUNKS or sum(kind in _UNPACKED for kind in extra) > _MAX_PACKED_CHUNKS:
        raise _too_many("texts")


def _check_blocks(data: bytes) -> None:
    flags = data[10] if len(data) > 10 else 0
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    left = _MAX_BLOCKS
    while at < len(data) and data[at] not in b",;":
        is_extension = data[at] == 0x21
        at += 2 if is_extension else 1
        left -= 1
        while is_extension and left > 0 and data[at : at + 1] not in (b"", b"\0"):
            at += 1 + data[at]
            left -= 1
        if left <= 0:
            raise _too_many("comments")


class _Directory:
    """One of a TIFF's lists of tags."""

    def __init__(self, data: bytes, at: int, order: Literal["little", "big"], big: bool) -> None:
        self._data, self._order, self._width = data, order, 8 if big else 4
        self.at = at
        self._first = at + (8 if big else 2)
        self.count = self._number(at, self._first - at)
        self._size = 20 if big else 12

    def values(self) -> Iterator[tuple[int, int]]:
        """Yield each tag's type, and how many values it has."""
        for index in range(self.count):
            at = self._first + index * self._size
            yield self._number(at + 2, 2), self._number(at + 4, self._width)

    def following(self) -> int:
        """Where the next one begins; 0 where there is none."""
        return self._number(self._first + self.count * self._size, self._width)

    def _number(self, at: int, size: int) -> int:
        return int.from_bytes(self._data[at : at + size], self._order)


def _directory(data: bytes, at: int | None = None) -> _Directory:
    order: Literal["little", "big"] = "little" if data.startswith(b"II") else "big"
    big = data[2] == 43
    first = int.from_bytes(data[8:16] if big else data[4:8], order)
    return _Directory(data, first if at is None else at, order, big)


def _check_tags(data: bytes) -> None:
    tags = _directory(data)
    if tags.count > _MAX_TAGS:
        raise BadImage(f"the TIFF has more than {_MAX_TAGS:,} tags")
    numbers = size = 0
    for kind, count in tags.values():
        numbers += count if kind not in _BYTES else 0
        size += count * _SIZES.get(kind, 1)
    # Tags may share their bytes: a thousand of them would be read a thousand times.
    if numbers > _MAX_NUMBERS or size > len(data):
        raise _too_many("strips, or numbers in its tags,")


def _too_many(what: str) -> BadImage:
    return BadImage(f"the image has more {what} than any real one")
