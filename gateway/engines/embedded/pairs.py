"""Labels and their values on a page: best effort, from words and geometry alone.

A label's value is what follows its colon, else its right neighbour, else what stands below it. Fields that
are asked for by name are matched to labels loosely, and a few kinds of field that documents rarely label
(company, date, address, total, telephone, e-mail, the text itself) are known by their looks or place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gateway.engines.embedded.lines import Box

MIN_LIKENESS = 0.78
_MAX_LABEL = 48  # characters
_MAX_TEXT = 200
_COLONS = ":\uff1a "

_COLON = re.compile(
    r"^(?P<label>[^:\uff1a]*[^\W\d_][^:\uff1a]*?)\s*(?:(?<!\d):|:(?!\d)|\uff1a)\s*(?P<value>.*)$"
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
NUMBER = re.compile(r"[-+(]?\d(?:[\d,.'\u00a0]*\d)?")
_MONEY = re.compile(r"-?\d{1,3}(?:[,.' ]\d{3})*[.,]\d{2}(?!\d)|-?\d+[.,]\d{2}(?!\d)")
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
DATE = re.compile(
    r"\b\d{4}\s?([-/.])\s?\d{1,2}\s?\1\s?\d{1,2}\b|\b\d{1,2}\s?([-/.])\s?\d{1,2}\s?\2\s?(?:\d{4}|\d{2})\b"
    rf"|\b\d{{1,2}}[-\s]?{_MONTH}[-,.\s]*\d{{2,4}}\b|\b{_MONTH}[-.\s]*\d{{1,2}}[,\s]+\d{{4}}\b"
    r"|\d{4}\s?\u5e74\s?\d{1,2}\s?\u6708\s?\d{1,2}\s?\u65e5",
    re.IGNORECASE,
)
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_PHONE = re.compile(r"\+?\(?\d[\d\s()/-]{6,}\d")
_REGISTRATION = re.compile(r"\s*\([^()]*\d[^()]*\)\s*$")
_NOT_ADDRESS = re.compile(
    r"tax\s?invoice|\b(?:tel|fax|phone|gst|reg|co|invoice|receipt|date|e-?mail|www|cashier|tax)\b|@|\d{6,}-?\w",
    re.IGNORECASE,
)
# With what recognition often makes of the letters.
_TOTAL = re.compile(
    r"tot[ae][l1i]|amount due|balance due|amt payable|\u5408\u8ba1|\u603b\u8ba1", re.IGNORECASE
)
_PARTIAL_TOTAL = re.compile(
    r"sub\s?-?tota|tax|gst\b(?!.*incl)|saving|discount|qty|quantity|item|exclu|change", re.IGNORECASE
)
_FINAL_TOTAL = re.compile(r"grand|due|payable|incl|net|round", re.IGNORECASE)

_STOP_WORDS = frozenset(("the", "of", "a", "an", "and", "value", "field", "name"))
_SAME = (
    ("number", "no", "num", "nr", "id", "#"),
    ("invoice", "inv", "bill", "receipt", "doc", "document", "order"),
    ("telephone", "tel", "phone", "mobile"),
    ("quantity", "qty"),
    ("amount", "amt"),
    ("tax", "gst", "vat"),
    ("company", "vendor", "merchant", "store", "seller", "supplier", "shop", "business"),
    ("total", "totals"),
)
# Of a field that takes all that the page says.
_WRITING = frozenset(("text", "content", "markdown", "transcription"))
_BESIDE_WRITING = frozenset(("full", "raw", "natural", "extracted", "page", "ocr"))
_CANONICAL = {word: group[0] for group in _SAME for word in group}


class Piece(NamedTuple):
    """A box and the text in it."""

    box: Box
    text: str


Rows = Sequence[Sequence[Piece]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A label, what may be its value, and how much the way they stand together is worth (0 to 1)."""

    label: str
    value: str
    worth: float


def find_pairs(rows: Rows) -> dict[str, str]:
    """Return the label-value pairs of a page, top to bottom; the first of equal labels counts."""
    found: dict[str, str] = {}
    for candidate in _candidates(rows):
        if candidate.worth >= 0.9:
            found.setdefault(candidate.label, candidate.value)
    return found


class PageValues:
    """The values on a page, to be asked for by the names of fields."""

    def __init__(self, rows: Rows) -> None:
        """Find the page's labels."""
        self.rows = rows
        self._candidates = list(_candidates(rows))

    @property
    def text(self) -> str:
        """All of the page's text, a line for each row."""
        return "\n".join(" ".join(piece.text for piece in row) for row in self.rows if row)

    def of(self, names: Sequence[str], *, numeric: bool = False) -> Iterator[str]:
        """Yield what may be a field's value, the likeliest first.

        Args:
            names: the field's name first, and others that it has.
            numeric: the value has a number.
        """
        words = _words(names[0])
        is_total = "total" in words and not words & {"tax", "sub", "subtotal", "quantity", "items"}
        if is_total and (total := _total(self.rows)):
            yield total
        scored: list[tuple[float, str]] = []
        for candidate in self._candidates:
            if numeric and not NUMBER.search(candidate.value):
                continue
            if "date" in words and not re.search(r"\d", candidate.value):
                continue
            score = max(_likeness(name, candidate.label) for name in names) * candidate.worth
            if score > MIN_LIKENESS:
                scored.append((score, candidate.value))
        for _, value in sorted(scored, key=lambda one: -one[0]):
            if "date" in words and (date := DATE.search(value)):
                yield date.group()
            else:
                yield value
        if looks := _by_looks(words, self.rows):
            yield looks


def _candidates(rows: Rows) -> Iterator[Candidate]:
    for number, row in enumerate(rows):
        for place, piece in enumerate(row):
            if len(piece.text) <= _MAX_TEXT:
                right = row[place + 1].text if place + 1 < len(row) else ""
                below = _below(piece, rows[number + 1 : number + 3])
                yield from _of_piece(piece.text, right, below, alone=len(row) == 2)


def _of_piece(text: str, right: str, below: str, *, alone: bool) -> Iterator[Candidate]:
    """Yield what a piece may be the label of; `alone`: it has its row for itself and its right neighbour."""
    right_text = "" if _COLON.match(right) else right.lstrip(_COLONS)
    below = "" if _COLON.match(below) else below
    if split := _COLON.match(text):
        label, value = split["label"].strip(), split["value"].strip()
        if len(label) > _MAX_LABEL or value.startswith("//"):  # a sentence, or a web address
            return
        if value:
            yield Candidate(label, value, 1.0)
        elif right_text:
            yield Candidate(label, right_text, 0.98)
        elif below:
            yield Candidate(label, below, 0.9)
        return
    if _may_be_label(text):
        if right_text:
            sure = right.startswith(tuple(_COLONS)) or (alone and re.search(r"\d", right))
            yield Candidate(text, right_text, 0.95 if sure else 0.88)
        if below:
            yield Candidate(text, below, 0.85)
    words = text.split()
    for count in range(1, min(4, len(words))):  # `GST No 00123`: a label without its colon
        label, value = " ".join(words[:count]), " ".join(words[count:])
        if re.search(r"\d", value) and not re.search(r"\d", label):
            yield Candidate(label, value.lstrip("#.:- "), 0.87)


def _may_be_label(text: str) -> bool:
    letters = sum(map(str.isalpha, text))
    return 2 * letters >= len(text.replace(" ", "")) and len(text) <= _MAX_LABEL and text[-1] != ","


def _below(piece: Piece, rows: Rows) -> str:
    for row in rows:
        for other in row:
            common = min(piece.box.right, other.box.right) - max(piece.box.left, other.box.left)
            if common > 0.3 * min(piece.box.width, other.box.width):
                near = other.box.top - piece.box.bottom < 2.5 * piece.box.height
                return other.text if near else ""
    return ""


def _words(name: str) -> frozenset[str]:
    """Split a key or label into canonical words: `invoiceNo`, `invoice_number` and `Bill No.` agree."""
    words = [_CANONICAL.get(word.casefold(), word.casefold()) for word in _WORD.findall(name)]
    return frozenset(word for word in words if word not in _STOP_WORDS) or frozenset(words)


def _likeness(key: str, label: str) -> float:
    """How much a key and a label look the same, 0 to 1."""
    wanted, have = _words(key), _words(label)
    if not wanted or not have:
        return 0.0
    if wanted == have:
        return 1.0
    common = 2 * len(wanted & have) / (len(wanted) + len(have))
    if wanted <= have and len(have) - len(wanted) == 1:
        common = 0.9
    spelling = SequenceMatcher(None, " ".join(sorted(wanted)), " ".join(sorted(have))).ratio()
    return max(common, spelling if spelling > 0.85 else 0.0)


def _by_looks(words: frozenset[str], rows: Rows) -> str:
    """Find what documents rarely label by what it looks like, or where it stands."""
    lines = [" ".join(piece.text for piece in row) for row in rows if row]
    if "date" in words:
        return next((match.group() for line in lines if (match := DATE.search(line))), "")
    if "email" in words or words >= {"e", "mail"}:
        return next((match.group() for line in lines if (match := _EMAIL.search(line))), "")
    if "telephone" in words:
        return next((match.group() for line in lines if (match := _PHONE.search(line))), "")
    if "company" in words:
        heading = next((line for line in lines if sum(map(str.isalpha, line)) > 3), "")
        return _REGISTRATION.sub("", heading)
    if "address" in words:
        return _address(lines)
    return "\n".join(lines) if words & _WRITING and words <= _WRITING | _BESIDE_WRITING else ""


def _address(lines: Sequence[str]) -> str:
    """The first run of lines with a comma or digits, below the letter head's first line."""
    taken: list[str] = []
    for line in lines[1:12]:
        if any(pattern.search(line) for pattern in (_NOT_ADDRESS, DATE, _PHONE)):
            if taken:
                break
        elif taken or re.search(r"\d|,", line):
            taken.append(line)
    return " ".join(taken)


def _total(rows: Rows) -> str:
    """The amount on the row that says total the most plainly; the last of equals."""
    best, best_rank = "", 0
    for row in rows:
        line = " ".join(piece.text for piece in row)
        amounts = _MONEY.findall(line)
        if amounts and _TOTAL.search(line):
            rank = (1 if _PARTIAL_TOTAL.search(line) else 2) + bool(_FINAL_TOTAL.search(line))
            if rank >= best_rank:
                best, best_rank = amounts[-1], rank
    return best
