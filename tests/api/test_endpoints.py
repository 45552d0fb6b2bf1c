"""The endpoints that the gateway answers itself."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import openai
import pytest
import yaml
from starlette.routing import Route

import gateway
from gateway import errors
from tests.conftest import fleet
from tests.support import until

if TYPE_CHECKING:
    from tests.conftest import Running

CHAT = "/v1/chat/completions"


async def test_alive_ready_and_which_routes(running: Running) -> None:
    assert (await running.http.get("/health")).json() == {"status": "ok"}
    reply = await running.http.get("/ready")
    assert (reply.status_code, reply.json()["routes"]) == (
        200,
        {"text": True, "key-value": True, "table": True},
    )
    running.plain.healthy = False
    await until(lambda: not running.up("plain"))
    reply = await running.http.get("/ready")
    assert (reply.status_code, reply.json()["routes"]["text"]) == (200, False)
    running.deep.healthy = False
    await until(lambda: not running.up("mtp3"))
    reply = await running.http.get("/ready")
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")


async def test_exactly_one_model_is_listed(running: Running) -> None:
    models = (await running.http.get("/v1/models")).json()["data"]
    assert [model["id"] for model in models] == ["glm-ocr"]


@pytest.mark.parametrize("name", ["glm-ocr", "glm-ocr:table"])
async def test_openais_sdk_retrieves_the_model_by_every_name_that_requests_may_give(
    running: Running, name: str
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as sdk:
        model = await sdk.models.retrieve(name)
        (listed,) = [model async for model in sdk.models.list()]
    assert model.to_dict() == listed.to_dict() | {"id": name}


@pytest.mark.parametrize("name", ["gpt-5", "glm-ocr:tables", "glm-ocr:", "a/b"])
async def test_openais_sdk_is_told_that_there_is_no_such_model(running: Running, name: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as sdk:
        with pytest.raises(openai.NotFoundError) as refused:
            await sdk.models.retrieve(name)
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


async def test_a_model_whose_name_has_a_slash_is_found_encoded_or_not() -> None:
    async with fleet(1, "model: org/glm-ocr") as it:
        for path in ("org%2Fglm-ocr", "org/glm-ocr", "org/glm-ocr:table", "org%2Fglm-ocr%3Atable"):
            reply = await it.http.get(f"/v1/models/{path}")
            assert (reply.status_code, reply.json()["object"]) == (200, "model")
            assert reply.json()["id"] == unquote(path)
        reply = await it.http.get("/v1/models/org/other")
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_endpoint")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2", 404),
        ("GET", CHAT, 405),
        ("POST", "/health", 405),
        ("GET", "/v1/models/x/../../etc", 404),
    ],
)
async def test_unknown_endpoints_answer_in_openais_shape(
    running: Running, method: str, path: str, status: int
) -> None:
    reply = await running.http.request(method, path)
    assert reply.status_code == status
    assert reply.json()["error"]["code"] == "unknown_endpoint"


async def test_a_scraper_with_a_broken_accept_header_gets_its_page(running: Running) -> None:
    accept = "application/openmetrics-text; version=abc"
    reply = await running.http.get("/metrics", headers={"accept": accept})
    assert (reply.status_code, "ocr_gateway_in_flight" in reply.text) == (200, True)


async def test_the_openapi_document_has_every_endpoint_and_every_refusal(running: Running) -> None:
    document: dict[str, Any] = (await running.http.get("/openapi.json")).json()
    paths: dict[str, Any] = document["paths"]
    served = {route.path_format for route in running.gateway.api.routes if isinstance(route, Route)}
    assert paths.keys() == served - {"/openapi.json"}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    statuses = {str(kind.status) for kind in kinds if issubclass(kind, errors.GatewayError)}
    described = paths[CHAT]["post"]["responses"].keys() | paths["/status"]["get"]["responses"].keys()
    assert statuses <= described
    assert document["info"]["version"] == gateway.__version__


def test_no_part_of_the_openapi_document_stands_in_for_another_of_its_name() -> None:
    def check(node: yaml.Node) -> None:
        if isinstance(node, yaml.MappingNode):
            names = [key.value for key, _ in node.value]
            assert len(names) == len(set(names)), names
        for inner in node.value if isinstance(node.value, list) else ():
            for one in inner if isinstance(inner, tuple) else (inner,):
                check(one)

    found = importlib.resources.files("gateway.api").joinpath("openapi.yaml").read_text()
    check(yaml.compose(found, yaml.CSafeLoader))


async def test_the_page_is_one_file_and_runs_nothing_but_what_stands_in_it(running: Running) -> None:
    page = await running.http.get("/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert (page.headers["x-content-type-options"], page.headers["referrer-policy"]) == (
        "nosniff",
        "no-referrer",
    )
    told = page.headers["content-security-policy"]
    policy = dict(part.strip().partition(" ")[::2] for part in told.split(";"))
    assert (policy["default-src"], policy["connect-src"], policy["frame-ancestors"]) == (
        "'none'",
        "'self'",
        "'none'",
    )
    assert "unsafe" not in told
    for kind in ("script", "style"):
        (inner,) = re.findall(f"<{kind}>(.*?)</{kind}>", page.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert re.findall(r'(?:src|href|action)="(?!#|data:)', page.text) == []


async def test_a_page_that_has_not_changed_is_not_sent_again(running: Running) -> None:
    etag = (await running.http.get("/")).headers["etag"]
    for known, status in ((etag, 304), (f'"x", W/{etag}', 304), ('"x"', 200)):
        reply = await running.http.get("/", headers={"if-none-match": known})
        assert (reply.status_code, reply.headers["etag"], not reply.content) == (status, etag, status == 304)
