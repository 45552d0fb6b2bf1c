"""Which kinds of synthetic documents there are for each route, and how often each is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.layout import key_value_pages, table_pages, text_pages

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from PIL import Image


RECIPES: dict[str, list[tuple[Callable[[Random], Image.Image], float]]] = {
    "text": [
        (text_pages.paper_page, 30),
        (text_pages.paragraph_crop, 22),
        (text_pages.single_lines, 16),
        (text_pages.letter, 6),
        (text_pages.slide, 7),
        (text_pages.handwriting, 6),
        (text_pages.web_page, 7),
        (text_pages.vertical, 5),
        (text_pages.references, 5),
    ],
    "key-value": [
        (key_value_pages.receipt, 36),
        (key_value_pages.invoice, 24),
        (key_value_pages.form, 20),
        (key_value_pages.field_list, 14),
        (key_value_pages.card, 8),
    ],
    "table": [
        (table_pages.table_crop, 44),
        (table_pages.table_part, 16),
        (table_pages.table_page, 18),
        (table_pages.wide_heads, 14),
    ],
}


# Kinds that lie near another route, drawn once more: short crops, framed and ruled text, narrow tables.
NEAR: dict[str, list[tuple[Callable[[Random], Image.Image], float]]] = {
    "text": [
        (text_pages.short_crop, 40),
        (text_pages.notice, 20),
        (text_pages.web_page, 20),
        (text_pages.single_lines, 10),
        (text_pages.paragraph_crop, 10),
    ],
    "key-value": [
        (key_value_pages.receipt, 40),
        (key_value_pages.attribute_list, 28),
        (key_value_pages.field_list, 14),
        (key_value_pages.card, 9),
        (key_value_pages.form, 9),
    ],
    "table": [(table_pages.wide_heads, 40), (table_pages.table_part, 30), (table_pages.table_crop, 30)],
}


def document(
    rng: Random, route: str, recipes: dict[str, list[tuple[Callable[[Random], Image.Image], float]]]
) -> Image.Image:
    """Draw one random document of a route."""
    makers, weights = zip(*recipes[route], strict=True)
    return rng.choices(makers, weights)[0](rng)
