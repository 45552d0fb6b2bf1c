"""Mistral's format for documents (POST /v1/ocr): the request, its pages, the answer.

What others call stands here; begin with `document_request`.
"""

from gateway.wire.mistral.document_answer import done_event, event, opened_event, summary, whole_answer
from gateway.wire.mistral.document_pages import (
    POINTS_PER_INCH,
    DocumentKind,
    chosen_pages,
    kind_of,
    page_scale,
)
from gateway.wire.mistral.document_request import DocumentRequest, parse_form, parse_json
from gateway.wire.mistral.page_chat import chat_request, image_url, read_text, refusal
from gateway.wire.mistral.page_result import PageResult, page_object

__all__ = [
    "POINTS_PER_INCH",
    "DocumentKind",
    "DocumentRequest",
    "PageResult",
    "chat_request",
    "chosen_pages",
    "done_event",
    "event",
    "image_url",
    "kind_of",
    "opened_event",
    "page_object",
    "page_scale",
    "parse_form",
    "parse_json",
    "read_text",
    "refusal",
    "summary",
    "whole_answer",
]
