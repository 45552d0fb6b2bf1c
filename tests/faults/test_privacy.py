"""Secrets planted in all that clients, engines and hosts of images send: none shows in what is written.

`make soak` looks for them for long, in a process; here each kind of request comes often, at the highest level
of the log, in both of its formats, with tracing.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, quote_plus

import pytest
import uvloop

from bench.bad_clients import SECRETS as SOAKED
from bench.bad_clients import bad_requests, picture
from gateway.config import parse
from gateway.server.app import Gateway
from gateway.server.listen import GatewayServer
from gateway.telemetry.logs import _Formatter, _Writer
from gateway.telemetry.tracing import Tracing
from tests.support import FakeEngine, answer, chat, chunk, completion, data_url, served, until
from tests.telemetry.test_tracing import PARENT, Recorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from bench.serving import Served
    from tests.support import _Sender

LOOP = uvloop.new_event_loop  # that of `serve`
CHAT = "/v1/chat/completions"
ROUNDS = 3
SECRETS = {
    **SOAKED,
    "admin key": "sk-planted-admin-5e6f7a8b",
    "header": "PlantedInTheHeader=/&+",
    "name": 'PlantedInTheName"ä\\',
    "path": "PlantedInThePath",
    "engine words": 'PlantedByTheEngine\n"<Änswer>',
    "host words": "PlantedByTheHost",
    "fault": "PlantedInTheFault'\tä",
}
WRONG = b"Bearer " + SECRETS["wrong key"].encode()


def forms(secret: str) -> frozenset[str]:
    """How a secret may stand in a text: plain, escaped, or within a longer text that is encoded."""
    found = {
        secret,
        repr(secret)[1:-1],
        ascii(secret)[1:-1],
        json.dumps(secret)[1:-1],
        json.dumps(json.dumps(secret))[3:-3],
        secret.encode("unicode_escape").decode(),
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
        secret.encode().hex(),
        secret.encode().hex().upper(),
        # Its longest plain part, whatever is made of the rest.
        max(re.findall(r"[A-Za-z0-9-]+", secret), key=len),
    }
    for before in range(3):  # of the three bytes that four characters stand for, the first may be another's
        whole = base64.b64encode(bytes(before) + secret.encode()).decode()
        first, last = -(-8 * before // 6), -(-8 * (len(secret.encode()) + before) // 6)
        inner = whole[first : last - 1]
        found |= {inner, inner.translate(str.maketrans("+/", "-_"))}
    return frozenset(found)


FORMS = {what: forms(secret) for what, secret in SECRETS.items()}


def shown(text: str) -> set[str]:
    """Which secrets stand in a text, in whatever form."""
    return {what for what, these in FORMS.items() if any(one in text for one in these)}


@dataclass(frozen=True)
class Ask:
    """One kind of request, and the statuses that are right."""

    body: bytes = b""
    headers: Sequence[bytes] = ()
    right: frozenset[int] = frozenset((200,))
    path: str = CHAT
    key: str = "key"
    method: str = "POST"

    def raw(self) -> bytes:
        lines = [
            f"{self.method} {self.path} HTTP/1.1".encode(),
            b"host: gateway",
            b"content-length: %d" % len(self.body),
            *self.headers,
        ]
        names = {line.partition(b":")[0].lower() for line in self.headers}
        if b"authorization" not in names:
            lines.append(b"authorization: Bearer " + SECRETS[self.key].encode())
        if b"content-type" not in names:
            lines.append(b"content-type: application/json")
        return b"\r\n".join([*lines, b"", self.body])


def ask(body: Mapping[str, Any] | None = None, *right: int, **more: Any) -> Ask:
    return Ask(json.dumps(body or chat()).encode(), right=frozenset(right or (200,)), **more)


def asks(images: str) -> dict[str, Ask]:
    """Return requests of every kind; `images` is where remote ones lie."""
    secret = SECRETS
    header = secret["header"].encode()
    found = {
        kind: Ask(body, [f"{name}: {value}".encode() for name, value in headers.items()], right)
        for kind, (body, headers, right) in bad_requests().items()
        if kind != "too large"
    }
    for place, streams in ((place, streams) for place in BEHAVIOURS for streams in (False, True)):
        body = chat(f"{secret['prompt']} engine:{place}", data_url(picture(1)), stream=streams)
        found[f"engine {place} {streams}"] = ask(body, *BEHAVIOURS[place][1])
    for place, right in {
        "page.png": 200,
        "nothing": 400,
        "text": 400,
        "away": 400,
        "broken": 400,
        "gone": 400,
    }.items():
        url = f"{images}/{place}?X-Signature={secret['query']}"
        found[f"remote {place}"] = ask(chat(secret["prompt"], url), right)
    for name in (
        *("authorization: Basic", "Authorization: bearer", "proxy-authorization: Bearer", "api-key:"),
        *(
            "x-api-key:",
            "cookie: session=",
            "x-ocr-route:",
            "x-request-id:",
            "user-agent:",
            "x-forwarded-for:",
        ),
        *("traceparent:", f"traceparent: {PARENT}\r\ntracestate: a=", "baggage: user=", "expect:", "origin:"),
    ):
        line = f"{name} ".encode() + header
        right = {"authorization: Basic": 401, "Authorization: bearer": 401, "x-ocr-route:": 400}.get(
            name, 200
        )
        found[name] = ask(None, right, headers=[line])
    basic = base64.b64encode(f"user:{secret['wrong key']}".encode())
    return found | {
        "basic": ask(None, 401, headers=[b"authorization: Basic " + basic]),
        "two keys": ask(None, 401, headers=[b"authorization: " + WRONG, b"authorization: " + WRONG]),
        "no key, a body": ask(chat(secret["prompt"]), 401, headers=[b"authorization: "]),
        "content type": ask(None, 400, headers=[b"content-type: " + header]),
        "query": ask(path=f"{CHAT}?key={secret['query']}"),
        "other path": ask(None, 404, path=f"/v1/{secret['path']}?key={secret['query']}"),
        "other path, no key": ask(
            None, 401, path=f"/v1/{secret['path']}?x={secret['query']}", headers=[b"authorization: " + WRONG]
        ),
        "other method": ask(None, 405, method="DELETE", path=f"{CHAT}?key={secret['query']}"),
        "a page": ask(None, 403, method="GET", path=f"/status?key={secret['query']}"),
        "route": ask(chat(metadata={"ocr_route": secret["name"]}), 400),
        "user": ask(chat(user=secret["name"], metadata={secret["name"]: secret["prompt"]})),
        "a member's name": ask(chat(**{secret["name"]: secret["prompt"]})),
        "a member's type": ask(chat(stream=secret["prompt"]), 400),
        "messages": ask({"messages": {secret["name"]: secret["prompt"]}}, 400),
        "a part": ask({"messages": [{"role": "user", "content": [{"type": secret["name"]}]}]}, 400),
        "a schema": ask(
            chat(
                response_format={
                    "type": "json_schema",
                    "json_schema": {
                        "name": secret["name"],
                        "schema": {"properties": {secret["name"]: {"type": secret["prompt"]}}},
                    },
                }
            )
        ),
        "a setting": ask(chat(mm_processor_kwargs={secret["name"]: f"/{secret['prompt']}"}), 400),
        "kept apart": ask(chat(kv_transfer_params={"remote_host": secret["name"]}), 400),
        "text completion": ask({"prompt": secret["prompt"]}, path="/v1/completions"),
        "deep": Ask(b"[" * 5000 + json.dumps(secret["prompt"]).encode(), right=frozenset((400,))),
        "no UTF-8": Ask(b'{"messages": "\xff' + secret["prompt"].encode(), right=frozenset((400,))),
        "a fault of ours": ask(chat(f"please fail: {secret['prompt']}", None), 500),
    }


# What comes over a connection that is no request at all: answered with an error, or not.
NO_HTTP = [
    b"GET /" + SECRETS["path"].encode() + b" HTTP/3.7\r\n\r\n",
    b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: x\r\n" + SECRETS["path"].encode() + b"\r\n\r\n",
    b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: x\r\nx: " + 9000 * SECRETS["path"].encode() + b"\r\n\r\n",
    b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: x\r\nauthorization: " + WRONG + b"\r\n"
    b"transfer-encoding: chunked\r\n\r\n" + SECRETS["prompt"].encode() + b"\r\n",
    b"CONNECT " + SECRETS["path"].encode() + b":443 HTTP/1.1\r\nhost: x\r\n\r\n",
    b"\x16\x03\x01" + SECRETS["path"].encode() + b"\r\n\r\n",
]


def refuses(status: int) -> Callable[..., Any]:
    async def behave(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.json({"error": {"message": SECRETS["engine words"], "code": status}}, status)

    return behave


async def _tells(engine: FakeEngine, request: Any, send: _Sender) -> None:
    if not request.get("stream"):
        return await send.json(completion(SECRETS["engine words"]))
    await send.start(kind="text/event-stream")
    await send.event(chunk(SECRETS["engine words"], "stop"))
    await send.event("[DONE]")
    return await send.body(b"", more=False)


async def _garbage(engine: FakeEngine, request: Any, send: _Sender) -> None:
    await send.start(kind="text/event-stream" if request.get("stream") else "application/json")
    await send.body(b"data: {" + SECRETS["engine words"].encode() + b"\n\n", more=False)


async def _breaks(engine: FakeEngine, request: Any, send: _Sender) -> None:
    await send.start(kind="text/event-stream" if request.get("stream") else "application/json")
    await send.event(chunk(SECRETS["engine words"]))
    if request.get("stream"):
        await send.event({"error": {"message": SECRETS["engine words"], "type": SECRETS["engine words"]}})
    await send.body(b"", more=False)


BEHAVIOURS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "tells": (_tells, (200,)),
    "garbage": (_garbage, (502,)),
    "breaks": (_breaks, (200, 502)),
    **{
        f"refuses {status}": (refuses(status), (told,))
        for status, told in {
            400: 400,
            401: 502,
            404: 502,
            422: 422,
            429: 503,
            500: 502,
            503: 503,
            504: 504,
        }.items()
    },
}


async def _behave(engine: FakeEngine, request: Any, send: _Sender) -> None:
    place = re.search(r"engine:([a-z0-9 ]+)", json.dumps(request))
    await (BEHAVIOURS[place[1]][0] if place else answer)(engine, request, send)


async def _images(scope: Any, receive: Any, send: Any) -> None:
    """The host of remote images."""
    if scope["type"] == "lifespan":
        for kind in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{kind}.complete"})
        return
    place, words = scope["path"][1:], SECRETS["host words"].encode()
    body = picture(1) if place == "page.png" else words
    status = {"nothing": 404, "away": 302, "gone": 410}.get(place, 200)
    headers = [(b"set-cookie", words), (b"content-type", words)]
    if status == 302:
        headers.append((b"location", b"http://user:" + words + b"@127.0.0.1/"))
    if place == "broken":
        headers.append((b"content-encoding", words))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, limit=2**22)


async def _answer(reader: asyncio.StreamReader) -> tuple[int, str]:
    """The next answer's status, and all of it."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    body = b""
    if length := re.search(r"content-length: (\d+)", head):
        body = await reader.readexactly(int(length[1]))
    elif "chunked" in head:
        while not body.endswith(b"0\r\n\r\n"):
            body += await reader.readuntil(b"\r\n")
    return int(head.split()[1]), head + body.decode("utf-8", "replace")


@dataclass
class Stand:
    """A gateway with all that writes switched on; `written` is where."""

    gateway: Gateway
    port: int
    images: str
    spans: Recorder
    written: Path

    async def suffer(self, rounds: int) -> None:
        """Have every kind of request come, so many times each."""
        kinds = asks(self.images)
        async with asyncio.TaskGroup() as clients:
            for number in range(8):
                clients.create_task(self._client(list(kinds.items())[number::8], rounds))
        for nonsense in NO_HTTP:
            reader, writer = await _connect(self.port)
            writer.write(nonsense)
            await reader.read()
            writer.close()
        raw = kinds["query"].raw()
        for length in range(0, len(raw), len(raw) // 20):  # who leaves in the midst of a request
            _, writer = await _connect(self.port)
            writer.write(raw[:length])
            await asyncio.sleep(0)
            writer.transport.abort()
        await until(lambda: not self.gateway.state.requests.open)

    async def _client(self, kinds: list[tuple[str, Ask]], rounds: int) -> None:
        reader, writer = await _connect(self.port)
        for kind, one in kinds * rounds:
            if reader.at_eof() or writer.is_closing():
                writer.close()
                reader, writer = await _connect(self.port)
            writer.write(one.raw())
            status, told = await _answer(reader)
            assert status in one.right, (kind, status, told[:2000])
            if "connection: close" in told.partition("\r\n\r\n")[0]:
                writer.close()
                reader, writer = await _connect(self.port)
        writer.close()

    async def told_others(self) -> str:
        """What an innocent client and an operator are told."""
        told = ""
        for one in (
            ask(),
            ask(chat(stream=True)),
            ask(chat(image="data:image/png;base64,AAAA"), 400),
            ask(None, 401, headers=[b"authorization: x"]),
            *(
                ask(None, method="GET", path=path, key="admin key")
                for path in (
                    "/metrics",
                    "/status",
                    "/openapi.json",
                    "/v1/models",
                    "/ready",
                    "/health",
                )
            ),
        ):
            reader, writer = await _connect(self.port)
            writer.write(one.raw())
            status, text = await _answer(reader)
            assert status in one.right, (one.path, text)
            told += text
            writer.close()
        return told


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Path]:
    """Where everything that is logged goes, in both formats."""
    root, ours = logging.getLogger(), logging.getLogger("gateway")
    before, levels = root.handlers[:], (root.level, ours.level)
    root.handlers = []
    with contextlib.ExitStack() as stack:
        for kind in ("text", "json"):
            file = stack.enter_context((tmp_path / kind).open("wb"))
            handler = _Writer(file.fileno())
            handler.setFormatter(_Formatter(cast("Any", kind)))
            root.addHandler(handler)
        root.setLevel(logging.INFO)
        ours.setLevel(logging.DEBUG)
        yield tmp_path
        for one in root.handlers:
            one.close()
        root.handlers = before
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


def _configured(engine: str, images: str, folder: Path) -> str:
    (folder / "keys").write_text(
        f"good {SECRETS['key']}\nmetered {SECRETS['metered key']}\nops {SECRETS['admin key']}\n"
    )
    return json.dumps(
        {
            "model": "glm-ocr",
            "pools": {"p": {"engines": [engine], "api_key": SECRETS["engine key"]}},
            "routes": {"text": {}, "table": {}},
            "polling": {"scrape_s": 0.05},
            "server": {"linger_s": 0, "drain_s": 5},
            "breaker": {"failures": 1_000_000},
            "auth": {
                "keys_file": "keys",
                "admins": ["ops"],
                "limits": {"metered": {"requests_per_minute": 2}},
            },
            "remote_images": {
                "allow_hosts": [images.removeprefix("http://")],
                "allow_networks": ["127.0.0.0/8"],
            },
        }
    )


@pytest.fixture
async def stand(logs: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stand]:
    spans = Recorder()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(Tracing, "to_collector", classmethod(lambda cls: cls(spans)))
    engine = FakeEngine(behave=_behave, version=SECRETS["engine words"])
    words = SECRETS["engine words"]
    engine.metrics = f"# {words}\nvllm:num_requests_running{{}} 0\n".encode()
    async with served(engine) as engine_url, served(_images) as images:
        gateway = Gateway(parse(_configured(engine_url, images, logs), "routes.yaml", logs, {}))
        server = GatewayServer(gateway)
        serving = asyncio.create_task(server._serve())
        await until(lambda: server.started)
        await until(lambda: all(status.view.up for status in gateway.state.snapshot().engines))
        _fail_where_asked(gateway, monkeypatch)
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield Stand(gateway, port, images, spans, logs)
        finally:
            server.should_exit = True
            await serving


def _fail_where_asked(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the gateway fail as nobody expects, over the words of a request."""
    dispatcher = gateway._dispatcher
    sort = dispatcher._sort

    async def fails(progress: Any, received: Any, *rest: Any) -> str:
        facts = received.facts
        if "please fail" in (facts.prompt or ""):
            try:
                raise KeyError(facts.prompt)
            except KeyError as error:
                raise ValueError(SECRETS["fault"], facts) from error
        return await sort(progress, received, *rest)

    monkeypatch.setattr(dispatcher, "_sort", fails)


async def test_nothing_that_is_planted_shows(stand: Stand, capfd: pytest.CaptureFixture[str]) -> None:
    await stand.suffer(ROUNDS)
    spoken = await stand.told_others()
    gone = asyncio.get_running_loop().create_future()
    gone.set_exception(ValueError(SECRETS["fault"]))
    del gone  # asyncio tells of an error that nobody asked for
    for handler in logging.getLogger().handlers:
        handler.flush()
    out, err = capfd.readouterr()
    lines = [(stand.written / kind).read_text() for kind in ("text", "json")]
    assert sum(text.count("\n") for text in lines) > 300 * ROUNDS
    assert "a request failed unexpectedly" in lines[0]
    assert "ValueError" in lines[0]
    assert "never retrieved" in lines[0]
    spans = "".join(span.to_json() for span in stand.spans.ended)
    for where, text in {
        "text": lines[0],
        "json": lines[1],
        "standard error": err + out,
        "spans": spans,
        "others' answers": spoken,
    }.items():
        if found := shown(text):
            pytest.fail(f"{where}: {found}: {next(line for line in text.splitlines() if shown(line))}")


def test_a_crash_leaves_no_core(whole: Served) -> None:
    limits = Path(f"/proc/{whole.process.pid}/limits").read_text()
    assert re.search(r"Max core file size +0 +0 ", limits)


@pytest.mark.parametrize("what", SECRETS)
def test_what_is_planted_is_found_in_every_form(what: str) -> None:
    secret = SECRETS[what]
    for text in (
        f"a line {secret} goes on",
        json.dumps({"told": json.dumps({"message": f"x{secret}x"})}),
        repr(ValueError(f"over {secret}")),
        f"GET /?a={quote(secret)}&b",
        f"GET /?a={quote_plus(secret)}&b",
        f"0x{secret.encode().hex().upper()}",
        *(base64.b64encode(b"." * n + secret.encode() + b"." * 7).decode() for n in range(3)),
        *(base64.urlsafe_b64encode(b"." * n + secret.encode()).decode() for n in range(3)),
    ):
        assert what in shown(text), text
    assert not shown("a line of the log, and 0123456789abcdef of a request's id")
