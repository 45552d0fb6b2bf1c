from __future__ import annotations

import csv
import random
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont, ImageOps

import gateway
from gateway.policy.sort.layout import THUMBNAIL_SIDE, LayoutModel, features, guess
from gateway.wire.image.pixels import thumbnail

SHARED = Path(__file__).resolve().parents[3] / "shared" / "images"
WEIGHTS = Path(gateway.__file__).parent / "images" / "layout.npz"
FONT = ImageFont.load_default(15)


@pytest.fixture(scope="module")
def model() -> LayoutModel:
    return LayoutModel.from_bytes(WEIGHTS.read_bytes())


def reduced(image: Image.Image) -> np.ndarray:
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BOX)
    return np.asarray(image.convert("L"))


def words(rng: random.Random, count: int) -> str:
    return " ".join("".join(rng.choices("aeinorstlhd", k=rng.randint(2, 9))) for _ in range(count))


def paragraphs(seed: int = 0) -> Image.Image:
    rng = random.Random(seed)
    image = Image.new("L", (620, 800), 255)
    draw = ImageDraw.Draw(image)
    for row in range(36):
        if row % 9 != 8:
            line = words(rng, 20)
            while FONT.getlength(line) > (540 if row % 9 != 7 else 300):
                line = line.rpartition(" ")[0]
            draw.text((40, 30 + 20 * row), line, 0, FONT)
    return image


def ruled_grid(seed: int = 0) -> Image.Image:
    rng = random.Random(seed)
    image = Image.new("L", (620, 340), 255)
    draw = ImageDraw.Draw(image)
    for row in range(11):
        draw.line((10, 10 + 30 * row, 610, 10 + 30 * row), 0)
    for column in range(6):
        draw.line((10 + 120 * column, 10, 10 + 120 * column, 310), 0)
        for row in range(10):
            if column < 5:
                text = words(rng, 1) if column == 0 or row == 0 else f"{rng.random() * 100:.2f}"
                draw.text((18 + 120 * column, 17 + 30 * row), text, 0, FONT)
    return image


def receipt(seed: int = 0) -> Image.Image:
    """A heading, labels at the left with their values at the right, a closing line."""
    rng = random.Random(seed)
    image = Image.new("L", (300, 620), 250)
    draw = ImageDraw.Draw(image)
    for row in range(5):
        draw.text((150, 20 + 22 * row), words(rng, 2), 20, FONT, anchor="ma")
    for row in range(6, 22):
        draw.text((20, 20 + 22 * row), words(rng, 1), 20, FONT)
        draw.text((280, 20 + 22 * row), f"{rng.random() * 90:.2f}", 20, FONT, anchor="ra")
    draw.text((150, 570), words(rng, 2), 20, FONT, anchor="ma")
    return image


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("draw", "route"),
    [
        (paragraphs, "text"),
        (ruled_grid, "table"),
        (receipt, "key-value"),
    ],
)
@pytest.mark.parametrize("change", [lambda image: image, ImageOps.invert], ids=["plain", "inverted"])
def test_plain_documents_go_to_their_routes(model, draw, route, seed, change):
    assert guess(reduced(change(draw(seed))), model).route == route


def test_a_guess_is_the_likeliest_route(model):
    grey = reduced(ruled_grid())
    probabilities = model.probabilities(features(grey))

    found = guess(grey, model)

    assert probabilities.sum() == pytest.approx(1.0)
    assert found.confidence == probabilities.max()
    assert found.route == model.routes[int(probabilities.argmax())]


def check(grey: np.ndarray, model: LayoutModel) -> None:
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error")
        measures = features(grey)
        found = guess(grey, model)
    assert np.isfinite(measures).all()
    assert measures.dtype == np.float32
    assert found.route in model.routes
    assert 0 < found.confidence <= 1


SIDES = st.integers(1, 40) | st.sampled_from([63, 64, 200, THUMBNAIL_SIDE])


@settings(deadline=None)
@given(
    height=SIDES,
    width=SIDES,
    seed=st.integers(0, 2**32 - 1),
    low=st.integers(0, 255),
    high=st.integers(0, 255),
    share=st.floats(0, 1),
)
def test_any_picture_gets_a_route(model, height, width, seed, low, high, share):
    rng = np.random.default_rng(seed)
    grey = np.where(rng.random((height, width)) < share, low, high).astype(np.uint8)
    check(grey, model)
    check(rng.integers(0, 256, (height, width), dtype=np.uint8), model)


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 384), (384, 1), (2, 2), (3, 384), (384, 3), (384, 384), (7, 7)]
)
@pytest.mark.parametrize("fill", [0, 127, 255])
def test_blank_pictures_and_single_dots(model, shape, fill):
    grey = np.full(shape, fill, dtype=np.uint8)
    check(grey, model)
    grey[shape[0] // 2, shape[1] // 2] = 255 - fill
    check(grey, model)


def test_two_lines_at_opposite_ends_have_no_pitch(model):
    grey = np.full((200, 200), 255, dtype=np.uint8)
    grey[:3, ::6] = 0
    grey[-3:, ::6] = 0
    check(grey, model)


@pytest.mark.parametrize("shape", [(384, 2), (2, 384)])
def test_pictures_too_narrow_for_a_rule(model, shape):
    check(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8), model)


@pytest.mark.parametrize("period", [1, 2, 3, 5, 16, 64])
def test_stripes_and_checks(model, period):
    rows, columns = np.indices((300, 200)) // period % 2
    for pattern in (rows, columns, rows ^ columns, rows & columns):
        check((pattern * 255).astype(np.uint8), model)


def test_measures_always_have_the_same_number():
    assert features(np.zeros((1, 1), np.uint8)).shape == features(reduced(paragraphs())).shape


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared test images are not here")
def test_real_documents_of_sources_never_trained_on(model):
    with (SHARED / "manifest.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    wrong = []
    for row in rows:
        found = guess(thumbnail((SHARED / row["file"]).read_bytes(), THUMBNAIL_SIDE), model)
        if found.route != row["label"]:
            wrong.append(f"{row['file']}: {found.route} ({found.confidence:.2f})")

    assert 1 - len(wrong) / len(rows) >= 0.88, "\n".join(wrong)
