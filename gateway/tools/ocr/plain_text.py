"""Markdown, with the HTML tables that OCR models write in it, as plain text."""

from __future__ import annotations

import re
from html import unescape

# Only these are tags: a document may hold `<john@example.com>` and `a < b`. No pattern begins with white
# space or looks far for its end: a model that repeats itself writes thousands of each.
_BLOCKS = "table|thead|tbody|tfoot|caption|tr|div|p|ul|ol|li|h[1-6]|br|hr|pre|section|center|html|body"
_BLOCK = re.compile(rf"</?(?:{_BLOCKS})(?:\s[^<>]*)?/?>", re.IGNORECASE)
_BETWEEN_CELLS = re.compile(r"</t[dh]>\s*<t[dh](?:\s[^<>]*)?>", re.IGNORECASE)
_INLINE = re.compile(
    r"</?(?:td|th|b|i|u|s|em|strong|span|sub|sup|a|img|code|mark|small|font)(?:\s[^<>]*)?/?>", re.IGNORECASE
)
_COMMENT = re.compile(r"<!--.{0,1000}?-->", re.DOTALL)

_FENCE = re.compile(r" {0,3}(?:```|~~~)")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]")
_QUOTE = re.compile(r" {0,3}>\s?")
_DELIMITER = re.compile(r":?-+:?")
_PIPE = re.compile(r"(?<!\\)\|")

_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*(?:\s+\"[^\"]*\")?\)")
# Marks next to what they mark; but for ** not inside a word: `2 * 3 * 4` and `snake_case_name` have none.
_MARKS = (
    re.compile(r"\*\*(?=\S)(.{1,500}?)(?<=\S)\*\*"),
    re.compile(r"(?<!\w)__(?=\S)(.{1,500}?)(?<=\S)__(?!\w)"),
    re.compile(r"(?<![A-Za-z0-9*])\*(?=[^\s*])(.{1,500}?)(?<=[^\s*])\*(?![A-Za-z0-9*])"),
    re.compile(r"(?<!\w)_(?=\S)(.{1,500}?)(?<=\S)_(?!\w)"),
    re.compile(r"~~(?=\S)(.{1,500}?)(?<=\S)~~"),
    re.compile(r"(?<!`)`(?!`)(.{1,500}?)(?<!`)`(?!`)"),
)
_ESCAPED = re.compile(r"\\([\\`*_{}\[\]()#+.!|<>~-])")
_BLANK_LINES = re.compile(r"\n{3,}")


def plain(markdown: str) -> str:
    r"""Return markdown without its marks: cells stand apart by tabs, rows and blocks by line ends.

    What lists are marked with, formulas and code stay as they are.
    """
    lines: list[str] = []
    in_code = False
    for line in _without_tags(markdown).splitlines():
        if _FENCE.match(line):
            in_code = not in_code
        elif in_code:
            lines.append(line.rstrip())
        elif (text := _line(line)) is not None:
            lines.append(text.rstrip())
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip("\n")


def _without_tags(markdown: str) -> str:
    text = _COMMENT.sub("", markdown)
    text = _BETWEEN_CELLS.sub("\t", text)
    text = _BLOCK.sub("\n", text)
    text = _INLINE.sub("", text)
    try:
        return unescape(text)
    except ValueError:  # a number of thousands of digits
        return text


def _line(line: str) -> str | None:
    """One line's text; None for a line that is all marks."""
    stripped = line.strip()
    if len(stripped) > 1 and stripped[0] == stripped[-1] == "|":
        cells = [cell.strip() for cell in _PIPE.split(stripped[1:-1])]
        return None if all(map(_DELIMITER.fullmatch, cells)) else "\t".join(map(_inline, cells))
    if len(stripped) > 2 and set(stripped) - {" "} in ({"-"}, {"*"}, {"_"}):
        return ""
    line = line[found.end() :] if (found := _QUOTE.match(line)) else line
    if found := _HEADING.match(line):
        heading = line[found.end() :].strip()
        bare = heading.rstrip("#")
        return _inline(bare.rstrip() if not bare or bare.endswith(" ") else heading)
    return "\t".join(_inline(cell.strip()) for cell in line.split("\t")) if "\t" in line else _inline(line)


def _inline(text: str) -> str:
    text = _LINK.sub(r"\1", text)
    for marks in _MARKS:
        text = marks.sub(r"\1", text)
    return _ESCAPED.sub(r"\1", text)
