"""`python -m bench.scale.report`: tables and plots of docs/performance.md and docs/capacity.md.

The documents' text is written by hand; what stands between their marks is replaced.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from bench.overhead.results import markdown
from bench.scale.figures import Figures
from bench.serving import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

RESULTS = ROOT / "bench/results/scale.json"
IMAGES = ROOT / "docs/images"
DOCUMENTS = (ROOT / "docs/performance.md", ROOT / "docs/capacity.md")
_MARK = re.compile(r"(<!-- (\w+): python -m bench\.scale\.report -->\n).*?(<!-- end -->)", re.DOTALL)


def write(found: Mapping[str, Any]) -> None:
    """Write the results, the documents' parts, and the plots."""
    from bench.scale.plots import draw

    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    figures = Figures(found)
    for document in DOCUMENTS:
        document.write_text(filled(document.read_text(), figures))
    draw(figures, IMAGES)


def filled(text: str, figures: Figures) -> str:
    """Return a document with what stands between its marks made anew.

    Raises:
        KeyError: there is a mark for something that was not measured.
    """
    blocks = figures.tables() | {
        "circumstances": figures.circumstances(),
        "example": figures.example(),
        "limits": markdown(figures.limits()),
        "rule": figures.rule_text(rule) if (rule := figures.rule()) else "",
    }
    return _MARK.sub(lambda found: f"{found[1]}\n{blocks[found[2]]}\n\n{found[3]}", text)


if __name__ == "__main__":
    write(json.loads(RESULTS.read_text()))
