"""A web server for tests that answers byte for byte as it is told, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Behaviour = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Host:
    """What lies at which path: bytes to send, or what to do; `asked` has the heads of all requests."""

    answers: dict[str, bytes | Behaviour] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    port: int = 0

    @property
    def paths(self) -> list[str]:
        return [head.split(" ", 2)[1] for head in self.asked]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.asked.append(head)
            answer = self.answers.get(self.paths[-1], answer_of(b"", "404 Not Found"))
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()


def answer_of(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    """An answer with a length, and more headers; `_` stands for `-` in their names."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def certified(folder: Path, subject: str, *names: str) -> Path:
    """A file with a key and its certificate, which nobody but itself vouches for; skips without openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    path = folder / "host.pem"
    what = f"-x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -batch -days 2 -subj /CN={subject}"
    more = ["-addext", f"subjectAltName={','.join(names)}"]
    files = ["-keyout", str(path), "-out", str(path.with_suffix(".crt"))]
    subprocess.run(["openssl", "req", *what.split(), *more, *files], check=True, capture_output=True)
    path.write_text(path.read_text() + path.with_suffix(".crt").read_text())
    return path


def redirect_to(url: str, status: str = "302 Found") -> bytes:
    return answer_of(b"", status, Location=url)


@contextlib.asynccontextmanager
async def hosted(
    tls: ssl.SSLContext | None = None, port: int = 0, **answers: bytes | Behaviour
) -> AsyncIterator[Host]:
    """Serve on a port of 127.0.0.1, a free one unless told; `answers` by path without its slash."""
    host = Host({f"/{path}": answer for path, answer in answers.items()})
    server = await asyncio.start_server(host.serve, "127.0.0.1", port, ssl=tls)
    host.port = server.sockets[0].getsockname()[1]
    try:
        yield host
    finally:
        server.close()


async def drip(writer: asyncio.StreamWriter) -> None:
    """Send an answer that never ends, a byte at a time."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)
