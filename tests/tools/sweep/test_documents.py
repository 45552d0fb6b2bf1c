import io
import random
from pathlib import Path

import pytest
from PIL import Image as Picture

from gateway.errors import ConfigError
from gateway.tools.sweep.documents import digest, images, rendered
from tests.support import encoded, picture, png

ROUTES = ("text", "key-value", "table", "stamps")


def folder(tmp_path: Path, **files: bytes) -> Path:
    (tmp_path / "table").mkdir()
    for name, data in files.items():
        (tmp_path / "table" / name.replace("_", ".")).write_bytes(data)
    return tmp_path


def test_a_routes_images_are_its_folders_whatever_else_lies_there(tmp_path: Path) -> None:
    jpeg, tiff = encoded(picture("b"), "JPEG"), encoded(picture("c"), "TIFF")
    found = images(folder(tmp_path, a_png=png("a"), b_JPG=jpeg, c_tif=tiff, notes_txt=b"no image"), "table")
    assert [(image.data, image.mime) for image in found] == [
        (png("a"), "image/png"),
        (jpeg, "image/jpeg"),
        (tiff, "image/tiff"),
    ]


def test_the_type_is_what_the_bytes_are_not_what_the_name_says(tmp_path: Path) -> None:
    assert images(folder(tmp_path, a_jpg=png()), "table")[0].mime == "image/png"


def test_of_too_many_images_a_spread_is_read(tmp_path: Path) -> None:
    files = {f"{number:02}_png": png(str(number)) for number in range(10)}
    assert [image.data for image in images(folder(tmp_path, **files), "table", limit=4)] == [
        png(str(number)) for number in (0, 3, 6, 9)
    ]


def test_images_that_are_too_large_together_are_fewer(tmp_path: Path) -> None:
    files = {f"{number}_png": png(str(number)) for number in range(6)}
    most = 2 * max(map(len, files.values()))
    path = folder(tmp_path, **files)
    assert [image.data for image in images(path, "table", max_bytes=most)] == [png("0"), png("3")]
    assert [image.data for image in images(path, "table", max_bytes=1)] == [png("0")]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "empty"),
        (b"no image at all", "not a readable"),
        (encoded(picture("x"), "PNG")[:-40], "truncated or corrupt"),
        (encoded(picture("x"), "BMP")[:-400], "truncated or corrupt"),
        (png(size=(4, 4)), "at least 8"),
        (png(size=(400, 400)), "at most 100,000"),
    ],
)
def test_a_file_that_no_engine_could_read_is_named(tmp_path: Path, data: bytes, problem: str) -> None:
    path = folder(tmp_path, good_png=png(), bad_png=data)
    with pytest.raises(ConfigError) as refused:
        images(path, "table", max_pixels=100_000)
    assert str(path / "table" / "bad.png") in str(refused.value)
    assert problem in str(refused.value)


def test_a_folder_that_is_called_like_an_image_is_no_image(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "table" / "a.png").mkdir()
    with pytest.raises(ConfigError, match=r"a\.png"):
        images(path, "table")


def test_without_images_the_folder_is_named_and_what_belongs_there(tmp_path: Path) -> None:
    path = folder(tmp_path, notes_txt=b"")
    with pytest.raises(ConfigError, match=r"table: holds no image; put .*\*\.png"):
        images(path, "table")
    with pytest.raises(ConfigError, match=r"text: is not there; put .*\*\.png"):
        images(path, "text")


@pytest.mark.parametrize("route", ROUTES)
def test_drawn_documents_are_what_their_seed_makes_them_and_all_differ(route: str) -> None:
    drawn = rendered(route, 6, random.Random(3))
    assert drawn == rendered(route, 6, random.Random(3))
    assert len({image.data for image in drawn}) == 6
    assert {image.mime for image in drawn} == {"image/png", "image/jpeg"}


@pytest.mark.parametrize(("route", "least", "most"), [("text", 1400, 1700), ("table", 300, 1400)])
def test_drawn_documents_have_sizes_that_documents_have(route: str, least: int, most: int) -> None:
    for image in rendered(route, 6, random.Random(5)):
        with Picture.open(io.BytesIO(image.data)) as found:
            assert image.mime == f"image/{str(found.format).lower()}"
            assert least <= max(found.size) <= most
            # Something is written on it, and more is left white.
            assert 0.01 < sum(found.convert("L").histogram()[:128]) / (found.width * found.height) < 0.3


def test_a_digest_tells_images_apart_and_not_their_order() -> None:
    drawn = rendered("table", 3, random.Random(3))
    assert digest(drawn) == digest(reversed(drawn))
    assert digest(drawn) != digest(rendered("table", 3, random.Random(4)))
    assert digest(drawn) != digest(drawn[:2])
