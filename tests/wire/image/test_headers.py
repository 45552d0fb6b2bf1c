import base64
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gateway.errors import BadImage
from gateway.wire.image.headers import DataUrl, ImageInfo, from_whole_url, inspect, parse_data_url
from tests.support import data_url, encoded, in_every_format, picture, png

# Bytes whose base64 text holds both characters of the alphabet that differ in the url-safe one.
AWKWARD = b"abc\xfb\xef\xbe\xff\xff\xfed"
TEXT = base64.b64encode(AWKWARD).decode()


def test_a_proper_url_is_left_as_it_is() -> None:
    url = parse_data_url(b"data:image/png;base64," + TEXT.encode())
    assert url == DataUrl(AWKWARD, None) == from_whole_url(AWKWARD)


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/jpeg;charset=utf-8;base64,{TEXT}",
        f"data:base64,{TEXT}",
        f"DATA:image/png;Base64,{TEXT}",
        f"data:image/png; base64,{TEXT}",
        f"data:image/png;base64,{TEXT[:3]}\r\n {TEXT[3:]}\n",
        f"data:image/png;base64,{base64.urlsafe_b64encode(AWKWARD).decode()}",
        f"data:image/png;base64,{TEXT.replace('+', '%2B').replace('/', '%2f')}",
        f"data:image/png;base64,{TEXT}==",
        f"data:image/png;base64,{TEXT.replace('+', ' ')}",
        f"data:image/png;base64, {TEXT}",
    ],
)
def test_common_faults_are_mended_into_what_every_engine_reads(url: str) -> None:
    mended = parse_data_url(url.encode())
    assert mended.data == AWKWARD
    assert mended.repaired is not None
    assert re.fullmatch(rb"data:image/[a-z]+;base64,[A-Za-z0-9+/]+=*", mended.repaired)
    assert parse_data_url(mended.repaired) == type(mended)(AWKWARD, None)


@pytest.mark.parametrize("url", [f"data:;base64,{TEXT}", f"data:image;base64,{TEXT}"])
def test_a_missing_type_is_no_fault(url: str) -> None:
    assert parse_data_url(url.encode()).repaired is None


@given(st.binary(min_size=1), st.booleans())
def test_missing_padding_is_mended_whatever_the_bytes(data: bytes, urlsafe: bool) -> None:
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    assert parse_data_url(b"data:image/png;base64," + encode(data).rstrip(b"=")).data == data


def test_a_mended_url_names_the_format_that_the_bytes_have() -> None:
    jpeg = encoded(picture("x"), "JPEG")
    mended = parse_data_url(data_url(jpeg, "image/png;charset=utf-8").encode()).repaired
    assert mended is not None
    assert mended.startswith(b"data:image/jpeg;base64,")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "must be a data URL"),
        ("iVBORw0KGgo=", "must be a data URL"),
        ("file:///etc/passwd", "must be a data URL"),
        ("data:image/png;base64iVBORw0KGgo", "lacks the comma"),
        ("data:image/svg+xml,<svg/>", "must be base64"),
        ("data:image/png;base64,@@@@", "not base64"),
        ("data:image/png;base64,AAAAA", "cut short"),
        ("data:image/png;base64,AA=A", "not base64"),
    ],
)
def test_what_cannot_be_mended_is_refused_with_the_reason(url: str, message: str) -> None:
    with pytest.raises(BadImage, match=message):
        parse_data_url(memoryview(url.encode()))


@given(st.binary(max_size=400))
def test_no_url_breaks_the_parser(url: bytes) -> None:
    for start in (b"", b"data:image/png;base64,", b"data:"):
        try:
            parse_data_url(start + url)
        except BadImage:
            continue


@given(
    st.sampled_from(["", "image/png", "image/jpeg;charset=utf-8", "IMAGE", "a" * 300]),
    st.sampled_from([";base64,", "; BASE64 ,", "base64,", ","]),
    st.binary(max_size=40).map(base64.b64encode) | st.binary(max_size=40),
    st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from([b"\n", b" ", b"=", b"%2B", b"-", b"\0"])), max_size=3
    ),
)
def test_what_was_mended_needs_no_mending(
    kind: str, mark: str, text: bytes, damages: list[tuple[int, bytes]]
) -> None:
    for at, damage in damages:
        text = text[:at] + damage + text[at:]
    try:
        url = parse_data_url(f"data:{kind}{mark}".encode() + text)
    except BadImage:
        return
    assert len(url.data) <= len(text)
    if url.repaired is not None:
        assert parse_data_url(url.repaired) == DataUrl(url.data, None)


WHOLE = in_every_format(picture("x", (40, 20), 10))


@given(
    st.sampled_from(WHOLE), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), st.binary(max_size=4)))
)
def test_no_damage_breaks_the_inspection(data: bytes, damages: list[tuple[int, int, bytes]]) -> None:
    for at, lost, new in damages:
        data = data[:at] + new + data[at + lost :]
    try:
        info = inspect(data, max_pixels=100_000)
    except BadImage:
        return
    assert info.width * info.height <= 100_000


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
def test_header_and_tail_tell_size_and_wholeness(kind: str) -> None:
    data = encoded(picture("some words here", (120, 60)), kind)
    info = inspect(data, max_pixels=7200)
    assert info == ImageInfo(kind, 120, 60, complete=True, decoding_bytes=info.decoding_bytes)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF"])
def test_a_cut_image_lacks_its_end(kind: str) -> None:
    data = encoded(picture("some words here", (120, 60)), kind)
    assert not inspect(data[: len(data) * 2 // 3], max_pixels=7200).complete


def test_a_cut_webp_is_refused_at_once() -> None:
    with pytest.raises(BadImage):
        inspect(encoded(picture("some words here"), "WEBP")[:-100], max_pixels=10**6)


@pytest.mark.parametrize("kind", ["TIFF", "BMP"])
def test_formats_without_an_end_mark_are_never_taken_on_trust(kind: str) -> None:
    assert not inspect(encoded(picture("x"), kind), max_pixels=10**6).complete


def frames(kind: str) -> bytes:
    buffer = io.BytesIO()
    pages = [picture(str(page)) for page in range(3)]
    pages[0].save(buffer, kind, save_all=True, append_images=pages[1:])
    return buffer.getvalue()


def test_pages_are_never_dropped_silently_but_an_animation_is_its_first_frame() -> None:
    with pytest.raises(BadImage, match="several pages") as refused:
        inspect(frames("TIFF"), max_pixels=10**6)
    assert refused.value.code == "multi_page_image"
    assert inspect(frames("GIF"), max_pixels=10**6).format == "GIF"


def test_a_tiff_whose_second_page_cannot_be_read_is_refused() -> None:
    data = encoded(picture("x", (40, 20)), "TIFF", "1")
    first = int.from_bytes(data[4:8], "little")
    after = first + 2 + 12 * int.from_bytes(data[first : first + 2], "little")
    empty = (1).to_bytes(2, "little") + bytes(16)  # a directory of one tag that says nothing
    with pytest.raises(BadImage, match="several pages"):
        inspect(data[:after] + len(data).to_bytes(4, "little") + data[after + 4 :] + empty, max_pixels=10**6)


@pytest.mark.parametrize(
    ("size", "code"),
    [((101, 100), "image_too_large"), ((100, 7), "image_too_small"), ((1700, 8), "image_too_narrow")],
)
def test_sides_and_pixels_are_bounded(size: tuple[int, int], code: str) -> None:
    with pytest.raises(BadImage) as refused:
        inspect(
            encoded(Image.new("L", size), "PNG", "L"),
            max_pixels=10_000 if code == "image_too_large" else 10**6,
        )
    assert refused.value.code == code


def test_a_jpeg_of_more_scans_than_its_size_allows_is_refused() -> None:
    data = encoded(picture("x", (100, 100)), "JPEG", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    assert inspect(data[:-2] + last * 5 + data[-2:], max_pixels=10_000).complete
    with pytest.raises(BadImage, match="scans"):
        inspect(data[:-2] + last * 50 + data[-2:], max_pixels=10_000)


@pytest.mark.parametrize("data", [b"", b"plain text", b"%PDF-1.7", b"<svg/>", png()[:20]])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(BadImage):
        inspect(data, max_pixels=10**6)
