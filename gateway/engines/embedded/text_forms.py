"""The forms of a text answer: plain lines, or what the clients of some models read and nothing else."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.policy.sort.evidence import normalise

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Form:
    """How a page's lines are written.

    Attributes:
        opening: what stands before the first line, and alone where there is none.
        between: what parts two lines.
        closing: what stands behind the last line.
        escape: how a line's own characters are written.
    """

    opening: str = ""
    between: str = "\n"
    closing: str = ""
    escape: Callable[[str], str] = str


PLAIN = Form()
# olmOCR: it gives a page up whose answer lacks any of these.
FRONT_MATTER = Form(
    "---\nprimary_language: null\nis_rotation_valid: True\nrotation_correction: 0\n"
    "is_table: False\nis_diagram: False\n---\n"
)
# Chandra: it drops what stands outside of a block.
BLOCKS = Form(
    '<div data-bbox="0 0 1000 1000" data-label="Text"><p>',
    "<br/>",
    "</p></div>",
    lambda line: html.escape(line, quote=False),
)
# SmolDocling, Granite-Docling.
DOCTAGS = Form("<doctag><text>", "</text>\n<text>", "</text></doctag>")


def form_of(prompt: str) -> Form:
    """Return the form in which a prompt wants text."""
    words = normalise(prompt)
    if words.startswith("ocr this image to html"):
        return BLOCKS
    if words in ("convert this page to docling", "convert page to docling"):
        return DOCTAGS
    return FRONT_MATTER if "front matter" in words and "primary_language" in words else PLAIN
