import base64
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ConfigError
from gateway.policy.sort.evidence import SortRules, sort
from gateway.tools.sweep.request_bodies import Image, Prompt, RequestBodies, prompt_of
from gateway.wire.openai.request_body import parse_request

ROUTES = ("text", "key-value", "table")
MODELS = (
    "glm-ocr zai-org/GLM-OCR",
    "PaddlePaddle/PaddleOCR-VL",
    "opendatalab/MinerU2.5-2509-1.2B",
    "tencent/HunyuanOCR",
    "deepseek-ai/DeepSeek-OCR-2",
    "rednote-hilab/dots.ocr",
    "echo840/MonkeyOCR",
    "nanonets/Nanonets-OCR2-3B",
    "reducto/RolmOCR",
    "allenai/olmOCR-2-7B-1025",
    "ibm-granite/granite-docling-258M",
    "Qwen/Qwen3-VL-8B-Instruct",
    "acme/reader",
)
PICTURES = [Image(b"one" * 99, "image/png"), Image(b"two", "image/jpeg"), Image(b"three", "image/webp")]


OCR = Prompt("OCR:")


def bodies(prompt: Prompt = OCR, seed: int = 0, **options: Any) -> RequestBodies:
    options = {"max_tokens": 100, "stream": False, **options}
    return RequestBodies("glm-ocr", prompt, PICTURES, rng=random.Random(seed), **options)


def picture(body: bytes) -> bytes:
    content = json.loads(body)["messages"][-1]["content"]
    url = next(part["image_url"]["url"] for part in content if part["type"] == "image_url")
    return base64.b64decode(url.partition(",")[2])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("route", ROUTES)
def test_a_gateway_would_sort_each_models_requests_to_the_route_they_stand_for(
    route: str, model: str
) -> None:
    request = parse_request(
        bodies(prompt_of(route, model, {})).next(), chat=True, max_images=1, from_gateway=True
    )
    decision = sort(request.facts, SortRules(ROUTES, "text"))
    assert decision is not None
    assert decision.route == route


def test_models_are_asked_in_their_own_words() -> None:
    assert [prompt_of("text", model, {}).text[:25] for model in MODELS] == [
        "Text Recognition:",
        "OCR:",
        "\nText Recognition:",
        "Extract the text in the i",
        "Free OCR.",
        "<|img|><|imgpad|><|endofi",
        "Please output the text co",
        "Extract the text from the",
        "Return the plain text rep",
        "Attached is one page of a",
        "Convert this page to docl",
        "Read all the text in the ",
        "Text Recognition:",
    ]


def test_an_own_prompt_keeps_its_familys_frame_and_may_serve_a_route_of_ones_own() -> None:
    own = {"table": "List the rows.", "stamps": "Read the stamp."}
    assert prompt_of("table", "MinerU2.5", own) == Prompt("List the rows.", "You are a helpful assistant.")
    assert prompt_of("stamps", "olmOCR", own) == Prompt("Read the stamp.", text_first=True)


def test_a_route_that_nothing_is_known_of_needs_a_prompt() -> None:
    with pytest.raises(ConfigError, match="--prompt stamps=TEXT"):
        prompt_of("stamps", "glm-ocr", {})


def test_a_body_is_what_clients_send() -> None:
    request = json.loads(bodies(Prompt('say "é"'), fresh=lambda: "x1").next())
    part = request["messages"][0]["content"].pop(0)
    assert (part["type"], part["uuid"]) == ("image_url", "x1")
    assert part["image_url"]["url"].startswith("data:image/")
    assert request == {
        "model": "glm-ocr",
        "max_tokens": 100,
        "temperature": 0,
        "cache_salt": "x1",
        "messages": [{"role": "user", "content": [{"type": "text", "text": 'say "é"'}]}],
    }


def test_a_stream_ends_with_its_usage_and_comes_in_few_chunks() -> None:
    request = parse_request(bodies(stream=True).next(), chat=True, max_images=1, from_gateway=True)
    assert (request.stream, request.include_usage, request.merged) == (True, True, True)


def test_a_system_prompt_leads_and_text_may_go_first() -> None:
    messages = json.loads(bodies(Prompt("read", "", text_first=True)).next())["messages"]
    assert messages[0] == {"role": "system", "content": ""}
    assert [part["type"] for part in messages[1]["content"]] == ["text", "image_url"]


@given(st.integers(0, 99), st.integers(1, 5))
def test_every_image_is_sent_as_often_as_the_others(seed: int, rounds: int) -> None:
    source = bodies(seed=seed)
    sent = [picture(source.next()) for _ in range(rounds * len(PICTURES))]
    assert {image.data: sent.count(image.data) for image in PICTURES} == dict.fromkeys(sent, rounds)


def test_no_two_requests_are_the_same_to_a_cache_even_from_the_same_seed() -> None:
    first, second = bodies(seed=1), bodies(seed=1)
    sent = [json.loads(source.next()) for source in (first, second) for _ in range(9)]
    assert len({request["cache_salt"] for request in sent}) == 18
    assert len({request["messages"][0]["content"][0]["uuid"] for request in sent}) == 18
