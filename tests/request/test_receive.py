from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from PIL import Image

from gateway.config import parse
from gateway.errors import BadImage
from gateway.model import SortFacts
from gateway.request.receive import CheckedImages, EngineRequest, ReceivedRequest
from gateway.request.record import IncomingRequest, RequestProgress
from gateway.state.requests import BodyMemory
from gateway.wire import openai, responses
from tests.conftest import Fleeting, fleet
from tests.hosts import Host, answer_of, drip, hosted, redirect_to
from tests.support import chat, data_url, encoded, picture, png, until

if TYPE_CHECKING:
    import httpx

    from gateway.state.requests import MemoryClaim
    from tests.conftest import Running
if TYPE_CHECKING:
    from gateway.state.requests import MemoryClaim

CHAT = "/v1/chat/completions"
PAGE = png("a page")
SECRET = "Zanzibar"


def settings_of(*hosts: Host, limits: dict[str, int] | None = None, **remote: Any) -> str:
    listed = [f"localhost:{host.port}" for host in hosts]
    local = ["127.0.0.0/8", "::1/128"]
    remote_images = {"allow_hosts": listed, "allow_networks": local, **remote}
    return yaml.safe_dump({"remote_images": remote_images, "limits": limits or {}})


def url_of(host: Host, path: str = "/page") -> str:
    return f"http://localhost:{host.port}{path}"


def with_images(*urls: str, text: str = "Text Recognition:") -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {
        "model": "glm-ocr",
        "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}],
    }


async def ask(gateway: Fleeting, body: dict[str, Any]) -> httpx.Response:
    return await gateway.http.post(CHAT, json=body)


def received(gateway: Fleeting) -> list[dict[str, Any]]:
    """The content parts that the engine got."""
    (request,) = gateway.engines[0].requests
    content: list[dict[str, Any]] = request["messages"][0]["content"]
    return content


async def test_a_remote_image_reaches_the_engine_as_a_data_url_and_nothing_else_changes() -> None:
    jpeg = encoded(picture("another"), "JPEG")
    async with (
        hosted(page=answer_of(PAGE), other=answer_of(jpeg)) as host,
        fleet(1, settings_of(host)) as gateway,
    ):
        page, other = url_of(host), url_of(host, "/other")
        body = with_images(page, data_url(PAGE), other, page, text=page)
        body["messages"][0]["content"][2] = {"image_url": other, "type": "image_url"}
        body["user"] = page
        reply = await ask(gateway, body)
        assert reply.status_code == 200, reply.text
        images = [data_url(PAGE), data_url(PAGE), data_url(jpeg, "image/jpeg"), data_url(PAGE)]
        expected = with_images(*images, text=page)
        expected["messages"][0]["content"][2]["image_url"] = images[2]
        assert gateway.engines[0].requests == [{**expected, "user": page}]
        assert sorted(host.paths) == ["/other", "/page"]
        assert gateway.gateway.state.memory.total == 0


async def test_a_remote_image_decides_the_route_as_any_other() -> None:
    lines = "\n".join(["the quick brown fox jumps over the lazy dog and runs away"] * 12)
    async with (
        hosted(page=answer_of(encoded(picture(lines, (620, 330)), "PNG"))) as host,
        fleet(1, settings_of(host)) as gateway,
    ):
        reply = await ask(gateway, with_images(url_of(host), text=""))
    assert reply.headers["x-ocr-route-reason"] == "image"


REFUSED = [
    "http://evil.example/page",
    "http://127.0.0.1:{port}/page",
    "http://[::1]:{port}/page",
    "http://localhost/page",
    "http://LOCALHOST.:{port}/page",
    "http://user@localhost:{port}/page",
    "http://localhost:{port}@evil.example/page",
    "http://localhost:{port}\\@evil.example/page",
    "http:\\\\localhost:{port}\\page",
    "http:/localhost:{port}/page",
    "http:localhost:{port}/page",
    "http://loc\talhost:{port}/page",
    "http://localhost:{port}/pa ge",
    "http://localhost:{port}/page\r\nX: y",
    "http://lo%63alhost:{port}/page",
    "http://ｌocalhost:{port}/page",
    "http://2130706433:{port}/page",
    "http://0x7f.1:{port}/page",
    "http://0177.0.0.1:{port}/page",
    "https://169.254.169.254/latest/meta-data/",
    " http://localhost:{port}/page",
]
NEVER = [
    "ht\ttp://localhost:{port}/page",
    "//localhost:{port}/page",
    "\\\\localhost:{port}\\page",
    "/page",
    "page.png",
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    "ftp://localhost:{port}/page",
    "gopher://localhost:{port}/page",
    "unix:/var/run/docker.sock",
    "blob:http://localhost:{port}/page",
    "jar:http://localhost:{port}/page",
    "data:text/plain,http://localhost:{port}/page",
    "data:http://localhost:{port}/page",
    "data:;base64;http://localhost:{port}/page,",
    "url(http://localhost:{port}/page)",
    "",
]


async def test_no_form_of_url_gets_past_the_rules() -> None:
    async with hosted(page=answer_of(PAGE)) as host, fleet(1, settings_of(host)) as gateway:
        for code, urls in (("remote_image_refused", REFUSED), ("invalid_image", NEVER)):
            for url in urls:
                # The first part is fine: a request is refused before anything is fetched for it.
                reply = await ask(gateway, with_images(url_of(host), url.format(port=host.port)))
                error = reply.json()["error"]
                assert (reply.status_code, error["code"]) == (400, code), url
                if code == "remote_image_refused":
                    assert error["param"] == "messages[0].content[1].image_url"
                    assert host.connections == 0, url
        assert gateway.engines[0].bodies == []


IMAGE = png("hello", (60, 40))
TEXT = base64.b64encode(IMAGE).decode()


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;charset=utf-8;base64,{TEXT}",
        f"data:image/png;base64,{TEXT[:40]}\n{TEXT[40:]}",
        f"data:image/png;base64,{base64.urlsafe_b64encode(IMAGE).decode()}".rstrip("="),
    ],
)
async def test_image_urls_that_would_confuse_an_engine_reach_it_mended(running: Running, url: str) -> None:
    reply = await running.http.post(CHAT, json=chat(image=url))
    assert reply.status_code == 200
    sent = running.plain.requests[0]["messages"][0]["content"][0]["image_url"]["url"]
    assert sent == data_url(IMAGE)


def many(count: int) -> dict[str, Any]:
    body = chat()
    body["messages"][0]["content"] *= count
    return body


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (chat(image=data_url(encoded(picture("x"), "JPEG")[:-300])), 400, "invalid_image"),
        (chat(image=data_url(b"plain text")), 400, "invalid_image"),
        (chat(image=data_url(b"")), 400, "invalid_image"),
        (chat(image="data:image/png;base64,@@@"), 400, "invalid_image"),
        (chat(image=data_url(png(size=(2001, 2000)))), 400, "image_too_large"),
        (chat(image=data_url(png(size=(4, 4)))), 400, "image_too_small"),
        (chat(image="http://169.254.169.254/latest"), 400, "remote_image_refused"),
        (chat(image="HTTPS://images.example.evil/x.png"), 400, "remote_image_refused"),
        (chat(image="http://["), 400, "remote_image_refused"),
        (chat(image="http:images.example"), 400, "remote_image_refused"),
        (chat(image="http://images.example@10.0.0.1/"), 400, "remote_image_refused"),
        (chat(image="http://images.example\\\\@10.0.0.1/"), 400, "remote_image_refused"),
        (chat(image=" http://10.0.0.1/"), 400, "remote_image_refused"),
        (chat(image="https://images.example/" + "x" * 5000), 400, "remote_image_refused"),
        (chat(image="file:///etc/passwd"), 400, "invalid_image"),
        (many(4), 400, "too_many_images"),
        (chat(model="gpt-5"), 404, "model_not_found"),
        (chat(model="glm-ocr:tables"), 400, "unknown_route"),
        ({"model": "glm-ocr"}, 400, None),
    ],
)
async def test_bad_input_is_refused_by_name_and_no_engine_sees_it(
    running: Running, body: dict[str, Any], status: int, code: str | None
) -> None:
    reply = await running.http.post(CHAT, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert running.plain.bodies == []
    assert await running.metric("ocr_gateway_requests_total", route="", code=str(status)) == 1


@pytest.mark.parametrize("kind", ["text/plain", "", "multipart/form-data"])
async def test_other_content_types_are_refused(running: Running, kind: str) -> None:
    reply = await running.http.post(CHAT, content=b"{}", headers={"content-type": kind})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "bad_content_type")


FETCHED = [
    {"type": "video_url", "video_url": {"url": "URL"}},
    {"type": "audio_url", "audio_url": {"url": "URL"}},
    {"type": "input_image", "image_url": "URL"},
    {"type": "input_audio", "input_audio": {"data": "URL", "format": "wav"}},
    {"type": "file", "file": {"file_data": "URL"}},
    {"type": "image", "image": "URL"},
    {"type": "image_embeds", "image_embeds": "URL"},
    {"video_url": "URL"},
    {"audio_url": {"url": "URL"}},
    {"video_embeds": "URL"},
    {"prompt_embeds": "URL", "data": "URL"},
    {"type": "text", "text": "x", "video_url": "URL"},
    {"type": "text", "text": "x", "video_embeds": "URL"},
    {"type": "text", "text": "x", "prompt_embeds": "URL"},
    {"type": "text", "text": "x", "image_url": None, "uuid": "URL"},
    {"type": None, "audio_url": "URL"},
]


async def test_parts_that_engines_would_fetch_are_refused_in_any_message(lone: Fleeting) -> None:
    for role in ("user", "system", "tool", "assistant", "developer"):
        for part in FETCHED:
            filled = json.loads(json.dumps(part).replace("URL", "http://127.0.0.1:9/page"))
            reply = await ask(lone, {"model": "glm-ocr", "messages": [{"role": role, "content": [filled]}]})
            assert (reply.status_code, reply.json()["error"]["code"]) == (400, "unsupported_content_part"), (
                part
            )
    assert lone.engines[0].bodies == []


@pytest.fixture
async def lone() -> Any:
    async with fleet(1) as gateway:
        yield gateway


async def test_images_by_url_are_refused_in_any_message_and_however_they_are_written(lone: Fleeting) -> None:
    part = '{"type": "text", "text": "x", "%s": %s}'
    bodies = [
        part % ("image_url", '"http://127.0.0.1:9/"'),
        part % ("image\\u005furl", '{"url": "http://127.0.0.1:9/"}'),
        part % ("image_url", '{"ur\\u006c": "ht\\u0074p://127.0.0.1:9/"}'),
        part % ("image_url", '{"url": "data:image/png;base64,AAAA", "url": "http://127.0.0.1:9/"}'),
        '{"image_url": "data:image/png;base64,AAAA", "image_url": "http:\\/\\/127.0.0.1:9/"}',
    ]
    for role in ("user", "tool", "assistant"):
        for body in bodies:
            message = f'{{"role": "{role}", "content": [{body}]}}'
            text = f'{{"messages": [], "mess\\u0061ges": [{message}]}}'
            headers = {"content-type": "application/json"}
            reply = await lone.http.post(CHAT, content=text.encode(), headers=headers)
            assert (reply.status_code, reply.json()["error"]["code"]) == (400, "remote_image_refused"), body
    assert lone.engines[0].bodies == []


@pytest.mark.parametrize(
    ("answer", "limits", "code", "why"),
    [
        (answer_of(b"", "404 Not Found"), {}, "remote_image_failed", "answered 404"),
        (answer_of(b"<html>sign in</html>"), {}, "invalid_image", "not a readable"),
        (answer_of(png(size=(3000, 3000))), {"image_pixels": 10**6}, "image_too_large", "3000 x 3000"),
        (answer_of(PAGE[:-50]), {}, "invalid_image", "truncated or corrupt"),
        (answer_of(PAGE), {"body_bytes": 800}, "remote_image_failed", "limits.body_bytes"),
        (redirect_to("http://127.0.0.1/"), {}, "remote_image_refused", "listed hosts only"),
    ],
)
async def test_what_comes_back_is_held_to_the_same_rules_and_the_error_names_its_part(
    answer: bytes, limits: dict[str, int], code: str, why: str
) -> None:
    async with hosted(page=answer) as host, fleet(1, settings_of(host, limits=limits)) as gateway:
        reply = await ask(gateway, with_images(url_of(host)))
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, code)
        assert error["param"] == "messages[0].content[0].image_url"
        assert why in error["message"]
        assert gateway.engines[0].bodies == []
        assert gateway.gateway.state.memory.total == 0


async def test_what_is_fetched_counts_as_memory_held() -> None:
    async with hosted(page=answer_of(PAGE)) as host:
        body = with_images(url_of(host))
        limit = len(json.dumps(body)) + len(PAGE)
        settings = settings_of(host, limits={"inflight_bytes": limit})
        async with fleet(1, settings) as gateway:
            reply = await ask(gateway, body)
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "memory_full")
            assert gateway.gateway.state.memory.total == 0


async def test_who_leaves_takes_all_fetches_along() -> None:
    paths = [f"p{n}" for n in range(6)]
    async with (
        hosted(**dict.fromkeys(paths, drip)) as host,
        fleet(1, settings_of(host, timeout_s=60)) as gateway,
    ):
        asking = asyncio.create_task(ask(gateway, with_images(*(url_of(host, f"/{path}") for path in paths))))
        await until(lambda: host.open)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: host.open == 0 and gateway.gateway.state.memory.total == 0)
        assert len(host.paths) <= 4


async def test_urls_are_in_no_log_line_and_no_metric(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    path = f"/{SECRET}/page?sig={SECRET}"
    async with hosted() as host, fleet(1, settings_of(host)) as gateway:
        for answer in (answer_of(PAGE), answer_of(PAGE, "404 Not Found"), redirect_to(path), b"nonsense"):
            host.answers[path] = answer
            await ask(gateway, with_images(url_of(host, path)))
        page = (await gateway.http.get("/metrics")).text
        assert 'ocr_gateway_overhead_seconds_count{stage="fetch"} 1.0' in page
    logged = " ".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert CHAT in logged
    for text in (page, logged):
        assert SECRET not in text
        assert base64.b64encode(PAGE).decode()[:40] not in text


async def test_the_pixels_of_all_images_together_are_bounded() -> None:
    limits = {"image_pixels": 20_000, "request_pixels": 50_000}
    async with fleet(1, yaml.safe_dump({"limits": limits})) as gateway:
        assert (await ask(gateway, with_images(*[data_url(PAGE)] * 2))).status_code == 200
        reply = await ask(gateway, with_images(*[data_url(PAGE)] * 3))
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "image_too_large")
        assert error["param"] == "messages[0].content[2].image_url"
        assert "60,000 pixels; at most 50,000" in error["message"]


async def test_a_request_of_a_thousand_images_is_refused_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(1) as gateway:
        monkeypatch.setattr("gateway.wire.image.headers.read_head", None)
        reply = await ask(gateway, with_images(*[data_url(PAGE)] * 1000))
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "too_many_images")


async def test_doubtful_images_of_one_request_share_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    async def decode(self: object, data: bytes, until: float, **_: object) -> None:
        asked.append(until)

    monkeypatch.setattr("gateway.images.inspector.ImageInspector.decode", decode)
    async with fleet(1) as gateway:
        mended = data_url(PAGE).replace("base64,", "base64, ")
        assert (await ask(gateway, with_images(*[mended] * 3))).status_code == 200
    assert len(asked) == 3
    assert len(set(asked)) == 1


def noise(side: int) -> bytes:
    return encoded(Image.effect_noise((side, side), 80), "PNG", "L")


@pytest.mark.parametrize("side", [300, 2000, 3000])
async def test_large_images_reach_the_engine_byte_for_byte(
    side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.1, 4 and 9 MB, the last of which is not read on the event loop."""
    read, threads = openai.parse_request, []

    def parse_request(body: bytes, **options: Any) -> openai.CompletionRequest:
        threads.append(threading.get_ident())
        return read(body, **options)

    monkeypatch.setattr("gateway.request.receive.openai.parse_request", parse_request)
    body = with_images(data_url(noise(side)), data_url(PAGE))
    async with fleet(1) as gateway:
        assert (await ask(gateway, body)).status_code == 200
        assert (await ask(gateway, {**body, "model": "glm-ocr:table"})).status_code == 200
        assert (await ask(gateway, {**body, "stream": True})).status_code == 200
        same, alias, stream = gateway.engines[0].requests
        assert gateway.engines[0].bodies[0] == json.dumps(body, separators=(",", ":")).encode()
        assert same == alias == body
        assert stream == {**body, "stream": True, "stream_options": {"include_usage": True}}
        assert gateway.gateway.state.memory.total == 0
    assert all((thread == threading.get_ident()) is (side < 3000) for thread in threads)


async def receive(gateway: Fleeting, body: bytes) -> tuple[RequestProgress, ReceivedRequest]:
    """A request as the gateway has it once it has received it."""

    async def read(limit: int, held: MemoryClaim) -> bytes:
        return body

    incoming = IncomingRequest(CHAT, "id", 0.0, read, content_type="application/json")
    progress, state = RequestProgress(incoming), gateway.gateway.state
    progress.held = state.memory.claim("")
    receiver = gateway.gateway._dispatcher._receiver
    return progress, await receiver.receive(progress, state.fleet.config)


async def test_nothing_decoded_is_kept_while_a_request_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps(with_images(data_url(noise(100)))).encode()
    parse, parsed = openai.parse_request, []

    def parse_request(body: bytes, **options: Any) -> openai.CompletionRequest:
        parsed.append(parse(body, **options))
        return parsed[-1]

    monkeypatch.setattr("gateway.request.receive.openai.parse_request", parse_request)
    async with fleet(1) as gateway:
        progress, request = await receive(gateway, body)
    assert progress.image_bytes > 8000
    assert [part.data for part in parsed[0].images] == [None]
    assert parsed[0].lifted.image is None
    assert isinstance(request.images.first, memoryview)
    assert request.images.first.obj is body
    assert request.body == (body,)


@pytest.mark.parametrize(
    ("members", "stream", "strip", "merged"),
    [
        ({}, False, True, False),
        ({"stream": True}, True, True, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, True, False, False),
        ({"stream": True, "stream_interval": 4}, True, True, True),
        ({"model": "glm-ocr:table"}, False, True, False),
    ],
)
async def test_what_an_engine_gets_names_the_model_and_asks_for_usage(
    members: dict[str, Any], stream: bool, strip: bool, merged: bool
) -> None:
    asked = {**with_images(data_url(PAGE)), **members}
    async with fleet(1) as gateway:
        _, request = await receive(gateway, json.dumps(asked).encode())
    assert (request.stream, request.strip_usage, request.merged) == (stream, strip, merged)
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    assert json.loads(b"".join(request.body)) == {**asked, "model": "glm-ocr", **usage}
    assert request.facts.alias == ("table" if members.get("model") else None)


async def test_an_images_error_is_not_the_one_that_others_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """What refuses an image knows nothing of the part that it is in."""
    async with fleet(1) as gateway:
        error = BadImage("shared", code="image_too_small")

        def refuse(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("gateway.wire.image.headers.read", refuse)
        for _ in range(2):
            told = (await ask(gateway, with_images(data_url(PAGE)))).json()["error"]
            assert told["message"] == "messages[0].content[0].image_url: shared"
            assert (told["param"], told["code"]) == ("messages[0].content[0].image_url", "image_too_small")
    assert (error.message, error.param) == ("shared", None)


@pytest.mark.parametrize(("more", "beside"), [(0, False), (8_000_000, True)])
async def test_only_a_large_image_is_read_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, more: int, beside: bool
) -> None:
    threads: list[int] = []

    def inspect(*_: object, **__: object) -> None:
        threads.append(threading.get_ident())
        raise BadImage("seen")

    monkeypatch.setattr("gateway.wire.image.headers.inspect", inspect)
    async with fleet(1) as gateway:
        reply = await ask(gateway, with_images(data_url(PAGE + bytes(more))))
    assert reply.status_code == 400
    assert (threads != [threading.get_ident()]) is beside


async def test_a_request_without_images_needs_none_of_this() -> None:
    async with fleet(1) as gateway:
        assert (await ask(gateway, chat("hello", None))).status_code == 200


CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
CONFIG = parse(
    """
model: m
pools: {p: {engines: [http://e]}}
routes: {text: {}, table: {timeouts: {total_s: 7}}}
limits: {answer_bytes: 1234}
""",
    "f",
    Path(),
    {},
)
BODY = (b"{", b"}")


async def read(limit: int, held: MemoryClaim) -> bytes:
    return b""


def sent(path: str = CHAT, route: str = "text") -> EngineRequest:
    progress = RequestProgress(IncomingRequest(path, "id", 0.0, read, context={"traceparent": "t"}))
    progress.held = BodyMemory(10**6).claim("")
    progress.held.add(sum(map(len, BODY)))
    received = ReceivedRequest(
        SortFacts(), CheckedImages(None, 0), BODY, stream=True, strip_usage=False, merged=True
    )
    return EngineRequest.of(received, progress, CONFIG, route)


def test_an_engine_gets_what_was_received_and_the_routes_time() -> None:
    request = sent(route="table")
    assert (request.path, request.request_id, request.context) == (CHAT, "id", {"traceparent": "t"})
    assert (request.body, request.stream, request.strip_usage, request.merged) == (BODY, True, False, True)
    assert (request.timeouts.total_s, request.answer_bytes) == (7, 1234)


def test_each_endpoint_has_its_dialect() -> None:
    assert sent().dialect is openai.COMPLETIONS
    assert sent("/v1/completions").dialect is openai.COMPLETIONS
    assert sent(RESPONSES).dialect is responses.RESPONSES


def test_a_body_that_will_not_be_sent_again_is_held_no_more() -> None:
    request = sent()
    assert request.held.size == sum(map(len, BODY))
    request.drop_body()
    assert (request.body, request.held.size) == ((), 0)
