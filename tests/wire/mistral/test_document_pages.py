from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import BadImage, BadRequest
from gateway.wire.mistral import chosen_pages, kind_of, page_scale
from tests import pdf
from tests.support import encoded, picture

DOCUMENT = pdf.document(["hello"])


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (DOCUMENT, "pdf"),
        (b"\0junk before it" + DOCUMENT, "pdf"),
        (encoded(picture("x"), "TIFF"), "tiff"),
        *[(encoded(picture("x"), name), "image") for name in ("PNG", "JPEG", "WEBP", "GIF", "BMP")],
    ],
)
def test_the_first_bytes_tell_what_it_is(data: bytes, kind: str) -> None:
    assert kind_of(memoryview(data), "file") == kind


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"<html>", b"RIFF0000WAVE", b"x" * 2000 + DOCUMENT])
def test_what_is_none_of_these_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest, match=r"0 bytes|none of PDF") as raised:
        kind_of(data, "file")
    assert (raised.value.param, raised.value.code) == ("file", "invalid_document")


def test_pages_are_read_once_and_in_their_order() -> None:
    assert chosen_pages(None, 3, 10) == [0, 1, 2]
    assert chosen_pages(((4, 4), (0, 2), (1, 3), (4, 4), (1, 1)), 5, 5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [0, -5])
def test_a_document_without_pages_is_refused(count: int) -> None:
    with pytest.raises(BadRequest, match="no pages"):
        chosen_pages(None, count, 5)


def test_a_page_that_is_not_there_is_refused_with_how_many_there_are() -> None:
    with pytest.raises(BadRequest, match="the document has 3, numbered from 0 to 2") as raised:
        chosen_pages(((0, 0), (2, 3)), 3, 5)
    assert raised.value.code == "page_out_of_range"


@pytest.mark.parametrize(("pages", "count"), [(None, 1_000_000), (((0, 3), (2, 6)), 7)])
def test_too_many_pages_are_refused_and_may_be_chosen_from(pages: Any, count: int) -> None:
    with pytest.raises(BadRequest, match="`pages`") as raised:
        chosen_pages(pages, count, 6)
    assert raised.value.code == "too_many_pages"


def scale(width: float, height: float, **limits: Any) -> float:
    return page_scale(width, height, **{"dpi": 200, "max_side": 2400, "max_pixels": 10**8, **limits})


def test_a_page_is_rendered_at_the_dpi_but_no_larger_than_may_be() -> None:
    assert scale(612, 792) == 200 / 72
    assert round(scale(14_400, 100) * 14_400) == 2400
    assert scale(14_400, 100) * 14_400 < 2400
    assert round((scale(1000, 1000, max_pixels=10_000) * 1000) ** 2) == 10_000


@pytest.mark.parametrize(
    ("width", "height"), [(14_401, 10), (10, 1e30), (0, 10), (-1, 10), (float("nan"), 10), (float("inf"), 10)]
)
def test_a_page_of_impossible_sides_is_refused(width: float, height: float) -> None:
    with pytest.raises(BadImage, match="14,400") as raised:
        scale(width, height)
    assert raised.value.code == "page_too_large"
