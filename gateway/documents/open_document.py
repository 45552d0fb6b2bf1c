"""An open document, and the process that renders its pages: killed with it, and replaced where it died."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

import msgspec

from gateway.documents.render_process import CPU_S, OpenResult, PageHeader
from gateway.errors import BadImage, BadRequest, Unavailable
from gateway.images.confined import start

if TYPE_CHECKING:
    import subprocess
    from asyncio import StreamReader, StreamWriter

    from gateway.documents.render_process import RenderSettings
    from gateway.model import Buffer

log = logging.getLogger(__name__)

T = TypeVar("T", OpenResult, PageHeader)

# What a process may take beside the document: a page's bitmap, and what is decoded to draw it.
_ROOM = 512 * 2**20
# To start, and to read a document's structure; and to render a page. Real ones take a hundredth of it.
_OPENING_S = 60.0
_PAGE_S = 60.0
# A document whose pages end so many processes is meant to.
_MOST_DEATHS = 3
# More than a JPEG of the largest page that is rendered has; and than a side of any may have.
_MAX_JPEG_BYTES = 64 * 2**20
_MAX_SIDE = 65_535
_RETRY_AFTER_S = 5


@dataclass(frozen=True, slots=True)
class PageImage:
    """A rendered page: a JPEG, its width and height in pixels, and its dots per inch."""

    jpeg: bytes
    width: int
    height: int
    dpi: int


class OpenDocument:
    """An open document; an async context manager. It is asked for one page at a time.

    Attributes:
        pages: how many it has.
    """

    def __init__(
        self,
        data: Buffer,
        settings: RenderSettings,
        *,
        room: int = _ROOM,
        opening_s: float = _OPENING_S,
        page_s: float = _PAGE_S,
    ) -> None:
        """Start nothing yet.

        Args:
            data: the document.
            settings: how it is rendered.
            room: bytes of memory that its process may take beside it.
            opening_s: seconds that opening it may take.
            page_s: seconds that a page may take.
        """
        self._data = data
        self._settings = settings
        self._room = room + len(data)
        self._opening_s = opening_s
        self._page_s = page_s
        self._process: _RenderProcess | None = None
        self._deaths = 0
        self.pages = 0

    @property
    def pid(self) -> int | None:
        """The id of the process, where there is one."""
        return self._process.process.pid if self._process else None

    async def __aenter__(self) -> Self:
        """Open the document.

        Raises:
            BadRequest: it cannot be read.
            Unavailable: no process can be started.
        """
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Kill the process, whatever it does."""
        await self._end()

    async def page(self, index: int) -> PageImage:
        """Render a page.

        Raises:
            BadRequest: it cannot be.
            Unavailable: the process died at another page, and no other can be started.
        """
        if self._deaths >= _MOST_DEATHS:
            raise _failed(f"the document has ended the process that renders it {_MOST_DEATHS} times")
        process = self._process or await self._open()
        try:
            async with asyncio.timeout(self._page_s):
                header, jpeg = await process.render(index)
        except (OSError, ValueError, EOFError) as error:
            await self._died(f"at page {index}", error)
            raise _failed(
                f"rendering the page took over {self._page_s:g} s or {CPU_S:g} s of CPU, or ended its process"
            ) from error
        except BaseException:  # its answer would be taken for the next page's
            await self._end()
            raise
        if header.refused:
            raise BadImage(header.refused, code=header.code)
        return PageImage(jpeg, header.width, header.height, header.dpi)

    async def _open(self) -> _RenderProcess:
        try:
            process = self._process = await self._start()
        except OSError as error:
            log.error("a process that renders documents cannot be started: %s", error.strerror)
            raise Unavailable(
                "the gateway cannot open a document now; retry shortly",
                code="documents_busy",
                retry_after=_RETRY_AFTER_S,
            ) from error
        try:
            async with asyncio.timeout(self._opening_s):
                opened = await process.open(self._data, self._settings)
        except (OSError, ValueError, EOFError) as error:
            await self._died("at opening one", error)
            limits = f"{self._opening_s:g} s or {CPU_S:g} s of CPU"
            words = f"opening the document took over {limits}, or ended its process"
            raise _failed(words) from error
        except BaseException:
            await self._end()
            raise
        if opened.refused:
            raise await self._refused(opened)
        self.pages = opened.pages
        return process

    async def _refused(self, opened: OpenResult) -> BadRequest:
        await self._end()
        return BadRequest(opened.refused, param="document", code=opened.code)

    async def _start(self) -> _RenderProcess:
        return _RenderProcess(*await start("gateway.documents.render_process", self._room))

    async def _died(self, where: str, error: BaseException) -> None:
        self._deaths += 1
        status = await self._end()
        log.error(
            "a process that renders documents failed %s: %s, exit status %s",
            where,
            type(error).__name__,
            status,
        )

    async def _end(self) -> int | None:
        ended, self._process = self._process, None
        if ended is None:
            return None
        ended.requests.close()
        ended.process.kill()
        return await asyncio.to_thread(ended.process.wait)


@dataclass(eq=False, slots=True)
class _RenderProcess:
    """A process, and the two ends of the talk with it."""

    process: subprocess.Popen[bytes]
    responses: StreamReader
    requests: StreamWriter

    async def open(self, data: Buffer, settings: RenderSettings) -> OpenResult:
        self.requests.writelines((msgspec.json.encode(settings), b"\n", data))
        return await self._line(OpenResult)

    async def render(self, index: int) -> tuple[PageHeader, bytes]:
        self.requests.write(b"%d\n" % index)
        header = await self._line(PageHeader)
        if header.refused:
            return header, b""
        sides = header.width, header.height
        if not (
            0 < header.size <= _MAX_JPEG_BYTES
            and header.dpi > 0
            and 0 < min(sides) <= max(sides) <= _MAX_SIDE
        ):
            raise ValueError("no page")
        return header, await self.responses.readexactly(header.size)

    async def _line(self, kind: type[T]) -> T:
        if not (line := await self.responses.readline()):
            raise ConnectionError
        return msgspec.json.decode(line, type=kind)


def _failed(words: str) -> BadRequest:
    return BadRequest(words, code="render_failed")
