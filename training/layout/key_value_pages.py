"""Whole synthetic documents whose route is key-value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.layout import words
from training.layout.blocks import Sheet, Style, barcode, fields, paragraph, picture, style, table
from training.layout.sheets import colours, finish, page_size

if TYPE_CHECKING:
    from random import Random

    from PIL import Image


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
