"""Whole synthetic documents whose route is text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PIL import Image

from training.layout.blocks import Sheet, Style, paragraph, picture, style
from training.layout.sheets import colours, finish, page_size

if TYPE_CHECKING:
    from random import Random


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
