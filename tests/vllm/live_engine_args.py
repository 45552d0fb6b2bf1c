"""Real vLLM servers, started by what `ocr-gateway engine-args` prints."""

from __future__ import annotations

import base64
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml

from bench.serving import free_port
from gateway.cli import main
from tests.support import data_url, png
from tests.vllm.engines import MODEL, Pasted, settled, started
from tests.vllm.tiny_model import DOCUMENTS
from tests.vllm.traffic import PROMPTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.timeout(900)

KEY = "sk-engines-own"
MOST = 4  # unfinished requests: max_load 2, and a share of 1 for each of two gateways
PICTURE = png("page")
SCHEDULED = {
    "method": "mtp",
    "num_speculative_tokens": 3,
    "num_speculative_tokens_per_batch_size": [[1, 1, 3], [2, 4, 0]],
}


def mtp(depth: int) -> dict[str, Any]:
    return {"speculative_config": {"method": "mtp", "num_speculative_tokens": depth}}


# Two at a time; of the second two the engines have a key, and their gateway may fetch from `localhost`.
TURNS: Sequence[dict[str, dict[str, Any]]] = (
    {"plain": {}, "mtp1": mtp(1)},
    {"mtp3": mtp(3) | {"api_key": KEY}, "scheduled": {"speculative_config": SCHEDULED, "api_key": KEY}},
)


class Running:
    """An engine as its pool is configured, and a client."""

    def __init__(self, pool: str, depth: int, server: Pasted, key: str) -> None:
        self.pool = pool
        self.depth = depth
        self.server = server
        self.http = httpx.Client(
            base_url=server.url, timeout=300, headers={"authorization": f"Bearer {key or 'none'}"}
        )

    def body(self, image: str = data_url(PICTURE), **members: Any) -> dict[str, Any]:
        content = [
            {"type": "image_url", "image_url": {"url": image}},
            {"type": "text", "text": PROMPTS["table"]},
        ]
        return {"model": MODEL, "messages": [{"role": "user", "content": content}], **members}

    def ask(self, image: str = data_url(PICTURE), **headers: str) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json=self.body(image), headers=headers)

    def begin(self, tokens: int) -> httpx.Response:
        """Ask for so many tokens, and do not wait for them."""
        body = self.body(stream=True, ignore_eos=True, max_tokens=tokens)
        return self.http.send(self.http.build_request("POST", "/v1/chat/completions", json=body), stream=True)

    def refused(self) -> float:
        """How many requests did not get into its queue."""
        return self.server.sums().get("vllm:admission_rejections_total", 0.0)

    def load(self) -> tuple[float, float]:
        """Requests running, and waiting."""
        sums = self.server.sums()
        return sums["vllm:num_requests_running"], sums["vllm:num_requests_waiting"]


@pytest.fixture(scope="module", params=TURNS, ids=" and ".join)
def engines(
    request: pytest.FixtureRequest,
    checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
    pasted: Callable[..., Pasted],
) -> Iterator[list[Running]]:
    """The engines of a turn, started by the shell from what is printed for their pools."""
    pools = {
        name: {**pool, "engines": [f"http://127.0.0.1:{free_port()}"]} for name, pool in request.param.items()
    }
    values = {
        "model": MODEL,
        "model_path": str(checkpoint),
        "pools": {name: {**pool, "max_load": 2} for name, pool in pools.items()},
        "routes": {"text": {}},
        "limits": {"images_per_request": 4},
        "server": {"drain_s": 60, "replicas": 2},
        "remote_images": {"allow_hosts": ["localhost"] if request.param is TURNS[1] else []},
    }
    path = tmp_path_factory.mktemp("config") / "routes.yaml"
    path.write_text(yaml.safe_dump(values))
    made = []
    for name, pool in pools.items():
        key = pool.get("api_key", "")
        server = pasted(printed(path, name), pool["engines"][0], {"VLLM_API_KEY": key} if key else {})
        depth = pool.get("speculative_config", {}).get("num_speculative_tokens", 0)
        made.append(Running(name, depth, server, key))
    with started(*(one.server for one in made)), ExitStack() as stack:
        for one in made:
            stack.enter_context(one.http)
        yield made


def printed(config: Path, pool: str) -> str:
    """What the command prints."""
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("builtins.print", lines.append)
        assert main(["engine-args", "--config", str(config), "--pool", pool]) == 0
    return "\n".join(lines)


class Images:
    """A web server with a picture at `/page.png`; other paths lead to it by another name of the host."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        images = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                images.asked.append(f"{self.headers['host'].partition(':')[0]}{self.path}")
                found = self.path == "/page.png"
                self.send_response(200 if found else 302)
                if not found:
                    self.send_header("location", images.url("127.0.0.1"))
                self.send_header("content-length", str(len(PICTURE) if found else 0))
                self.end_headers()
                self.wfile.write(PICTURE if found else b"")

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def url(self, host: str, path: str = "/page.png") -> str:
        return f"http://{host}:{self.server.server_address[1]}{path}"


@pytest.fixture
def images() -> Iterator[Images]:
    served = Images()
    thread = threading.Thread(target=served.server.serve_forever)
    thread.start()
    yield served
    served.server.shutdown()
    thread.join()
    served.server.server_close()


def test_an_image_is_read_and_speculation_told(engines: list[Running]) -> None:
    for engine in engines:
        before = engine.server.settled()
        answer = engine.ask()
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == DOCUMENTS["table"].text
        told = (answer.json().get("metrics") or {}).get("speculative_decoding") or {}
        counts = engine.server.settled() - before
        if engine.depth:
            steps = DOCUMENTS["table"].steps(engine.depth)
            assert (counts.drafts, counts.accepted) == (len(steps), sum(steps))
            assert (told["num_spec_steps"], told["num_accepted_draft_tokens"]) == (len(steps), sum(steps))
        else:
            assert told == {}


def test_a_requests_id_comes_back(engines: list[Running]) -> None:
    for engine in engines:
        assert engine.ask(**{"x-request-id": "page-7"}).headers["x-request-id"] == "page-7"


def test_nobody_is_asked_for_images(engines: list[Running], images: Images) -> None:
    for engine in engines:
        for url in (images.url("localhost"), images.url("127.0.0.1"), images.url("localhost", "/elsewhere")):
            assert 400 <= engine.ask(url).status_code <= 500
        assert engine.ask(f"file://{__file__}").status_code >= 400
    assert images.asked == []


def test_images_are_limited_and_videos_refused(engines: list[Running]) -> None:
    for engine in engines:
        body = engine.body()
        (message,) = body["messages"]
        message["content"] = [message["content"][0]] * 5
        answer = engine.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert "At most 4 image(s)" in answer.text
        video = base64.b64encode(b"none").decode()
        message["content"] = [{"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{video}"}}]
        assert engine.http.post("/v1/chat/completions", json=body).status_code == 400


def test_the_queue_is_bounded(engines: list[Running]) -> None:
    for engine in engines:
        for _ in range(5):  # an answer may end while the machine is busy with something else
            before = engine.refused()
            with ExitStack() as stack:
                answers = [engine.begin(1500) for _ in range(MOST + 1)]
                for answer in answers:
                    stack.callback(answer.close)
            settled(engine.load, lambda load: not any(load))
            if (statuses := [answer.status_code for answer in answers]) != [200] * (MOST + 1):
                break
        assert statuses == [200] * MOST + [503]
        assert engine.refused() == before + 1
        assert engine.ask().status_code == 200


def test_the_key_is_asked_for(engines: list[Running]) -> None:
    for engine in engines:
        engine.http.headers["authorization"] = "Bearer another"
        keyed = engine.pool in TURNS[1]
        assert engine.http.get("/v1/models").status_code == (401 if keyed else 200)
        engine.http.headers["authorization"] = f"Bearer {KEY}"
        assert engine.http.get("/v1/models").status_code == 200
        assert engine.http.get("/metrics", headers={"authorization": ""}).status_code == 200


def test_what_is_in_flight_is_finished_when_it_is_told_to_end(engines: list[Running]) -> None:
    """The last one: the engines are gone then."""
    answers = [engine.begin(300) for engine in engines]
    streams = [answer.iter_lines() for answer in answers]
    for engine, lines in zip(engines, streams, strict=True):
        assert next(lines).startswith("data: {")
        engine.server.terminate()
    for lines in streams:
        *_, last, done = filter(None, lines)
        assert '"finish_reason":"length"' in last
        assert done == "data: [DONE]"
    assert settled(lambda: [engine.server.has_ended() for engine in engines], all)
