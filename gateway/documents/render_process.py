"""Renders a document's pages; the program of a process (`python -m gateway.documents.render_process`).

Of all libraries that read files, those for PDF are attacked most. So each document has a process of its own,
which holds no key and no other document, and is asked for one page after the other.
"""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Protocol

import msgspec
from PIL import Image

from gateway import child
from gateway.errors import BadImage, BadRequest
from gateway.images.confined import confine, outlive_signals
from gateway.wire.image import headers
from gateway.wire.image.headers import open_image
from gateway.wire.image.pixels import upright
from gateway.wire.mistral.document_pages import POINTS_PER_INCH, DocumentKind, page_scale

if TYPE_CHECKING:
    from collections.abc import Callable

    import pypdfium2

# Colours at full resolution: red print on white would blur.
_QUALITY, _NO_SUBSAMPLING = 92, 0
# pypdfium2's name for it is deep in its bindings.
_ERR_PASSWORD = 4
# The CPU seconds that opening a document may take, and each page: real ones take less than one. A document
# of pages that take more is over, with its three processes, before another client's patience is (30 s).
CPU_S = 5.0
_DAMAGED = "the page is missing from the document, or damaged"


class RenderSettings(msgspec.Struct):
    """How a document is rendered: the first line that the process reads, as JSON; the document follows.

    Attributes:
        kind: what the document is.
        size: its bytes, which follow.
        dpi: dots per inch that a PDF's pages are rendered at,
        max_side: with at most so many pixels a side, and
        max_pixels: at most so many in all, which holds for images before they are made smaller.
    """

    kind: DocumentKind
    size: int
    dpi: int
    max_side: int
    max_pixels: int


class OpenResult(msgspec.Struct, omit_defaults=True):
    """The process' first answer: how many pages there are; or why there are none, and that error's code."""

    pages: int = 0
    refused: str = ""
    code: str = ""


class PageHeader(msgspec.Struct, omit_defaults=True):
    """The process' answer for each page, before the JPEG.

    Attributes:
        width: in pixels.
        height: in pixels.
        dpi: dots per inch that it has.
        size: the JPEG's bytes, which follow.
        refused: why there is none, as the message of a BadImage.
        code: of that one.
    """

    width: int = 0
    height: int = 0
    dpi: int = 0
    size: int = 0
    refused: str = ""
    code: str = ""


class _Document(Protocol):
    """An open document."""

    pages: int

    def page(self, index: int) -> tuple[Image.Image, int]:
        """Return a page in RGB, and its dots per inch."""


def serve(
    requests: BinaryIO,
    answers: BinaryIO,
    settings: RenderSettings,
    begin: Callable[[], None] = lambda: None,
) -> None:
    """Read a document, and render pages by their numbers, a line each, until no more are asked for.

    `begin` is called before the document is opened and before each page.
    """
    begin()
    try:
        document = _open(requests.read(settings.size), settings)
    except BadRequest as error:
        _send(answers, OpenResult(refused=error.message, code=error.code or ""))
        return
    except MemoryError:
        words = "it takes more memory to open than there is for it"
        _send(answers, OpenResult(refused=words, code="render_failed"))
        return
    _send(answers, OpenResult(pages=document.pages))
    while line := requests.readline():
        begin()
        header, jpeg = _rendered(document, int(line))
        _send(answers, header, jpeg)


def _send(answers: BinaryIO, answer: msgspec.Struct, jpeg: bytes = b"") -> None:
    answers.write(msgspec.json.encode(answer) + b"\n" + jpeg)
    answers.flush()


def _rendered(document: _Document, index: int) -> tuple[PageHeader, bytes]:
    out = io.BytesIO()
    try:
        image, dpi = document.page(index)
        headers.check_sides(*image.size)
        image.save(out, "JPEG", quality=_QUALITY, subsampling=_NO_SUBSAMPLING)
    except BadImage as error:
        return PageHeader(refused=error.message, code=error.code or ""), b""
    except MemoryError:
        words = "the page takes more memory to render than there is for it"
        return PageHeader(refused=words, code="render_failed"), b""
    jpeg = out.getvalue()
    return PageHeader(*image.size, dpi, len(jpeg)), jpeg


def _open(data: bytes, settings: RenderSettings) -> _Document:
    match settings.kind:
        case "pdf":
            return _Pdf(data, settings)
        case "tiff":
            return _Tiff(data, settings)
    return _Image(data, settings)


class _Pdf:
    def __init__(self, data: bytes, settings: RenderSettings) -> None:
        import pypdfium2  # which the gateway itself must never load

        self._broken = pypdfium2.PdfiumError
        self._settings = settings
        try:
            self._pdf = pypdfium2.PdfDocument(data)
        except pypdfium2.PdfiumError as error:
            if error.err_code == _ERR_PASSWORD:
                raise BadRequest(
                    "the document is encrypted and opens with a password only; send it without",
                    code="encrypted_document",
                ) from error
            words = "the PDF cannot be read: damaged, or cut short"
            raise BadRequest(words, code="invalid_document") from error
        self.pages = len(self._pdf)
        self._pdf.init_forms()  # else what was filled in is not drawn

    def page(self, index: int) -> tuple[Image.Image, int]:
        try:
            page: pypdfium2.PdfPage = self._pdf[index]
        except self._broken as error:
            raise BadImage(_DAMAGED, code="invalid_page") from error
        settings = self._settings
        try:
            scale = page_scale(
                *page.get_size(),
                dpi=settings.dpi,
                max_side=settings.max_side,
                max_pixels=settings.max_pixels,
            )
            image = page.render(scale=scale).to_pil().convert("RGB")
        except self._broken as error:
            raise BadImage(_DAMAGED, code="invalid_page") from error
        finally:
            page.close()
        return image, max(1, round(scale * POINTS_PER_INCH))


class _Image:
    """A document of one image, whatever else is in its file."""

    pages = 1

    def __init__(self, data: bytes, settings: RenderSettings) -> None:
        headers.inspect(data, max_pixels=settings.max_pixels)
        self._data = data
        self._settings = settings

    def page(self, index: int) -> tuple[Image.Image, int]:
        image = open_image(self._data)
        return upright(image, self._settings.max_side), self._settings.dpi


class _Tiff:
    """A TIFF, each frame of which is a page."""

    def __init__(self, data: bytes, settings: RenderSettings) -> None:
        self._data = data
        self._settings = settings
        self._file = open_image(data)
        try:
            self.pages = int(getattr(self._file, "n_frames", 1))
        # A malformed list of frames surfaces as whatever its parser tripped over.
        except Exception as error:
            words = "the TIFF cannot be read: damaged, or cut short"
            raise BadImage(words, code="invalid_document") from error

    def page(self, index: int) -> tuple[Image.Image, int]:
        settings, file = self._settings, self._file
        try:
            try:
                file.seek(index)
            except Exception as error:
                raise BadImage(_DAMAGED, code="invalid_page") from error
            width, height = file.size
            if width * height > settings.max_pixels:
                raise BadImage(
                    f"the page has {width} x {height} pixels; at most {settings.max_pixels:,} are accepted",
                    code="image_too_large",
                )
            headers.check_sides(width, height)
            return upright(file, settings.max_side), settings.dpi
        except BaseException:
            self._file = open_image(self._data)  # the next frame is to be found whatever this one did to it
            raise


def main(room: int) -> None:
    """Serve the process that started this one, until that ends.

    Args:
        room: bytes of memory that may be taken beyond what the process has when it begins to serve.
    """
    outlive_signals()
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    settings = msgspec.json.decode(requests.readline(), type=RenderSettings)
    if settings.kind == "pdf":
        import pypdfium2  # noqa: F401 - what it takes for itself is not the document's
    Image.init()
    confine(room)
    with suppress(BrokenPipeError):  # the gateway is gone, or has enough
        serve(requests, answers, settings, partial(child.limit_cpu, CPU_S))


if __name__ == "__main__":
    main(int(sys.argv[1]))
