"""Whole synthetic documents, by route: what is drawn before any camera or scanner sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PIL import Image

from training.layout import words
from training.layout.blocks import Sheet, Style, barcode, fields, paragraph, picture, style, table

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random


def finish(sheet: Sheet, margin: float) -> Image.Image:
    """Cut the sheet to what was drawn, and a margin."""
    right = min(sheet.image.width, int(sheet.right + margin))
    bottom = min(sheet.image.height, int(sheet.bottom + margin))
    return sheet.image.crop((0, 0, max(8, right), max(8, bottom)))


def colours(rng: Random) -> tuple[int, int]:
    """Paper and ink: mostly dark on white, sometimes tinted, sometimes light on dark."""
    kind = rng.random()
    if kind < 0.72:
        return 255, rng.choice([0, 0, 0, 20, 45])
    if kind < 0.92:
        return rng.randint(200, 250), rng.randint(0, 70)
    return rng.randint(10, 70), rng.randint(190, 255)


def page_size(rng: Random) -> tuple[int, int]:
    """A sheet of paper in pixels."""
    width = rng.choice([600, 700, 850, 1000])
    return width, int(width * rng.choice([1.29, 1.41, 1.41, 1.33, 1.5]))


# --- text ---------------------------------------------------------------------------------------------------


def paper_page(rng: Random) -> Image.Image:
    """A page of a paper, book or report in one to three columns."""
    width, height = page_size(rng)
    sheet = Sheet(width, height, *colours(rng))
    columns = rng.choices([1, 2, 3], [52, 40, 8])[0]
    side, top = width * rng.uniform(0.06, 0.17), height * rng.uniform(0.04, 0.1)
    gutter = width * rng.uniform(0.02, 0.05)
    column = (width - 2 * side - gutter * (columns - 1)) / columns
    size = max(7, round(column / rng.uniform(22, 42 if columns > 1 else 62)))
    look = style(rng, size)
    align = rng.choices(["justify", "left"], [3, 1])[0]
    y = top
    if rng.random() < 0.5:
        small = look.scaled(0.85)
        sheet.text(side, y * 0.6, look.script.phrase(rng, 2, 5), small)
        sheet.text(width - side - 30, y * 0.6, str(rng.randint(1, 900)), small)
    if rng.random() < 0.35:
        y = _title(sheet, rng, look, side, y, width - 2 * side)
    floor = height * rng.uniform(0.86, 0.95)
    if rng.random() < 0.2:
        floor = y + (floor - y) * rng.uniform(0.3, 0.9)
    for k in range(columns):
        stop = floor if k < columns - 1 or rng.random() < 0.6 else y + (floor - y) * rng.uniform(0.3, 1)
        _column(sheet, rng, look, side + k * (column + gutter), y, column, stop, align)
    if rng.random() < 0.5:
        sheet.text(width / 2, height * 0.96, str(rng.randint(1, 900)), look)
    if rng.random() < 0.1:
        _watermark(sheet, rng)
    if rng.random() < 0.1:
        for inset in (0.3, 0.3 + rng.choice([0, 0.04, 0.1])):
            box = (side * inset, top * inset, width - side * inset, height - top * inset)
            sheet.draw.rectangle(box, outline=rng.choice([sheet.ink, 128]), width=rng.choice([1, 1, 3]))
    return sheet.image


def _title(sheet: Sheet, rng: Random, look: Style, x: float, y: float, width: float) -> float:
    big = look.scaled(rng.uniform(1.4, 2.2))
    align = rng.choice(["center", "left"])
    y = paragraph(sheet, x, y, width, big, rng, lines=rng.randint(1, 3), align=align, bold=rng.random() < 0.7)
    for _ in range(rng.randint(0, 5)):
        y = paragraph(sheet, x, y + 2, width, look, rng, lines=1, align=align)
    return y + look.step * rng.uniform(0.5, 2)


def _column(
    sheet: Sheet, rng: Random, look: Style, x: float, y: float, width: float, floor: float, align: str
) -> None:
    gap = look.step * rng.choice([0, 0.2, 0.5, 1.0, 1.2])
    indent = rng.choice([0.0, look.size * 1.5])
    listing = rng.random() < 0.12
    while y < floor - look.step:
        room = int((floor - y) / look.step)
        kind = rng.random()
        if kind < 0.12 and room > 5:
            heading = look.scaled(rng.choice([1, 1.1, 1.3, 1.5]))
            y = paragraph(
                sheet,
                x,
                y + gap,
                width,
                heading,
                rng,
                lines=1,
                align=rng.choice(["left", "left", "center"]),
                bold=True,
            )
            y += look.step * 0.3
        elif kind < 0.17 and room > 4:
            y = _formula(sheet, rng, look, x, y, width)
        elif listing or kind < 0.24:
            y = bullets(sheet, rng, look, x, y, width, min(room, rng.randint(1, 6)))
        else:
            lines = max(1, min(room, rng.choice([2, 4, 6, 9, 14, 30])))
            y = paragraph(sheet, x, y, width, look, rng, lines=lines, align=align, indent=indent)
        y += gap


def _formula(sheet: Sheet, rng: Random, look: Style, x: float, y: float, width: float) -> float:
    text = " ".join(rng.choice("abcdxyzαβγ=+−∑∫()0123456789/") for _ in range(rng.randint(5, 18)))  # noqa: RUF001
    span = look.width(text)
    sheet.text(x + max(0, (width - span) / 2), y + look.step * 0.5, text, look)
    if rng.random() < 0.6:
        sheet.text(x + width - look.size * 2, y + look.step * 0.5, f"({rng.randint(1, 40)})", look)
    return y + 2 * look.step


def _watermark(sheet: Sheet, rng: Random) -> None:
    mark = Image.new("L", sheet.image.size, 0)
    face = style(rng, sheet.image.width // 6, "latin", "sans").font(True)
    probe = Sheet(*sheet.image.size)
    probe.image = mark
    from PIL import ImageDraw

    ImageDraw.Draw(mark).text(
        (sheet.image.width * 0.1, sheet.image.height * 0.4),
        rng.choice(["DRAFT", "COPY", "SAMPLE"]),
        255,
        face,
    )
    mark = mark.rotate(rng.choice([30, 45, 55, 0]))
    sheet.image.paste(rng.randint(120, 210), (0, 0), mark.point(lambda v: v * 0.7))


def bullets(sheet: Sheet, rng: Random, look: Style, x: float, y: float, width: float, count: int) -> float:
    """A list with marks or numbers."""
    mark = rng.choice(["•", "-", "–", "*", "1", "(a)"])  # noqa: RUF001
    inset = look.size * rng.uniform(1.2, 2.5)
    lines = rng.choice([1, 1, 2, 3])
    for k in range(count):
        sheet.text(x, y, f"{k + 1}." if mark == "1" else mark, look)
        y = paragraph(
            sheet, x + inset, y, width - inset, look, rng, lines=rng.randint(1, lines), align="left"
        )
    return y


def paragraph_crop(rng: Random) -> Image.Image:
    """A paragraph or two cut tightly out of a page."""
    width = rng.choice([240, 300, 420, 600, 900, 1200])
    size = round(max(8, width / rng.uniform(14, 60)))
    look = style(rng, size)
    sheet = Sheet(width, int(width * 2.2) + 60, *colours(rng))
    margin = rng.choice([1, 3, 8, 20, 50])
    y = float(margin)
    align = rng.choices(["justify", "left", "center", "right"], [60, 32, 5, 3])[0]
    indent = rng.choice([0, 0, size * 1.5])
    stop = y + width * rng.choice([0.15, 0.3, 0.6, 1.0, 1.8])
    for k in range(rng.choice([1, 1, 1, 2, 3, 5])):
        if y >= stop and k:
            break
        if rng.random() < 0.2:
            y = paragraph(
                sheet, margin, y, width - 2 * margin, look.scaled(1.2), rng, lines=1, align="left", bold=True
            )
            y += look.step * rng.uniform(0, 1)
        if rng.random() < 0.12:
            y = bullets(sheet, rng, look, margin, y, width - 2 * margin, rng.randint(2, 6))
        else:
            lines = max(1, int((stop - y) / look.step / rng.choice([1, 1, 2])))
            y = paragraph(
                sheet,
                margin,
                y,
                width - 2 * margin,
                look,
                rng,
                lines=lines,
                align=align,
                indent=indent,
                ends=rng.random() < 0.6,
            )
        y += look.step * rng.choice([0, 0.5, 1])
    sheet.right = width
    return finish(sheet, margin)


def single_lines(rng: Random) -> Image.Image:
    """One line of text, or a few that stand apart."""
    size = rng.choice([14, 20, 28, 40, 64])
    look = style(rng, size)
    sheet = Sheet(1700, 1400, *colours(rng))
    margin = rng.choice([2, 5, 15, 40, 80])
    y = float(margin)
    gap = look.step * rng.choice([0, 0.3, 0.8, 1.5])
    rule = rng.random() < 0.15
    count = rng.choice([1, 1, 1, 2, 3, 4, 5, 7])
    most = rng.choice([2, 4, 8])
    align = rng.choice(["left", "left", "center"])
    width = rng.uniform(0, 900) if count > 1 else 0
    for k in range(count):
        text = look.script.glue.join(
            look.script.words(rng, rng.randint(1, most) * (1 if look.script.spaced else 3))
        )
        own = look if rng.random() < 0.8 else look.scaled(rng.uniform(0.7, 1.4))
        span = own.width(text)
        if margin + span > 1650:
            text = text[: int(len(text) * 1600 / span)]
        shift = max(0.0, (width - own.width(text)) / 2) if align == "center" else 0
        sheet.text(margin + shift, y, text, own, bold=rng.random() < 0.3)
        y += own.step + gap
        if rule and k < count - 1:
            sheet.rule(
                margin, y - gap / 2, margin + max(width, 300), y - gap / 2, 1, (sheet.paper + sheet.ink) // 2
            )
    sheet.right = max(sheet.right, margin + width * (count > 1))
    return finish(sheet, margin)


def letter(rng: Random) -> Image.Image:
    """A letter or memo."""
    width, height = page_size(rng)
    sheet = Sheet(width, height, *colours(rng))
    side = width * rng.uniform(0.08, 0.15)
    look = style(rng, max(8, round(width / rng.uniform(50, 80))))
    y = height * 0.06
    if rng.random() < 0.4:
        picture(sheet, side, y, width * 0.15, height * 0.04, rng)
        y += height * 0.06
    x = side if rng.random() < 0.6 else width * 0.6
    for _ in range(rng.randint(2, 5)):
        y = paragraph(sheet, x, y, width * 0.35, look, rng, lines=1, align="left")
    y += look.step * 2
    for _ in range(rng.randint(0, 4)):
        y = paragraph(sheet, side, y, width * 0.35, look, rng, lines=1, align="left")
    y += look.step
    for _ in range(rng.randint(2, 6)):
        if y > height * 0.75:
            break
        y = paragraph(
            sheet,
            side,
            y,
            width - 2 * side,
            look,
            rng,
            lines=rng.randint(2, 8),
            align=rng.choice(["left", "justify"]),
        )
        y += look.step
    for _ in range(rng.randint(1, 3)):
        y = paragraph(sheet, side, y, width * 0.3, look, rng, lines=1, align="left")
    return sheet.image


def slide(rng: Random) -> Image.Image:
    """A slide: a title and a few large lines."""
    width = rng.choice([640, 960, 1100])
    height = int(width * rng.choice([0.5625, 0.75]))
    paper, ink = colours(rng)
    sheet = Sheet(width, height, paper, ink)
    side = width * rng.uniform(0.04, 0.12)
    look = style(rng, round(width / rng.uniform(24, 44)))
    y = height * rng.uniform(0.05, 0.2)
    if rng.random() < 0.3:
        sheet.fill(
            0, 0, width, y + look.step * 2.6, rng.choice([(paper * 2 + ink) // 3, (paper + 2 * ink) // 3])
        )
    y = paragraph(
        sheet,
        side,
        y,
        width - 2 * side,
        look.scaled(1.7),
        rng,
        lines=rng.randint(1, 2),
        align=rng.choice(["left", "center"]),
        bold=True,
    )
    y += look.step
    across = rng.choice([1, 1, 1, 2])
    part = (width - 2 * side) / across
    for k in range(across):
        at = y
        while at < height * rng.uniform(0.6, 0.9):
            if rng.random() < 0.7:
                at = bullets(sheet, rng, look, side + k * part, at, part * 0.92, rng.randint(1, 3))
            else:
                at = paragraph(
                    sheet, side + k * part, at, part * 0.92, look, rng, lines=rng.randint(1, 3), align="left"
                )
            at += look.step * rng.uniform(0, 1)
    if rng.random() < 0.3:
        picture(sheet, width * 0.8, height * 0.85, width * 0.15, height * 0.1, rng)
    return sheet.image


def handwriting(rng: Random) -> Image.Image:
    """A handwritten note, on plain or ruled paper."""
    width = rng.choice([400, 700, 1000])
    sheet = Sheet(width, int(width * rng.uniform(0.3, 1.5)), *colours(rng))
    look = style(rng, round(width / rng.uniform(12, 32)), "latin", "hand")
    side, y = width * rng.uniform(0.03, 0.12), width * rng.uniform(0.02, 0.1)
    if rng.random() < 0.3:
        at = y + look.size * 1.1
        while at < sheet.image.height:
            sheet.rule(0, at, width, at, 1, (2 * sheet.paper + sheet.ink) // 3)
            at += look.step
    while y < sheet.image.height - look.step:
        room = int((sheet.image.height - y) / look.step)
        y = paragraph(
            sheet, side, y, width - 2 * side, look, rng, lines=min(room, rng.randint(1, 8)), align="left"
        )
        if rng.random() < 0.3:
            y += look.step * rng.randint(0, 2)
    return sheet.image


def web_page(rng: Random) -> Image.Image:
    """An article on a web page: bar, headings, perhaps a side column."""
    width = rng.choice([700, 1000, 1200])
    height = int(width * rng.uniform(0.6, 1.3))
    paper, ink = colours(rng)
    sheet = Sheet(width, height, paper, ink)
    look = style(
        rng,
        round(width / rng.uniform(50, 80)),
        manner=rng.choice(["sans", "serif"]),
        script="latin" if rng.random() < 0.7 else None,
    )
    side = width * rng.uniform(0.03, 0.1)
    y = height * 0.03
    x = side
    if rng.random() < 0.5:
        sheet.fill(
            0, 0, width, y + look.step * 1.8, rng.choice([(3 * paper + ink) // 4, (paper + 3 * ink) // 4])
        )
    for _ in range(rng.randint(3, 7)):
        x += sheet.text(x, y, look.script.phrase(rng, 1, 2), look) + look.size * 2
        if x > width * 0.85:
            break
    y += look.step * 3
    ruled = rng.random() < 0.25
    aside = rng.random() < 0.5
    if rng.random() < 0.4:
        sheet.fill(0, y - look.step, width, y + look.step * 3, (sheet.paper * 9 + sheet.ink) // 10)
        y = paragraph(sheet, side, y, width / 2, look.scaled(1.8), rng, lines=1, align="left") + look.step * 2
    body = (width - 2 * side) * (0.68 if aside else 1)
    if aside:
        at = y
        for _ in range(rng.randint(2, 7)):
            at = paragraph(
                sheet,
                side + body * 1.1,
                at,
                width - side - body * 1.1 - side,
                look,
                rng,
                lines=rng.randint(1, 3),
                align="left",
            )
            at += look.step * 0.4
    while y < height * 0.9:
        y = paragraph(
            sheet,
            side,
            y,
            body,
            look.scaled(rng.choice([1.2, 1.6, 2])),
            rng,
            lines=1,
            align="left",
            bold=rng.random() < 0.5,
        )
        if ruled:
            sheet.rule(
                side,
                y + look.step * 0.2,
                side + body,
                y + look.step * 0.2,
                1,
                (sheet.paper * 2 + sheet.ink) // 3,
            )
        y += look.step * 0.6
        for _ in range(rng.randint(1, 3)):
            y = (
                paragraph(sheet, side, y, body, look, rng, lines=rng.randint(2, 6), align="left")
                + look.step * 0.8
            )
    return sheet.image


def vertical(rng: Random) -> Image.Image:
    """Upright Chinese or Japanese lines, from right to left."""
    look = style(rng, rng.choice([12, 18, 28, 44]), rng.choice(["japanese", "japanese", "han"]))
    columns, length = rng.choice([1, 2, 4, 8, 16]), rng.choice([6, 10, 16, 28])
    margin = look.size * rng.uniform(0.3, 2)
    sheet = Sheet(
        int(columns * look.step + 2 * margin), int(length * look.size * 1.05 + 2 * margin), *colours(rng)
    )
    for k in range(columns):
        x = sheet.image.width - margin - (k + 1) * look.step
        text = "".join(look.script.words(rng, length))[
            : length if rng.random() < 0.75 else rng.randint(2, length)
        ]
        for i, sign in enumerate(text):
            sheet.text(x, margin + i * look.size * 1.05, sign, look)
    return sheet.image


def references(rng: Random) -> Image.Image:
    """A list of references, an index, verses or a dialogue: short hanging lines."""
    width, height = page_size(rng)
    height = int(height * rng.choice([0.4, 0.7, 1]))
    sheet = Sheet(width, height, *colours(rng))
    side = width * rng.uniform(0.05, 0.15)
    look = style(rng, max(8, round(width / rng.uniform(40, 80))))
    y = height * 0.06
    if rng.random() < 0.6:
        y = (
            paragraph(
                sheet, side, y, width - 2 * side, look.scaled(1.4), rng, lines=1, align="left", bold=True
            )
            + look.step
        )
    kind = rng.choice(["list", "verse", "numbers"])
    while y < height * 0.93:
        if kind == "list":
            y = paragraph(
                sheet,
                side,
                y,
                width - 2 * side,
                look,
                rng,
                lines=rng.randint(1, 4),
                align="left",
                indent=-look.size,
            )
        elif kind == "verse":
            for _ in range(rng.randint(2, 5)):
                y = paragraph(
                    sheet,
                    side,
                    y,
                    width * rng.uniform(0.3, 0.6),
                    look,
                    rng,
                    lines=1,
                    align=rng.choice(["left", "left", "left", "center"]),
                    ends=False,
                )
            y += look.step
        else:
            y = bullets(sheet, rng, look, side, y, width - 2 * side, rng.randint(3, 9))
        y += look.step * rng.choice([0, 0.3])
    return sheet.image


def short_crop(rng: Random) -> Image.Image:
    """One to five full lines cut out of a page or a screen, perhaps under a heading."""
    width = rng.choice([320, 450, 700, 1000])
    look = style(rng, max(8, round(width / rng.uniform(14, 55))))
    sheet = Sheet(width, width * 2, *colours(rng))
    margin = rng.choice([0, 2, 6, 15, 40])
    y = margin - look.size * rng.choice([0, 0, 0.4, 0.7])
    inner = width - 2 * margin
    if rng.random() < 0.4:
        heading = look.scaled(rng.uniform(1, 1.4))
        inset = rng.choice([0, look.size * 2])
        if inset:
            sheet.text(margin, y, str(rng.randint(1, 9)), heading, bold=True)
        y = paragraph(
            sheet,
            margin + inset,
            y,
            inner * rng.uniform(0.3, 1),
            heading,
            rng,
            lines=1,
            align="left",
            bold=True,
        )
        y += look.step * rng.uniform(0, 0.8)
    for _ in range(rng.choice([1, 1, 2])):
        y = paragraph(
            sheet, margin, y, inner, look, rng, lines=rng.randint(1, 5), align=rng.choice(["justify", "left"])
        )
        y += look.step * rng.choice([0, 0.5])
    if rng.random() < 0.2:
        corner = rng.choice([0.0, y - look.size])
        picture(sheet, width - look.size * 1.5, corner, look.size * 1.2, look.size * 1.2, rng)
    sheet.right = width
    return finish(sheet, margin * rng.choice([0, 1, 1]))


def notice(rng: Random) -> Image.Image:
    """A framed page of instructions: coloured headings, paragraphs, lists, perhaps a stamp across it."""
    width, height = page_size(rng)
    sheet = Sheet(width, height, *colours(rng))
    side = width * rng.uniform(0.08, 0.15)
    inner = width - 2 * side
    look = style(rng, max(8, round(width / rng.uniform(45, 80))))
    pale = (sheet.paper + 2 * sheet.ink) // 3
    y = side * rng.uniform(0.8, 1.5)
    while y < height - side * 1.5:
        if rng.random() < 0.7:
            sheet.text(
                side, y, look.script.phrase(rng, 3, 8), look.scaled(rng.choice([1, 1.2, 1.5])), ink=pale
            )
            y += look.step * rng.uniform(1.5, 2.5)
        for _ in range(rng.randint(1, 3)):
            if rng.random() < 0.4:
                y = bullets(sheet, rng, look, side + look.size * 2, y, inner * 0.85, rng.randint(2, 5))
            else:
                y = paragraph(sheet, side, y, inner, look, rng, lines=rng.randint(1, 4), align="left")
            y += look.step * rng.choice([0.3, 1])
    if rng.random() < 0.8:
        inset = side * rng.uniform(0.2, 0.7)
        box = (inset, inset, width - inset, height - inset)
        sheet.draw.rectangle(box, outline=rng.choice([sheet.ink, pale]), width=rng.choice([1, 2, 4]))
    if rng.random() < 0.4:
        _watermark(sheet, rng)
    return sheet.image


# --- key-value ----------------------------------------------------------------------------------------------


def receipt(rng: Random) -> Image.Image:
    """A till receipt, whole or its lower part."""
    if rng.random() < 0.5:
        return _till_roll(rng)
    width = rng.choice([300, 420, 600])
    look = style(rng, round(width / rng.uniform(16, 30)), None if rng.random() < 0.2 else "latin")
    sheet = Sheet(width, int(width * 4.5), rng.choice([255, 245, 230]), rng.choice([0, 20, 60]))
    side = width * rng.uniform(0.02, 0.12)
    inner = width - 2 * side
    y = side + look.step * rng.choice([0, 1])
    if rng.random() < 0.75:
        y = _receipt_head(sheet, rng, look, side, y, inner)
    for _ in range(rng.randint(1, 3)):
        y = _receipt_part(sheet, rng, look, side, y, inner)
    y = _totals(sheet, rng, look, side, y, inner)
    if rng.random() < 0.4:
        y = _receipt_part(sheet, rng, look, side, y, inner)
    if rng.random() < 0.6:
        y = _receipt_foot(sheet, rng, look, side, y + 2, inner)
    if rng.random() < 0.25:
        y = barcode(sheet, width * 0.2, y + look.step, width * 0.6, width * 0.12, rng)
    sheet.right = width
    sheet.used(width, y)
    return finish(sheet, side + 4)


def _receipt_foot(sheet: Sheet, rng: Random, look: Style, x: float, y: float, width: float) -> float:
    """Thanks, or the conditions of exchange in small print."""
    if rng.random() < 0.35:
        for _ in range(rng.randint(1, 3)):
            y = paragraph(
                sheet,
                x,
                y,
                width,
                look.scaled(rng.choice([0.8, 1])),
                rng,
                lines=rng.randint(2, 6),
                align="left",
            )
        return y
    for _ in range(rng.randint(1, 4)):
        y = paragraph(sheet, x, y, width, look, rng, lines=1, align="center")
    return y


def _receipt_head(sheet: Sheet, rng: Random, look: Style, x: float, y: float, width: float) -> float:
    if rng.random() < 0.3:
        picture(sheet, x + width * 0.35, y, width * 0.3, width * 0.15, rng)
        y += width * 0.18
    big = look.scaled(rng.uniform(1, 1.8))
    name = rng.choice(words.SHOP)
    sheet.text(x + max(0, (width - big.width(name, True)) / 2), y, name, big, bold=True)
    y += big.step
    for _ in range(rng.randint(1, 6)):
        y = paragraph(sheet, x + width * 0.1, y, width * 0.8, look, rng, lines=1, align="center", ends=False)
    return y + look.step * rng.uniform(0.3, 1.2)


def _receipt_part(sheet: Sheet, rng: Random, look: Style, x: float, y: float, width: float) -> float:
    kind = rng.random()
    if kind < 0.35:
        y = fields(rng, look, rng.randint(2, 6), rng.choice(["inline", "columns", "spread"]), False).draw(
            sheet, x, y, width
        )
    elif kind < 0.8:
        y = _items(sheet, rng, look, x, y, width)
    else:
        plain = table(
            rng,
            look,
            columns=rng.randint(3, 5),
            rows=rng.randint(1, 4),
            rules=rng.choice(["none", "head", "dashes"]),
            plain=True,
        )
        factor = min(1.0, width / plain.width)
        small = look.scaled(factor)
        plain = table(
            rng,
            small,
            columns=rng.randint(2, 4),
            rows=rng.randint(1, 4),
            rules=rng.choice(["none", "head", "dashes"]),
            plain=True,
        )
        if plain.width > width:
            return y
        y = plain.draw(sheet, x, y, rng)
    if rng.random() < 0.6:
        if rng.random() < 0.6:
            sign = rng.choice("-=*.")
            sheet.text(x, y, sign * int(width / max(1, look.width(sign))), look)
        else:
            sheet.rule(x, y + look.step * 0.5, x + width, y + look.step * 0.5)
        y += look.step
    return y + look.step * rng.uniform(0, 0.8)


def _items(sheet: Sheet, rng: Random, look: Style, x: float, y: float, width: float) -> float:
    second = rng.random() < 0.35
    lead = rng.random() < 0.4
    for _ in range(rng.randint(1, 9)):
        name = rng.choice(words.GOODS) if look.script.name == "latin" else look.script.phrase(rng, 1, 2)
        price = f"{rng.random() * 90:.2f}"
        sheet.text(x, y, (f"{rng.randint(1, 9)}  " if lead else "") + name, look)
        sheet.text(x + width - look.width(price), y, price, look)
        y += look.step
        if second:
            sheet.text(x + width * 0.08, y, words.code(rng)[:13], look)
            deal = f"{rng.random() * 50:.2f}*{rng.randint(1, 5)}"
            sheet.text(x + width * 0.55, y, deal, look)
            y += look.step
    return y


def _totals(sheet: Sheet, rng: Random, look: Style, x: float, y: float, width: float) -> float:
    big = look.scaled(rng.choice([1, 1, 1.2, 1.5]))
    left = x + width * rng.choice([0, 0, 0.15, 0.35])
    inner = rng.random() < 0.25
    line = rng.random() < 0.3
    for label in rng.sample(
        [
            "Subtotal",
            "Total",
            "Tax",
            "Cash",
            "Change",
            "Rounding",
            "Balance",
            "Tip",
            "GST 6%",
            "Total payable:",
        ],
        rng.randint(2, 7),
    ):
        amount = words.money(rng)
        if rng.random() < 0.2:
            label = f"Total {look.script.phrase(rng, 1, 3)}:"
        own = big if label.startswith("Total") else look
        # Some tills print the labels against the amounts, not at the left edge.
        at = max(x, x + width * 0.72 - own.width(label)) if inner else left
        sheet.text(at, y, label, own, bold=own is big)
        sheet.text(x + width - own.width(amount), y, amount, own, bold=own is big)
        y += own.step * 1.1
        if line and rng.random() < 0.4:
            sheet.rule(x + width * 0.75, y - 2, x + width, y - 2)
    return y + look.step * 0.5


def _till_roll(rng: Random) -> Image.Image:
    """Printed in a fixed pitch, composed as lines of characters."""
    wide = rng.randint(24, 48)
    lines: list[str] = []
    latin = words.SCRIPTS["latin"]
    for _ in range(rng.randint(0, 7)):
        heading = rng.choice([*words.SHOP, words.code(rng), latin.phrase(rng, 2, 5).upper()])
        lines += [heading[:wide].center(wide)]
    for _ in range(rng.randint(1, 3)):
        lines += _roll_part(rng, wide)
        if rng.random() < 0.7:
            lines.append(rng.choice(["-" * wide, "=" * wide, "", "", "- " * (wide // 2)]))
    for label in rng.sample(
        ["SUBTOTAL", "TOTAL", "TAX 6%", "CASH", "CHANGE", "ROUNDING", "VISA", "Item(s)", "TIP"],
        rng.randint(2, 6),
    ):
        lines.append(_sides(label + rng.choice(["", ":"]), words.money(rng), wide, rng.choice([0, 0, 0, 6])))
    if rng.random() < 0.25:
        text = " ".join(words.SCRIPTS["latin"].words(rng, rng.randint(15, 70)))
        lines += [text[k : k + wide] for k in range(0, len(text), wide)]
    for _ in range(rng.randint(0, 5)):
        lines.append(words.SCRIPTS["latin"].phrase(rng, 2, 5)[:wide].center(wide))
    size = rng.choice([12, 16, 20])
    look = style(rng, size, "latin", "mono")
    pitch = look.width("M")
    margin = int(pitch * rng.uniform(0.5, 6))
    sheet = Sheet(
        int(pitch * wide) + 2 * margin,
        int((len(lines) + 3) * look.step + 2 * margin),
        rng.choice([255, 240, 225]),
        rng.choice([0, 30, 80]),
    )
    y = float(margin)
    for line in lines:
        sheet.text(margin, y, line.upper() if rng.random() < 0.2 else line, look, bold="TOTAL" in line)
        y += look.step
    if rng.random() < 0.2:
        barcode(sheet, sheet.image.width * 0.2, y, sheet.image.width * 0.6, look.step * 2, rng)
    return sheet.image


def _roll_part(rng: Random, wide: int) -> list[str]:
    kind = rng.random()
    latin = words.SCRIPTS["latin"]
    if kind < 0.35:
        pad = rng.choice([0, 12])
        return [
            f"{latin.label(rng)[:14]:<{pad}}: {words.value(rng, latin)}"[:wide]
            for _ in range(rng.randint(1, 6))
        ]
    if kind < 0.75:
        out = []
        for _ in range(rng.randint(1, 8)):
            out.append(
                _sides(
                    f"{rng.randint(1, 9)} {rng.choice(words.GOODS)}".upper(), f"{rng.random() * 99:.2f}", wide
                )
            )
            if rng.random() < 0.3:
                out.append(f"  {words.code(rng)[:13]}  {rng.randint(1, 5)} x {rng.random() * 30:.2f}"[:wide])
        return out
    head = f"{'Item':<{wide - 18}}{'Qty':>4}{'Price':>7}{'Amt':>7}"
    rows = [
        f"{rng.choice(words.GOODS)[: wide - 19]:<{wide - 18}}{rng.randint(1, 9):>4}"
        f"{rng.random() * 40:>7.2f}{rng.random() * 90:>7.2f}"
        for _ in range(rng.randint(1, 5))
    ]
    return [head, *rows]


def _sides(left: str, right: str, wide: int, shift: int = 0) -> str:
    left = " " * shift + left
    return left[: wide - len(right) - 1].ljust(wide - len(right)) + right


def invoice(rng: Random) -> Image.Image:
    """An invoice, order, packing list or pay stub: blocks of fields, a modest grid of items, totals."""
    width, height = page_size(rng)
    if rng.random() < 0.25:
        height = int(width * rng.uniform(0.5, 0.9))
    sheet = Sheet(
        width, height, 255 if rng.random() < 0.85 else rng.randint(225, 254), rng.choice([0, 0, 30])
    )
    side = width * rng.uniform(0.04, 0.1)
    inner = width - 2 * side
    look = style(rng, max(7, round(width / rng.uniform(50, 85))), None if rng.random() < 0.25 else "latin")
    y = _invoice_head(sheet, rng, look, side, height * rng.uniform(0.03, 0.07), inner)
    y = _address_blocks(sheet, rng, look, side, y, inner)
    if rng.random() < 0.4:
        strip = table(
            rng,
            look,
            columns=rng.randint(3, 6),
            rows=1,
            room=inner,
            rules=rng.choice(["full", "full", "head", "none"]),
            plain=True,
        )
        if strip.width <= inner + 1:
            y = strip.draw(sheet, side, y, rng) + look.step * rng.uniform(0.5, 2)
    y = _invoice_items(sheet, rng, look, side, y, inner, height)
    if rng.random() < 0.85:
        block = inner * rng.uniform(0.28, 0.5)
        manner = rng.choice(["spread", "spread", "columns", "grid"])
        total = fields(rng, look, rng.randint(2, 6), manner, False, amounts=True)
        y = total.draw(sheet, side + inner - block, y, block) + look.step
    for _ in range(rng.randint(0, 3)):
        if y > height * 0.9:
            break
        if rng.random() < 0.5:
            y = paragraph(
                sheet,
                side,
                y,
                inner * rng.uniform(0.4, 1),
                look.scaled(0.9),
                rng,
                lines=rng.randint(1, 4),
                align="left",
            )
        else:
            y = fields(rng, look, rng.randint(2, 5), rng.choice(["inline", "columns"])).draw(
                sheet, side, y, inner * 0.5
            )
        y += look.step
    if height < width:
        return finish(sheet, side / 2)
    return sheet.image


def _invoice_head(sheet: Sheet, rng: Random, look: Style, x: float, y: float, width: float) -> float:
    if rng.random() < 0.6:
        at = x if rng.random() < 0.6 else x + width * 0.75
        picture(sheet, at, y, width * rng.uniform(0.1, 0.25), width * rng.uniform(0.05, 0.12), rng)
    title = look.scaled(rng.uniform(1.5, 3))
    word = rng.choice(
        ["INVOICE", "Invoice", "Packing list", "ORDER", "Pay stub", "Statement", "Receipt", "Quotation"]
    )
    sheet.text(
        rng.choice([x, x + width * 0.4, x + width - title.width(word, True)]), y, word, title, bold=True
    )
    if rng.random() < 0.2:
        barcode(sheet, x + width * 0.65, y + title.step, width * 0.3, width * 0.05, rng)
    return y + max(title.step, width * 0.12) + look.step * rng.uniform(0, 1.5)


def _address_blocks(sheet: Sheet, rng: Random, look: Style, x: float, y: float, width: float) -> float:
    for _ in range(rng.randint(1, 2)):
        across = rng.choice([2, 2, 3])
        lowest = y
        for k in range(across):
            left = x + width / across * k
            if rng.random() < 0.5:
                at = y + 0.0
                sheet.text(left, at, look.script.label(rng) + ":", look, bold=True)
                at += look.step
                for _ in range(rng.randint(2, 5)):
                    at = paragraph(sheet, left, at, width / across * 0.8, look, rng, lines=1, align="left")
            elif rng.random() < 0.85:
                manner = rng.choice(["inline", "columns", "columns", "spread", "above", "grid"])
                at = fields(rng, look, rng.randint(2, 6), manner, False).draw(
                    sheet, left, y, width / across * 0.92
                )
            else:
                at = y
            lowest = max(lowest, at)
        y = lowest + look.step * rng.uniform(0.5, 2)
    return y


def _invoice_items(
    sheet: Sheet, rng: Random, look: Style, x: float, y: float, width: float, height: float
) -> float:
    rows = rng.choice([1, 1, 2, 3, 4, 6])
    for shrink in (1.0, 0.85, 0.7):
        items = table(
            rng,
            look.scaled(shrink),
            columns=rng.randint(3, 6),
            rows=rows,
            room=width,
            rules=rng.choices(
                ["full", "head", "horizontal", "none", "outer", "open", "booktabs"], [30, 20, 15, 12, 8, 8, 7]
            )[0],
            plain=True,
        )
        if items.width <= width + 1 and y + items.height < height * 0.85:
            y = items.draw(sheet, x, y, rng)
            if items.rules == "full" and rng.random() < 0.2:
                depth = look.step * rng.randint(2, 8)
                edge = x
                for w in [0.0, *items.widths]:
                    edge += w
                    sheet.rule(edge, y, edge, y + depth)
                sheet.rule(x, y + depth, x + items.width, y + depth)
                y += depth
            return y + look.step * rng.uniform(0.3, 2)
    return y


def form(rng: Random) -> Image.Image:
    """A form: boxes, blanks and check marks under section bars."""
    width, height = page_size(rng)
    if rng.random() < 0.35:
        height = int(width * rng.uniform(0.5, 1.0))
    sheet = Sheet(
        width, height * 2, 255 if rng.random() < 0.85 else rng.randint(220, 254), rng.choice([0, 0, 40])
    )
    side = width * rng.uniform(0.02, 0.1)
    inner = width - 2 * side
    look = style(rng, max(7, round(width / rng.uniform(35, 85))), None if rng.random() < 0.35 else "latin")
    y = side * rng.uniform(0.5, 1.5)
    hand = rng.random() < 0.3
    if rng.random() < 0.7:
        y = paragraph(
            sheet,
            side,
            y,
            inner,
            look.scaled(rng.uniform(1.2, 2)),
            rng,
            lines=1,
            align=rng.choice(["center", "left"]),
            bold=True,
        )
        y += look.step * 0.5
    main = rng.choice(["boxes", "boxes", "blanks", "columns", "above", "grid"])
    while y < height * 0.88:
        if rng.random() < 0.35:
            y = _section_bar(sheet, rng, look, side, y, inner)
        kind = rng.random()
        manner = main if kind < 0.7 else rng.choice(["boxes", "blanks", "columns", "above", "inline", "grid"])
        if kind > 0.92:
            y = _choices(sheet, rng, look, side, y, inner)
        elif kind > 0.84 and y > height * 0.4:
            y = paragraph(
                sheet, side, y, inner, look.scaled(0.85), rng, lines=rng.randint(1, 3), align="left"
            )
        else:
            y = fields(rng, look, rng.randint(4, 14), manner, hand).draw(sheet, side, y, inner)
        y += look.step * rng.choice([0, 0, 0.5, 1.2])
    if rng.random() < 0.3:
        y = fields(rng, look, 2, "blanks", hand).draw(sheet, side, y, inner)
    sheet.right = width
    return finish(sheet, side)


def _section_bar(sheet: Sheet, rng: Random, look: Style, x: float, y: float, width: float) -> float:
    text = look.script.phrase(rng, 1, 4)
    if rng.random() < 0.5:
        dark = rng.random() < 0.4
        sheet.fill(x, y, x + width, y + look.step, 40 if dark else 215)
        sheet.text(x + 4, y, text, look, bold=True, ink=255 if dark else sheet.ink)
    else:
        sheet.text(x, y, text, look, bold=True)
        sheet.rule(x, y + look.step, x + width, y + look.step)
    return y + look.step * 1.2


def _choices(sheet: Sheet, rng: Random, look: Style, x: float, y: float, width: float) -> float:
    for _ in range(rng.randint(1, 3)):
        at = x + sheet.text(x, y, look.script.label(rng), look) + look.size
        while at < x + width * 0.85:
            sheet.draw.rectangle(
                (at, y + 2, at + look.size * 0.8, y + 2 + look.size * 0.8), outline=sheet.ink
            )
            if rng.random() < 0.3:
                sheet.text(at, y, "x", look, bold=True)
            at += look.size * 1.2
            at += sheet.text(at, y, look.script.phrase(rng, 1, 2), look) + look.size * 1.5
        y += look.step * 1.3
    return y


def field_list(rng: Random) -> Image.Image:
    """A short list of fields alone: a card, a label, a product's attributes, a panel of a program."""
    size = rng.choice([11, 14, 18, 24, 34])
    look = style(rng, size)
    width = size * rng.uniform(14, 40)
    sheet = Sheet(int(width * 2.4), 2400, *colours(rng))
    margin = rng.choice([2, 8, 20, 45])
    y = float(margin)
    if rng.random() < 0.4:
        y = paragraph(
            sheet,
            margin,
            y,
            width,
            look.scaled(rng.uniform(1.1, 1.8)),
            rng,
            lines=1,
            align=rng.choice(["left", "center"]),
            bold=True,
        )
        y += look.step * rng.uniform(0, 1)
    manner = rng.choices(
        ["inline", "columns", "spread", "blanks", "above", "grid", "boxes"], [20, 26, 16, 10, 10, 12, 6]
    )[0]
    for _ in range(rng.choice([1, 1, 1, 2])):
        y = fields(rng, look, rng.choice([2, 3, 4, 6, 8, 12]), manner).draw(
            sheet, margin, y, width
        ) + look.step * rng.choice([0, 1])
    if rng.random() < 0.25:
        right = sheet.right + size * 2
        fields(rng, look, rng.choice([2, 3, 5]), "inline").draw(sheet, right, margin * 2, width * 0.6)
    if rng.random() < 0.2:
        y = paragraph(
            sheet,
            margin,
            y + look.step * 0.5,
            width,
            look.scaled(0.8),
            rng,
            lines=rng.randint(1, 2),
            align="left",
        )
    if rng.random() < 0.25:
        sheet.draw.rectangle(
            (margin / 2, margin / 2, sheet.right + margin / 2, sheet.bottom + margin / 2), outline=sheet.ink
        )
    return finish(sheet, margin)


def attribute_list(rng: Random) -> Image.Image:
    """Labels and values in two plain columns, and nothing else: nearest to a table without rules."""
    size = rng.choice([11, 14, 18, 24])
    look = style(rng, size)
    sheet = Sheet(1400, 1400, *colours(rng))
    margin = rng.choice([2, 10, 30, 60])
    count = rng.choice([3, 5, 8, 12, 16, 22])
    manner = rng.choices(["columns", "inline", "spread"], [70, 15, 15])[0]
    block = fields(rng, look, count, manner, False)
    if rng.random() < 0.5:
        block.pairs = [(look.script.phrase(rng, 1, 2), look.script.phrase(rng, 1, 3)) for _ in range(count)]
    block.draw(sheet, margin, margin, size * rng.uniform(14, 30))
    if rng.random() < 0.4:
        sheet.used(sheet.right + size * rng.uniform(2, 12), 0)
    return finish(sheet, margin)


def card(rng: Random) -> Image.Image:
    """An insurance card, slip or label: a few scattered fields, a heading, a line of small print."""
    width = rng.choice([500, 800, 1100])
    height = int(width * rng.uniform(0.35, 0.75))
    sheet = Sheet(width, height * 2, *colours(rng))
    side = width * rng.uniform(0.03, 0.1)
    inner = width - 2 * side
    look = style(rng, round(width / rng.uniform(28, 60)), None if rng.random() < 0.2 else "latin")
    y = paragraph(
        sheet,
        side,
        side * 0.7,
        inner,
        look.scaled(1.5),
        rng,
        lines=1,
        align=rng.choice(["center", "left"]),
        bold=True,
    )
    y += look.step * rng.uniform(0.2, 1)
    while y < height * 0.85:
        across = rng.choice([1, 2, 2])
        low = y
        for k in range(across):
            manner = rng.choice(["inline", "columns", "above", "blanks"])
            at = fields(rng, look, rng.randint(1, 4), manner, False).draw(
                sheet, side + inner / across * k, y, inner / across * 0.95
            )
            low = max(low, at)
        y = low + look.step * rng.uniform(0.3, 1.5)
        if rng.random() < 0.3:
            heads = table(
                rng,
                look,
                columns=rng.randint(2, 5),
                rows=rng.randint(1, 2),
                rules=rng.choice(["none", "none", "head"]),
                plain=True,
            )
            if heads.width < inner:
                y = heads.draw(sheet, side, y, rng) + look.step
        elif rng.random() < 0.3:
            y = paragraph(
                sheet,
                side,
                y,
                inner * rng.uniform(0.5, 1),
                look.scaled(0.8),
                rng,
                lines=rng.randint(1, 3),
                align=rng.choice(["left", "center"]),
            )
    sheet.right = width
    return finish(sheet, side / 2)


# --- tables -------------------------------------------------------------------------------------------------


def table_crop(rng: Random) -> Image.Image:
    """A table cut out of a page, perhaps with its caption and notes."""
    look = style(rng, rng.choice([9, 11, 13, 16, 20, 26]))
    grid = table(rng, look)
    if grid.width > 1500:
        grid = table(rng, look.scaled(0.7), columns=rng.randint(2, 6))
    if rng.random() < 0.25:
        grid = table(rng, look, room=grid.width * rng.uniform(1.2, 2), rules=grid.rules)
    margin = rng.choice([0, 2, 5, 15, 40])
    sheet = Sheet(int(grid.width + 2 * margin + 8), int(grid.height + 400 + 2 * margin), *colours(rng))
    y = float(margin)
    if rng.random() < 0.22:
        align = rng.choice(["left", "center"])
        y = paragraph(
            sheet,
            margin,
            y,
            grid.width,
            look,
            rng,
            lines=rng.randint(1, 3),
            align=align,
            bold=rng.random() < 0.4,
        )
        y += look.step * rng.uniform(0.1, 0.8)
    y = grid.draw(sheet, margin, y, rng)
    if rng.random() < 0.15:
        y = paragraph(
            sheet, margin, y + 3, grid.width, look.scaled(0.85), rng, lines=rng.randint(1, 3), align="left"
        )
    sheet.used(margin + grid.width, y)
    return finish(sheet, margin)


def table_part(rng: Random) -> Image.Image:
    """A window onto a larger table: heads or edges may be cut off."""
    whole = table_crop(rng)
    width, height = whole.size
    left, top = (
        width * rng.choice([0, 0, rng.uniform(0, 0.2)]),
        height * rng.choice([0, 0, rng.uniform(0, 0.4)]),
    )
    right, bottom = (
        width * rng.choice([1, 1, rng.uniform(0.7, 1)]),
        height * rng.choice([1, rng.uniform(0.6, 1)]),
    )
    return whole.crop((int(left), int(top), max(int(right), int(left) + 20), max(int(bottom), int(top) + 20)))


def table_page(rng: Random) -> Image.Image:
    """A page that is mostly tables: a statement, a timetable, an appendix."""
    width, height = page_size(rng)
    if rng.random() < 0.4:
        width, height = height, width
    sheet = Sheet(width, height, *colours(rng))
    side = width * rng.uniform(0.04, 0.12)
    inner = width - 2 * side
    look = style(rng, max(7, round(width / rng.uniform(50, 95))))
    y = height * rng.uniform(0.03, 0.08)
    if rng.random() < 0.7:
        for _ in range(rng.randint(1, 3)):
            y = paragraph(
                sheet,
                side,
                y,
                inner,
                look.scaled(rng.uniform(1, 1.5)),
                rng,
                lines=1,
                align=rng.choice(["center", "left"]),
                bold=True,
            )
        y += look.step * rng.uniform(0.3, 1)
    shared = rng.choice([None, "full", "booktabs", "none", "horizontal"])
    attempts = 0
    while y < height * 0.75 and attempts < 8:
        attempts += 1
        rows = max(3, int((height * 0.9 - y) / look.step / rng.uniform(1.2, 3)))
        grid = table(
            rng,
            look,
            room=inner * rng.choice([1, 1, 0.7]),
            rows=min(rows, 45),
            rules=shared,
            columns=rng.randint(3, 10),
        )
        if grid.width > inner * 1.02 or y + grid.height > height * 0.97:
            look = look.scaled(0.93)
            continue
        if rng.random() < 0.4:
            y = paragraph(sheet, side, y, inner, look, rng, lines=1, align="left", bold=True)
        y = grid.draw(sheet, side, y, rng) + look.step * rng.uniform(0.5, 2)
        if rng.random() < 0.25:
            y = paragraph(sheet, side, y, inner, look.scaled(0.9), rng, lines=rng.randint(1, 3), align="left")
            y += look.step
        if rng.random() < 0.5:
            break
    if attempts == 8:
        return table_crop(rng)
    return sheet.image if rng.random() < 0.5 else finish(sheet, side / 2)


def wide_heads(rng: Random) -> Image.Image:
    """Two or three columns under heads: the kinds of table nearest to a list of fields."""
    look = style(rng, rng.choice([10, 13, 17, 22]))
    rules = rng.choices(
        ["booktabs", "full", "horizontal", "head", "vertical", "none"], [40, 20, 12, 12, 8, 4]
    )[0]
    grid = table(rng, look, columns=rng.choice([2, 2, 3]), rows=rng.randint(3, 16), rules=rules)
    if rng.random() < 0.5:
        grid = table(
            rng,
            look,
            columns=rng.choice([2, 2, 3]),
            rows=rng.randint(3, 16),
            rules=rules,
            room=grid.width * rng.uniform(1.1, 1.9),
        )
    margin = rng.choice([0, 3, 10, 30])
    sheet = Sheet(int(grid.width + 2 * margin + 6), int(grid.height + 2 * margin + 20), *colours(rng))
    y = grid.draw(sheet, margin, margin, rng)
    sheet.used(margin + grid.width, y)
    return finish(sheet, margin)


RECIPES: dict[str, list[tuple[Callable[[Random], Image.Image], float]]] = {
    "text": [
        (paper_page, 30),
        (paragraph_crop, 22),
        (single_lines, 16),
        (letter, 6),
        (slide, 7),
        (handwriting, 6),
        (web_page, 7),
        (vertical, 5),
        (references, 5),
    ],
    "key-value": [(receipt, 36), (invoice, 24), (form, 20), (field_list, 14), (card, 8)],
    "table": [(table_crop, 44), (table_part, 16), (table_page, 18), (wide_heads, 14)],
}


# Kinds that lie near another route, drawn once more: short crops, framed and ruled text, narrow tables.
NEAR: dict[str, list[tuple[Callable[[Random], Image.Image], float]]] = {
    "text": [(short_crop, 40), (notice, 20), (web_page, 20), (single_lines, 10), (paragraph_crop, 10)],
    "key-value": [(receipt, 40), (attribute_list, 28), (field_list, 14), (card, 9), (form, 9)],
    "table": [(wide_heads, 40), (table_part, 30), (table_crop, 30)],
}


def document(
    rng: Random, route: str, recipes: dict[str, list[tuple[Callable[[Random], Image.Image], float]]]
) -> Image.Image:
    """Draw one random document of a route."""
    makers, weights = zip(*recipes[route], strict=True)
    return rng.choices(makers, weights)[0](rng)
