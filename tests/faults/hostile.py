"""An engine on a bare socket: health checks and metrics are answered well, completions with a named fault.

FAULTS is the table of them: what a fault is, and what is written where. Answers hold the request's prompt, so
that nobody can be given another's unnoticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import struct
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    Step = bytes | Callable[["Peer"], Awaitable[None]]

# Stands for the prompt in what is written; prompts are as long.
PROMPT = b"<prompt>"


class Point(StrEnum):
    """What was asked for, and how much of the answer's body the engine has sent when its fault begins."""

    WHOLE = "ordinary answer, nothing of it sent"
    WHOLE_BEGUN = "ordinary answer, part of it sent"
    STREAM = "stream, before its first event"
    STREAM_BEGUN = "stream, after its first event"

    @property
    def streams(self) -> bool:
        return self in (Point.STREAM, Point.STREAM_BEGUN)


class Limit(StrEnum):
    """Which of the route's time limits is made tiny, so that a fault runs into it at once."""

    NONE = "text"
    CONNECT = "hasty-connect"
    FIRST_EVENT = "hasty-first-event"
    IDLE = "hasty-idle"
    TOTAL = "hasty-total"
    STREAM_TOTAL = "hasty-stream-total"


@dataclass(frozen=True)
class Fault:
    """What an engine does instead of answering.

    Attributes:
        what: in words, for the documentation.
        steps: by point, what is written (bytes) and done (functions), one after the other.
        limits: by point, the time limit that it runs into.
        unread: the request's body is left unread, and is too large for the sockets' buffers.
    """

    what: str
    steps: Mapping[Point, tuple[Step, ...]]
    limits: Mapping[Point, Limit] = field(default_factory=dict)
    unread: bool = False

    def limit(self, point: Point) -> Limit:
        return self.limits.get(point, Limit.NONE)


@dataclass
class Peer:
    """A connection that has brought a request."""

    engine: Hostile
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    prompt: bytes = PROMPT

    async def write(self, data: bytes) -> None:
        self.writer.write(data.replace(PROMPT, self.prompt))
        await self.writer.drain()


def _bound(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    return listener


_BACKLOG = 1024


class Hostile:
    """The engine; an async context manager that listens.

    Attributes:
        fault: how completions are answered; None for well.
        load: requests that others have sent it, as its metrics say.
        open: completions under way, until their connections have ended where the fault breaks them.
        asked: completions received.
    """

    def __init__(self, load: int = 0, listener: socket.socket | None = None) -> None:
        self.fault: Fault | None = None
        self.point = Point.WHOLE
        self.load = load
        self.open = 0
        self.asked = 0
        self._listener = listener or _bound(0)
        self._port: int = self._listener.getsockname()[1]
        self._seen: dict[bytes, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def suffer(self, fault: Fault | None, point: Point = Point.WHOLE) -> None:
        self.fault, self.point = fault, point

    def seen(self, prompt: bytes) -> asyncio.Event:
        """What is set once the client has had the first of its answer."""
        return self._seen.setdefault(prompt, asyncio.Event())

    async def __aenter__(self) -> Hostile:
        await self._accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._leave()
        self._listener.close()

    async def _accept(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=self._listener.dup(), backlog=_BACKLOG)

    async def _leave(self) -> None:
        if self._server:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def stopped(self) -> AsyncIterator[socket.socket]:
        """Stand still, as after SIGSTOP: the kernel takes connections and some bytes, nobody reads them.

        Yields the listening socket, so that another process may take over meanwhile.
        """
        await self._leave()
        self._listener.listen(_BACKLOG)
        try:
            yield self._listener
        finally:
            await self._accept()

    @contextlib.asynccontextmanager
    async def refusing(self) -> AsyncIterator[None]:
        """Refuse connections, and keep the port."""
        await self._leave()
        self._listener.close()
        self._listener = _bound(self._port)
        try:
            yield
        finally:
            await self._accept()

    @contextlib.asynccontextmanager
    async def unreachable(self) -> AsyncIterator[None]:
        """Leave connections unanswered: the queue of those not yet accepted is full."""
        async with self.refusing():
            self._listener.listen(0)
            with contextlib.ExitStack() as stack:
                for _ in range(4):
                    waiting = stack.enter_context(socket.socket())
                    waiting.setblocking(False)
                    waiting.connect_ex(self._listener.getsockname())
                yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        peer = Peer(self, reader, writer)
        # What is written is to be there: else it waits for the gateway's next packet.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while not writer.is_closing():
                await self._answer(peer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # asyncio would log a cancelled connection as a failed one
        finally:
            writer.close()

    async def _answer(self, peer: Peer) -> None:
        head = (await peer.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        path = head[0].split()[1]
        if path != "/v1/chat/completions":
            page = {"/health": b"", "/metrics": _METRICS % self.load}.get(path)
            await peer.write(_head(200, b"text/plain", page) if page is not None else NOT_FOUND)
            return
        length = next(int(line[15:]) for line in head if line.lower().startswith("content-length:"))
        self.open += 1
        self.asked += 1
        try:
            fault, point = self.fault, self.point
            streams = point.streams
            if not (fault and fault.unread):
                asked = json.loads(await peer.reader.readexactly(length))
                peer.prompt = _text(asked).encode()
                streams = bool(asked.get("stream"))
            steps = fault.steps[point] if fault else (STREAM if streams else WHOLE,)
            for step in steps:
                await (peer.write(step) if isinstance(step, bytes) else step(peer))
        finally:
            self.open -= 1


def _text(asked: dict[str, Any]) -> str:
    content = asked["messages"][0]["content"]
    return str(content if isinstance(content, str) else content[-1]["text"])


# --- what is done, beside writing


async def close(peer: Peer) -> None:
    """Close the connection."""
    peer.writer.close()


async def reset(peer: Peer) -> None:
    """Reset the connection: an RST instead of a FIN."""
    peer.writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    peer.writer.transport.abort()


async def until_gone(peer: Peer) -> None:
    """Write nothing more, until the gateway has closed the connection."""
    with contextlib.suppress(ConnectionError):
        while await peer.reader.read(1 << 20):
            pass
    peer.writer.close()


async def half_close(peer: Peer) -> None:
    """Shut the sending side, and go on reading."""
    peer.writer.write_eof()
    await until_gone(peer)


async def until_seen(peer: Peer) -> None:
    """Wait until the client has had what there is of its stream: else a failure may overtake it."""
    await peer.engine.seen(peer.prompt).wait()


async def ready(peer: Peer) -> None:
    """Tell, on standard output, that the time for a signal has come, and wait for it."""
    print("ready", flush=True)
    await until_gone(peer)


def for_ever(data: bytes) -> Step:
    """Write over and over again, as fast as it is taken."""

    async def flood(peer: Peer) -> None:
        while True:
            await peer.write(data)

    return flood


def slowly(data: bytes) -> Step:
    """Write over and over again, now and then, so that the connection never falls silent."""

    async def trickle(peer: Peer) -> None:
        gone = asyncio.create_task(until_gone(peer))
        while not gone.done():
            await peer.write(data)
            await asyncio.wait([gone], timeout=0.02)

    return trickle


def byte_by_byte(data: bytes) -> Step:
    """Write each byte by itself."""

    async def drip(peer: Peer) -> None:
        for value in data.replace(PROMPT, peer.prompt):
            peer.writer.write(bytes([value]))
            await asyncio.sleep(0)

    return drip


def each_a_chunk(data: bytes) -> Step:
    """Write each byte as a chunk."""

    async def crumble(peer: Peer) -> None:
        told = data.replace(PROMPT, peer.prompt)
        await peer.write(STREAM_HEAD + b"".join(chunk(bytes([value])) for value in told) + END)

    return crumble


def once_idle(data: bytes) -> Step:
    """Write when the connection is back among the gateway's idle ones."""

    async def late(peer: Peer) -> None:
        await until_seen(peer)
        await peer.write(data)

    return late


# --- what is written

_METRICS = b'vllm:num_requests_running{engine="0"} %d\nvllm:num_requests_waiting{engine="0"} 0\n'


def _head(status: int, kind: bytes, body: bytes | None = None, *more: bytes) -> bytes:
    """A head, and the body with its length; without a body, the head of a chunked one."""
    lines = [b"HTTP/1.1 %d Told" % status, *more]
    if kind:
        lines.append(b"Content-Type: " + kind)
    lines.append(b"Transfer-Encoding: chunked" if body is None else b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body or b""])


NOT_FOUND = _head(404, b"application/json", b"{}")
JSON = b"application/json"
EVENTS = b"text/event-stream"
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


def completion(**members: Any) -> bytes:
    message = {"role": "assistant", "content": PROMPT.decode()}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}
    return json.dumps({**whole, "usage": USAGE, **members}).encode()


def event(delta: Any = None, finish: str | None = None, **members: Any) -> bytes:
    choices = [{"index": 0, "delta": delta or {"content": PROMPT.decode()}, "finish_reason": finish}]
    part = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    return b"data: %s\n\n" % json.dumps({**part, **members}).encode()


def failure(**members: Any) -> bytes:
    return json.dumps({"error": {"message": "told", "type": "x", "param": None, **members}}).encode()


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


BODY = completion()
OPENING = event({"role": "assistant", "content": ""})
WORD = event()
LAST = event({"content": ""}, "stop")
USED = event(usage=USAGE, choices=[])
DONE = b"data: [DONE]\n\n"
REST = WORD + LAST + USED + DONE
END = b"0\r\n\r\n"
WHOLE_HEAD = _head(200, JSON, BODY)[: -len(BODY)]
STREAM_HEAD = _head(200, EVENTS)
WHOLE = WHOLE_HEAD + BODY
STREAM = STREAM_HEAD + chunk(OPENING + REST) + END

_WHOLE_BEGUN = (WHOLE_HEAD + BODY[:40],)
_CHUNKED_BEGUN = (_head(200, JSON) + chunk(BODY[:40]),)
_STREAM_BEGUN = (STREAM_HEAD + chunk(OPENING + WORD), until_seen)

MEGABYTES = 4 * 1024 * 1024
DEEP = b'{"choices":[' + b"[" * 100_000 + b"]" * 100_000 + b"]}"


# --- faults by where they strike

_WAITS = {
    Point.WHOLE: Limit.TOTAL,
    Point.WHOLE_BEGUN: Limit.TOTAL,
    Point.STREAM: Limit.FIRST_EVENT,
    Point.STREAM_BEGUN: Limit.IDLE,
}


def anywhere(what: str, *steps: Step, waits: bool = False, unread: bool = False) -> Fault:
    """A fault of the connection, wherever it is."""
    at: dict[Point, tuple[Step, ...]] = {Point.WHOLE: steps, Point.STREAM: steps}
    if not unread:
        at |= {Point.WHOLE_BEGUN: (*_WHOLE_BEGUN, *steps), Point.STREAM_BEGUN: (*_STREAM_BEGUN, *steps)}
    return Fault(what, at, _WAITS if waits else {}, unread)


def heads(what: str, *steps: Step, waits: bool = False) -> Fault:
    """A fault in place of an answer's head, whatever was asked for."""
    return Fault(what, dict.fromkeys((Point.WHOLE, Point.STREAM), steps), _WAITS if waits else {})


def after_head(what: str, *steps: Step, waits: bool = False) -> Fault:
    """A fault behind an answer's head."""
    at = {Point.WHOLE: (WHOLE_HEAD, *steps), Point.STREAM: (STREAM_HEAD, *steps)}
    return Fault(what, at, _WAITS if waits else {})


def chunked(what: str, *steps: Step) -> Fault:
    """A fault in a chunked body."""
    at = {
        Point.WHOLE: (_head(200, JSON), *steps),
        Point.WHOLE_BEGUN: (*_CHUNKED_BEGUN, *steps),
        Point.STREAM: (STREAM_HEAD, *steps),
        Point.STREAM_BEGUN: (*_STREAM_BEGUN, *steps),
    }
    return Fault(what, at)


def status(code: int, body: bytes, *more: bytes, kind: bytes = JSON, what: str = "") -> Fault:
    """An answer with another status, whatever was asked for."""
    return heads(what or f"answers {code}", _head(code, kind, body, *more))


def bodies(what: str, body: bytes, *more: bytes, kind: bytes = JSON) -> Fault:
    """A 200 to who asked for an ordinary answer."""
    return Fault(what, {Point.WHOLE: (_head(200, kind, body, *more),)})


def events(what: str, *pieces: bytes, ends: bool = True) -> Fault:
    """A stream that goes on so, instead of its first event and after it.

    Args:
        what: in words.
        pieces: each a chunk.
        ends: the body is ended then.
    """
    steps = [*map(chunk, pieces), *([END] if ends else [])]
    at = {Point.STREAM: (STREAM_HEAD, *steps), Point.STREAM_BEGUN: (*_STREAM_BEGUN, *steps)}
    return Fault(what, at)


def goes_on(what: str, *steps: Step, limit: Limit = Limit.NONE) -> Fault:
    """A stream that begins well, and goes on so."""
    return Fault(what, {Point.STREAM_BEGUN: (*_STREAM_BEGUN, *steps)}, {Point.STREAM_BEGUN: limit})


def good(what: str, whole: Step | None, stream: Step | None, *, closes: bool = False) -> Fault:
    """What looks odd and is a good answer."""
    steps = {Point.WHOLE: whole, Point.STREAM: stream}
    end = (close,) if closes else ()
    return Fault(what, {point: (step, *end) for point, step in steps.items() if step is not None})


async def _nobody_reads(peer: Peer) -> None:  # the listening socket is nobody's: see Hostile.stopped
    raise AssertionError


_ANYWHERE = dict.fromkeys((Point.WHOLE, Point.STREAM), (_nobody_reads,))
_BOTH = WHOLE_HEAD.replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nContent-Length")
_BOMB = gzip.compress(b"0" * 64 * MEGABYTES, 9)
_GZIP = b"Content-Encoding: gzip"

FAULTS: dict[str, Fault] = {
    # the connection
    "refused": Fault("no connection: refused", _ANYWHERE),
    "no-connection": Fault(
        "no connection: nobody answers", _ANYWHERE, dict.fromkeys(_ANYWHERE, Limit.CONNECT)
    ),
    "stopped": Fault(
        "stands still (`kill -STOP`): not even the request is read", _ANYWHERE, _WAITS, unread=True
    ),
    "killed": anywhere("is killed (`kill -9`)", ready),
    "paused": anywhere("is stopped (`kill -STOP`) with the request on it", ready, waits=True),
    "closes": anywhere("closes the connection", close),
    "resets": anywhere("resets the connection", reset),
    "half-closes": anywhere("shuts its sending side and goes on reading", half_close),
    "silent": anywhere("never goes on", until_gone, waits=True),
    "closes-after-head": after_head("closes the connection behind the head", close),
    "resets-after-head": after_head("resets the connection behind the head", reset),
    "silent-after-head": after_head("never goes on behind the head", until_gone, waits=True),
    "trickles": heads(
        "sends its head forever, byte by byte", b"HTTP/1.1 200 OK\r\nX: ", slowly(b"x"), waits=True
    ),
    "unread": anywhere(
        "answers 400 and never reads the request", _head(400, JSON, failure()), until_gone, unread=True
    ),
    "byte-by-byte": good("sends each byte by itself", byte_by_byte(WHOLE), byte_by_byte(STREAM)),
    # the head
    "no-http": heads("writes what is no HTTP", b"\x00\xff\x16\x03 nonsense\r\n\r\n", until_gone),
    "http-0.9": heads("answers in HTTP/0.9: a body alone", BODY, close),
    "http-1.0": good(
        "answers in HTTP/1.0, without a length",
        b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" + BODY,
        b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + OPENING + REST,
        closes=True,
    ),
    "endless-headers": heads(
        "sends headers without an end", b"HTTP/1.1 200 OK\r\n", for_ever(b"X-Y: z\r\n" * 999)
    ),
    "giant-header": heads(
        "sends a header of 4 MiB", b"HTTP/1.1 200 OK\r\nX: " + b"x" * MEGABYTES + b"\r\n\r\n"
    ),
    "nul-header": heads("sends a header with NUL", _head(200, JSON, BODY, b"X: a\x00b"), until_gone),
    "cr-header": heads("sends a header with a bare CR", _head(200, JSON, BODY, b"X: a\rY: b"), until_gone),
    "latin-1-header": good(
        "sends a content type with control characters and Latin-1",
        _head(200, b"application/json; \xe9\x09", BODY),
        STREAM_HEAD.replace(EVENTS, EVENTS + b"; \xe9\x09") + chunk(OPENING + REST) + END,
    ),
    "early-hints": good(
        "sends some 1xx answers first",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3 + WHOLE,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + STREAM,
    ),
    "continues": heads(
        "sends 100 Continue without an end", slowly(b"HTTP/1.1 100 Continue\r\n\r\n"), waits=True
    ),
    "continue-flood": heads(
        "floods with 100 Continue", for_ever(b"HTTP/1.1 100 Continue\r\n\r\n" * 999), waits=True
    ),
    "101": heads(
        "answers 101", b"HTTP/1.1 101 Up\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + BODY, until_gone
    ),
    "no-length": good(
        "sends no length and closes at the end",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + OPENING + REST,
        closes=True,
    ),
    # lengths and chunks
    "short-length": Fault(
        "announces too few bytes",
        {Point.WHOLE: (WHOLE.replace(b"%d" % len(BODY), b"%d" % (len(BODY) - 40)),)},
    ),
    "long-length": heads(
        "announces too many bytes and closes", WHOLE_HEAD.replace(b"%d" % len(BODY), b"9999") + BODY, close
    ),
    "negative-length": heads("announces -1 bytes", WHOLE.replace(b"%d" % len(BODY), b"-1"), until_gone),
    "huge-length": heads(
        "announces 10^30 bytes", WHOLE.replace(b"%d" % len(BODY), b"1" + b"0" * 30), until_gone
    ),
    "two-lengths": heads(
        "announces two lengths", WHOLE.replace(b"Content-L", b"Content-Length: 5\r\nContent-L"), until_gone
    ),
    "length-and-chunks": heads("announces a length and chunks", _BOTH + chunk(BODY) + END, until_gone),
    "bad-chunk-size": chunked("sends a chunk size that is none", b"xyz\r\n", until_gone),
    "huge-chunk-size": chunked("sends a chunk size of 2^80", b"1" + b"0" * 20 + b"\r\n", until_gone),
    "unfinished-chunk": chunked("announces a chunk of 2^40 bytes and closes", b"10000000000\r\nx", close),
    "no-last-chunk": chunked("closes without the last chunk", close),
    "chunk-extension": good(
        "sends a chunk extension of 4 MiB",
        _head(200, JSON) + b"%x;" % len(BODY) + b"x" * MEGABYTES + b"\r\n" + BODY + b"\r\n" + END,
        STREAM_HEAD
        + b"%x;" % len(OPENING + REST)
        + b"x" * MEGABYTES
        + b"\r\n"
        + OPENING
        + REST
        + b"\r\n"
        + END,
    ),
    # behind the answer
    "two-answers": good(
        "sends another answer behind its own",
        WHOLE + WHOLE.replace(PROMPT, b"stranger"),
        STREAM + STREAM.replace(PROMPT, b"stranger"),
    ),
    "late-answer": Fault(
        "sends another answer on the idle connection",
        {
            Point.WHOLE: (WHOLE, once_idle(WHOLE.replace(PROMPT, b"stranger"))),
            Point.STREAM: (STREAM, once_idle(STREAM.replace(PROMPT, b"stranger"))),
        },
    ),
    # statuses
    "204": heads("answers 204, with a body", _head(204, JSON, BODY)),
    "304": heads("answers 304, with a body", _head(304, JSON, BODY)),
    "302": status(302, b"", b"Location: http://127.0.0.1:1/health", what="redirects elsewhere"),
    "400": status(400, failure()),
    "401": status(401, failure()),
    "403": status(403, failure()),
    "404": status(404, failure()),
    "422": status(422, failure()),
    "429": status(429, failure(), b"Retry-After: 7"),
    "500": status(500, failure()),
    "502": status(502, failure()),
    "503": status(503, failure(), b"Retry-After: 7"),
    "503-absurd": status(
        503, failure(), b"Retry-After: " + b"9" * 5000, what="503 to be tried again in 10^5000 s"
    ),
    "504": status(504, failure()),
    "999": status(999, failure()),
    "stopping": status(
        500,
        failure(message="cannot schedule new futures after shutdown"),
        what="the 500 by which vLLM tells that it shuts down",
    ),
    "400-html": status(400, b"<html>no</html>", kind=b"text/html", what="400 with an HTML page"),
    "400-empty": status(400, b"", what="400 without a body"),
    "400-invalid-utf-8": status(400, b'{"error": {"message": "\xff\xfe"}}', what="400 with invalid UTF-8"),
    "400-giant": status(400, b"x" * MEGABYTES, what="400 with more than `limits.answer_bytes`"),
    "500-html": status(500, b"<html>no</html>", kind=b"text/html", what="500 with an HTML page"),
    "500-empty": status(500, b"", what="500 without a body"),
    "500-invalid-utf-8": status(500, b'{"error": {"message": "\xff\xfe"}}', what="500 with invalid UTF-8"),
    "500-deep": status(500, b'{"error":' * 100_000, what="500 with JSON nested 100,000 deep"),
    "500-giant": status(500, b"x" * MEGABYTES, what="500 with 4 MiB"),
    "503-endless": heads("503 without an end", _head(503, JSON), for_ever(chunk(b"x" * 65536))),
    "503-silent": heads("503 whose body never comes", _head(503, JSON), until_gone),
    "503-broken": heads("503 whose body breaks off", _head(503, JSON) + b"5\r\nab", reset),
    # ordinary answers that are none
    "garbage": bodies("200 with bytes at random", bytes(range(256)) * 4),
    "html": bodies("200 with an HTML page", b"<html>hello</html>", kind=b"text/html"),
    "empty": bodies("200 without a body", b""),
    "truncated": bodies("200 with JSON cut short", BODY[:-20]),
    "no-completion": bodies("200 with other JSON", b'{"object": "list", "data": []}'),
    "error-as-200": bodies("200 with an error", failure(code=500)),
    "gigantic": bodies("200 with more than `limits.answer_bytes`", completion(padding="x" * MEGABYTES)),
    "endless": Fault("200 without an end", {Point.WHOLE: (_head(200, JSON), for_ever(chunk(b" " * 65536)))}),
    "nan": bodies("200 with NaN", BODY.replace(b'"created": 1', b'"created": NaN')),
    "deep": bodies("200 with JSON nested 100,000 deep", DEEP),
    "invalid-utf-8": bodies("200 with invalid UTF-8", BODY.replace(PROMPT, b"\xff\xfe" + PROMPT)),
    "gzip": heads("compresses, although it was asked not to", _head(200, JSON, gzip.compress(BODY), _GZIP)),
    "gzip-bomb": heads("sends 256 MiB in 256 KiB of gzip", _head(200, JSON, _BOMB, _GZIP)),
    "gzip-stream": Fault(
        "compresses its stream, although it was asked not to",
        {Point.STREAM: (_head(200, EVENTS, gzip.compress(OPENING + REST), _GZIP),)},
    ),
    "aborted": bodies(
        "200 with `finish_reason: abort`",
        BODY.replace(b'"finish_reason": "stop"', b'"finish_reason":"abort"'),
    ),
    "absurd-usage": good(
        "tells absurd usage",
        _head(200, JSON, completion(usage={"prompt_tokens": -5, "completion_tokens": 10**30})),
        STREAM_HEAD
        + chunk(OPENING + WORD + event(usage={"completion_tokens": "many"}, choices=[]) + DONE)
        + END,
    ),
    "text-plain": good("answers as text/plain", _head(200, b"text/plain", BODY), None),
    "stream-as-text": Fault(
        "streams as text/plain", {Point.STREAM: (_head(200, b"text/plain") + chunk(OPENING + REST) + END,)}
    ),
    "stream-unasked": Fault("streams to who asked for an ordinary answer", {Point.WHOLE: (STREAM,)}),
    "whole-unasked": Fault("answers in one piece who asked for a stream", {Point.STREAM: (WHOLE,)}),
    # streams
    "endless-tokens": goes_on(
        "streams tokens without an end", for_ever(chunk(WORD * 64)), limit=Limit.STREAM_TOTAL
    ),
    "comments": Fault(
        "sends comments and nothing else",
        {
            Point.STREAM: (STREAM_HEAD, slowly(chunk(b": ping\n\n"))),
            Point.STREAM_BEGUN: (*_STREAM_BEGUN, slowly(chunk(b": ping\n\n"))),
        },
        _WAITS,
    ),
    "comment-flood": Fault(
        "floods with comments",
        {
            Point.STREAM: (STREAM_HEAD, for_ever(chunk(b": ping\n\n" * 8192))),
            Point.STREAM_BEGUN: (*_STREAM_BEGUN, for_ever(chunk(b": ping\n\n" * 8192))),
        },
        {Point.STREAM_BEGUN: Limit.IDLE},
    ),
    "no-done": events("ends its stream without `[DONE]`", b": over\n\n"),
    "done-first": Fault("begins with `[DONE]`", {Point.STREAM: (STREAM_HEAD + chunk(DONE) + END,)}),
    "after-done": goes_on(
        "goes on after `[DONE]`", chunk(LAST + DONE) + chunk(WORD.replace(PROMPT, b"stranger")) + END
    ),
    "silent-after-done": goes_on(
        "never ends its stream after `[DONE]`", chunk(LAST + DONE), until_gone, limit=Limit.IDLE
    ),
    "flood-after-done": goes_on("floods after `[DONE]`", chunk(LAST + DONE), for_ever(chunk(WORD * 64))),
    "reset-after-done": goes_on("resets the connection after `[DONE]`", chunk(LAST + DONE), reset),
    "error-event": events(
        "sends an error event with code 500", b"data: " + failure(code=500) + b"\n\n", DONE
    ),
    "error-event-400": events(
        "sends an error event with code 400", b"data: " + failure(code=400) + b"\n\n", DONE
    ),
    "error-event-503": events(
        "sends an error event with code 503", b"data: " + failure(code=503) + b"\n\n", DONE
    ),
    "error-event-bare": events("sends an error event without a code", b'data: {"error": "broken"}\n\n', DONE),
    "abort-event": events("sends `finish_reason: abort`", event({"content": ""}, "abort") + DONE),
    "word-error-abort": Fault(
        "sends a word, an error event and `finish_reason: abort` at once",
        {
            Point.STREAM: (
                STREAM_HEAD
                + chunk(
                    WORD + b"data: " + failure(code=500) + b"\n\n" + event({"content": ""}, "abort") + DONE
                )
                + END,
            )
        },
    ),
    "no-json-event": events("sends an event that is no JSON", b"data: <html>\n\n", LAST + DONE),
    "deep-event": events("sends an event nested 100,000 deep", b"data: " + DEEP + b"\n\n", LAST + DONE),
    "invalid-utf-8-event": events(
        "sends an event with invalid UTF-8", WORD.replace(PROMPT, b"\xff\xfe" + PROMPT), LAST + DONE
    ),
    "giant-event": events("sends an event of 20 MB", b"data: " + b"x" * 20_000_000, ends=False),
    "carriage-returns": good(
        "ends lines with CR LF", None, STREAM_HEAD + chunk((OPENING + REST).replace(b"\n", b"\r\n")) + END
    ),
    "mixed-line-ends": good(
        "mixes line ends",
        None,
        STREAM_HEAD
        + chunk(
            OPENING.replace(b"\n\n", b"\n\r\n")
            + WORD.replace(b"\n\n", b"\r\n\n")
            + LAST.replace(b"\n\n", b"\r\r")
            + USED
            + DONE
        )
        + END,
    ),
    "byte-chunks": good("sends each byte as a chunk", None, each_a_chunk(OPENING + REST)),
    "byte-order-mark": good(
        "begins with a byte order mark", None, STREAM_HEAD + chunk(b"\xef\xbb\xbf" + OPENING + REST) + END
    ),
}


async def _main(fd: int, name: str, point: Point) -> None:
    """Be the engine in a process of its own, behind a listening socket that another has opened."""
    steps = tuple(step for step in FAULTS[name].steps[point] if step is not until_seen)
    async with Hostile(listener=socket.socket(fileno=fd)) as engine:
        engine.suffer(Fault("", {point: steps}), point)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), sys.argv[2], Point[sys.argv[3]]))
