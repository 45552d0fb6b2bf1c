from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from bench.overhead.native import NoCompilerError, program
from bench.serving import free_port
from gateway.model import Usage
from gateway.wire.openai.completion import read_answer, read_chunk
from gateway.wire.vllm.engine import read_metrics, read_version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

CHAT = "/v1/chat/completions"
ASKED = b'{"model": "ocr-model", "messages": []}'
STREAM = b'{"model": "ocr-model", "stream": true, "messages": [], "stream_options": {"include_usage": true}}'
STAMPED = b'{"choices": [{"message": {"content": "@1000:2000 text"}}]}'
EVENT = b'data: {"choices": [{"delta": {"content": "@%d"}}]}\n\n'
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@contextmanager
def engine(settings: str = "") -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen([program("stub"), str(port)])
    try:
        for _ in range(500):
            try:
                talk(port, b"GET /set?" + settings.encode() + b" HTTP/1.0\r\n\r\n")
                break
            except ConnectionRefusedError:
                process.poll()
        yield port
    finally:
        process.kill()
        process.wait()


def talk(port: int, *parts: bytes) -> bytes:
    """Send a request in parts, and read until the engine closes."""
    import socket

    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            connection.sendall(part)
        answer = b""
        while data := connection.recv(65536):
            answer += data
    return answer


def post(body: bytes, *, chunks: Sequence[bytes] = ()) -> list[bytes]:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nConnection: close\r\n"
    if not chunks:
        return [head + b"Content-Length: %d\r\n\r\n" % len(body), body]
    framed = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]
    return [head + b"Transfer-Encoding: chunked\r\n\r\n", *framed, b"0\r\n\r\n"]


def content(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def events(answer: bytes) -> list[bytes]:
    """The data of a stream's events; each is a chunk of its own."""
    return [line.removeprefix(b"data: ") for line in answer.split(b"\n") if line.startswith(b"data: ")]


async def load(port: int, body: bytes, folder: Path, *options: str) -> dict[str, Any]:
    path = folder / "body.json"
    path.write_bytes(body)
    process = await asyncio.create_subprocess_exec(
        *(str(program("load")), str(port), CHAT, str(path), "-w", "0", "-t", "0", *options),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    begin, end, result = out.decode().splitlines()
    assert (begin, end, process.returncode) == ("begin", "end", 0)
    found: dict[str, Any] = json.loads(result)
    return found


@asynccontextmanager
async def answering(*pieces: bytes, closes: int = 0, reads: bool = True) -> AsyncIterator[int]:
    """Serve these very bytes to each request, piece by piece."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for number in itertools.count(1):
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                if reads:
                    await reader.readexactly(length)
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    if len(pieces) > 1:
                        await asyncio.sleep(0)
                if number == closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def whole(body: bytes, status: str = "200 OK", more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%b\r\n%b" % (status.encode(), len(body), more, body)


def streamed(*data: bytes, ended: bool = True) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in data)
    return head + chunks + (b"0\r\n\r\n" if ended else b"")


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(NoCompilerError, match=r"no C compiler for stub\.c: install gcc"):
        program("stub", tmp_path / "empty")


@needs_compiler
def test_a_program_is_compiled_once(tmp_path: Path) -> None:
    built = program("load", tmp_path)
    program.cache_clear()
    made = built.stat().st_mtime_ns
    assert program("load", tmp_path).stat().st_mtime_ns == made
    assert list(tmp_path.iterdir()) == [built]


@needs_compiler
class TestEngine:
    def test_its_answer_is_one_that_the_gateway_accounts(self) -> None:
        with engine() as port:
            answer = read_answer(content(talk(port, *post(ASKED))))
        assert answer is not None
        assert answer.usage == Usage(1200, 200)
        assert answer.speculation is not None
        assert (answer.speculation.drafts, answer.speculation.accepted) == (64, 136)

    def test_its_stream_is_one_that_the_gateway_accounts(self) -> None:
        with engine("events=5&gap=1") as port:
            *chunks, last, done = events(talk(port, *post(STREAM)))
        assert done == b"[DONE]"
        assert sum(read_chunk(chunk).has_output for chunk in chunks) == 5
        chunk = read_chunk(last)
        assert chunk.usage == Usage(1200, 200)
        assert chunk.speculation is not None

    def test_streams_have_usage_where_they_ask_for_it(self) -> None:
        with engine("events=2&gap=1") as port:
            answer = talk(port, *post(STREAM.replace(b"include_usage", b"something_else")))
        assert b"usage" not in answer
        assert events(answer)[-1] == b"[DONE]"

    def test_its_pages_are_read_by_the_gateway(self) -> None:
        with engine() as port:
            talk(port, *post(ASKED))
            page = content(talk(port, b"GET /metrics HTTP/1.0\r\n\r\n"))
            version = content(talk(port, b"GET /version HTTP/1.0\r\n\r\n"))
            assert b"ocr-model" in talk(port, b"GET /v1/models HTTP/1.0\r\n\r\n")
            assert b" 404 " in talk(port, b"GET /nothing HTTP/1.0\r\n\r\n")
        reading = read_metrics(page)
        assert (reading.running, reading.finished, reading.generation_tokens) == (0, 1, 200)
        assert reading.speculation["0"].accepted_per_position == (56, 48, 32)
        assert read_version(version) == "0.32.0"

    @pytest.mark.parametrize("cut", range(22, 38))
    def test_what_is_asked_for_is_found_across_parts(self, cut: int) -> None:
        body = b'{"model": "ocr-model", "stream": true, "image": "' + b"A" * 400_000 + b'"}'
        with engine("events=2&gap=1") as port:
            assert b"[DONE]" in talk(port, *post(b"", chunks=(body[:cut], body[cut:])))
            head, sent = post(body)
            assert b"[DONE]" in talk(port, head + sent[:cut], sent[cut:])

    def test_a_request_that_does_not_stream_is_answered_whole(self) -> None:
        body = b'{"stream": false, "messages": "a text with \\"stream\\": true in it"}'
        with engine() as port:
            assert b"Invoice" in talk(port, *post(body))

    def test_requests_one_after_the_other_do_not_mix(self) -> None:
        with engine("events=2&gap=1") as port:
            first = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(STREAM)
            import socket

            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(first + STREAM)
                answer = b""
                while not answer.endswith(b"0\r\n\r\n"):
                    answer += connection.recv(65536)
                connection.sendall(b"".join(post(ASKED)))
                answer = b""
                while data := connection.recv(65536):
                    answer += data
        assert b"Invoice" in answer


@needs_compiler
class TestClients:
    async def test_they_and_the_engine_understand_each_other(self, tmp_path: Path) -> None:
        with engine("delay=20") as port:
            found = await load(port, ASKED, tmp_path, "-c", "8", "-m", "24")
        assert found["statuses"] == {"200": found["answered"]}
        assert found["answered"] >= 24
        assert found["broken"] == found["refused"] == 0
        # What the engine took is known, and is not the gateway's.
        assert found["latency_ms"]["p50"] > 18
        assert found["outside_ms"]["p50"] <= found["latency_ms"]["p50"] - 18

    async def test_each_event_of_a_stream_is_timed(self, tmp_path: Path) -> None:
        with engine("events=64&gap=1") as port:
            found = await load(port, STREAM, tmp_path, "-c", "4", "-m", "8", "-e", "64")
        assert found["statuses"] == {"200": found["answered"]}
        assert found["event_delay_ms"]["count"] == found["events"] >= 64 * found["answered"]
        assert found["first_event_ms"]["count"] >= found["answered"]
        assert found["event_delay_ms"]["p50"] >= 0

    async def test_answers_can_be_held_until_all_are_there(self, tmp_path: Path) -> None:
        with engine("hold=8") as port:
            found = await load(port, ASKED, tmp_path, "-c", "8", "-m", "8", "-s", "50")
        assert found["answered"] == 8

    async def test_statuses_are_counted_and_not_timed(self, tmp_path: Path) -> None:
        async with answering(whole(b"{}", "503 Service Unavailable")) as port:
            found = await load(port, ASKED, tmp_path, "-m", "3")
        assert found["statuses"] == {"503": found["answered"]}
        assert found["latency_ms"] is None

    async def test_a_refusal_before_the_whole_body_was_sent_is_counted(self, tmp_path: Path) -> None:
        answer = whole(b"{}", "413 Content Too Large", b"Connection: close\r\n")
        async with answering(answer, closes=1, reads=False) as port:
            found = await load(port, b"x" * 8_000_000, tmp_path, "-x", "0.3", "-m", "1")
        assert found["broken"] or set(found["statuses"]) == {"413"}
        assert "200" not in found["statuses"]

    @pytest.mark.parametrize(
        "answer",
        [
            pytest.param(whole(b"{}"), id="an answer that is not the engine's"),
            pytest.param(
                streamed(EVENT % 1, EVENT % 2, b"data: [DONE]\n\n", ended=False), id="cut at the end"
            ),
            pytest.param(streamed(EVENT % 1, EVENT % 2), id="without [DONE]"),
            pytest.param(streamed(EVENT % 1, b"data: [DONE]\n\n"), id="an event short"),
            pytest.param(streamed(EVENT % 1, ended=False), id="cut"),
            pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", id="half an answer"),
            pytest.param(b"HTTP/1.1 200 OK\r\nConte", id="half a head"),
            pytest.param(b"X" * 20_000, id="no HTTP"),
            pytest.param(b"", id="nothing"),
        ],
    )
    async def test_a_broken_answer_is_an_error(self, answer: bytes, tmp_path: Path) -> None:
        async with answering(answer, closes=1) as port:
            found = await load(port, STREAM, tmp_path, "-x", "0.2", "-m", "3", "-e", "2")
        assert found["broken"] > 0
        assert found["answered"] == 0
        assert found["statuses"] == {}

    async def test_nobody_listening_is_an_error(self, tmp_path: Path) -> None:
        found = await load(free_port(), ASKED, tmp_path, "-x", "0.2")
        assert found["refused"] > 0

    async def test_it_gives_up_where_nothing_works(self, tmp_path: Path) -> None:
        found = await load(free_port(), ASKED, tmp_path, "-x", "60")
        assert found["gave_up"]

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
    async def test_a_stream_is_read_however_it_is_cut(self, size: int, tmp_path: Path) -> None:
        # Chunks that end in the middle of an event, reads that end in the middle of a chunk.
        text = EVENT % 1 + b": a comment\n\n" + EVENT % 2 + b"data: [DONE]\n\n"
        answer = streamed(text[:20], text[20:21], text[21:90], text[90:])
        pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
        async with answering(*pieces) as port:
            found = await load(port, STREAM, tmp_path, "-m", "2", "-e", "2")
        assert found["statuses"] == {"200": found["answered"]}
        assert found["broken"] == 0

    async def test_a_whole_answer_may_be_chunked_and_end_with_the_connection(self, tmp_path: Path) -> None:
        for answer in (
            b"HTTP/1.1 200 OK\r\n\r\n" + STAMPED,
            streamed(STAMPED[:9], STAMPED[9:]),
            b"HTTP/1.1 103 Early Hints\r\n\r\n" + whole(STAMPED),
        ):
            async with answering(answer, closes=1) as port:
                found = await load(port, ASKED, tmp_path, "-m", "3")
            assert found["statuses"] == {"200": found["answered"]}

    async def test_a_connection_closed_between_requests_is_no_error(self, tmp_path: Path) -> None:
        # The server closes after two answers, and does not say so.
        async with answering(whole(STAMPED), closes=2) as port:
            found = await load(port, ASKED, tmp_path, "-m", "9")
        assert found["reconnects"] >= 3
        assert found["broken"] == 0

    async def test_headers_are_sent(self, tmp_path: Path) -> None:
        seen = asyncio.Queue[bytes]()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.put_nowait(await reader.readuntil(b"\r\n\r\n"))
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await load(port, ASKED, tmp_path, "-x", "0.1", "-H", "Authorization: Bearer x", "-H", "A: b")
        assert b"\r\nAuthorization: Bearer x\r\nA: b\r\n" in await seen.get()
