"""Which route a request belongs to: the strongest evidence wins, and says so."""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gateway.errors import BadRequest
from gateway.model import Reason, SortDecision
from gateway.policy.sort.prompts import EXACT, KEY_VALUE, PATTERNS, STARTS, TABLE, TEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.model import LayoutGuess, SortFacts

# A layout guess below this says nothing: with three classes, a third is chance.
MIN_CONFIDENCE = 0.4

# The text looked at: longer than any known prompt, short enough for an operator's pattern.
PROMPT_CHARS = 8_192

# The time that a run of combining marks takes to be put in order grows with the square of its length.
_PIECE_CHARS = 256

_SPECIAL_TOKENS = re.compile(r"<image>|<\|[^|<>]{1,40}\|>|</?(?:img|ref|grounding)>")
_TRAILING = " \t\n.,:;!?。,:;!?"
_LAYOUT_WORDS = re.compile(r"\b(?:bbox|bounding box(?:es)?|layout)\b", re.IGNORECASE)

# The text searched for a JSON object to fill in: schemas in prompts are long.
_JSON_CHARS = 65_536
_JSON_STARTS_TRIED = 16
# More elements and levels than a form to be filled in has; at each start that is tried all may be read.
_JSON_ELEMENTS = 4_096
_JSON_LEVELS = 64
# What stands in a JSON object where a value is to be filled in.
_TO_FILL_IN = re.compile(
    r"(?:verbatim-)?(?:str(?:ing)?|int(?:eger)?|float|number|bool(?:ean)?|date(?:-?time)?|time|null|none|"
    r"text|currency|email|phone(?:-number)?|url|array|list|object)(?:\s*\|\s*null)?(?:\s*\(.*\))?"
    r"|[YMDHS]{1,4}(?:[-/.: T]+[YMDHS]{1,4})+|\.{3}|…|<[^<>]*>",
    re.IGNORECASE | re.DOTALL,
)
_CHOICE_CHARS = 40
# How dspy's adapters end a prompt: with the names of the fields to answer with.
_NAMED_FIELDS = re.compile(
    r"Respond with (?:the corresponding output fields|a JSON object in the following order of fields)"
    r"(.{1,4000})"
)
_FIELD_NAME = re.compile(r"`(?:\[\[ ## |<)?(\w{1,100})(?: ## \]\]|>)?`")
# What models are made to write before they answer; and dspy's mark behind the last field.
_BESIDE_ANSWER = frozenset(("reasoning", "rationale", "completed"))

# Names at the root of a schema that tell what it describes.
_BOXES = frozenset(("bbox", "bbox_2d", "bounding_box"))
_SHAPES, _LABELS = frozenset(("box", "polygon")), frozenset(("label", "category", "class", "type"))
_ROWS = frozenset(("row", "rows", "cell", "cells", "column", "columns", "headers", "table", "tables"))
_BESIDE_ROWS = frozenset(("header", "data", "title", "caption", "name", "notes", "html"))
_WRITING = frozenset(("text", "content", "markdown", "natural_text", "html"))
_BESIDE_WRITING = frozenset(
    (
        "language",
        "primary_language",
        "is_rotation_valid",
        "rotation_correction",
        "is_table",
        "is_diagram",
        "title",
    )
)


@dataclass(frozen=True, slots=True)
class SortRules:
    """The configured routes, the default among them, and operators' own prompt patterns by route."""

    routes: tuple[str, ...]
    default: str
    prompts: Mapping[str, tuple[re.Pattern[str], ...]] = field(default_factory=dict)


def normalise(prompt: str) -> str:
    """Reduce a prompt to what known prompts are compared by; the original is what gets forwarded."""
    text = _SPECIAL_TOKENS.sub(" ", prompt[:PROMPT_CHARS])
    if not text.isascii():  # which already is in that form
        pieces = (text[start : start + _PIECE_CHARS] for start in range(0, len(text), _PIECE_CHARS))
        text = "".join(unicodedata.normalize("NFKC", piece) for piece in pieces)[:PROMPT_CHARS]
    return " ".join(text.split()).lstrip("- ").rstrip(_TRAILING + "- ").casefold()


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
    prompt = normalise(facts.prompt) or normalise(facts.system)
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
    text = f"{facts.system[:_JSON_CHARS]}\n{facts.prompt[:_JSON_CHARS]}"
    schema = facts.schema if facts.schema is not None else _embedded_schema(text)
    if schema is not None:
        return _route_of_names(_property_names(schema))
    if names := _named_fields(facts.prompt):
        return _route_of_names(names)
    return KEY_VALUE if facts.wants_json and not _LAYOUT_WORDS.search(text) else None


def _named_fields(prompt: str) -> set[str]:
    """Return the fields that a prompt of dspy's asks for."""
    named = _NAMED_FIELDS.search(prompt) if "Respond with " in prompt else None
    return {name.casefold() for name in _FIELD_NAME.findall(named.group(1))} if named else set()


def _route_of_names(names: set[str]) -> str:
    """Boxes are layout, so text, as is bare writing; rows and cells are a table; other values key-value."""
    names = names - _BESIDE_ANSWER
    if names & _BOXES or (names & _SHAPES and names & _LABELS):
        return TEXT
    if names & _ROWS and names <= _ROWS | _BESIDE_ROWS:
        return TABLE
    if names & _WRITING and names <= _WRITING | _BESIDE_WRITING:
        return TEXT
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


def json_objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects that stand in a text, the empty ones left out."""
    if sum(map(text.count, ",[{")) > _JSON_ELEMENTS:
        return
    decoder = json.JSONDecoder()
    position = text.find("{")
    for _ in range(_JSON_STARTS_TRIED):
        if position < 0:
            return
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            if value:
                yield value
        position = text.find("{", end)


def _embedded_schema(text: str) -> Mapping[str, Any] | None:
    """The schema of a JSON object in a text that is to be filled in, or that is a schema itself."""
    if "{" not in text:
        return None
    for value in itertools.chain(json_objects(text), json_objects(text.replace("'", '"'))):
        if isinstance(value.get("properties"), dict):
            return value
        if _is_blank(value):
            return {"properties": value}
    return None


def _is_blank(value: object, levels: int = _JSON_LEVELS) -> bool:
    match value:
        case dict() | list() if not levels:
            return False
        case dict():
            return all(_is_blank(item, levels - 1) for item in value.values())
        case list():
            return all(
                _is_blank(item, levels - 1) or (isinstance(item, str) and len(item) <= _CHOICE_CHARS)
                for item in value
            )
        case str():
            return not value or bool(_TO_FILL_IN.fullmatch(value))
    return not value
