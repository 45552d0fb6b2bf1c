"""Which route a request belongs to: the strongest evidence wins, and says so."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gateway.errors import BadRequest
from gateway.model import Reason, SortDecision
from gateway.policy.prompts import EXACT, KEY_VALUE, PATTERNS, STARTS, TABLE, TEXT

if TYPE_CHECKING:
    from gateway.model import LayoutGuess, SortFacts

# A layout guess below this says nothing: with three classes, a third is chance.
MIN_CONFIDENCE = 0.4

# The text looked at: longer than any known prompt, short enough for an operator's pattern.
PROMPT_CHARS = 8_192

_SPECIAL_TOKENS = re.compile(r"<image>|<\|[^|<>]{1,40}\|>|</?(?:img|ref|grounding)>")
_TRAILING = " \t\n.,:;!?。,:;!?"
_LAYOUT_WORDS = re.compile(r"\b(?:bbox|bounding box(?:es)?|categor(?:y|ies)|layout)\b", re.IGNORECASE)
_JSON_STARTS_TRIED = 16
_TYPE_NAMES = re.compile(
    r"(?:verbatim-)?(?:str(?:ing)?|int(?:eger)?|float|number|bool(?:ean)?|date(?:-?time)?|time|null|none|"
    r"text|currency|email|phone(?:-number)?|url|array|list|object)(?:\s*\|\s*null)?|\.{3}|…|<[^<>]*>",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class SortRules:
    """The configured routes, the default among them, and operators' own prompt patterns by route."""

    routes: tuple[str, ...]
    default: str
    prompts: Mapping[str, tuple[re.Pattern[str], ...]] = field(default_factory=dict)


def normalise(prompt: str) -> str:
    """Reduce a prompt to what known prompts are compared by; the original is what gets forwarded."""
    text = unicodedata.normalize("NFKC", _SPECIAL_TOKENS.sub(" ", prompt[:PROMPT_CHARS]))
    return " ".join(text.split()).strip("- ").rstrip(_TRAILING).casefold()


def sort(facts: SortFacts, rules: SortRules) -> SortDecision | None:
    """Sort a request by everything but its pixels; None where only the image can tell.

    Raises:
        BadRequest: a hint (header, model alias, metadata) names a route that is not configured.
    """
    for hint, kind, param in (
        (facts.header, Reason.HEADER, "x-ocr-route"),
        (facts.alias, Reason.MODEL, "model"),
        (facts.metadata, Reason.METADATA, "metadata.ocr_route"),
    ):
        if hint is not None:
            return SortDecision(_configured(hint, rules, param), kind)
    prompt = normalise(facts.prompt)
    evidence = (
        (_known(prompt, rules), Reason.PROMPT),
        (_structure(facts), Reason.STRUCTURE),
        (_started(prompt), Reason.PROMPT),
    )
    for route, reason in evidence:
        if route is not None and route in rules.routes:
            return SortDecision(route, reason)
    return None if facts.has_image else by_default(rules)


def by_default(rules: SortRules) -> SortDecision:
    """Sort a request that nothing tells apart."""
    return SortDecision(rules.default, Reason.DEFAULT)


def sort_by_layout(guess: LayoutGuess, rules: SortRules) -> SortDecision:
    """Sort by what the image looks like, or to the default route where that is unclear."""
    if guess.confidence < MIN_CONFIDENCE or guess.route not in rules.routes:
        return by_default(rules)
    return SortDecision(guess.route, Reason.IMAGE, guess.confidence)


def _configured(hint: str, rules: SortRules, param: str) -> str:
    if hint in rules.routes:
        return hint
    raise BadRequest(
        f"unknown route in {param}; the routes here are: {', '.join(rules.routes)}",
        param=param,
        code="unknown_route",
    )


def _known(prompt: str, rules: SortRules) -> str | None:
    for route, patterns in rules.prompts.items():
        if any(pattern.search(prompt) for pattern in patterns):
            return route
    if prompt in EXACT:
        return EXACT[prompt]
    return next((route for pattern, route in PATTERNS if pattern.fullmatch(prompt)), None)


def _started(prompt: str) -> str | None:
    return next((route for start, route in STARTS if prompt.startswith(start)), None)


def _structure(facts: SortFacts) -> str | None:
    if facts.template_mode in ("markdown", "content"):
        return TEXT
    if facts.template:
        return KEY_VALUE
    text = f"{facts.system[:PROMPT_CHARS]}\n{facts.prompt[:PROMPT_CHARS]}"
    if facts.schema is not None:
        return _route_of_schema(facts.schema)
    if _LAYOUT_WORDS.search(text):
        return None
    if facts.wants_json or _embeds_fields(text):
        return KEY_VALUE
    return None


def _route_of_schema(schema: Mapping[str, Any]) -> str | None:
    """A schema of named values is key-value; rows and cells are a table; boxes with labels are layout."""
    names = _property_names(schema)
    if names & {"bbox", "bbox_2d", "box", "bounding_box", "polygon", "category"}:
        return TEXT
    if names and names <= {"rows", "row", "cells", "cell", "columns", "header", "headers", "table", "html"}:
        return TABLE
    return KEY_VALUE


def _property_names(schema: Mapping[str, Any]) -> set[str]:
    """Names at the root of a schema, through the array, wrapper or $ref that clients put around them."""
    definitions = schema.get("$defs") or schema.get("definitions")
    node: object = schema
    names: set[str] = set()
    for _ in range(4):
        if not isinstance(node, Mapping):
            break
        reference = node.get("$ref")
        if isinstance(reference, str) and isinstance(definitions, Mapping):
            node = definitions.get(reference.rsplit("/", 1)[-1])
            continue
        properties = node.get("properties")
        if isinstance(properties, Mapping):
            names |= {str(name).casefold() for name in properties}
            if len(properties) != 1:
                break
            node = next(iter(properties.values()))
        else:
            node = node.get("items")
    return names


def _embeds_fields(text: str) -> bool:
    """Whether a text holds a JSON object to fill in: empty or type-name values, or a schema."""
    decoder = json.JSONDecoder()
    position = text.find("{")
    for _ in range(_JSON_STARTS_TRIED):
        if position < 0:
            return False
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            if value and (_is_blank(value) or isinstance(value.get("properties"), dict)):
                return True
        position = text.find("{", end)
    return False


def _is_blank(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_blank, value.values()))
    if isinstance(value, list):
        return all(map(_is_blank, value))
    return value is None or (isinstance(value, str) and (not value or bool(_TYPE_NAMES.fullmatch(value))))
