"""The result of a document, and the forms in which it is written."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from gateway.tools.ocr.plain_text import plain
from gateway.tools.output import printable

SUFFIXES = {"markdown": ".md", "text": ".txt", "json": ".json"}


@dataclass(slots=True)
class DocumentResult:
    """The pages of a document, as far as they have come.

    Attributes:
        expected: how many pages there will be.
        pages: page objects of POST /v1/ocr, by their index in the document.
        rest: the members beside the pages.
    """

    expected: int = 0
    pages: dict[int, dict[str, Any]] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)

    def broken(self) -> list[int]:
        """Return the indexes of the pages that could not be read."""
        return [index for index, page in sorted(self.pages.items()) if page.get("error")]

    def failures(self) -> list[str]:
        """Return what could not be read, and why."""
        pages = [f"page {index}: {described(self.pages[index]['error'])}" for index in self.broken()]
        values = self.rest.get("document_annotation_error")
        return [*pages, f"values of the schema: {described(values)}"] if values else pages

    def cut_short(self) -> list[int]:
        """Return the indexes of the pages whose text ends where the longest answer does."""
        return [
            index
            for index, page in sorted(self.pages.items())
            if (page.get("ocr") or {}).get("finish_reason") == "length"
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the answer as the server gives it where it is not streamed."""
        return {"pages": [page for _, page in sorted(self.pages.items())], **self.rest}

    def rendered(self, kind: str) -> bytes:
        """Return it as `markdown`, `text` (pages stand apart by form feeds) or `json`; UTF-8."""
        if kind == "json":
            text = json.dumps(self.as_json(), ensure_ascii=False, indent=2)
        elif kind == "text":
            text = "\f".join(self._page(index, text=True) for index in sorted(self.pages))
        else:
            text = "\n\n".join(self._page(index, text=False) for index in sorted(self.pages))
        return f"{text}\n".encode("utf-8", "replace")

    def _page(self, index: int, *, text: bool) -> str:
        page = self.pages[index]
        if error := page.get("error"):
            told = f"page {index} could not be read: {described(error)}"
            return f"[{told}]" if text else f"<!-- {told.replace('>', '&gt;')} -->"
        markdown = str(page.get("markdown", ""))
        return plain(markdown) if text else markdown.strip("\n")


def described(error: Any) -> str:
    """Return an error object of OpenAI's shape in words."""
    if not isinstance(error, dict):
        return printable(str(error))
    message, code = printable(str(error.get("message") or "no reason given")), error.get("code")
    return f"{message} ({printable(str(code), 80)})" if code else message
