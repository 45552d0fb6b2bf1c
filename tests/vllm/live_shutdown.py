"""What a real vLLM does between SIGTERM and its end, and what a gateway makes of that."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import signal
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from bench.serving import free_port
from gateway.wire.openai.error_shape import read_error_message
from gateway.wire.vllm.engine import is_stopping
from tests.support import data_url, png
from tests.vllm.engines import MODEL, Pasted, started
from tests.vllm.tiny_model import DOCUMENTS
from tests.vllm.traffic import PROMPTS, gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.timeout(900)

ROOM = 2
TOKENS = 900
# The first drains; the second has less time than its requests take.
TIMEOUTS_S = (60, 1)
# From the last answer to the end of a process on a busy machine.
_END_S = 60
_LOOK_S = 0.1
_SOON_S = 2
_PICTURE = data_url(png("page"))


@pytest.fixture(scope="module")
def engines(checkpoint: Path, pasted: Callable[..., Pasted]) -> Iterator[Sequence[Pasted]]:
    """Two of `vllm serve`, each with room for two requests at once."""
    made = []
    for timeout_s in TIMEOUTS_S:
        port = free_port()
        words = ["vllm", "serve", str(checkpoint), f"--port={port}", f"--shutdown-timeout={timeout_s}"]
        words += ["--host=127.0.0.1", f"--served-model-name={MODEL}", f"--max-num-seqs={ROOM}"]
        words += ["--mm-processor-cache-gb=0", "--no-enable-prefix-caching"]
        made.append(pasted(shlex.join(words), f"http://127.0.0.1:{port}", {}))
    with started(*made):
        yield made


class Client:
    """Asks for answers of TOKENS tokens, and for documents."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url

    async def ask(self, *, stream: bool, **members: Any) -> tuple[int, bytes]:
        """Return an answer's status and body; members replace those of the request."""
        members = {"ignore_eos": True, "max_tokens": TOKENS, **members}
        content = [
            {"type": "image_url", "image_url": {"url": _PICTURE}},
            {"type": "text", "text": PROMPTS["table"]},
        ]
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "stream": stream}
        reply = await self._http.post(f"{self._url}/v1/chat/completions", json=body | members)
        return reply.status_code, reply.content

    async def read(self, *, stream: bool) -> str:
        """Return a whole document's text.

        Raises:
            RuntimeError: it was refused, or broke off.
        """
        status, body = await self.ask(stream=stream, ignore_eos=False)
        if status != 200:
            raise RuntimeError(f"{status} {body[:200]!r}")
        if not stream:
            return str(json.loads(body)["choices"][0]["message"]["content"])
        if not body.endswith(b"data: [DONE]\n\n"):
            raise RuntimeError(f"broken off: {body[-200:]!r}")
        chunks = [json.loads(event.removeprefix(b"data: ")) for event in body.split(b"\n\n")[:-2]]
        return "".join(
            chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]
        )


def http_client() -> httpx.AsyncClient:
    """A client that opens a connection for each request."""
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.AsyncClient(limits=limits, timeout=300, trust_env=False)


async def until(done: Callable[[], bool], within_s: float = _END_S) -> None:
    """Wait until something is so.

    Raises:
        TimeoutError: it never is.
    """
    async with asyncio.timeout(within_s):
        while not await asyncio.to_thread(done):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)


async def filled(engine: Pasted, client: Client) -> list[asyncio.Task[tuple[int, bytes]]]:
    """Have an engine run as many requests as it can, and let as many wait."""

    def full() -> bool:
        sums = engine.sums()
        return (sums["vllm:num_requests_running"], sums["vllm:num_requests_waiting"]) == (ROOM, ROOM)

    asked: Coroutine[Any, Any, tuple[int, bytes]]
    tasks = []
    for number in range(2 * ROOM):
        asked = client.ask(stream=bool(number % 2))
        tasks.append(asyncio.create_task(asked))
    await until(full)
    return tasks


async def test_an_engine_that_drains_ends_all_it_has_and_a_gateway_loses_nothing(
    tmp_path: Path, engines: Sequence[Pasted]
) -> None:
    drains, _ = engines
    # With that 500 the connection is shut, unannounced.
    async with http_client() as http:
        direct = Client(http, drains.url)
        with gateway(tmp_path, {"plain": engines}) as front:
            through = Client(http, front.served.url)
            stop = asyncio.Event()

            async def loop(*, stream: bool) -> list[str]:
                texts = []
                while not stop.is_set():
                    texts.append(await through.read(stream=stream))
                return texts

            had = await filled(drains, direct)
            clients = [asyncio.create_task(loop(stream=bool(number % 2))) for number in range(6)]
            await asyncio.sleep(1)
            drains.terminate()
            # It has to hear of it first, and takes what comes until then: that would wait for its turn.
            status, body = 200, b""
            while status == 200:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_SOON_S):
                        status, body = await direct.ask(stream=False, max_tokens=1)
            # Everything that it is sent fails at once, while it is healthy and works.
            assert (status, is_stopping(read_error_message(body))) == (500, True)
            assert is_stopping(read_error_message((await direct.ask(stream=True))[1]))
            assert drains.is_healthy()
            assert drains.sums()["vllm:num_requests_running"] > 0
            drains.terminate()  # which changes nothing
            for number, (status, body) in enumerate(await asyncio.gather(*had)):
                assert status == 200, body
                if number % 2:
                    assert body.endswith(b"data: [DONE]\n\n")
                    assert body.count(b'"finish_reason":"length"') == 1
                else:
                    assert json.loads(body)["usage"]["completion_tokens"] == TOKENS
            await until(drains.has_ended)
            assert drains.exit_status() == 0
            stop.set()
            texts = [text for texts in await asyncio.gather(*clients) for text in texts]
            assert set(texts) == {DOCUMENTS["table"].text}
            assert front.series().total("retries_total", reason="stopping") > 0


async def test_what_outlasts_the_timeout_gets_neither_an_end_nor_an_error(engines: Sequence[Pasted]) -> None:
    engine = engines[1]
    began = time.monotonic()
    async with http_client() as http:
        had = await filled(engine, Client(http, engine.url))
        engine.terminate()
        await until(lambda: not engine.is_healthy())  # the port is closed
        assert not any(task.done() for task in had), time.monotonic() - began
        assert not engine.has_ended()
        # A kubelet does this when the grace period is over.
        engine.end(signal.SIGKILL)
        for task in had:
            with contextlib.suppress(httpx.HTTPError):
                _, body = await task
                assert not body.endswith(b"data: [DONE]\n\n")
