from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from gateway.engines.embedded import pictures
from gateway.engines.embedded.pictures import PAGE_PIXELS, PAGE_SIDE, check_header, decode
from gateway.errors import BadImage
from tests.engines.embedded.rendering import encoded, png_header


def test_a_header_tells_the_size() -> None:
    assert check_header(encoded(Image.new("RGB", (30, 20)))) == (30, 20)


def test_a_bomb_is_refused_from_its_header() -> None:
    with pytest.raises(BadImage, match="20000 x 20000 pixels"):
        check_header(png_header(20_000, 20_000))


def test_pixels_are_bgr() -> None:
    pixels = decode(encoded(Image.new("RGB", (3, 2), (10, 20, 30))))
    assert pixels.shape == (2, 3, 3)
    assert pixels.dtype == np.uint8
    assert pixels[0, 0].tolist() == [30, 20, 10]


def test_a_large_page_is_shrunk() -> None:
    height, width, _ = decode(encoded(Image.new("L", (6000, 3000), 255))).shape
    assert 0.99 * PAGE_PIXELS < height * width <= PAGE_PIXELS
    assert width == pytest.approx(2 * height, abs=2)


def test_a_thread_stays_one_pixel_wide() -> None:
    assert decode(encoded(Image.new("L", (100_000, 1), 255))).shape == (1, PAGE_SIDE, 3)


def test_a_big_page_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_BIG_PIXELS", 1)
    assert decode(encoded(Image.new("L", (40, 30), 255))).shape == (30, 40, 3)


def test_a_truncated_picture_is_refused() -> None:
    data = encoded(Image.effect_noise((200, 200), 50), "JPEG")
    with pytest.raises(BadImage, match="truncated"):
        decode(data[: len(data) // 2])
