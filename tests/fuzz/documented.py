"""Requests that the OpenAPI document allows and forbids, and whether the answers are as it says."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks

from tests import pdf
from tests.fuzz.exchange import Answer, WrongAnswer, check
from tests.fuzz.seeds import images, raw_request
from tests.fuzz.target import HANG_S, KEY, ROUTES
from tests.support import data_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from schemathesis import Case
    from schemathesis.schemas import APIOperation

_CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.positive_data_acceptance,
]
# Members that only engines read get a few values: trying any JSON would take most of the time.
_UNREAD = [None, {}, "x", 1, {"type": "json_object"}]

schemathesis.openapi.format(
    "ocr-image", st.sampled_from([url for name, url in images().items() if name != "cut"])
)
schemathesis.openapi.format(
    "ocr-document",
    st.sampled_from(
        [data_url(pdf.document(["a page"]), "application/pdf"), images()["tiff"], images()["png"]]
    ),
)


@dataclass(frozen=True)
class Sent:
    """One request's bytes, and its answer."""

    raw: bytes
    answer: Answer


class Client:
    """Sends a document's cases to a gateway, one after the other."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = requests.Session()
        self._session.headers["authorization"] = f"Bearer {KEY}"

    def document(self) -> dict[str, Any]:
        """Return the gateway's own document."""
        document: dict[str, Any] = self._session.get(f"{self._url}/openapi.json", timeout=HANG_S).json()
        return document

    def send(self, case: Case[Any], kept: Callable[[Sent], None]) -> None:
        """Send one case, pass it to `kept` with its answer, then check that.

        Raises:
            WrongAnswer: the answer is not as the document says, or takes longer than HANG_S.
        """
        started = time.perf_counter()
        try:
            response = case.call(base_url=self._url, session=self._session, timeout=HANG_S)
        except requests.RequestException as error:
            raise WrongAnswer(f"{case.as_curl_command()}: {error}") from error
        headers = {name.encode(): ",".join(values).encode() for name, values in response.headers.items()}
        answer = Answer(response.status_code, headers, response.content, time.perf_counter() - started)
        kept(Sent(_raw(response.request), answer))
        check(answer)
        try:
            case.validate_response(response, checks=_CHECKS)
        except FailureGroup as failures:
            raise WrongAnswer(str(failures)) from failures


def systematic(document: dict[str, Any]) -> Iterator[Case[Any]]:
    """Yield every operation's edge cases: each member present, missing or mistyped, and other methods."""
    for mode in GenerationMode:
        for operation in _operations(document, mode):
            config = operation.schema.config.generation_for(operation=operation, phase="coverage")
            yield from operation.schema.iter_coverage_cases(
                operation, generation_modes=[mode], generation_config=config
            )


def run_random(
    document: dict[str, Any], examples: int, number: int, send: Callable[[Case[Any]], None]
) -> None:
    """Send random cases of POST operations, half of them allowed, reproducibly by `number`."""
    for mode in GenerationMode:
        for operation in _operations(document, mode):
            if operation.method.upper() != "POST":
                continue

            @seed(number)
            @settings(
                max_examples=examples // 4,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def run(case: Case[Any]) -> None:
                send(case)

            run()


def _operations(document: dict[str, Any], mode: GenerationMode) -> list[APIOperation[Any, Any, Any, Any]]:
    schema = schemathesis.openapi.from_dict(_narrowed(document, mode))
    schema.validate()
    return [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]


def _narrowed(document: dict[str, Any], mode: GenerationMode) -> dict[str, Any]:
    """Return the document with the models and routes of this gateway's configuration."""
    document = copy.deepcopy(document)
    parts = document["components"]
    parts["parameters"]["Route"]["schema"]["enum"] = list(ROUTES)
    parts["schemas"]["Model"]["enum"] = [None, "glm-ocr", *(f"glm-ocr:{route}" for route in ROUTES)]
    if mode is GenerationMode.POSITIVE:  # where a header names the route, nobody looks at this
        parts["schemas"]["Metadata"]["anyOf"][0]["properties"]["ocr_route"]["enum"] = [*ROUTES, None]
    # A form's file would be any bytes.
    del document["paths"]["/v1/ocr"]["post"]["requestBody"]["content"]["multipart/form-data"]
    if mode is GenerationMode.POSITIVE:  # what is allowed depends on the document, or on another member
        members = parts["schemas"]["OcrRequest"]["properties"]
        members["pages"] = {"enum": [None, 0, "0", "0-0", [0], ["0"]]}
        members["document_annotation_prompt"] = {"enum": [None, ""]}
    for name in ("ChatRequest", "TextRequest", "ResponseRequest"):
        members = parts["schemas"][name]["properties"]
        for member in [member for member in members if members[member].keys() <= {"description"}]:
            if mode is GenerationMode.POSITIVE:
                members[member] = {"enum": _UNREAD}
            else:
                del members[member]
    return document


def _raw(sent: requests.PreparedRequest) -> bytes:
    body = sent.body or b""
    assert isinstance(body, str | bytes)
    headers = {str(name).lower(): _text(value) for name, value in sent.headers.items()}
    headers.pop("content-length", None)
    path = sent.path_url
    return raw_request(sent.method or "", path, body.encode() if isinstance(body, str) else body, headers)


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
