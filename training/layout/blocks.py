"""Parts of a page: paragraphs, lists of fields, tables, bars; tables are measured before they are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw

from training.layout import fonts, words
from training.layout.words import SCRIPTS, Script

if TYPE_CHECKING:
    from random import Random

    from PIL import ImageFont


class Sheet:
    """A grey canvas that remembers how far it was drawn on."""

    def __init__(self, width: int, height: int, paper: int = 255, ink: int = 0) -> None:
        self.image = Image.new("L", (width, height), paper)
        self.draw = ImageDraw.Draw(self.image)
        self.paper = paper
        self.ink = ink
        self.right = 0.0
        self.bottom = 0.0

    def text(
        self, x: float, y: float, text: str, style: Style, *, bold: bool = False, ink: int | None = None
    ) -> float:
        """Draw one line with its top at y; returns its width."""
        face = style.font(bold)
        # By the baseline: faces differ much in where they put the top of a line.
        at = (x, y + style.size * 0.93)
        self.draw.text(at, text, font=face, fill=style.tone(self.ink) if ink is None else ink, anchor="ls")
        width = style.width(text, bold)
        self.used(x + width, y + style.size * 1.3)
        return width

    def rule(
        self, x0: float, y0: float, x1: float, y1: float, width: int = 1, ink: int | None = None
    ) -> None:
        """Draw a straight line."""
        self.draw.line((x0, y0, x1, y1), fill=self.ink if ink is None else ink, width=max(1, width))
        self.used(max(x0, x1), max(y0, y1))

    def fill(self, x0: float, y0: float, x1: float, y1: float, ink: int) -> None:
        """Fill a rectangle."""
        self.draw.rectangle((x0, y0, max(x0, x1), max(y0, y1)), fill=ink)
        self.used(x1, y1)

    def used(self, x: float, y: float) -> None:
        """Note that the sheet is used up to here."""
        self.right, self.bottom = max(self.right, x), max(self.bottom, y)


@dataclass(frozen=True)
class Style:
    """A typeface at a size, for a script."""

    faces: tuple[str, str]
    size: int
    script: Script
    lead: float = 1.25
    fade: int = 0
    heavy: bool = False

    def font(self, bold: bool = False) -> ImageFont.FreeTypeFont:
        """The face itself."""
        return fonts.font(self.faces[1 if bold or self.heavy else 0], max(5, self.size))

    def width(self, text: str, bold: bool = False) -> float:
        """Length of the text in pixels."""
        return fonts.length(self.faces[1 if bold or self.heavy else 0], max(5, self.size), text)

    def scaled(self, factor: float) -> Style:
        """The same face, larger or smaller."""
        return replace(self, size=max(5, round(self.size * factor)))

    def tone(self, ink: int) -> int:
        """The ink, faded towards mid-grey."""
        return ink + self.fade if ink < 128 else ink - self.fade

    @property
    def step(self) -> float:
        """From one line's top to the next."""
        return self.size * self.lead


def style(rng: Random, size: int, script: str | None = None, manner: str | None = None) -> Style:
    """A random face for a script (mostly Latin) and manner (serif, sans, mono, hand)."""
    name = (
        script
        or rng.choices(
            [
                "latin",
                "han",
                "japanese",
                "korean",
                "arabic",
                "hebrew",
                "devanagari",
                "cyrillic",
                "greek",
                "thai",
            ],
            [66, 8, 5, 5, 3, 3, 3, 4, 1, 1],
        )[0]
    )
    if name == "latin":
        manner = manner or rng.choices(["serif", "sans", "mono", "hand"], [42, 50, 5, 3])[0]
        faces = rng.choice(
            {"serif": fonts.SERIF, "sans": fonts.SANS, "mono": fonts.MONO, "hand": fonts.HAND}[manner]
        )
    else:
        faces = rng.choice(fonts.BY_SCRIPT[name])
    fade = rng.choice([0, 0, 0, 20, 50, 90, 120])
    return Style(faces, size, SCRIPTS[name], rng.uniform(1.1, 1.7), fade, rng.random() < 0.07)


def wrap(text_words: list[str], look: Style, width: float, first: float = 0.0) -> list[list[str]]:
    """Break words into lines no wider than width (the first one shorter by `first`)."""
    space = look.width(" ") if look.script.spaced else 0.0
    lines: list[list[str]] = [[]]
    left = width - first
    for word in text_words:
        need = look.width(word)
        if need > left and lines[-1]:
            lines.append([])
            left = width
        lines[-1].append(word)
        left -= need + space
    return lines


def paragraph(
    sheet: Sheet,
    x: float,
    y: float,
    width: float,
    look: Style,
    rng: Random,
    *,
    lines: int = 8,
    align: str = "justify",
    indent: float = 0.0,
    bold: bool = False,
    ends: bool = True,
) -> float:
    """Running text of about so many lines; returns the y below it."""
    per_line = max(2.0, width / (look.size * (2.9 if look.script.spaced else 2.4)))
    broken = wrap(look.script.words(rng, max(2, int(per_line * lines * 1.1) + 1)), look, width, indent)[
        :lines
    ]
    rtl = look.script.name in ("arabic", "hebrew")
    if rtl and align == "left":
        align = "right"
    for i, line in enumerate(broken):
        last = ends and i == len(broken) - 1
        if last and lines > 1:
            line = line[: max(1, int(len(line) * rng.uniform(0.2, 1.0)))]
        start = x + (indent if i == 0 and not rtl else 0)
        room = width - (indent if i == 0 else 0)
        if align == "justify" and not last and len(line) > 2:
            _spread(sheet, start, y, room, line, look, bold)
        else:
            text = look.script.glue.join(line)
            slack = room - look.width(text, bold)
            offset = {"center": slack / 2, "right": slack}.get(align, slack if rtl else 0.0)
            sheet.text(start + max(0.0, offset), y, text, look, bold=bold)
        y += look.step
    return y


def _spread(sheet: Sheet, x: float, y: float, width: float, line: list[str], look: Style, bold: bool) -> None:
    lengths = [look.width(word, bold) for word in line]
    gap = (width - sum(lengths)) / (len(line) - 1)
    if gap > look.size * 1.2:
        gap = look.size * 0.3
    for word, length in zip(line, lengths, strict=True):
        sheet.text(x, y, word, look, bold=bold)
        x += length + gap


def barcode(sheet: Sheet, x: float, y: float, width: float, height: float, rng: Random) -> float:
    """Upright bars."""
    end = x + width
    while x < end:
        bar = rng.choice([1, 1, 2, 3]) * max(1, width / 180)
        sheet.fill(x, y, x + bar - 1, y + height, sheet.ink)
        x += bar + rng.choice([1, 1, 2, 3]) * max(1, width / 180)
    return y + height


def picture(sheet: Sheet, x: float, y: float, width: float, height: float, rng: Random) -> None:
    """A logo or a photograph: a few grey shapes."""
    for _ in range(rng.randint(1, 5)):
        a, b = sorted((rng.uniform(x, x + width), rng.uniform(x, x + width)))
        c, d = sorted((rng.uniform(y, y + height), rng.uniform(y, y + height)))
        shape = rng.choice([sheet.draw.ellipse, sheet.draw.rectangle])
        shape((a, c, b, d), fill=rng.randint(0, 230))
    sheet.used(x + width, y + height)


# --- tables -------------------------------------------------------------------------------------------------


@dataclass
class Table:
    """A grid of records, measured before it is drawn."""

    look: Style
    cells: list[list[list[str]]]  # rows of cells of lines
    widths: list[float]
    heights: list[float]
    aligns: list[str]
    rules: str
    head: int = 1
    pad: float = 4.0
    spans: list[tuple[int, int, str]] = field(default_factory=list)
    zebra: int | None = None
    head_fill: int | None = None
    thick: int = 1
    line_ink: int | None = None
    bold_head: bool = True
    bold_first: bool = False
    groups: set[int] = field(default_factory=set)
    middle: bool = True

    @property
    def width(self) -> float:
        """Whole width in pixels."""
        return sum(self.widths)

    @property
    def height(self) -> float:
        """Whole height in pixels."""
        return sum(self.heights) + (self.look.step + self.pad if self.spans else 0)

    def draw(self, sheet: Sheet, x: float, y: float, rng: Random) -> float:
        """Draw with the top left corner at (x, y); returns the y below."""
        top, left, right = y, x, x + self.width
        bottom = y + self.height
        edges = [left]
        for width in self.widths:
            edges.append(edges[-1] + width)
        if self.spans:
            y = self._draw_spans(sheet, edges, y)
        grid_top = y
        rows = []
        for row, height in zip(self.cells, self.heights, strict=True):
            rows.append(y)
            self._draw_row(sheet, edges, y, height, row, len(rows) - 1)
            y += height
        self._draw_rules(sheet, edges, [*rows, y], top, grid_top, right, bottom, rng)
        return y

    def _draw_spans(self, sheet: Sheet, edges: list[float], y: float) -> float:
        height = self.look.step + self.pad
        if self.head_fill is not None:
            sheet.fill(edges[0], y, edges[-1], y + height, self.head_fill)
        for first, last, text in self.spans:
            a, b = edges[first], edges[last]
            width = self.look.width(text, self.bold_head)
            sheet.text(
                (a + b - width) / 2,
                y + self.pad / 2,
                text,
                self.look,
                bold=self.bold_head,
                ink=self._head_ink(sheet),
            )
            if self.rules in ("booktabs", "horizontal"):
                sheet.rule(a + self.pad, y + height - 1, b - self.pad, y + height - 1, 1, self.line_ink)
        return y + height

    def _head_ink(self, sheet: Sheet) -> int | None:
        if self.head_fill is None:
            return None
        return 255 - sheet.ink if abs(self.head_fill - sheet.ink) < 128 else sheet.ink

    def _draw_row(
        self, sheet: Sheet, edges: list[float], y: float, height: float, row: list[list[str]], i: int
    ) -> None:
        is_head = i < self.head
        if is_head and self.head_fill is not None:
            sheet.fill(edges[0], y, edges[-1], y + height, self.head_fill)
        elif self.zebra is not None and i % 2 == 0:
            sheet.fill(edges[0], y, edges[-1], y + height, self.zebra)
        for j, lines in enumerate(row):
            bold = (is_head and self.bold_head) or (j == 0 and self.bold_first) or i in self.groups
            block = len(lines) * self.look.step
            at = y + (max(self.pad / 2, (height - block) / 2) if self.middle else self.pad / 2)
            for line in lines:
                slack = edges[j + 1] - edges[j] - 2 * self.pad - self.look.width(line, bold)
                offset = {"center": slack / 2, "right": slack}.get(self.aligns[j], 0.0)
                ink = self._head_ink(sheet) if is_head else None
                sheet.text(edges[j] + self.pad + max(0.0, offset), at, line, self.look, bold=bold, ink=ink)
                at += self.look.step

    def _draw_rules(
        self,
        sheet: Sheet,
        edges: list[float],
        rows: list[float],
        top: float,
        grid: float,
        right: float,
        bottom: float,
        rng: Random,
    ) -> None:
        left, ink, kind = edges[0], self.line_ink, self.rules
        after_head = rows[min(self.head, len(rows) - 1)]
        if kind == "full":
            self._full(sheet, edges, rows, top, rng)
        if kind in ("horizontal", "open"):
            for y in rows:
                sheet.rule(left, y, right, y, self.thick, ink)
        if kind in ("vertical", "open"):
            for x in edges[1:-1]:
                sheet.rule(x, grid, x, bottom, self.thick, ink)
        if kind in ("booktabs", "vertical"):
            for y, width in ((top, self.thick + 1), (after_head, self.thick), (bottom, self.thick + 1)):
                sheet.rule(left, y, right, y, width, ink)
            for i in self.groups:
                if rng.random() < 0.3:
                    sheet.rule(left, rows[i], right, rows[i], self.thick, ink)
        if kind == "head":
            sheet.rule(left, after_head, right, after_head, self.thick, ink)
        if kind == "outer":
            for y in (top, after_head, bottom):
                sheet.rule(left, y, right, y, self.thick, ink)
            for x in (left, right):
                sheet.rule(x, top, x, bottom, self.thick, ink)
        if kind == "dashes":
            for y in (after_head, bottom):
                sheet.text(
                    left,
                    y - self.look.size * 0.7,
                    "-" * int((right - left) / max(1, self.look.width("-"))),
                    self.look,
                )

    def _full(self, sheet: Sheet, edges: list[float], rows: list[float], top: float, rng: Random) -> None:
        merged = self.middle and rng.random() < 0.25
        for k, y in enumerate([top, *rows]):
            start = (
                edges[1] if merged and self.head < k - 1 < len(rows) - 1 and rng.random() < 0.5 else edges[0]
            )
            sheet.rule(start, y, edges[-1], y, self.thick, self.line_ink)
        for j, x in enumerate(edges):
            inner_top = top if not self.spans or j in (0, len(edges) - 1) else rows[0]
            sheet.rule(x, inner_top, x, rows[-1], self.thick, self.line_ink)


COLUMN_KINDS = {
    "num": 10,
    "money": 2,
    "date": 1,
    "code": 1.2,
    "short": 3,
    "name": 2,
    "mark": 0.6,
    "long": 1.2,
}


def _cell(rng: Random, kind: str, script: Script) -> str:
    if kind == "num":
        return words.number(rng)
    if kind == "short":
        return script.word(rng)
    if kind == "name":
        return script.phrase(rng, 1, 3)
    if kind == "long":
        return script.glue.join(script.words(rng, rng.randint(3, 22)))
    if kind == "mark":
        return rng.choice(["✓", "x", "-", "+", "yes", "no", "Y", "A", "B", "0", "1"])
    return {"money": words.money, "date": words.date, "code": words.code}[kind](rng)


def table(
    rng: Random,
    look: Style,
    *,
    columns: int | None = None,
    rows: int | None = None,
    rules: str | None = None,
    room: float | None = None,
    plain: bool = False,
    headed: bool = True,
) -> Table:
    """Plan a random table; `room` is the width that it should fill, `plain` the modest grid of a bill."""
    columns = columns or rng.choices(range(2, 12), [6, 10, 12, 11, 8, 6, 4, 3, 2, 1])[0]
    rows = rows or rng.choices([2, 3, 4, 5, 6, 8, 10, 14, 20, 28], [4, 6, 8, 9, 9, 9, 8, 7, 5, 3])[0]
    wordy = not plain and rng.random() < 0.2
    kinds = _column_kinds(rng, columns, wordy)
    pad = look.size * rng.choice([0.2, 0.4, 0.6, 1.0, 1.5])
    head = 0 if not headed else 1
    heads = [look.script.header(rng) for _ in range(columns)]
    body = [[_cell(rng, kind, look.script) for kind in kinds] for _ in range(rows)]
    sparse = rng.choice([0, 0, 0, 0.1, 0.4])
    for row in body:
        for j in range(1, columns):
            if rng.random() < sparse:
                row[j] = ""
    groups = _group_rows(rng, body, columns, head, look) if not plain and rng.random() < 0.22 else set()
    texts = ([heads] if head else []) + body
    limit = look.size * rng.uniform(9, 20) if wordy else look.size * rng.uniform(10, 26)
    cells = [[[t] if look.width(t) < limit else _fold(t, look, limit) for t in row] for row in texts]
    widths = [
        max(
            look.width(line, True)
            for row_index, row in enumerate(cells)
            for line in row[j] or [""]
            if row_index not in groups or j
        )
        + 2 * pad
        for j in range(columns)
    ]
    gap = rng.choice([0, 0, 0.5, 1, 2, 3]) * look.size
    widths = [w + (gap if j < columns - 1 else 0) for j, w in enumerate(widths)]
    if rng.random() < 0.25:
        widths = [widths[0]] + [max(widths[1:])] * (columns - 1)
    if room and sum(widths) < room:
        extra = (room - sum(widths)) / columns
        widths = [w + extra for w in widths]
    row_pad = look.size * rng.choice([0.0, 0.1, 0.3, 0.6, 1.0])
    heights = [max(1, *(len(lines) for lines in row)) * look.step + row_pad for row in cells]
    rules = (
        rules
        or rng.choices(
            ["full", "booktabs", "horizontal", "none", "head", "outer", "vertical", "open", "dashes"],
            [30, 22, 10, 12, 9, 4, 6, 5, 2],
        )[0]
    )
    result = Table(look, cells, widths, heights, _aligns(rng, kinds), rules, head, pad, groups=groups)
    _decorate(rng, result, columns, plain)
    return result


def _column_kinds(rng: Random, columns: int, wordy: bool) -> list[str]:
    names, weights = list(COLUMN_KINDS), list(COLUMN_KINDS.values())
    if rng.random() < 0.5:
        common = rng.choices(names[:-1], weights[:-1])[0]
        kinds = [
            common if rng.random() < 0.85 else rng.choices(names[:-1], weights[:-1])[0]
            for _ in range(columns)
        ]
    else:
        kinds = rng.choices(names[:-1], weights[:-1], k=columns)
    if rng.random() < 0.75:
        kinds[0] = rng.choice(["name", "name", "short", "long" if wordy else "name"])
    if wordy:
        kinds = [kind if rng.random() < 0.4 else "long" for kind in kinds]
    return kinds


def _fold(text: str, look: Style, limit: float) -> list[str]:
    parts = text.split(" ") if look.script.spaced else list(text)
    return [look.script.glue.join(line) for line in wrap(parts, look, limit)]


def _group_rows(rng: Random, body: list[list[str]], columns: int, head: int, look: Style) -> set[int]:
    found = set()
    for i in range(len(body)):
        if rng.random() < 0.2:
            body[i] = [look.script.phrase(rng, 1, 4)] + [""] * (columns - 1)
            found.add(i + head)
    if rng.random() < 0.3:
        found.add(len(body) - 1 + head)
    return found


def _aligns(rng: Random, kinds: list[str]) -> list[str]:
    way = rng.random()
    if way < 0.3:
        return ["left" if kind in ("name", "long", "short") else "right" for kind in kinds]
    if way < 0.6:
        return ["left"] + ["center"] * (len(kinds) - 1)
    if way < 0.8:
        return ["left"] * len(kinds)
    return ["center"] * len(kinds)


def _decorate(rng: Random, table: Table, columns: int, plain: bool) -> None:
    table.bold_head = rng.random() < 0.65
    table.bold_first = rng.random() < 0.12
    table.middle = rng.random() < 0.6
    table.thick = rng.choice([1, 1, 1, 2, 3])
    if rng.random() < 0.3:
        table.line_ink = rng.randint(60, 210)
    if rng.random() < 0.22:
        table.head_fill = rng.choice([rng.randint(20, 130), rng.randint(170, 245)])
    if rng.random() < 0.13:
        table.zebra = rng.randint(205, 248)
    if not plain and columns > 3 and table.head and rng.random() < 0.22:
        first = rng.randint(1, columns - 2)
        last = rng.randint(first + 2, columns) if first + 2 <= columns else columns
        table.spans = [(first, last, table.look.script.header(rng))]
        if last < columns and first > 1:
            table.spans.append((last, columns, table.look.script.header(rng)))


# --- fields -------------------------------------------------------------------------------------------------


@dataclass
class Fields:
    """Label and value pairs in one of many manners."""

    look: Style
    pairs: list[tuple[str, str]]
    manner: str
    rng: Random
    hand: Style | None = None
    bold: bool = False

    def draw(self, sheet: Sheet, x: float, y: float, width: float) -> float:
        """Draw from (x, y) within a width; returns the y below."""
        return getattr(self, "_" + self.manner)(sheet, x, y, width)

    def _value(self, sheet: Sheet, x: float, y: float, text: str) -> None:
        sheet.text(
            x, y - (self.hand.size - self.look.size) / 2 if self.hand else y, text, self.hand or self.look
        )

    def _inline(self, sheet: Sheet, x: float, y: float, width: float) -> float:
        """Label: value."""
        colon = self.rng.choice([": ", ": ", ":", " : ", " - ", "  ", " = "])
        box = self.rng.random() < 0.15
        for label, text in self.pairs:
            label = f"[{label}]" if box else label
            at = x + sheet.text(x, y, label + colon, self.look, bold=self.bold)
            self._value(sheet, at + self.look.size * 0.3, y, text)
            y += self.step
        return y

    def _columns(self, sheet: Sheet, x: float, y: float, width: float) -> float:
        """Labels in one column, values in the next."""
        colon = self.rng.choice([":", "", ":", " :"])
        labels = max(self.look.width(label + colon, self.bold) for label, _ in self.pairs)
        gap = self.look.size * self.rng.uniform(0.6, 4)
        right = self.rng.random() < 0.25
        for label, text in self.pairs:
            shift = labels - self.look.width(label + colon, self.bold) if right else 0
            sheet.text(x + shift, y, label + colon, self.look, bold=self.bold)
            self._value(sheet, x + labels + gap, y, text)
            y += self.step
        return y

    def _spread(self, sheet: Sheet, x: float, y: float, width: float) -> float:
        """Label at the left edge, value at the right edge."""
        dots = self.rng.random() < 0.25
        ruled = not dots and self.rng.random() < 0.25
        for label, text in self.pairs:
            a = sheet.text(x, y, label, self.look, bold=self.bold)
            b = (self.hand or self.look).width(text)
            self._value(sheet, x + max(a + self.look.size, width - b), y, text)
            room = width - a - b - 2 * self.look.size
            if dots and room > 0:
                sheet.text(
                    x + a + self.look.size, y, "." * int(room / max(1, self.look.width("."))), self.look
                )
            if ruled:
                sheet.rule(x, y + self.step - 2, x + width, y + self.step - 2, 1, 128)
            y += self.step
        return y

    def _blanks(self, sheet: Sheet, x: float, y: float, width: float) -> float:
        """Label, then a ruled blank with the value written on it; one to three on a line."""
        across = self.rng.choice([1, 1, 2, 2, 3])
        part = width / across
        step = self.step * self.rng.uniform(1.1, 1.7)
        for i, (label, text) in enumerate(self.pairs):
            left = x + part * (i % across)
            a = sheet.text(left, y, label + ":", self.look, bold=self.bold)
            line = y + self.look.size * 1.15
            sheet.rule(left + a + 3, line, max(left + a + 20, left + part * 0.95), line)
            if self.rng.random() < 0.75 and a + 10 + (self.hand or self.look).width(text) < part:
                self._value(sheet, left + a + 8, y, text)
            if i % across == across - 1:
                y += step
        return y + step

    def _above(self, sheet: Sheet, x: float, y: float, width: float) -> float:
        """A small label above its value, several side by side."""
        across = self.rng.choice([1, 2, 2, 3, 4])
        small = self.look.scaled(0.75)
        for i, (label, text) in enumerate(self.pairs):
            left = x + width / across * (i % across)
            sheet.text(left, y, label, small, bold=self.bold)
            self._value(sheet, left, y + small.step, text)
            if i % across == across - 1:
                y += small.step + self.look.step * 1.5
        return y + small.step + self.look.step * 1.5

    def _boxes(self, sheet: Sheet, x: float, y: float, width: float) -> float:
        """The boxed form: in each box a small label at the top left and a value below."""
        small = self.look.scaled(self.rng.uniform(0.5, 0.8))
        height = small.step + self.look.step * self.rng.uniform(0.9, 1.5)
        pairs = list(self.pairs)
        thick = self.rng.choice([1, 1, 2])
        while pairs:
            across = self.rng.choice([1, 2, 2, 3, 3, 4, 5])
            cuts = sorted(self.rng.uniform(0.12, 0.88) for _ in range(across - 1))
            if self.rng.random() < 0.4:
                cuts = [k / across for k in range(1, across)]
            edges = [x, *(x + width * cut for cut in cuts), x + width]
            tall = height * self.rng.choice([1, 1, 1, 1, 2, 3])
            for a, b in pairwise(edges):
                sheet.draw.rectangle((a, y, b, y + tall), outline=sheet.ink, width=thick)
                if not pairs:
                    continue
                label, text = pairs.pop()
                self._boxed(sheet, a, b, y, label, text, small, tall)
            y += tall
        sheet.used(x + width, y)
        return y

    def _boxed(
        self, sheet: Sheet, a: float, b: float, y: float, label: str, text: str, small: Style, tall: float
    ) -> None:
        while label and small.width(label) > b - a - 6:
            label = label[:-1]
        sheet.text(a + 3, y + 1, label, small, bold=self.bold)
        lines = 1 if tall < 2.2 * small.step + 1.6 * self.look.step else 3
        for k in range(lines):
            line = text if k == 0 else self.look.script.phrase(self.rng, 1, 3)
            while line and (self.hand or self.look).width(line) > b - a - 12:
                line = line[:-1]
            if self.rng.random() < 0.85:
                slack = b - a - 12 - (self.hand or self.look).width(line)
                shift = slack * self.rng.choice([0, 0, 0.3, 1.0])
                self._value(sheet, a + 6 + shift, y + small.step + k * self.look.step, line)

    def _grid(self, sheet: Sheet, x: float, y: float, width: float) -> float:
        """A ruled grid of label | value, without heads."""
        across = self.rng.choice([1, 1, 1, 2])
        part = width / across
        share = self.rng.uniform(0.2, 0.5)
        tall = self.step * self.rng.uniform(1.1, 1.8)
        tint = self.rng.choice([None, None, 225, 240])
        for i, (label, text) in enumerate(self.pairs):
            left = x + part * (i % across)
            middle = left + part * share
            if tint:
                sheet.fill(left, y, middle, y + tall, tint)
            sheet.draw.rectangle((left, y, left + part, y + tall), outline=sheet.ink)
            sheet.rule(middle, y, middle, y + tall)
            for text_, a, b, bold in ((label, left, middle, self.bold), (text, middle, left + part, False)):
                while text_ and self.look.width(text_, bold) > b - a - 8:
                    text_ = text_[:-1]
                sheet.text(a + 4, y + (tall - self.look.size * 1.2) / 2, text_, self.look, bold=bold)
            if i % across == across - 1:
                y += tall
        sheet.used(x + width, y)
        return y

    @property
    def step(self) -> float:
        """Distance of rows."""
        return self.look.step * 1.15


MANNERS = ["inline", "columns", "spread", "blanks", "above", "boxes", "grid"]


def fields(
    rng: Random,
    look: Style,
    count: int,
    manner: str | None = None,
    hand: bool | None = None,
    amounts: bool = False,
) -> Fields:
    """Random label and value pairs."""
    pairs = [
        (look.script.label(rng), words.money(rng) if amounts else words.value(rng, look.script))
        for _ in range(count)
    ]
    written = rng.random() < 0.12 if hand is None else hand
    other = style(
        rng, round(look.size * rng.uniform(1.0, 1.5)), "latin", rng.choice(["hand", "hand", "mono"])
    )
    pen = other if written and look.script.name == "latin" else None
    return Fields(look, pairs, manner or rng.choice(MANNERS), rng, pen, rng.random() < 0.4)
