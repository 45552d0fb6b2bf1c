"""Whole synthetic documents whose route is table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.layout.blocks import Sheet, paragraph, style, table
from training.layout.sheets import colours, finish, page_size

if TYPE_CHECKING:
    from random import Random

    from PIL import Image


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
