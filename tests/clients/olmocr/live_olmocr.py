"""olmOCR's pipeline: text before image, raw sockets, hundreds of pages at once, attempts without a pause."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from anyio.from_thread import start_blocking_portal

from tests import pdf
from tests.clients.frame import MODEL, check_snippet, wait, watched
from tests.support import FakeEngine, completion, served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.clients.frame import Client, Watched

PAGE = """---
primary_language: en
is_rotation_valid: True
rotation_correction: 0
is_table: False
is_diagram: False
---
As read by a model."""
TEMPERATURES = [0.1, 0.1, 0.2, 0.3, 0.5, 0.8, 0.9, 1.0]


@dataclass
class Model:
    """An engine that answers as olmOCR's model does, once it may, and a gateway before it."""

    engine: FakeEngine
    gateway: Watched
    open: Callable[[], object]


@contextlib.contextmanager
def standing_in(
    folder: Path, *answers: tuple[int, str], max_load: int = 256, **route: Any
) -> Iterator[Model]:
    """Serve it: `answers` are its first ones, by status and text; all are held back until it is opened."""
    gate = asyncio.Event()
    left = list(answers)

    async def behave(_: FakeEngine, __: dict[str, Any], send: Any) -> None:
        await gate.wait()
        status, text = left.pop(0) if left else (200, PAGE)
        await send.json(completion(text) if status == 200 else {"error": {"message": text}}, status)

    engine = FakeEngine(behave)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(served(engine)) as url:
        config = folder / "routes.yaml"
        pools = {"plain": {"engines": [url], "max_load": max_load}}
        config.write_text(yaml.safe_dump({"model": MODEL, "pools": pools, "routes": {"text": route}}))
        with watched(config, folder / "gateway.log") as gateway:
            try:
                yield Model(engine, gateway, lambda: portal.call(gate.set))
            finally:
                portal.call(gate.set)


@pytest.fixture
def letter(tmp_path: Path) -> Path:
    """A PDF of two pages."""
    path = tmp_path / "letter.pdf"
    path.write_bytes(pdf.document(["Invoice number 20457", "Payment within thirty days"]))
    return path


def small(folder: Path, pages: int) -> Path:
    """A PDF of pages that are quickly rendered."""
    path = folder / "small.pdf"
    path.write_bytes(pdf.document(["."] * pages, size=(40, 40)))
    return path


def test_a_pdf_becomes_markdown(client: Client, reading: Watched, letter: Path) -> None:
    had = client.run("read", reading.v1, MODEL, letter, "--guided_decoding")
    (document,) = had["documents"]
    assert had["markdown"] == 1
    assert document["pages"] == ["Invoice number 20457", "Payment within thirty days"]
    assert (document["fallback"], document["tokens"] > 5) == (0, True)
    lines = [(line["route"], line["reason"], line["code"]) for line in reading.settled()]
    assert lines == [("text", "prompt", 200)] * 2


def test_each_attempt_arrives_as_it_was_sent(client: Client, tmp_path: Path) -> None:
    with standing_in(tmp_path, *[(200, "No front matter.")] * 7) as model:
        model.open()
        had = client.run("read", model.gateway.v1, MODEL, small(tmp_path, 1))
        (document,) = had["documents"]
        assert (document["pages"], document["fallback"]) == (["As read by a model."], 0)
        asked = model.engine.requests
        assert [request["temperature"] for request in asked] == TEMPERATURES
        parts = [part["type"] for part in asked[0]["messages"][0]["content"]]
        assert parts == ["text", "image_url"]
        assert asked[0]["messages"] == asked[-1]["messages"]
        assert {line["reason"] for line in model.gateway.settled()} == {"prompt"}


def test_a_hundred_pages_at_once(client: Client, tmp_path: Path) -> None:
    with standing_in(tmp_path) as model:
        asking = client.start("read", model.gateway.v1, MODEL, small(tmp_path, 100))
        wait(lambda: model.engine.running == 100, "all of them in the engine")
        model.open()
        (document,) = asking.result()["documents"]
        assert document["pages"] == ["As read by a model."] * 100
        assert [line["code"] for line in model.gateway.settled()] == [200] * 100


def test_sixteen_hundred_of_its_sockets_at_once(client: Client, tmp_path: Path) -> None:
    with standing_in(tmp_path, queue={"max_waiting": 1600, "max_wait_s": 600}) as model:
        asking = client.start("sockets", model.gateway.v1, MODEL, small(tmp_path, 1), 1600)
        wait(lambda: model.gateway.status()["routes"]["text"]["waiting"] == 1600 - 256, "the rest to wait")
        wait(lambda: model.engine.running == 256, "a full engine")
        model.open()
        assert asking.result() == {"200": 1600}
        assert [line["code"] for line in model.gateway.settled()] == [200] * 1600


def test_what_finds_no_place_waits_instead_of_costing_an_attempt(client: Client, tmp_path: Path) -> None:
    with standing_in(tmp_path, max_load=8) as model:
        asking = client.start("read", model.gateway.v1, MODEL, small(tmp_path, 60))
        wait(lambda: model.gateway.status()["routes"]["text"]["waiting"] == 52, "the rest to wait")
        wait(lambda: model.engine.running == 8, "a full engine")
        model.open()
        (document,) = asking.result()["documents"]
        assert document["fallback"] == 0
        assert [line["code"] for line in model.gateway.settled()] == [200] * 60


def test_its_own_attempts_meet_a_good_answer(client: Client, tmp_path: Path) -> None:
    with standing_in(tmp_path, *[(503, "overloaded")] * 4) as model:
        model.open()
        (document,) = client.run("read", model.gateway.v1, MODEL, small(tmp_path, 1))["documents"]
        assert (document["pages"], document["fallback"]) == (["As read by a model."], 0)
        codes = [line["code"] for line in model.gateway.settled()]
        assert set(codes[:-1]) == {503}
        assert codes[-1] == 200


def test_eight_refusals_cost_the_document(client: Client, tmp_path: Path) -> None:
    with standing_in(tmp_path, *[(503, "overloaded")] * 100) as model:
        model.open()
        assert client.run("read", model.gateway.v1, MODEL, small(tmp_path, 1))["documents"] == []
        assert [line["code"] for line in model.gateway.settled()] == [503] * 8


def test_killed_it_frees_the_engine(client: Client, tmp_path: Path) -> None:
    with standing_in(tmp_path) as model:
        asking = client.start("read", model.gateway.v1, MODEL, small(tmp_path, 3))
        wait(lambda: model.engine.running == 3, "all of them in the engine")
        asking.kill()
        wait(lambda: not model.engine.running, "an engine without a request")
        assert model.engine.aborted == 3
        assert [line["code"] for line in model.gateway.settled()] == [499] * 3


def test_the_documented_snippet(client: Client, reading: Watched) -> None:
    check_snippet(client, reading)
