from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from gateway.engines.embedded.lines import reading_order
from gateway.engines.embedded.pictures import decode
from gateway.errors import BadImage
from tests.engines.embedded.rendering import RECEIPT, draw, encoded, receipt

if TYPE_CHECKING:
    from gateway.engines.embedded.reader import Reader

NASTY = Path(__file__).resolve().parents[4] / "shared" / "images" / "nasty"


def text_of(reader: Reader, data: bytes, *, lines: int = 99) -> str:
    """The text of an image's first lines."""
    page = reader.detect(decode(data))
    order = reading_order(page.boxes)[:lines]
    return "\n".join(" ".join(reader.recognise([page.crop(i)])[0] for i in line) for line in order)


def test_a_receipt_reads_as_drawn(reader: Reader) -> None:
    text = text_of(reader, receipt())
    assert text.splitlines()[0] == "CORNER BAKERY"
    assert "Bread 3.50" in text
    assert "Total 8.25" in text
    assert len(text.splitlines()) == len({top for _, top, _ in RECEIPT})


def test_boxes_are_where_the_text_is(reader: Reader) -> None:
    page = reader.detect(decode(encoded(draw((900, 400), [(500, 300, "HERE")], font=40))))
    (box,) = page.boxes
    assert 470 < box.left < box.right < 680
    assert 280 < box.top < box.bottom < 370


def test_several_crops_are_read_together(reader: Reader) -> None:
    page = reader.detect(decode(receipt()))
    crops = [page.crop(index) for index in range(2)]
    assert reader.recognise(crops) == [reader.recognise([crop])[0] for crop in crops]


@pytest.mark.parametrize("colour", ["white", "black"])
def test_a_blank_page_has_no_boxes(reader: Reader, colour: str) -> None:
    assert reader.detect(decode(encoded(Image.new("RGB", (300, 200), colour)))).boxes == []


@pytest.mark.parametrize("size", [(1, 1), (2000, 1), (1, 2000), (27, 27)])
def test_tiny_and_narrow_pictures_are_survived(reader: Reader, size: tuple[int, int]) -> None:
    assert reader.detect(decode(encoded(Image.new("RGB", size, "white")))).boxes == []


def test_noise_is_not_read_as_text(reader: Reader) -> None:
    noise = np.random.default_rng(1).integers(0, 255, (48, 160, 3), dtype=np.uint8)
    assert reader.recognise([noise]) == [""]


def test_a_vertical_line_is_turned(reader: Reader) -> None:
    upright = draw((560, 300), [(40, 40, "first line here"), (40, 240, "last line here")])
    turned = draw((200, 40), [(5, 3, "SIDEWAYS")]).rotate(-90, expand=True)
    upright.paste(turned, (450, 60))
    page = reader.detect(decode(encoded(upright)))
    (tall,) = [index for index, box in enumerate(page.boxes) if box.height > box.width]
    height, width, _ = page.crop(tall).shape
    assert width > height


@pytest.mark.skipif(not NASTY.exists(), reason="the shared test images are not here")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("01_exif_orientation6.jpg", "NADEJE PRESTIGE"),
        ("04_cmyk.jpg", "NADEJE PRESTIGE"),
        ("06_1bit_g4.tif", "quick"),
        ("07_multipage.tif", "Multipage"),
        ("08_palette_transparent.png", "Precision"),
        ("12_progressive.jpg", "NADEJE PRESTIGE"),
        ("20_text.webp", "Docling"),
        ("16_1x1.png", ""),
        ("27_blank_black.jpg", ""),
    ],
)
def test_nasty_files_read_as_they_should(reader: Reader, name: str, words: str) -> None:
    text = text_of(reader, (NASTY / name).read_bytes(), lines=2)
    assert words in text
    assert bool(words) == bool(text)


@pytest.mark.skipif(not NASTY.exists(), reason="the shared test images are not here")
def test_nasty_files_are_refused_as_they_should() -> None:
    with (NASTY / "README.csv").open() as listing:
        refused = [row["file"] for row in csv.DictReader(listing) if "200" not in row["expected_status"]]
    assert refused
    for name in refused:
        with pytest.raises(BadImage):
            decode((NASTY / name).read_bytes())


def test_nothing_is_reported_to_anybody(tmp_path: Path) -> None:
    """onnxruntime keeps what it is about to send, and a number for the machine, under the user's home."""
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    load = "from gateway.engines.embedded.reader import Reader; Reader()"
    subprocess.run(
        [sys.executable, "-c", load], env={**environment, "HOME": str(tmp_path)}, check=True, timeout=120
    )
    assert list(tmp_path.iterdir()) == []
