"""Clients that mean no good, or are only broken, on bare sockets; and what a gateway holds meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import socket
import struct
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from bench.clients import PROMPTS, Clients, blank, request_body
from bench.watch import Watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from bench.engines import EngineProcess
    from bench.serving import Served

LONG_S = 60
PATH = b"/v1/chat/completions"
# Tokens, of an answer that ends only by being broken off.
ENDLESS = 1_000_000
_TICK_S = 0.02
_GOOD = 6
_ESTABLISHED, _CLOSE_WAIT = "01", "08"


# A machine too busy to connect within the default of two seconds is no fault that is tested here.
PATIENT = {name: {"profile": f"{name}.json", "timeouts": {"connect_s": LONG_S}} for name in PROMPTS}


def post(body: bytes, path: bytes = PATH, extra: bytes = b"") -> bytes:
    """A whole request."""
    head = b"POST %s HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n%s" % (path, extra)
    return head + b"content-length: %d\r\n\r\n%s" % (len(body), body)


def chat(*, stream: bool = False, max_tokens: int = 4, picture: bytes = b"", **members: object) -> bytes:
    """A whole request for a document."""
    body = json.loads(request_body("Text Recognition:", picture or blank(), stream=stream))
    return post(json.dumps({**body, "max_tokens": max_tokens, **members}).encode())


def tiny(**members: object) -> bytes:
    """A whole request as short as they get."""
    values = {"prompt": "Text Recognition:", "max_tokens": 2, **members}
    return post(json.dumps(values).encode(), b"/v1/completions")


@dataclass(frozen=True)
class Target:
    """Where a gateway listens."""

    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Target:
        parts = urlsplit(url)
        return cls(parts.hostname or "", parts.port or 0)

    async def connect(self, receive_bytes: int | None = None) -> Peer:
        """Connect; `receive_bytes` is how little of an answer the system may take in for a client."""
        sock = socket.socket()
        sock.setblocking(False)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        peer = Peer(sock)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (self.host, self.port))
        except BaseException:
            peer.close()
            raise
        return peer

    @contextlib.asynccontextmanager
    async def peers(self, count: int, receive_bytes: int | None = None) -> AsyncIterator[list[Peer]]:
        """So many connections at once; those that are left open are closed in the end."""
        peers = await asyncio.gather(*(self.connect(receive_bytes) for _ in range(count)))
        try:
            yield peers
        finally:
            for peer in peers:
                peer.close()


class Peer:
    """One connection to a gateway."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    async def send(self, data: bytes) -> bool:
        """Send all; False where the gateway has closed."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._sock, data)
        except OSError:
            return False
        return True

    async def drip(self, data: Iterable[bytes], pause_s: float = _TICK_S) -> bytes:
        """Send a little at a time until the gateway closes; return what it said."""
        said = asyncio.create_task(self.read())
        for piece in data:
            if said.done() or not await self.send(piece):
                break
            await asyncio.wait([said], timeout=pause_s)
        return await said

    async def read(self, at_most: int = 1 << 62) -> bytes:
        """Return so many bytes, or all until the gateway closes."""
        said = bytearray()
        try:
            while left := at_most - len(said):
                data = await asyncio.get_running_loop().sock_recv(self._sock, min(left, 1 << 16))
                if not data:
                    break
                said += data
        except OSError:
            pass
        return bytes(said)

    async def answer(self) -> bytes:
        """Return one answer that tells its length."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            if not (byte := await self.read(1)):
                return head
            head += byte
        length = next(
            int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"
        )
        return head + await self.read(length)

    def half_close(self) -> None:
        """Say that nothing more will be sent."""
        self._sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Leave without a word: the gateway gets a RST."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def close(self) -> None:
        """Leave: the gateway gets a FIN (a RST where something was left unread)."""
        self._sock.close()


def status(answer: bytes) -> int:
    """The status of an answer; 0 for none."""
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


async def in_groups(work: Callable[[int], Awaitable[None]], numbers: Sequence[int], size: int = 32) -> None:
    """Do work for each number, so many at a time."""
    for start in range(0, len(numbers), size):
        await asyncio.gather(*map(work, numbers[start : start + size]))


def some(length: int, whole: bool) -> list[int]:
    """Offsets into so many bytes: all of them, or twenty here and there and at the ends."""
    if whole:
        return list(range(length + 1))
    return sorted({0, 1, length - 1, length, *range(0, length, max(1, length // 20))})


async def leaves_at_every_byte_of_a_request(target: Target, whole: bool) -> None:
    data = tiny()

    async def leave(offset: int) -> None:
        async with target.peers(1) as (peer,):
            await peer.send(data[:offset])
            (peer.reset if offset % 2 else peer.close)()

    await in_groups(leave, range(len(data) + 1))


async def leaves_within_a_large_request(target: Target, whole: bool) -> None:
    data = chat(padding="x" * 1_000_000)

    async def leave(offset: int) -> None:
        async with target.peers(1) as (peer,):
            await peer.send(data[:offset])
            (peer.reset if offset % 2 else peer.close)()

    await in_groups(leave, random.Random(0).sample(range(len(data)), 400 if whole else 24), 4)


async def _leaves_in_an_answer(target: Target, request: bytes, whole: bool) -> None:
    request = request.replace(b"host: gateway", b"host: g\r\nconnection: close")
    async with target.peers(1) as (peer,):
        await peer.send(request)
        length = len(await peer.read())

    async def leave(offset: int) -> None:
        async with target.peers(1) as (peer,):
            await peer.send(request)
            await peer.read(offset)
            (peer.reset if offset % 2 else peer.close)()

    await in_groups(leave, some(length, whole))


async def leaves_at_every_byte_of_a_stream(target: Target, whole: bool) -> None:
    await _leaves_in_an_answer(target, chat(stream=True), whole)


async def leaves_at_every_byte_of_an_answer(target: Target, whole: bool) -> None:
    await _leaves_in_an_answer(target, chat(), whole)


async def leaves_while_an_engine_works(target: Target, whole: bool) -> None:
    """Streamed or not; the engine may have written a part, or nothing yet."""
    async with target.peers(16) as peers:
        for number, peer in enumerate(peers):
            await peer.send(chat(stream=number % 2 == 0, max_tokens=ENDLESS, ignore_eos=True))
        for number, peer in enumerate(peers):
            if number % 4 == 0:
                assert status(await peer.read(500)) == 200
            (peer.reset if number % 3 else peer.close)()


async def half_closes_behind_its_request(target: Target, whole: bool) -> None:
    """It counts as having left, as with nginx's proxy and Envoy: an engine's time is too dear for a guess."""
    async with target.peers(8) as peers:
        for number, peer in enumerate(peers):
            await peer.send(chat(stream=number % 2 == 0, max_tokens=ENDLESS, ignore_eos=True))
            peer.half_close()
        for peer in peers:
            assert b"[DONE]" not in await peer.read()


async def asks_twice_and_leaves(target: Target, whole: bool) -> None:
    async def ask(number: int) -> None:
        async with target.peers(1) as (peer,):
            endless = chat(stream=number % 2 == 0, max_tokens=ENDLESS, ignore_eos=True)
            await peer.send(tiny() + endless)
            if number % 3:
                answer = await peer.answer()
                assert status(answer) in (200, 503), answer
            (peer.reset if number % 2 else peer.close)()

    await in_groups(ask, range(8))


async def comes_with_256_at_once(target: Target, whole: bool) -> None:
    """None of them is bad: each is answered, or told when to come again."""
    async with target.peers(256) as peers:
        await asyncio.gather(*(peer.send(chat()) for peer in peers))
        answers = await asyncio.gather(*(peer.answer() for peer in peers))
    statuses = Counter(map(status, answers))
    assert statuses.keys() <= {200, 429, 503}, statuses
    assert all(b"retry-after" in answer.lower() for answer in answers if status(answer) != 200)


async def drips_headers(target: Target, whole: bool) -> None:
    drops = [b"POST ", PATH, b" HTTP/1.1\r\n"]

    async def drip(peer: Peer) -> None:
        endless = itertools.chain(drops, (b"x-%d: y\r\n" % number for number in itertools.count()))
        said = await peer.drip(bytes([byte]) for piece in endless for byte in piece)
        assert status(said) in (0, 408), said

    async with target.peers(200 if whole else 10) as peers:
        await asyncio.gather(*map(drip, peers))


async def drips_a_body(target: Target, whole: bool) -> None:
    head, _, body = chat(padding="x" * 100_000).partition(b"\r\n\r\n")

    async def drip(peer: Peer) -> None:
        await peer.send(head + b"\r\n\r\n")
        said = await peer.drip(bytes([byte]) for byte in body)
        assert status(said) in (0, 408), said

    async with target.peers(200 if whole else 10) as peers:
        await asyncio.gather(*map(drip, peers))


async def sends_a_head_and_no_body(target: Target, whole: bool) -> None:
    async with target.peers(20) as peers:
        for peer in peers:
            await peer.send(chat().partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        for peer in peers:
            assert status(await peer.read()) in (0, 408)


async def says_nothing(target: Target, whole: bool) -> None:
    async with target.peers(20) as peers:
        for peer in peers:
            assert status(await peer.read()) in (0, 408)


async def never_reads_a_stream(target: Target, whole: bool) -> None:
    """The gateway does not wait for it to leave."""
    async with target.peers(8, receive_bytes=4096) as peers:
        for peer in peers:
            await peer.send(chat(stream=True, max_tokens=ENDLESS, ignore_eos=True))
        await (_rid_of(target) if whole else asyncio.sleep(1))


async def never_reads_pages(target: Target, whole: bool) -> None:
    async with target.peers(8, receive_bytes=4096) as peers:
        for number, peer in enumerate(peers):
            page = b"GET %s HTTP/1.1\r\nhost: g\r\n\r\n" % (b"/nowhere" if number % 2 else b"/metrics")
            with contextlib.suppress(TimeoutError):  # the gateway does not take all of it
                await asyncio.wait_for(peer.send(page * 5000), 0.2)
        await (_rid_of(target) if whole else asyncio.sleep(1))


async def _rid_of(target: Target) -> None:
    """Wait until a gateway has closed all connections but good clients', though nobody else closed any."""
    while connections(target.port) > _GOOD + 4:  # noqa: ASYNC110 - another process has no event to wait on
        await asyncio.sleep(0.1)


async def reads_a_byte_at_a_time(target: Target, whole: bool) -> None:
    async with target.peers(8, receive_bytes=4096) as peers:
        for peer in peers:
            await peer.send(chat(stream=True, max_tokens=ENDLESS, ignore_eos=True))
        for _ in range(50):
            assert all(await asyncio.gather(*(peer.read(1) for peer in peers)))
            await asyncio.sleep(_TICK_S)


_RNG = random.Random(7)
GARBAGE = {
    "nothing": b"",
    "noise": _RNG.randbytes(2000),
    "zeros": bytes(2000),
    "line ends": b"\r\n" * 2000,
    "a TLS hello": bytes.fromhex("16030100ca010000c60303") + _RNG.randbytes(195),
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/3.7": b"GET / HTTP/3.7\r\n\r\n",
    "an SSH banner": b"SSH-2.0-OpenSSH_9.6\r\n",
    "an SMTP greeting": b"EHLO gateway\r\n",
    "PROXY": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET / HTTP/1.1\r\n\r\n",
    "PROXY, binary": bytes.fromhex("0d0a0d0a000d0a515549540a2111000c") + bytes(12),
    "SOCKS": bytes.fromhex("050100"),
    "a line without end": b"GET /" + b"a" * 200_000,
    "a header without end": b"GET / HTTP/1.1\r\nx: " + b"a" * 200_000,
    "headers without end": b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 40_000,
    "no length": b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    "a length of letters": b"POST /v1/completions HTTP/1.1\r\ncontent-length: ten\r\n\r\n",
    "an endless length": b"POST /v1/completions HTTP/1.1\r\ncontent-length: " + b"9" * 400 + b"\r\n\r\n",
    "chunks that are none": b"POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\nzz\r\n",
    "CONNECT": b"CONNECT 10.0.0.1:22 HTTP/1.1\r\nhost: 10.0.0.1:22\r\n\r\n",
    "a websocket": b"GET /v1/realtime HTTP/1.1\r\nhost: g\r\nconnection: upgrade\r\n"
    b"upgrade: websocket\r\n\r\n",
}


async def talks_garbage(target: Target, whole: bool) -> None:
    """Each is told that it is wrong, or nothing; and whatever it does then, it is not waited for."""

    async def talk(what: str, data: bytes) -> None:
        async with target.peers(4) as peers:
            for peer in peers:
                await peer.send(data)
            said = status(await peers[0].read())
            assert said == 0 or 400 <= said < 500, (what, said)

    await asyncio.gather(*(talk(what, data) for what, data in GARBAGE.items()))


async def opens_thousands_of_connections(target: Target, whole: bool) -> None:
    """Some say a little; then all of them leave at once."""
    async with target.peers(5000 if whole else 300) as peers:
        for number, peer in enumerate(peers):
            if number % 3 == 0:
                await peer.send(b"GET /health HTTP/1.1\r\n")
        for peer in peers[::2]:
            peer.reset()


HOSTILITIES = (
    leaves_at_every_byte_of_a_request,
    leaves_within_a_large_request,
    leaves_at_every_byte_of_a_stream,
    leaves_at_every_byte_of_an_answer,
    leaves_while_an_engine_works,
    half_closes_behind_its_request,
    asks_twice_and_leaves,
    comes_with_256_at_once,
    drips_headers,
    drips_a_body,
    sends_a_head_and_no_body,
    says_nothing,
    never_reads_a_stream,
    never_reads_pages,
    reads_a_byte_at_a_time,
    talks_garbage,
    opens_thousands_of_connections,
)


@dataclass(frozen=True)
class Held:
    """What a gateway holds for clients.

    Attributes:
        in_flight: requests on engines, by the gateway's count.
        waiting: requests in queues.
        engines: requests that the engines themselves count.
        body_bytes: of requests and answers that are held in memory.
        connections: of clients, by the system's count; those of the observer are among them.
    """

    in_flight: float
    waiting: float
    engines: float
    body_bytes: float
    connections: int


class Stand:
    """A gateway over simulated engines, and what may be seen of it from outside."""

    def __init__(self, served: Served, engines: Sequence[EngineProcess], log: Path) -> None:
        self.served = served
        self.engines = engines
        self.target = Target.of(served.url)
        self._log = log

    def log(self) -> str:
        """All that it has logged."""
        return self._log.read_text("utf-8")

    def metrics(self) -> dict[str, float]:
        """Its series, summed over labels."""
        sums: Counter[str] = Counter()
        for family in text_string_to_metric_families(self.served.get("/metrics")):
            for sample in family.samples:
                sums[sample.name.removeprefix("ocr_gateway_")] += sample.value  # type: ignore[assignment]
        return dict(sums)

    async def held(self, watch: Watch) -> Held:
        """What it holds now."""
        in_flight, waiting, engines = await watch.open()
        metrics = await asyncio.to_thread(self.metrics)
        return Held(
            in_flight, waiting, engines, metrics.get("inflight_bytes", 0), connections(self.target.port)
        )

    def descriptors(self) -> int:
        """How many files it has open."""
        return len(list(Path(f"/proc/{self.served.process.pid}/fd").iterdir()))

    def cpu_s(self) -> float:
        """The CPU time it has taken, in seconds."""
        fields = Path(f"/proc/{self.served.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def rss_bytes(self) -> int:
        """Its resident memory."""
        return int(Path(f"/proc/{self.served.process.pid}/statm").read_text().split()[1]) * 4096

    async def at_rest(self) -> None:
        """Wait until it holds nothing for anybody."""
        async with Watch(self.served.url, self.engines) as watch:
            end = time.monotonic() + LONG_S
            while (held := await self.held(watch)) != Held(
                0, 0, 0, 0, held.connections
            ) or held.connections > 4:
                assert time.monotonic() < end, held
                await asyncio.sleep(0.05)

    @contextlib.asynccontextmanager
    async def beside_good_clients(self) -> AsyncIterator[Clients]:
        """Good clients before, during and after what is done here: none loses anything. Then all rests."""
        async with Clients([self.served.url], _GOOD) as clients:
            await asyncio.wait_for(clients.wait_answered(_GOOD), LONG_S)
            yield clients
            await asyncio.wait_for(clients.wait_answered(2 * _GOOD), LONG_S)
        tally = clients.tally
        assert (tally.failed, tally.cut, tally.error_events, tally.failed_stopping) == ({}, 0, 0, {}), tally
        assert self.served.process.poll() is None
        await self.at_rest()


def connections(port: int) -> int:
    """How many connections to a local port have an owner who has not closed them (Linux)."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ends = (f":{port:04X}", (_ESTABLISHED, _CLOSE_WAIT))
    return sum(row[1].endswith(ends[0]) and row[3] in ends[1] for row in rows)
