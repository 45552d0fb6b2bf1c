"""A JSON schema is filled with what stands on a page, so that the answer follows it; nothing is made up."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from gateway.engines.embedded.json_schema import EMAIL, URL, UUID, JsonSchema, NotUnderstood, merged, same
from gateway.engines.embedded.pairs import NUMBER, PageValues, find_pairs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gateway.engines.embedded.json_schema import Node
    from gateway.engines.embedded.pairs import Rows

_MAX_DEPTH = 8
# Fields that are looked up, each of which is compared with all labels of the page.
_MAX_FIELDS = 2_000
_LIKE_INT = 2**53

_YEAR_FIRST = re.compile(r"(\d{4})\s?[-/.\u5e74]\s?(\d{1,2})\s?[-/.\u6708]\s?(\d{1,2})")
_YEAR_LAST = re.compile(r"(\d{1,2})\s?([-/.])\s?(\d{1,2})\s?\2\s?(\d{4})")
_DAY_FIRST = re.compile(r"(\d{1,2})[-\s]?([a-z]{3})[a-z]*[-,.\s]*(\d{4})", re.IGNORECASE)
_MONTH_FIRST = re.compile(r"([a-z]{3})[a-z]*[-.\s]*(\d{1,2})[,\s]+(\d{4})", re.IGNORECASE)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = re.compile(r"\b([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?\b")
_BOOLEANS = {"yes": True, "true": True, "no": False, "false": False}
_BETWEEN_ITEMS = re.compile(r"[;,]\s")

_NOTHING = object()


class Unfillable(Exception):
    """A schema asks for what the page does not have.

    Attributes:
        message: which field, and what would help.
    """

    def __init__(self, where: str, wanted: str) -> None:
        self.message = (
            f"the page has no value for {f'`{where}`' if where else 'the answer'}: {wanted}; let the JSON "
            "schema allow null there, or leave it out of `required`"
        )
        super().__init__(self.message)


def fill(schema: Mapping[str, Any], rows: Rows) -> Any:
    """Fill in a form: what is not found is an empty string or null, and a list of records is empty."""
    try:
        form = JsonSchema(schema, tolerant=True)
        value, _ = _Filler(form, rows, lenient=True).value([""], form.root, "", 0)
    except (NotUnderstood, Unfillable, RecursionError):
        return None
    return value


def fill_strictly(schema: JsonSchema, rows: Rows) -> tuple[Any, int]:
    """Return an answer that follows a schema, and how many of its values were found on the page.

    What is not found is left out where it need not be there, else null or an empty string where these are
    allowed.

    Raises:
        Unfillable: no such answer can be made of the page.
        NotUnderstood: it takes too long to find one.
    """
    try:
        value, found = _Filler(schema, rows, lenient=False).value([""], schema.root, "", 0)
        if not schema.valid(value, schema.root):
            raise Unfillable("", "what was found does not follow the JSON schema as a whole")
    except RecursionError:
        raise NotUnderstood("the JSON schema is nested too deeply") from None
    return value, found


def chosen(choices: Iterable[str], text: str) -> str | None:
    """Return the choice that a text has as words of its own; None where it has none or several."""
    present = [choice for choice in choices if choice and _has_words(text, choice)]
    # `Paid` is no choice of its own in `Not paid`.
    longest = [
        choice
        for choice in present
        if not any(choice != other and choice.casefold() in other.casefold() for other in present)
    ]
    return longest[0] if len(longest) == 1 else None


def _has_words(text: str, words: str) -> bool:
    return bool(re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text, re.IGNORECASE))


class _Filler:
    def __init__(self, schema: JsonSchema, rows: Rows, *, lenient: bool) -> None:
        self._schema = schema
        self._page = PageValues(rows)
        self._lenient = lenient
        self._fields = 0

    def value(self, names: list[str], node: Node, where: str, depth: int) -> tuple[Any, int]:
        """Return a value that follows a part of the schema, and how many of its values the page has.

        Raises:
            Unfillable: there is none.
            NotUnderstood: that takes too long to find out.
        """
        self._schema.step()
        node = self._plain(node)
        if node is False:
            raise Unfillable(where, "the JSON schema allows no value")
        alternatives = list(_alternatives(node))
        if len(alternatives) != 1 or alternatives[0] is not node:
            return self._first_that_fits(alternatives, node, names, where, depth)
        if isinstance(node.get("title"), str):
            names = [names[0], node["title"]]
        found: tuple[Any, int]
        match _kind(node):
            case "object":
                found = self._object(node, where, depth)
            case "array":
                found = self._array(names, node, where)
            case kind:
                found = self._leaf(names, node, where, kind)
        if not (self._lenient or self._schema.valid(found[0], node)):
            raise Unfillable(where, "what was found does not follow the JSON schema")
        return found

    def _plain(self, node: Node) -> Any:
        """Return a node without reference and `allOf`."""
        for _ in range(_MAX_DEPTH):
            node = self._schema.resolved(node)
            if isinstance(node, bool):
                return False if node is False else {}
            if "allOf" not in node:
                break
            parts = node["allOf"]
            node = {name: value for name, value in node.items() if name != "allOf"}
            for part in parts:
                node = merged(self._schema.resolved(part), node)
        return node

    def _first_that_fits(
        self, alternatives: Sequence[Node], whole: Node, names: list[str], where: str, depth: int
    ) -> tuple[Any, int]:
        """Fill in the first alternative of which something is found; else leave it null where that may be."""
        fits: list[tuple[Any, int]] = []
        failed = Unfillable(where, "none of its alternatives fits")
        for node in sorted(alternatives, key=_is_null):
            try:
                value, found = self.value(names, node, where, depth + 1)
            except Unfillable as error:
                failed = error
                continue
            if not (self._lenient or self._schema.valid(value, whole)):
                continue
            if found:
                return value, found
            # An empty string says less than null does.
            fits.insert(0 if value is None else len(fits), (value, found))
        if not fits:
            raise failed
        return fits[0]

    def _object(self, node: Mapping[str, Any], where: str, depth: int) -> tuple[dict[str, Any], int]:
        others = node.get("additionalProperties", True)
        properties = {**dict.fromkeys(node.get("required", ()), others), **node.get("properties", {})}
        required = frozenset(node.get("required", ()))
        if not properties:
            pairs = find_pairs(self._page.rows) if depth == 0 and others is not False else {}
            typed = {name: self._converted(text, others) for name, text in pairs.items()}
            kept = {name: value for name, value in typed.items() if value is not _NOTHING}
            return kept, len(kept)
        if depth >= _MAX_DEPTH:
            return {}, 0
        filled: dict[str, Any] = {}
        total = 0
        for name, inner in properties.items():
            try:
                filled[name], found = self.value(
                    [name], inner, f"{where}.{name}".removeprefix("."), depth + 1
                )
                total += found
            except Unfillable:
                if self._lenient:
                    filled[name] = None
                elif name in required:
                    raise
        return filled, total

    def _array(self, names: list[str], node: Mapping[str, Any], where: str) -> tuple[list[Any], int]:
        items = node.get("items", {})
        plain = self._plain(items)
        values: list[Any] = []
        if isinstance(plain, dict) and _kind(plain) not in ("object", "array"):
            text = next(self._texts(names, _kind(plain)), "")
            for part in _BETWEEN_ITEMS.split(text):
                value = self._converted(part.strip(), items)
                repeated = node.get("uniqueItems") and any(same(value, other) for other in values)
                if value not in ("", None, _NOTHING) and not repeated:
                    values.append(value)
        values = values[: int(node.get("maxItems", len(values)))]
        if not self._lenient and len(values) < node.get("minItems", 0):
            raise Unfillable(
                where, f"at least {int(node['minItems'])} items are required, found {len(values)}"
            )
        return values, len(values)

    def _leaf(self, names: list[str], node: Mapping[str, Any], where: str, kind: str) -> tuple[Any, int]:
        if kind == "null":
            return None, 0
        choices = [node["const"]] if "const" in node else node.get("enum", [])
        if len(choices) == 1 and not self._lenient:
            return choices[0], 0
        for text in self._texts(names, kind):
            value = self._converted(text, node)
            if value is not _NOTHING:
                return value, 1
        texts = [choice for choice in choices if isinstance(choice, str)]
        if not self._lenient and texts and (only := chosen(texts, self._page.text)) is not None:
            return only, 1
        for empty in ("", None) if kind == "string" else (None,):
            if self._schema.valid(empty, node):
                return empty, 0
        wanted = (
            "one of the values that it may have" if choices else f"{_NAMED.get(kind, kind)}{_bounds(node)}"
        )
        raise Unfillable(where, f"{wanted} is required")

    def _texts(self, names: list[str], kind: str) -> Iterator[str]:
        self._fields += 1
        if self._fields > _MAX_FIELDS:
            raise NotUnderstood(f"the JSON schema asks for more than {_MAX_FIELDS:,} values")
        return self._page.of(names, numeric=kind in ("number", "integer"))

    def _converted(self, text: str, node: Node) -> Any:
        """Return what a text on the page is as a value of a schema; _NOTHING where it is none."""
        node = self._plain(node)
        if isinstance(node, bool):
            return _NOTHING
        for alternative in sorted(_alternatives(node), key=_is_null):
            if alternative is not node:
                value = self._converted(text, alternative)
                if value is not _NOTHING:
                    return value
                continue
            for value in _read_as(text, node):
                if self._schema.valid(value, node):
                    return value
        return _NOTHING


def _alternatives(node: Any) -> Iterator[Any]:
    """Yield what a node may be, each with one type at most; the node itself where it is only one thing."""
    for name in ("anyOf", "oneOf"):
        if isinstance(node, dict) and name in node:
            beside = {key: value for key, value in node.items() if key != name}
            yield from (merged(beside, one) if isinstance(one, dict) else one for one in node[name])
            return
    kinds = node.get("type") if isinstance(node, dict) else None
    if isinstance(kinds, list):
        yield from ({**node, "type": kind} for kind in kinds)
    else:
        yield node


def _kind(node: Mapping[str, Any]) -> str:
    """The type that a value must have, or is taken to have; empty for any."""
    kind = node.get("type")
    if isinstance(kind, str):
        return kind
    if "enum" in node or "const" in node:
        return ""
    if "properties" in node:
        return "object"
    return "array" if "items" in node else "string" if "pattern" in node or "format" in node else ""


def _is_null(node: Node) -> bool:
    return isinstance(node, dict) and node.get("type") == "null"


_NAMED = {
    "string": "a string",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "": "a value",
}


def _bounds(node: Mapping[str, Any]) -> str:
    """What else is asked of a value, in words."""
    words = [f"`{name}`" for name in ("format", "pattern", "minLength", "maxLength") if name in node]
    words += [f"`{name}`" for name in ("minimum", "maximum", "multipleOf") if name in node]
    return f" ({', '.join(words)})" if words else ""


def _read_as(text: str, node: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what a text may be as a value of a node without alternatives, the likeliest first."""
    choices = [node["const"]] if "const" in node else node.get("enum")
    kind = _kind(node)
    if choices is not None:
        yield from _choices_in(text, choices)
    elif kind in ("number", "integer"):
        if (number := _number(text)) is not None:
            yield from _as_json(number, whole=kind == "integer")
    elif kind == "boolean":
        if (found := _BOOLEANS.get(text.casefold().strip(" ."))) is not None:
            yield found
    elif kind in ("string", "") and text:
        yield from _formatted(text, node.get("format"))
        yield text
        if "pattern" in node:
            yield from _formatted(text, "date")
            yield from text.split()


def _choices_in(text: str, choices: list[Any]) -> Iterator[Any]:
    near = [choice for choice in choices if isinstance(choice, str) and choice.casefold() in text.casefold()]
    yield from sorted(filter(None, near), key=len, reverse=True)
    number = _number(text)
    yield from (choice for choice in choices if number is not None and same(choice, float(number)))


def _formatted(text: str, form: str | None) -> Iterator[str]:
    match form:
        case "date":
            yield from filter(None, [_iso_date(text)])
        case "time":
            yield from filter(None, [_iso_time(text)])
        case "date-time":
            if (date := _iso_date(text)) and (time := _iso_time(text)):
                yield f"{date}T{time}"
        case "email" | "uri" | "uuid":
            yield from {"email": EMAIL, "uri": URL, "uuid": UUID}[form].findall(text)


def _iso_date(text: str) -> str | None:
    """Read a date; None where there is none, or where day and month cannot be told apart."""
    if found := _YEAR_FIRST.search(text):
        year, month, day = map(int, found.groups())
    elif found := _YEAR_LAST.search(text):
        first, second, year = int(found[1]), int(found[3]), int(found[4])
        if found[2] != "." and first <= 12 and second <= 12 and first != second:
            return None
        day, month = (first, second) if second <= 12 else (second, first)
    elif found := _DAY_FIRST.search(text):
        day, month, year = int(found[1]), _month(found[2]), int(found[3])
    elif found := _MONTH_FIRST.search(text):
        month, day, year = _month(found[1]), int(found[2]), int(found[3])
    else:
        return None
    try:
        return datetime.date(year, month, day).isoformat()
    except ValueError:
        return None


def _month(name: str) -> int:
    return _MONTHS.index(name.casefold()) + 1 if name.casefold() in _MONTHS else 0


def _iso_time(text: str) -> str | None:
    found = _CLOCK.search(text)
    return f"{int(found[1]):02}:{found[2]}:{found[3] or '00'}" if found else None


def _number(text: str) -> Decimal | None:
    """Read the first number of a text, whichever mark it has for decimals."""
    match = NUMBER.search(text)
    if match is None:
        return None
    digits = re.sub(r"[^\d,.]", "", match.group())
    mark = max(digits.rfind(","), digits.rfind("."))
    tail = digits[mark + 1 :]
    # `1,234` counts thousands and `1.234` does not; a mark that comes twice always does.
    if mark < 0 or digits.count(digits[mark]) > 1 or (digits[mark] == "," and len(tail) == 3):
        mark, tail = len(digits), "0"
    value = Decimal(re.sub(r"\D", "", digits[:mark]) + "." + tail)
    return -value if match.group()[0] in "-(" else value


def _as_json(number: Decimal, *, whole: bool) -> Iterator[int | float]:
    """Yield a number as JSON has it, and nothing where a whole one is asked for that it is not."""
    is_whole = number == number.to_integral_value()
    if whole and not is_whole:
        return
    # A float has no more digits.
    yield int(number) if whole or (is_whole and abs(number) >= _LIKE_INT) else float(number)
