from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile

from gateway.errors import BadImage
from gateway.wire.image.headers import open_image
from gateway.wire.image.pixels import decode_rgb, thumbnail, upright
from tests.support import in_every_format


def encoded(image: Image.Image, fmt: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, fmt, **options)
    return out.getvalue()


def half_black(width: int = 60, height: int = 40) -> Image.Image:
    """White, with a black left half."""
    image = Image.new("RGB", (width, height), "white")
    image.paste("black", (0, 0, width // 2, height))
    return image


def corner(width: int = 60, height: int = 40) -> Image.Image:
    """White, with a black top left quarter."""
    image = Image.new("RGB", (width, height), "white")
    image.paste("black", (0, 0, width // 2, height // 2))
    return image


ORIENTATIONS = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@pytest.mark.parametrize(("orientation", "turn"), ORIENTATIONS.items())
def test_exif_orientation_is_applied(orientation, turn):
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = corner() if turn is None else corner().transpose(turn)

    data = encoded(corner(), "PNG", exif=exif)

    assert np.array_equal(np.asarray(decode_rgb(data)), np.asarray(upright))
    assert np.array_equal(thumbnail(data, 100), np.asarray(upright.convert("L")))


def test_exif_orientation_is_applied_to_a_jpeg_decoded_at_a_fraction():
    exif = Image.Exif()
    exif[0x0112] = 6
    grey = thumbnail(encoded(corner(1600, 1200), "JPEG", exif=exif), 160)

    assert grey.shape == (160, 120)
    assert grey[20, 100] < 20
    assert grey[20, 20] > 235


@pytest.mark.parametrize("fmt", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"])
def test_every_format_is_read(fmt):
    data = encoded(half_black(), fmt)

    image = decode_rgb(data)

    assert (image.mode, image.size) == ("RGB", (60, 40))
    assert open_image(data).format == fmt
    assert thumbnail(data, 30)[10, 2] < 20
    assert thumbnail(data, 30)[10, 27] > 235


def test_a_format_that_is_not_accepted_is_refused():
    with pytest.raises(BadImage):
        thumbnail(encoded(half_black(), "PPM"), 30)


def transparent(mode: str) -> Image.Image:
    """Opaque black at the left, transparent (black underneath) at the right."""
    image = Image.new("LA", (60, 40), (0, 0))
    image.paste((0, 255), (0, 0, 30, 40))
    return image.convert(mode)


def palette_with_transparency() -> bytes:
    image = Image.new("P", (60, 40), 1)
    image.putpalette([0, 0, 0, 0, 0, 0])
    image.paste(0, (0, 0, 30, 40))
    return encoded(image, "PNG", transparency=1)


@pytest.mark.parametrize(
    "data",
    [
        encoded(transparent("LA")),
        encoded(transparent("RGBA")),
        encoded(transparent("RGBA"), "WEBP", lossless=True),
        palette_with_transparency(),
    ],
    ids=["LA", "RGBA", "WebP", "palette"],
)
def test_what_is_transparent_is_white(data):
    rgb = np.asarray(decode_rgb(data))

    assert rgb[:, :30].max() == 0
    assert rgb[:, 30:].min() == 255
    assert thumbnail(data, 60)[20, 50] == 255


def deep(dtype: type, top: float) -> Image.Image:
    """A ramp from 0 to `top`."""
    return Image.fromarray(np.linspace(0, top, 60 * 40).reshape(40, 60).astype(dtype))


@pytest.mark.parametrize(
    "data",
    [
        encoded(deep(np.uint16, 65535)),
        encoded(deep(np.int32, 65535), "TIFF"),
        encoded(deep(np.float32, 1000.0), "TIFF"),
        encoded(deep(np.uint8, 255)),
    ],
    ids=["16-bit", "I", "F", "8-bit"],
)
def test_deep_greys_keep_their_whole_range(data):
    grey = np.asarray(decode_rgb(data).convert("L"))

    assert grey[0, 0] == 0
    assert grey[-1, -1] >= 254
    assert 120 < grey[20, 0] < 136
    assert np.array_equal(thumbnail(data, 60), grey)


def test_a_dark_deep_picture_stays_dark():
    assert np.asarray(decode_rgb(encoded(deep(np.float32, 40.0), "TIFF"))).max() == 40


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr"])
def test_other_modes(mode):
    fmt = "JPEG" if mode in ("CMYK", "YCbCr") else "PNG"
    data = encoded(half_black().convert(mode), fmt)

    rgb = np.asarray(decode_rgb(data))
    grey = thumbnail(data, 60)

    assert rgb[20, 5].max() < 20
    assert rgb[20, 55].min() > 235
    assert grey[20, 5] < 20
    assert grey[20, 55] > 235


@pytest.mark.parametrize("fmt", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"])
def test_truncated_data_is_refused(fmt):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype=np.uint8))
    data = encoded(noise, fmt)
    data = data[: len(data) // 2]

    for read in (decode_rgb, lambda cut: thumbnail(cut, 30)):
        with pytest.raises(BadImage):
            read(data)


@pytest.mark.parametrize("read", [decode_rgb, lambda data: thumbnail(data, 64)])
def test_want_of_memory_is_no_fault_of_the_image(read, monkeypatch):
    def load(_: Image.Image) -> None:
        raise MemoryError

    data = encoded(half_black())
    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    with pytest.raises(MemoryError):
        read(data)


@pytest.mark.parametrize("data", [b"", b"hello", b"%PDF-1.7", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"])
def test_what_is_no_image_is_refused(data):
    for read in (open_image, decode_rgb, lambda cut: thumbnail(cut, 30)):
        with pytest.raises(BadImage):
            read(data)


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        ((1, 1), (1, 1)),
        ((100, 100), (100, 100)),
        ((3000, 2000), (267, 400)),
        ((5000, 10), (1, 400)),
        ((7, 4100), (400, 1)),
    ],
)
@pytest.mark.parametrize("fmt", ["PNG", "JPEG"])
@pytest.mark.parametrize("mode", ["RGB", "L", "1"])
def test_a_thumbnail_is_bounded_and_never_enlarged(size, shape, fmt, mode):
    grey = thumbnail(encoded(Image.new(mode, size, "white"), fmt), 400)

    assert grey.shape == shape
    assert grey.dtype == np.uint8
    assert grey.min() == 255


def test_the_first_frame_counts():
    frames = [half_black(), Image.new("RGB", (60, 40), "red")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])

    assert thumbnail(data, 60)[20, 55] > 235


UPRIGHT = Image.Exif()
UPRIGHT[0x0112] = 1


@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"exif": UPRIGHT}], ids=["VP8", "VP8L", "VP8X"])
def test_a_webp_bomb_is_refused_before_its_canvas_is_allocated(options, monkeypatch):
    data = encoded(half_black(300, 200), "WEBP", **options)
    assert open_image(data, max_pixels=60_000).width == 300
    monkeypatch.setattr("gateway.wire.image.pixels.Image.open", None)
    with pytest.raises(BadImage, match="300 x 200 pixels"):
        open_image(data, max_pixels=59_999)


def test_an_unknown_kind_of_webp_is_left_to_the_decoder():
    data = bytearray(encoded(half_black(), "WEBP"))
    data[12:16] = b"VP99"
    with pytest.raises(BadImage, match="not a readable"):
        open_image(bytes(data), max_pixels=10**6)


def test_pixels_are_counted_before_any_is_decoded():
    data = encoded(half_black(300, 200))
    assert open_image(data, max_pixels=60_000).size == (300, 200)
    with pytest.raises(BadImage, match="300 x 200 pixels") as refused:
        open_image(data, max_pixels=59_999)
    assert refused.value.code == "image_too_large"


def test_a_header_is_found_early_or_not_at_all():
    noise = np.random.default_rng(1).integers(0, 256, (1100, 1100, 3), dtype=np.uint8)
    large = encoded(Image.fromarray(noise))
    assert len(large) > 3_000_000
    assert open_image(large, header_only=True).size == (1100, 1100)
    assert decode_rgb(large).size == (1100, 1100)
    profile = b"\xff\xd8" + (b"\xff\xe2\xff\xff" + bytes(65533)) * 40 + encoded(half_black(), "JPEG")[2:]
    with pytest.raises(BadImage, match="not a readable"):
        open_image(profile, header_only=True)


@pytest.mark.parametrize("order", ["little", "big"])
def test_a_tiff_of_endless_tags_is_refused(order):
    mark = b"II*\0" if order == "little" else b"MM\0*"
    with pytest.raises(BadImage, match="more than 1,000 tags"):
        open_image(mark + (8).to_bytes(4, order) + (60_000).to_bytes(2, order) + bytes(12 * 60_000))


WHOLE = in_every_format(half_black())


@given(
    st.sampled_from(WHOLE), st.lists(st.tuples(st.integers(0, 500), st.integers(0, 3), st.binary(max_size=4)))
)
def test_no_damage_breaks_the_decoders(data: bytes, damages: list[tuple[int, int, bytes]]) -> None:
    for at, lost, new in damages:
        data = data[:at] + new + data[at + lost :]
    try:
        open_image(data, max_pixels=100_000)
        grey = thumbnail(data, 30)
    except BadImage:
        return
    assert max(grey.shape) <= 30
    assert decode_rgb(data).mode == "RGB"


@pytest.mark.parametrize(("size", "expected"), [((300, 200), (300, 200)), ((900, 600), (300, 200))])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF"])
def test_a_frame_is_upright_and_no_larger_than_may_be(kind, size, expected):
    exif = Image.Exif()
    exif[0x0112] = 8
    picture = half_black().resize((size[1], size[0])).convert("L")
    image = upright(open_image(encoded(picture, kind, exif=exif)), 300)
    assert (image.mode, image.size) == ("RGB", expected)
    with pytest.raises(BadImage, match="truncated or corrupt"):
        upright(open_image(encoded(half_black(), "PNG")[:-60]), 300)


@pytest.mark.parametrize("mode", ["1", "P", "I;16", "L"])
def test_a_picture_of_any_mode_is_reduced(mode: str) -> None:
    white = (
        Image.new("L", (2400, 1200), 255).convert(mode)
        if mode != "I;16"
        else Image.new(mode, (2400, 1200), 65535)
    )
    assert thumbnail(encoded(white, "PNG"), 256).min() == 255
