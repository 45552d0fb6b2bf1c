import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadImage
from gateway.wire.image.headers import open_image
from gateway.wire.image.structure import (
    check_structure,
    count_scans,
    has_second_page,
    usual_jpeg,
    without_texts,
)
from tests import bombs
from tests.support import encoded, picture

KINDS = ["JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP"]


@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_images_pass_whole_or_cut_anywhere(kind: str) -> None:
    data = encoded(picture("some words", (120, 60)), kind)
    for cut in {*range(0, len(data), max(1, len(data) // 60)), len(data)}:
        check_structure(data[:cut])


BUSY = {
    "a JPEG with profile and metadata": bombs.jpeg(*[bombs.segment(0xE2, bytes(65_000))] * 255),
    "a JPEG with fill and stray markers": bombs.jpeg(
        b"\xff\xff\xff\xfe\0\2", b"\xff\x01", b"\xff\0", b"junk"
    ),
    "a PNG with texts": bombs.png(*[(b"tEXt", b"a\0b")] * 40, *[bombs.packed_text(b"zTXt", 100)] * 10),
    "an animated PNG": bombs.png(*[(b"fcTL", bytes(26)), (b"fdAT", bytes(2000))] * 500),
    "a PNG of small chunks": bombs.png(*[(b"IDAT", bytes(600))] * 1000),
    "a GIF with a comment": bombs.gif(500),
    "a TIFF of a row a strip": bombs.strips(19_000, (64, 19_000)),
    "a TIFF of the other order": bombs.tiff([(256, 4, 1, 10)], big_endian=True),
}


@pytest.mark.parametrize("name", BUSY)
def test_what_real_writers_do_passes(name: str) -> None:
    check_structure(BUSY[name])


BOMBS = [name for name in bombs.REFUSED if "pixels" not in name or "chunks" in name]
BOMBS = [name for name in BOMBS if "2 **" not in name and "height" not in name and "rows" not in name]


@pytest.mark.parametrize("name", [name for name in BOMBS if "scans" not in name])
def test_what_no_real_writer_does_is_refused(name: str) -> None:
    with pytest.raises(BadImage, match="more"):
        check_structure(bombs.REFUSED[name]())


def test_a_gif_of_nothing_but_blocks_ends() -> None:
    head = encoded(picture("x", (20, 10)), "GIF")[:10] + b"\0\0\0"
    with pytest.raises(BadImage, match="comments"):
        check_structure(head + b"\0" * 5000)
    with pytest.raises(BadImage, match="comments"):
        check_structure(head + b"!\xfe" + b"\1c" * 5000)


def test_what_would_be_unpacked_for_nothing_is_left_out() -> None:
    extra = [(b"tEXt", b"a\0b"), bombs.packed_text(b"zTXt", 9), (b"tIME", bytes(7))]
    extra += [bombs.packed_text(b"iCCP", 9), bombs.packed_text(b"iTXt", 9)]
    assert without_texts(bombs.png(*extra)) == bombs.png(extra[0], extra[2])
    untouched = bombs.png(extra[0])
    assert without_texts(untouched) is untouched
    jpeg = bombs.jpeg()
    assert without_texts(jpeg) is jpeg
    behind = bombs.png(extra[1])[:-12] + bombs.png(extra[1])[33:]
    assert without_texts(behind, header_only=True) == bombs.png()[:-12] + bombs.png(extra[1])[33:]


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("order", ["<", ">"])
def test_a_second_page_is_seen(order: str, big: bool) -> None:
    if big and order == ">":
        pytest.skip("Pillow reads no big-endian BigTIFF")
    mark = {"<": b"II", ">": b"MM"}[order] + struct.pack(f"{order}H", 43 if big else 42)
    at, count, entry, place = (16, "Q", 20, "Q") if big else (8, "H", 12, "I")
    head = mark + (struct.pack("<HHQ", 8, 0, 16) if big else struct.pack(f"{order}I", 8))
    directory = struct.pack(f"{order}{count}", 1) + bytes(entry)
    end = at + len(directory) + struct.calcsize(place)

    def told(following: int, behind: bytes = b"") -> bool:
        return has_second_page(head + directory + struct.pack(f"{order}{place}", following) + behind)

    assert not told(0)
    assert not told(at)  # round and round: Pillow takes it for the end
    assert not told(end + 999)
    assert told(end, directory)
    check_structure(head + directory)


JPEG = encoded(picture("words", (64, 48)), "JPEG")
MARK = b"\xff\xda"
SOF, SOS = JPEG.index(b"\xff\xc0"), JPEG.index(MARK)


def test_scans_are_counted_only_where_a_decoder_looks_for_a_second_one() -> None:
    progressive = encoded(picture("words", (64, 48)), "JPEG", progressive=True)
    assert count_scans(progressive) == progressive.count(MARK) > 3
    assert count_scans(progressive[:-1] + MARK * 20) == progressive.count(MARK) + 20
    # A thumbnail's mark in the metadata, and whatever stands behind the pixels, are no scans of this picture.
    assert count_scans(JPEG[:2] + bombs.segment(0xE1, b"Exif\0\0" + MARK) + JPEG[2:] + MARK) == 1
    # One component at a time: each in a scan of its own.
    one = JPEG[:SOS] + bombs.segment(0xDA, b"\1\1\0\0\x3f\0")
    assert count_scans(one + one[SOS:] * 2) == 3


@pytest.mark.parametrize("cut", [2, SOF, SOF + 5, SOF + 9, SOS, SOS + 2, SOS + 4])
def test_scans_of_a_cut_picture_are_counted_as_far_as_it_goes(cut: int) -> None:
    assert count_scans(JPEG[:cut]) in (1, JPEG[:cut].count(MARK))


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("L", {}),
        ("RGB", {}),
        ("CMYK", {}),
        ("RGB", {"progressive": True}),
        ("RGB", {"optimize": True, "comment": b"scanned", "restart_marker_rows": 1}),
    ],
)
def test_a_usual_jpegs_size_is_told_without_opening_it(mode: str, options: dict[str, Any]) -> None:
    data = encoded(picture("words", (64, 48)), "JPEG", mode, **options)
    assert usual_jpeg(data) == (64, 48, not options.get("progressive"))
    behind = data.index(b"\xff\xda") + 4
    assert [usual_jpeg(data[:cut]) for cut in range(behind)] == [None] * behind


TABLES = JPEG.index(b"\xff\xdb")
UNUSUAL = {
    "Exif": (2, 2, bombs.segment(0xE1, b"Exif\0\0" + bytes(20))),
    "an index of pictures": (2, 2, bombs.segment(0xE2, b"MPF\0" + bytes(20))),
    "a long comment": (2, 2, bombs.segment(0xFE, bytes(5000))),
    "fill": (2, 2, b"\xff"),
    "junk": (2, 2, b"junk"),
    "a short label": (2, 2, bombs.segment(0xEE, b"Adobe")),
    "half a table": (TABLES, TABLES, bombs.segment(0xDB, bytes(64))),
    "half a long table": (TABLES, TABLES, bombs.segment(0xDB, b"\x10" + bytes(64))),
    "two frames": (SOF, SOF, JPEG[SOF : SOF + 19]),
    "no frame": (SOF, SOF + 19, b""),
    "12 bits": (SOF + 4, SOF + 5, b"\x0c"),
    "two components": (SOF + 9, SOF + 10, b"\2"),
    "one component of three": (SOF + 9, SOF + 10, b"\1"),
    "no width": (SOF + 7, SOF + 9, b"\0\0"),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_of_an_unusual_jpeg_only_a_library_can_tell(name: str) -> None:
    start, end, instead = UNUSUAL[name]
    assert usual_jpeg(JPEG[:start] + instead + JPEG[end:]) is None


@given(
    st.sampled_from(
        [JPEG, encoded(picture("x"), "JPEG", "L", progressive=True), encoded(picture("x"), "PNG")]
    ),
    st.lists(st.tuples(st.integers(0, 700), st.integers(0, 3), st.binary(max_size=4)), max_size=4),
)
def test_what_is_told_of_a_usual_jpeg_is_what_a_library_tells(
    data: bytes, damages: list[tuple[int, int, bytes]]
) -> None:
    for at, lost, new in damages:
        data = data[:at] + new + data[at + lost :]
    if usual := usual_jpeg(data):
        image = open_image(data, header_only=True)
        assert (image.format, image.size) == ("JPEG", usual[:2])
        assert usual[2] is False or count_scans(data) == 1
        check_structure(data)


@given(st.binary(min_size=1, max_size=60), st.integers(0, 60))
def test_every_mark_counts_wherever_it_is(data: bytes, at: int) -> None:
    assert count_scans(data) == data.count(MARK)
    marked = data[:at] + MARK + data[at:] + MARK
    assert count_scans(marked) == marked.count(MARK)


@given(
    st.sampled_from([encoded(picture("words", (40, 20)), kind) for kind in KINDS]),
    st.lists(st.tuples(st.integers(0, 300), st.binary(min_size=1, max_size=4)), max_size=6),
)
def test_damage_is_refused_or_passes_but_never_a_fault(data: bytes, damage: list[tuple[int, bytes]]) -> None:
    for at, other in damage:
        data = data[:at] + other + data[at + len(other) :]
    try:
        check_structure(data)
    except BadImage:
        return
    without_texts(data)
    if data[:4] in (b"II*\0", b"MM\0*"):
        has_second_page(data)
