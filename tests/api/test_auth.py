"""Who gets in, asked over sockets as strangers and clients ask."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.serving import free_port
from gateway.api.application import Application
from gateway.api.auth import ApiKeyCheck
from gateway.config import load
from gateway.server import reload
from gateway.server.app import Gateway
from gateway.server.listen import GatewayServer
from tests.support import FakeEngine, chat, completion, served, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

CHAT = "/v1/chat/completions"
KEY, OTHER, ENGINE_KEY = "team-a-secret-4711", "team-b-secret-4712", "engine-secret-4713"
KEYS = f"team-a {KEY}\nteam-b sha256:{hashlib.sha256(OTHER.encode()).hexdigest()}\n"
PAGES = ("/metrics", "/status", "/openapi.json")


@dataclass
class Guarded:
    """A served gateway with keys in front of one engine; `http` has the key of team-a."""

    gateway: Gateway
    engine: FakeEngine
    http: httpx.AsyncClient
    url: str
    folder: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, key: str, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, http_client=self.http, **options)

    def give(self, keys: str) -> None:
        """Replace the file of keys at once."""
        (self.folder / "next").write_text(keys)
        (self.folder / "next").replace(self.folder / "keys")


@contextlib.asynccontextmanager
async def guarded(
    folder: Path, key: str | None = KEY, auth: dict[str, Any] | None = None, **sections: Any
) -> AsyncIterator[Guarded]:
    """Serve a gateway as `ocr-gateway serve` does; `auth` and `sections` add to its configuration."""
    engine = FakeEngine()
    async with served(engine) as engine_url:
        (folder / "keys").write_text(KEYS)
        path = folder / "routes.yaml"
        values = {
            "model": "glm-ocr",
            "pools": {"pool": {"engines": [engine_url], "api_key": ENGINE_KEY}},
            "routes": {"text": {}},
            "polling": {"scrape_s": 0.05},
            "auth": {"keys_file": "keys", **(auth or {})},
            **sections,
        }
        path.write_text(yaml.safe_dump(values))
        gateway = Gateway(load(path), path)
        server = GatewayServer(gateway)
        serving = asyncio.create_task(server._serve())
        try:
            await until(lambda: server.started or serving.done())
            if serving.done():
                serving.result()
            url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
            headers = {"authorization": f"Bearer {key}"} if key else {}
            await until(lambda: all(status.view.up for status in gateway.state.snapshot().engines))
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30, verify=False) as http:
                yield Guarded(gateway, engine, http, url, folder)
        finally:
            server.should_exit = True
            await serving


async def ask(port: int, target: str, method: str = "GET", *headers: str) -> bytes:
    """Send one request as it stands; return all that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"{method} {target} HTTP/1.1", "host: x", "connection: close", *headers, "", ""]
    writer.write("\r\n".join(lines).encode())
    reply = await reader.read()
    writer.close()
    return reply


async def test_an_openai_client_gets_in_with_its_key_and_not_without(tmp_path: Path) -> None:
    async with guarded(tmp_path) as gateway:
        for key in (KEY, OTHER):
            reply = await gateway.client(key).chat.completions.create(**chat())
            assert reply.choices[0].message.content == "hello world"
        assert [model.id async for model in gateway.client(KEY).models.list()] == ["glm-ocr"]
        for key in ("team-a", KEY.upper(), f"sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"):
            with pytest.raises(openai.AuthenticationError) as refused:
                await gateway.client(key).chat.completions.create(**chat())
            assert refused.value.code == "invalid_api_key"
            assert refused.value.type == "invalid_request_error"
        assert len(gateway.engine.bodies) == 2


async def test_who_has_no_key_is_told_how_to_send_one(tmp_path: Path) -> None:
    async with guarded(tmp_path, key=None) as gateway:
        reply = await gateway.http.post(CHAT, json=chat(), headers={"x-request-id": "mine"})
        assert reply.status_code == 401
        assert (reply.headers["www-authenticate"], reply.headers["x-request-id"]) == ("Bearer", "mine")
        error = reply.json()["error"]
        assert (error["code"], error["param"]) == ("invalid_api_key", None)
        assert error["message"].startswith("there is no API key; send `Authorization: Bearer KEY`")
        assert gateway.engine.bodies == []


async def test_nothing_of_a_strangers_body_is_waited_for(tmp_path: Path) -> None:
    async with guarded(tmp_path) as gateway:
        headers = ["content-type: application/json", "content-length: 1000000", "expect: 100-continue"]
        reply = await ask(gateway.port, CHAT, "POST", *headers)
        assert reply.startswith(b"HTTP/1.1 401 ")
        assert gateway.gateway.state.requests.open == 0


async def test_probes_and_the_page_that_asks_for_a_key_need_none(tmp_path: Path) -> None:
    async with guarded(tmp_path, key=None) as gateway:
        for path in ("/", "/health", "/ready"):
            assert (await gateway.http.get(path)).status_code == 200
            assert (await gateway.http.head(path)).status_code == 200


SPELLINGS = [
    *PAGES,
    CHAT,
    f"{CHAT}/",
    f"/{CHAT}",
    "/V1/Chat/Completions",
    "/v1/%63hat/completions",
    "/health/../v1/models",
    "/health/..%2fmetrics",
    "/health/",
    "/Health",
    "//health",
    "/health%2f..%2fmetrics",
    "/health;/../metrics",
    "/health%00",
    "/health%3f/metrics",
    "/ready/x",
    "/docs/oauth2-redirect",
    "/redoc",
    "/v1/models",
    "/nothing",
    "http://x/metrics",
    "http://x/health/../metrics",
    "*",
]


async def test_no_other_spelling_of_a_path_gets_around_the_key(tmp_path: Path) -> None:
    async with guarded(tmp_path, key=None) as gateway:
        let_in = []
        for method in ("GET", "HEAD", "POST", "OPTIONS", "DELETE"):
            for target in SPELLINGS:
                reply = await ask(gateway.port, target, method, "content-length: 0")
                if reply[:12] not in (b"HTTP/1.1 401", b"HTTP/1.1 400"):  # 400: no request to begin with
                    let_in.append((method, target, reply))
        assert let_in == []
        assert gateway.engine.bodies == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(max_size=20) | st.sampled_from(SPELLINGS), st.text("aA/.%", max_size=4), st.binary(max_size=40)
)
async def test_whatever_the_path_only_these_reach_the_application_without_a_key(
    gate: Gate, path: str, end: str, key: bytes
) -> None:
    for given_headers in ([], [(b"authorization", key)], [(b"authorization", b"Bearer " + key)]):
        reached = await gate.reached(path + end, given_headers)
        assert reached == (path + end in ("/", "/health", "/ready"))


class Gate:
    """A guard before an application that notes what reaches it, without sockets."""

    def __init__(self, gateway: Gateway) -> None:
        self.got: list[Any] = []
        keys = ApiKeyCheck(gateway.state, gateway._metrics, gateway.api.routes)
        self.guard = Application(self, {}, keys, gateway.state)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.got.append(scope["state"].get("key", ""))

    async def reached(self, path: str, headers: list[tuple[bytes, bytes]], **state: Any) -> bool:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            raise AssertionError("the body was asked for")

        before = len(self.got)
        state = {"request_id": "1", **state}
        scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "state": state}
        await self.guard(scope, receive, send)
        assert bool(sent) == (len(self.got) == before)
        return len(self.got) > before


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    (tmp_path / "keys").write_text(KEYS)
    (tmp_path / "routes.yaml").write_text(
        "model: m\npools: {p: {engines: [http://e]}}\nroutes: {text: {}}\nauth: {keys_file: keys}"
    )
    return Gate(Gateway(load(tmp_path / "routes.yaml")))


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (f"Bearer {KEY}", "team-a"),
        (f"bearer  {KEY} ", "team-a"),
        (f"BEARER {OTHER}", "team-b"),
        (f"Basic {KEY}", None),
        (f"Bearer{KEY}", None),
        (f"Bearer {KEY},{KEY}", None),
        (KEY, None),
        ("Bearer", None),
        ("", None),
    ],
)
async def test_the_key_is_a_bearers(gate: Gate, header: str, name: str | None) -> None:
    given_headers = [(b"authorization", header.encode())]
    assert await gate.reached("/v1/models", given_headers) == (name is not None)
    assert gate.got == [name] * (name is not None)
    assert not await gate.reached("/v1/models", given_headers * 2)


async def test_what_is_refused_is_counted_and_logged_without_the_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded(tmp_path) as gateway:
        wrong = {"authorization": f"Bearer {KEY}x", "x-request-id": "wrong-key"}
        assert (await gateway.http.post(CHAT, json=chat(), headers=wrong)).status_code == 401
        assert (await gateway.http.post(CHAT, json=chat())).status_code == 200
        page = (await gateway.http.get("/metrics")).text
    (refused,) = (
        vars(one)["fields"] for one in caplog.records if getattr(one, "fields", {}).get("code") == 401
    )
    assert refused == {"request_id": "wrong-key", "path": CHAT, "code": 401, "key": ""}
    (answered,) = (
        vars(one)["fields"] for one in caplog.records if getattr(one, "fields", {}).get("code") == 200
    )
    assert answered["key"] == "team-a"
    assert 'ocr_gateway_requests_total{code="401",pool="",route=""} 1.0' in page
    assert 'ocr_gateway_key_requests_total{code="401",key=""} 1.0' in page
    assert 'ocr_gateway_key_requests_total{code="200",key="team-a"} 1.0' in page
    assert KEY not in page + caplog.text


async def test_a_path_is_logged_where_it_exists_and_else_is_a_strangers_words(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for path in (CHAT, "/metrics", f"/v1/{KEY}", "/a\n2026 INFO code=200\u2028" + "x" * 1000):
        await gate.reached(path, [])
    assert [vars(record)["fields"]["path"] for record in caplog.records] == [CHAT, "/metrics", "", ""]


async def test_operators_pages_are_for_any_key_or_those_named(tmp_path: Path) -> None:
    team_b = {"authorization": f"Bearer {OTHER}"}
    async with guarded(tmp_path) as gateway:
        for path in PAGES:
            assert (await gateway.http.get(path, headers=team_b)).status_code == 200
    async with guarded(tmp_path, auth={"admins": ["team-a"]}) as gateway:
        for path in PAGES:
            assert (await gateway.http.get(path)).status_code == 200
            reply = await gateway.http.get(path, headers=team_b)
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, "not_an_admin")
            assert (await gateway.http.get(path, headers={"authorization": ""})).status_code == 401
        assert (await gateway.http.get("/v1/models", headers=team_b)).status_code == 200
        page = (await gateway.http.get("/metrics")).text
        assert f'ocr_gateway_key_requests_total{{code="403",key="team-b"}} {len(PAGES)}.0' in page


@pytest.mark.parametrize("keys_file", ["keys", None])
async def test_an_admin_port_has_the_pages_and_nothing_else(tmp_path: Path, keys_file: str | None) -> None:
    port = free_port()
    sections = {"auth": {"keys_file": keys_file}, "server": {"admin_port": port}}
    async with guarded(tmp_path, **sections) as gateway, httpx.AsyncClient(verify=False) as stranger:
        for path in (*PAGES, "/redoc"):
            reply = await gateway.http.get(path)
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_endpoint")
        assert (await gateway.http.post(CHAT, json=chat())).status_code == 200
        admin = f"http://127.0.0.1:{port}"
        for path in (*PAGES, "/", "/health", "/ready"):
            assert (await stranger.get(f"{admin}{path}")).status_code == 200
            for open_ in ("/", "/health"):
                assert (await gateway.http.get(open_)).status_code == 200
        for headers in ({}, dict(gateway.http.headers)):
            reply = await stranger.post(f"{admin}{CHAT}", json=chat(), headers=headers)
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_endpoint")
            assert (await stranger.get(f"{admin}/v1/models", headers=headers)).status_code == 404
        assert len(gateway.engine.bodies) == 1


async def test_a_reload_does_not_bring_the_pages_to_the_public_port(tmp_path: Path) -> None:
    async with guarded(tmp_path, server={"admin_port": free_port()}) as gateway:
        text = (tmp_path / "routes.yaml").read_text()
        values = yaml.safe_load(text)
        del values["server"]
        (tmp_path / "routes.yaml").write_text(yaml.safe_dump(values))
        await gateway.gateway.reload(load(tmp_path / "routes.yaml"))
        assert (await gateway.http.get("/metrics")).status_code == 404


async def test_keys_change_while_requests_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "_LOOK_S", 0.01)
    go_on = asyncio.Event()

    async def wait(engine: FakeEngine, request: Any, send: Any) -> None:
        await go_on.wait()
        await send.json(completion("at last"))

    async with guarded(tmp_path) as gateway:
        gateway.engine.behave = wait
        begun = asyncio.create_task(gateway.client(KEY).chat.completions.create(**chat()))
        await until(lambda: gateway.engine.running)
        gateway.give(f"team-a {KEY}-new\n")
        await until(lambda: gateway.gateway.state.fleet.config.keys.names == {"team-a"})
        with pytest.raises(openai.AuthenticationError):
            await gateway.client(OTHER).models.list()
        with pytest.raises(openai.AuthenticationError):
            await gateway.client(KEY).models.list()
        gateway.give(f"team-a {KEY}-new\n{OTHER}")
        reloads = "ocr_gateway_config_reload_failures_total 1.0"
        new = {"authorization": f"Bearer {KEY}-new"}
        async with asyncio.timeout(10):
            while reloads not in (await gateway.http.get("/metrics", headers=new)).text:
                pass
        go_on.set()
        assert (await begun).choices[0].message.content == "at last"
        reply = await gateway.client(f"{KEY}-new").chat.completions.create(**chat())
        assert reply.choices[0].message.content == "at last"


async def test_a_configuration_that_was_cut_off_lets_nobody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reload, "_LOOK_S", 0.01)
    async with guarded(tmp_path, key=None) as gateway:
        path = tmp_path / "routes.yaml"
        values = yaml.safe_load(path.read_text())
        del values["auth"]
        path.write_text(yaml.safe_dump(values))
        await until(lambda: "keys are taken away by a restart only" in caplog.text)
        assert (await gateway.http.get("/v1/models")).status_code == 401
        assert await gateway.client(KEY).models.list()


async def test_a_clients_key_stays_here_and_the_engines_is_never_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def refuse(engine: FakeEngine, request: Any, send: Any) -> None:
        await send.json({"error": f"wrong key: {ENGINE_KEY}"}, 401)

    async with guarded(tmp_path) as gateway:
        told = [(await gateway.http.post(CHAT, json=chat())).text]
        assert gateway.engine.headers[0]["authorization"] == f"Bearer {ENGINE_KEY}"
        assert KEY not in str(gateway.engine.headers) + str(gateway.engine.bodies)
        gateway.engine.behave = refuse
        told.append((await gateway.http.post(CHAT, json=chat())).text)
        told += [(await gateway.http.get(path)).text for path in PAGES]
        config = gateway.gateway.state.fleet.config
        told += [repr(config), repr(gateway.gateway.state.engines()), caplog.text]
        told += [str(vars(record)) for record in caplog.records]
        with pytest.raises(openai.APIError):
            await gateway.client(KEY, max_retries=0).chat.completions.create(**chat())
    assert not [text for text in told if ENGINE_KEY in text or KEY in text]
