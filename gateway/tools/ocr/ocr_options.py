"""The options of `ocr-gateway ocr`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.tools.option_types import whole

URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "OCR_GATEWAY_KEY"
FORMATS = ("markdown", "text", "json")
_MOST_AT_ONCE = 64
_MOST_PAGES = 10_000


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="FILE|FOLDER",
        help="PDFs and images (JPEG, PNG, WebP, GIF, TIFF, BMP)",
    )
    parser.add_argument("--url", default=URL, help=f"the gateway's; default: {URL}")
    parser.add_argument(
        "--key",
        metavar="ENV",
        help=f"the environment variable that holds the API key; default: {KEY_VARIABLE}, where it is set",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where results go, in the folders' structure; default: stdout"
    )
    parser.add_argument(
        "--format", choices=FORMATS, help="json is the server's answer; default: markdown, with --schema json"
    )
    parser.add_argument("--route", metavar="R", help="of all pages; default: the server sorts each one")
    parser.add_argument(
        "--schema", type=Path, metavar="FILE", help="a JSON Schema: its values are read from the first pages"
    )
    parser.add_argument(
        "--concurrency",
        type=whole(1, _MOST_AT_ONCE),
        default=4,
        metavar="N",
        help="documents at a time; default: 4",
    )
    parser.add_argument(
        "--pages", type=pages, metavar="P", help="of each document, from 0 on: 0-5 or 0,3,7-9; default: all"
    )
    parser.add_argument("--recursive", action="store_true", help="the folders in folders, too")


def pages(text: str) -> tuple[int, ...]:
    """Return the pages that `0-5` or `0,3,7-9` names, in order.

    Raises:
        argparse.ArgumentTypeError: it names none, or too many.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not dash:
            last = first
        if not (_is_number(first) and _is_number(last) and int(first) <= int(last)):
            raise argparse.ArgumentTypeError(f"pages are such as 0-5 or 0,3,7-9, from 0 on, not {text!r}")
        if int(last) - int(first) >= _MOST_PAGES:
            raise argparse.ArgumentTypeError(f"at most {_MOST_PAGES:,} pages, not {part}")
        found.update(range(int(first), int(last) + 1))
    if len(found) > _MOST_PAGES:
        raise argparse.ArgumentTypeError(f"at most {_MOST_PAGES:,} pages, not {len(found):,}")
    return tuple(sorted(found))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
