from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from PIL import Image

from gateway.documents.render_process import OpenResult, PageHeader, RenderSettings, serve
from gateway.wire.mistral import kind_of
from tests import pdf
from tests.support import encoded, in_every_format, picture

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MIB = 2**20
PAGES = pdf.document(["one", "two", "three"], broken={1})


def settings(data: bytes, **changed: Any) -> RenderSettings:
    usual = {"kind": kind_of(data, "file"), "dpi": 200, "max_side": 2400, "max_pixels": 10_000_000}
    return RenderSettings(**{**usual, "size": len(data), **changed})


def rendered(
    data: bytes, *indices: int, **changed: Any
) -> tuple[OpenResult, list[tuple[PageHeader, Image.Image | None]]]:
    """Open a document and render pages of it, in this process."""
    out = io.BytesIO()
    asked = data + b"".join(b"%d\n" % index for index in indices)
    serve(io.BytesIO(asked), out, settings(data, **changed))
    out.seek(0)
    opened = msgspec.json.decode(out.readline(), type=OpenResult)
    pages: list[tuple[PageHeader, Image.Image | None]] = []
    for line in iter(out.readline, b""):
        told = msgspec.json.decode(line, type=PageHeader)
        jpeg = out.read(told.size)
        pages.append((told, Image.open(io.BytesIO(jpeg), formats=["JPEG"]) if jpeg else None))
    return opened, pages


def darkness(image: Image.Image | None) -> int:
    """How many pixels have ink."""
    assert image
    return sum(image.convert("L").point(lambda value: value < 128).histogram()[1:])


def test_a_pdfs_pages_are_rendered_one_by_one_and_a_broken_one_is_told() -> None:
    opened, ((first, image), (broken, nothing), (last, other)) = rendered(PAGES, 0, 1, 2)
    assert opened == OpenResult(pages=3)
    assert image
    assert image.mode == "RGB"
    assert image.size == (first.width, first.height) == (1700, 2200)
    assert first.dpi == 200
    assert darkness(image) > 100
    assert (broken.refused, broken.code, nothing) == (
        "the page is missing from the document, or damaged",
        "invalid_page",
        None,
    )
    assert darkness(other) > darkness(image)
    assert last.size > 0


def test_what_was_filled_into_a_form_is_drawn() -> None:
    stream = b"<< /Type /XObject /Subtype /Form /BBox [0 0 200 40] /Resources << /Font << /F1 3 0 R >> >> "
    words = b"BT /F1 24 Tf 5 10 Td (FILLED IN) Tj ET"
    document = pdf.written(
        [
            b"<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [5 0 R] >> >>",
            b"<< /Type /Pages /Count 1 /Kids [4 0 R] >>",
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 300] /Annots [5 0 R] >>",
            b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (a) /V (FILLED IN) /F 4 /Rect [50 50 250 90] "
            b"/DA (/F1 24 Tf) /AP << /N 6 0 R >> >>",
            b"%s/Length %d >>\nstream\n%s\nendstream" % (stream, len(words), words),
        ]
    )
    _, ((_, image),) = rendered(document, 0)
    assert darkness(image) > 100


def test_a_large_page_is_rendered_as_large_as_may_be() -> None:
    _, ((told, image),) = rendered(pdf.document(["poster"], size=(2400, 3600)), 0)
    assert (told.width, told.height, told.dpi) == (1600, 2400, 48)
    _, ((told, image),) = rendered(pdf.document(["x"]), 0, max_pixels=100_000)
    assert told.width * told.height <= 101_000
    assert image


@pytest.mark.parametrize(
    ("box", "code"),
    [
        (b"[0 0 20000 20000]", "page_too_large"),
        (b"[0 0 2000000000 100]", "page_too_large"),
        (b"[0 0 14400 10]", "image_too_small"),
    ],
)
def test_a_page_of_impossible_sides_is_refused(box: bytes, code: str) -> None:
    document = pdf.written(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Count 2 /Kids [3 0 R 4 0 R] >>",
            b"<< /Type /Page /Parent 2 0 R /MediaBox %s >>" % box,
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 100 100] >>",
        ]
    )
    _, ((told, _), (other, _)) = rendered(document, 0, 1)
    assert told.code == code
    assert other.size


LOCKED = b"/ID [<00> <00>] /Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <%s> /U <%s> >>" % (
    b"11" * 32,
    b"22" * 32,
)


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (b"%PDF-1.4\n", "invalid_document"),
        (b"%PDF-1.4\n" + bytes(range(256)) * 100, "invalid_document"),
        (
            pdf.written([b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [] >>"], LOCKED),
            "encrypted_document",
        ),
        (b"II*\0junk", "invalid_image"),
        (b"\x89PNG\r\n\x1a\njunk", "invalid_image"),
    ],
)
def test_a_document_that_cannot_be_opened_is_refused_in_words(document: bytes, code: str) -> None:
    opened, pages = rendered(document, 0)
    assert (opened.pages, opened.code, pages) == (0, code, [])
    assert opened.refused


def deep(levels: int) -> bytes:
    """A PDF with one page, so many levels down its tree."""
    nodes = [
        b"<< /Type /Pages /Count 1 /Kids [%d 0 R] %s >>"
        % (number + 1, b"/Parent %d 0 R" % (number - 1) if number > 2 else b"")
        for number in range(2, levels + 2)
    ]
    page = b"<< /Type /Page /Parent %d 0 R /MediaBox [0 0 100 100] >>" % (levels + 1)
    return pdf.written([b"<< /Type /Catalog /Pages 2 0 R >>", *nodes, page])


def test_a_tree_of_pages_that_is_too_deep_or_turns_back_has_no_such_page() -> None:
    opened, ((told, _),) = rendered(deep(3), 0)
    assert told.size
    opened, ((told, _),) = rendered(deep(5000), 0)
    assert (opened.pages, told.code) == (1, "invalid_page")
    circle = [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Count 2 /Kids [2 0 R] >>"]
    _, ((told, _),) = rendered(pdf.written(circle), 0)
    assert told.code == "invalid_page"


def test_more_pages_than_there_are_bytes_are_counted_and_not_there() -> None:
    claims = [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Count 1000000 /Kids [] >>"]
    opened, ((told, _),) = rendered(pdf.written(claims), 999_999)
    assert (opened.pages, told.code) == (1_000_000, "invalid_page")


def test_each_frame_of_a_tiff_is_a_page() -> None:
    out = io.BytesIO()
    frames = [
        picture("one", (300, 400)),
        picture("two", (600, 300)).convert("L"),
        picture("3", (90, 90)).convert("1"),
    ]
    frames[0].save(out, "TIFF", save_all=True, append_images=frames[1:])
    opened, pages = rendered(out.getvalue(), 0, 2, 1, max_side=500)
    assert opened.pages == 3
    assert [(told.width, told.height) for told, _ in pages] == [(300, 400), (90, 90), (500, 250)]
    assert all(darkness(image) > 10 for _, image in pages)
    _, ((first, _), (none, _), (large, _), (last, _)) = rendered(
        out.getvalue(), 0, 7, 1, 2, max_pixels=150_000
    )
    assert first.size
    assert (none.code, large.code) == ("invalid_page", "image_too_large")
    assert last.size


def test_a_frame_that_is_damaged_costs_no_other() -> None:
    out = io.BytesIO()
    noise = Image.effect_noise((200, 200), 90)
    noise.save(out, "TIFF", save_all=True, append_images=[noise, noise], compression="tiff_lzw")
    data = bytearray(out.getvalue())
    with Image.open(io.BytesIO(data)) as file:
        file.seek(1)
        start = file.tag_v2[273][0]  # type: ignore[attr-defined]
    data[start : start + 2000] = bytes(range(250)) * 8
    _, ((first, _), (damaged, _), (last, _)) = rendered(bytes(data), 0, 1, 2)
    assert first.size
    assert last.size
    assert (damaged.size, damaged.code) == (0, "invalid_image")


def test_every_image_format_is_a_document_of_one_page() -> None:
    for data in in_every_format(picture("some words", (300, 200))):
        opened, ((told, image),) = rendered(data, 0, max_side=256)
        assert opened.pages == 1
        assert (told.width, told.height, told.dpi) == (256, 171, 200)
        assert darkness(image) > 100


def test_an_image_that_must_not_be_decoded_is_refused_before() -> None:
    opened, _ = rendered(encoded(picture("x", (300, 200)), "PNG"), max_pixels=50_000)
    assert opened.code == "image_too_large"
    cut = encoded(picture("words on a page", (300, 300)), "JPEG")[:-900]
    opened, ((told, _),) = rendered(cut, 0)
    assert (opened.pages, told.code) == (1, "invalid_image")


def test_want_of_memory_is_told_and_the_next_page_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def upright(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("gateway.documents.render_process.upright", upright)
    _, ((told, _),) = rendered(encoded(picture("x"), "PNG"), 0)
    assert told.code == "render_failed"
    monkeypatch.setattr("gateway.documents.render_process.open_image", upright)
    opened, pages = rendered(encoded(picture("x"), "TIFF"), 0)
    assert (opened.code, pages) == ("render_failed", [])


@contextmanager
def program(data: bytes, room: int = 256 * MIB) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "gateway.documents.render_process", str(room)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write(msgspec.json.encode(settings(data)) + b"\n" + data)
        process.stdin.flush()
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("data", [PAGES, encoded(picture("x"), "PNG")], ids=["pdf", "png"])
def test_the_program_ends_with_what_it_is_asked_by(data: bytes) -> None:
    with program(data) as process:
        assert process.stdin
        assert process.stdout
        assert json.loads(process.stdout.readline())["pages"] >= 1
        process.stdin.write(b"0\n")
        process.stdin.flush()
        told = json.loads(process.stdout.readline())
        assert len(process.stdout.read(told["size"])) == told["size"] > 0
        process.stdin.close()
        assert process.wait(30) == 0


def test_a_gateway_that_has_never_rendered_has_not_loaded_the_library() -> None:
    names: Sequence[str] = ["gateway.server.app", "gateway.documents.open_document"]
    code = f"import sys, {', '.join(names)}; print('pypdfium2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
