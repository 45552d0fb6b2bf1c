"""Requests of real OCR clients, from which mutations start."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests import pdf
from tests.fuzz.target import IMAGE_PORT, KEY
from tests.support import asked, chat, data_url, encoded, picture, png

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
RESPONSES = "/v1/responses"
OCR = "/v1/ocr"
_SCHEMA = {"type": "object", "properties": {"total": {"type": "string"}, "date": {"type": "string"}}}
_PAGE = picture("Total 42.50", (64, 32), 10)


@dataclass(frozen=True)
class Seed:
    """One client's request, with its headers besides the usual ones."""

    name: str
    body: dict[str, Any]
    path: str = CHAT
    headers: dict[str, str] = field(default_factory=dict)

    def raw(self) -> bytes:
        """Return its bytes on a connection."""
        return raw_request("POST", self.path, json.dumps(self.body).encode(), self.headers)


def raw_request(
    method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, *, chunks: int = 0
) -> bytes:
    """Return a request's bytes on a connection; with `chunks` its body is sent in that many."""
    lines = {
        "host": "127.0.0.1",
        "authorization": f"Bearer {KEY}",
        "content-type": "application/json",
        **(headers or {}),
    }
    if chunks:
        size = max(1, -(-len(body) // chunks))
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        lines["transfer-encoding"] = "chunked"
    else:
        lines["content-length"] = str(len(body))
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return head.encode("latin-1") + b"\r\n" + body


def images() -> dict[str, str]:
    """Return small pictures as data URLs, by kind; `cut` is a broken one."""
    return {
        "png": data_url(png("x", (40, 20))),
        "rgba": data_url(png("x", (40, 20), "RGBA")),
        "jpeg": data_url(encoded(_PAGE, "JPEG", quality=40), "image/jpeg;charset=utf-8"),
        "progressive": data_url(encoded(_PAGE, "JPEG", progressive=True, quality=40), "image/jpeg"),
        "webp": data_url(encoded(_PAGE, "WEBP", quality=40), "image/webp"),
        "gif": data_url(encoded(_PAGE, "GIF", "P"), "image/gif"),
        "tiff": data_url(encoded(_PAGE, "TIFF", "1"), "image/tiff"),
        "bmp": data_url(encoded(_PAGE, "BMP", "1"), "image/bmp"),
        "cut": data_url(encoded(_PAGE, "JPEG")[:-40], "image/jpeg"),
    }


def _text_first(image: str, prompt: str) -> list[dict[str, Any]]:
    parts = [{"type": "text", "text": prompt}, {"type": "image_url", "image_url": {"url": image}}]
    return [{"role": "user", "content": parts}]


def seeds() -> tuple[Seed, ...]:
    """Return one request of each kind."""
    image = images()
    tool = {"type": "function", "function": {"name": "invoice", "parameters": _SCHEMA}}
    form = "请按下列JSON格式输出图中信息:\n" + json.dumps({"total": "", "date": ""})
    olm = (
        "Attached is one page of a document that you must process. Just return the plain text "
        "representation. Convert equations to LateX and tables to HTML. Start with front matter."
    )
    raw = {"accept": "application/json", "connection": "close"}
    return (
        Seed("glm-preflight", chat("hello", None, max_tokens=10)),
        Seed("glm-text", chat("Text Recognition:", image["png"])),
        Seed("glm-table", chat("Table Recognition:", image["jpeg"], model="glm-ocr:table")),
        Seed("glm-key-value", chat(form, image["gif"], temperature=0.0)),
        Seed(
            "paddle",
            chat(
                "OCR:",
                image["webp"],
                max_completion_tokens=64,
                skip_special_tokens=True,
                mm_processor_kwargs={"min_pixels": 3136, "max_pixels": 1003520},
            ),
        ),
        Seed("mineru", chat("\nLayout Detection:", image["rgba"], vllm_xargs={"no_repeat_ngram_size": 100})),
        Seed(
            "deepseek", chat("<image>\n<|grounding|>Convert the document to markdown.", image["progressive"])
        ),
        Seed(
            "olmocr",
            {**chat(), "messages": _text_first(image["tiff"], olm), "guided_regex": ".*"},
            headers=raw,
        ),
        Seed(
            "surya",
            chat(
                "Output the layout of this image as JSON.",
                image["bmp"],
                logprobs=True,
                response_format={"type": "json_schema", "json_schema": {"name": "r", "schema": _SCHEMA}},
            ),
        ),
        Seed("lighton", chat(None, image["png"])),
        Seed(
            "nuextract",
            chat(None, image["jpeg"], chat_template_kwargs={"template": json.dumps({"total": "string"})}),
        ),
        Seed(
            "instructor",
            chat(
                "Extract the invoice.",
                image["cut"],
                tools=[tool],
                tool_choice={"type": "function", "function": {"name": "invoice"}},
            ),
        ),
        Seed(
            "hinted",
            chat("anything", image["png"], metadata={"ocr_route": "key-value"}),
            headers={
                "x-ocr-route": "table",
                "x-request-id": "page-7",
                "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
            },
        ),
        Seed("stream", chat("Text Recognition:", image["png"], stream=True)),
        Seed("stream-usage", chat("OCR:", image["gif"], stream=True, stream_options={"include_usage": True})),
        Seed("infinity-ping", {"model": "glm-ocr", "messages": [{"role": "user", "content": "ping"}]}),
        Seed("remote", chat("OCR:", f"http://127.0.0.1:{IMAGE_PORT}/page.png")),
        Seed("remote-unlisted", chat("OCR:", "https://images.example/page.png")),
        Seed("response", asked("Table Recognition:", image["png"], stream=True), RESPONSES),
        Seed(
            "response-key-value",
            asked(
                form, image["cut"], text={"format": {"type": "json_schema", "name": "r", "schema": _SCHEMA}}
            ),
            RESPONSES,
        ),
        Seed(
            "document",
            {
                "model": "glm-ocr",
                "document": {
                    "type": "document_url",
                    "document_url": data_url(pdf.document(["a page", "lost"], broken={1}), "application/pdf"),
                },
                "pages": [0, "1-1"],
                "table_format": "html",
                "document_annotation_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "r", "schema": _SCHEMA},
                },
            },
            OCR,
        ),
        Seed("document-stream", {"document": {"image_url": {"url": image["tiff"]}}, "stream": True}, OCR),
        Seed("completion", {"model": "glm-ocr", "prompt": "ping", "stream": True, "max_tokens": 1}, TEXT),
    )
