"""JSON Schema (2020-12) as far as this engine understands it: which schemas those are, and what follows them.

Keywords that do not bear on validity, such as `title`, and those that the standard does not have are passed
over. A keyword of the standard that is not understood is refused, since an answer might not follow it.
"""

from __future__ import annotations

import copy
import datetime
import json
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import StringConstraints, TypeAdapter, ValidationError
from pydantic_core import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# A schema may also be true or false.
Node = Any

# A regular expression may be compiled to as much as 10 MB, whatever its length.
_MAX_PATTERNS = 16
_MAX_PATTERN_CHARS = 4_096
# Parts of a schema that a value is compared with: alternatives of alternatives double with every level.
_MAX_STEPS = 100_000

_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_REFUSED = frozenset(
    (
        *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"),
        *("prefixItems", "additionalItems", "contains", "minContains", "maxContains", "unevaluatedItems"),
        *("patternProperties", "propertyNames", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"),
    )
)
_IN_LISTS = ("anyOf", "oneOf", "allOf")
_IN_OBJECTS = ("properties", "$defs", "definitions")
_ALONE = ("items", "additionalProperties")


def _is_schema(value: object) -> bool:
    return isinstance(value, dict | bool)


def _is_count(value: object) -> bool:
    return is_number(value) and value == int(value) and value >= 0  # type: ignore[call-overload, operator]


def is_number(value: object) -> bool:
    """Whether a value is a JSON number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


# By keyword: what its value must be, as a check and in words.
_SHAPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "type": (
        lambda value: all(one in _TYPES for one in (value if isinstance(value, list) and value else [value])),
        "one or several of " + ", ".join(_TYPES),
    ),
    **dict.fromkeys(
        _IN_OBJECTS,
        (
            lambda value: isinstance(value, dict) and all(map(_is_schema, value.values())),
            "an object of schemas",
        ),
    ),
    **dict.fromkeys(
        _IN_LISTS,
        (
            lambda value: isinstance(value, list) and bool(value) and all(map(_is_schema, value)),
            "a list of schemas",
        ),
    ),
    **dict.fromkeys(_ALONE, (_is_schema, "a schema")),
    "required": (
        lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
        "a list of names",
    ),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list of values"),
    **dict.fromkeys(("$ref", "pattern", "format"), (lambda value: isinstance(value, str), "a string")),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        (_is_count, "a whole number"),
    ),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), (is_number, "a number")),
    "multipleOf": (lambda value: is_number(value) and value > 0, "a number above 0"),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
}


def _is_date(text: str) -> bool:
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _is_time(text: str) -> bool:
    return bool(_TIME.fullmatch(text))


def _is_moment(text: str) -> bool:
    date, mark, time = text.partition("T")
    return mark == "T" and _is_date(date) and _is_time(time)


_TIME = re.compile(
    r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:Z|[-+](?:[01]\d|2[0-3]):[0-5]\d)?", re.ASCII
)
EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", re.ASCII)
URL = re.compile(r"https?://[!-;=?-\[\]_a-z~]+", re.IGNORECASE | re.ASCII)
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)

# A time may be without its offset, which pages do not tell.
_FORMATS: dict[str, Callable[[str], object]] = {
    "date": _is_date,
    "time": _is_time,
    "date-time": _is_moment,
    "email": EMAIL.fullmatch,
    "uri": URL.fullmatch,
    "uuid": UUID.fullmatch,
}


class NotUnderstood(ValueError):
    """A schema or a regular expression that is none, or that has more than is understood here."""


class Pattern:
    """A regular expression, searched for in time that is linear in the text's length."""

    def __init__(self, pattern: str) -> None:
        """Compile one; pydantic's engine does without backtracking, lookaround and back references.

        Raises:
            NotUnderstood: it is too long, or none that this engine knows.
        """
        if len(pattern) > _MAX_PATTERN_CHARS:
            raise NotUnderstood(f"a regular expression may have up to {_MAX_PATTERN_CHARS:,} characters")
        try:
            self._text = TypeAdapter(Annotated[str, StringConstraints(pattern=pattern, strict=True)])
        except SchemaError as error:
            raise NotUnderstood(
                f"{pattern[:80]!r} is too large, or no regular expression (lookaround and back references "
                "are not known)"
            ) from error

    def found_in(self, text: str) -> bool:
        """Whether it matches somewhere in a text."""
        try:
            self._text.validate_python(text)
        except ValidationError:
            return False
        return True


class JsonSchema:
    """A schema that is understood.

    Attributes:
        root: the schema itself.
    """

    def __init__(self, root: Node, *, tolerant: bool = False) -> None:
        """Take a schema.

        Args:
            root: the schema.
            tolerant: what is not understood is left out of it.

        Raises:
            NotUnderstood: it is none, or has what is not understood; the message names the place.
        """
        self.root = copy.deepcopy(root) if tolerant else root
        self._patterns: dict[str, Pattern] = {}
        self._steps = 0
        left: list[tuple[str, Node]] = [("", self.root)]
        while left:
            where, node = left.pop()
            if isinstance(node, dict):
                for name, fault in list(self._faults(where, node)):
                    if not tolerant:
                        raise NotUnderstood(fault)
                    del node[name]
                left += _below(where, node)
            elif not isinstance(node, bool):
                raise NotUnderstood(f"{where or 'the JSON schema'} must be an object")
        self._check_references(tolerant)

    def _faults(self, where: str, node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield the keywords of a node that are not understood, each with what is wrong."""
        at = f" at {where}" if where else ""
        for name, value in node.items():
            shape = _SHAPES.get(name)
            fault = ""
            if name in _REFUSED or (name == "items" and isinstance(value, list)):
                fault = "is not understood"
            elif shape and not shape[0](value):
                fault = f"must be {shape[1]}"
            elif name == "format" and value not in _FORMATS and "string" in _types_of(node):
                # A format says something of strings only.
                fault = f"{value[:40]!r} is not understood; these are: {', '.join(_FORMATS)}"
            elif name in ("pattern", "$ref"):
                try:
                    self._keep(value) if name == "pattern" else self._referred(value)
                except NotUnderstood as error:
                    fault = f"is not understood: {error}"
            if fault:
                yield name, f"the JSON schema's `{name}`{at} {fault}"

    def _keep(self, pattern: str) -> None:
        if pattern not in self._patterns:
            if len(self._patterns) == _MAX_PATTERNS:
                raise NotUnderstood(f"there are more than {_MAX_PATTERNS} regular expressions")
            self._patterns[pattern] = Pattern(pattern)

    def _check_references(self, tolerant: bool) -> None:
        """See that no schema leads back to itself for the same value: it would say nothing of any.

        Raises:
            NotUnderstood: one does.
        """
        done: set[int] = set()
        left = [("", self.root)]
        while left:
            where, start = left.pop()
            if not isinstance(start, dict):
                continue
            left += _below(where, start)
            path: list[tuple[Node, Iterator[Node]]] = [(start, self._in_place(start))]
            under_way = {id(start)}
            while path:
                node, others = path[-1]
                other = next((one for one in others if isinstance(one, dict) and id(one) not in done), None)
                if other is None:
                    path.pop()
                    under_way.discard(id(node))
                    done.add(id(node))
                elif id(other) not in under_way:
                    under_way.add(id(other))
                    path.append((other, self._in_place(other)))
                elif not tolerant:
                    raise NotUnderstood("a `$ref` of the JSON schema leads back to itself")
                else:
                    node.pop("$ref", None)

    def _in_place(self, node: Node) -> Iterator[Node]:
        """Yield the schemas that say something of the same value as a node."""
        if "$ref" in node:
            yield self._referred(node["$ref"])
        for name in _IN_LISTS:
            yield from node.get(name, ())

    def resolved(self, node: Node) -> Node:
        """Return a schema without a reference: what it refers to and what stands beside it, as one."""
        while isinstance(node, dict) and "$ref" in node:
            beside = {name: value for name, value in node.items() if name != "$ref"}
            target = self._referred(node["$ref"])
            node = merged(target, beside) if beside else target
        return node

    def _referred(self, reference: str) -> Node:
        node: Any = self.root
        start, *steps = reference.split("/")
        for step in steps:
            name = step.replace("~1", "/").replace("~0", "~")
            node = node.get(name) if isinstance(node, dict) else None
        if start != "#" or not _is_schema(node):
            raise NotUnderstood(f"{reference[:80]!r} is no schema in it")
        return node

    def valid(self, value: Any, node: Node) -> bool:
        """Whether a JSON value follows a part of this schema.

        Raises:
            NotUnderstood: that takes too long to find out, for this value and those before.
        """
        self.step()
        if isinstance(node, bool):
            return node
        if "$ref" in node and not self.valid(value, self._referred(node["$ref"])):
            return False
        return all(check(self, value, node[name], node) for name, check in _CHECKS if name in node)

    def step(self) -> None:
        """Count a part of the schema that was looked at.

        Raises:
            NotUnderstood: they are too many.
        """
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise NotUnderstood("the JSON schema has too many alternatives")

    def has_pattern(self, text: str, pattern: str) -> bool:
        """Whether a text has one of this schema's regular expressions."""
        return self._patterns[pattern].found_in(text)


def merged(first: Node, second: Node) -> Node:
    """Return what both say, as one schema; where they contradict each other, what the second says.

    It serves to find a value, which must then be checked against both.
    """
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return second if first is True else first
    both = {**first, **second}
    if "properties" in first and "properties" in second:
        properties = dict(first["properties"])
        for name, node in second["properties"].items():
            properties[name] = merged(properties[name], node) if name in properties else node
        both["properties"] = properties
    if "required" in first and "required" in second:
        both["required"] = [*first["required"], *second["required"]]
    return both


def _below(where: str, node: Mapping[str, Any]) -> Iterator[tuple[str, Node]]:
    """Yield the schemas in one, each with its place."""
    for name in _IN_OBJECTS:
        for key, inner in node.get(name, {}).items():
            yield f"{where}.{name}.{key[:40]}".removeprefix("."), inner
    for name in _IN_LISTS:
        for place, inner in enumerate(node.get(name, ())):
            yield f"{where}.{name}[{place}]".removeprefix("."), inner
    for name in _ALONE:
        if name in node:
            yield f"{where}.{name}".removeprefix("."), node[name]


def _types_of(node: Mapping[str, Any]) -> tuple[str, ...]:
    kind = node.get("type", _TYPES)
    return (kind,) if isinstance(kind, str) else tuple(kind)


def _is_of(value: Any, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "number":
            return is_number(value)
        case "integer":
            return is_number(value) and value == int(value)
        case "boolean":
            return isinstance(value, bool)
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
    return value is None


def same(first: Any, second: Any) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    return _canonical(first) == _canonical(second)


def _canonical(value: Any) -> str:
    def plain(one: Any) -> Any:
        if isinstance(one, dict):
            return {name: plain(inner) for name, inner in one.items()}
        if isinstance(one, list):
            return [plain(inner) for inner in one]
        return int(one) if isinstance(one, float) and one.is_integer() else one

    return json.dumps(plain(value), sort_keys=True)


def _follows_properties(schema: JsonSchema, value: Any, properties: Any, _: Any) -> bool:
    return not isinstance(value, dict) or all(
        schema.valid(value[name], node) for name, node in properties.items() if name in value
    )


def _follows_others(schema: JsonSchema, value: Any, others: Any, node: Any) -> bool:
    known = node.get("properties", {})
    return not isinstance(value, dict) or all(
        schema.valid(inner, others) for name, inner in value.items() if name not in known
    )


def _is_multiple(_: JsonSchema, value: Any, unit: Any, __: Any) -> bool:
    return not is_number(value) or Fraction(str(value)) % Fraction(str(unit)) == 0


def _bound(kind: type, size: Callable[[Any], Any], holds: Callable[[Any, Any], bool]) -> Any:
    """Return the check of a keyword that bounds values of a kind."""

    def check(_: JsonSchema, value: Any, limit: Any, __: Any) -> bool:
        of_kind = is_number(value) if kind is float else isinstance(value, kind)
        return not of_kind or holds(size(value), limit)

    return check


def _at_least(size: Any, limit: Any) -> bool:
    return bool(size >= limit)


def _at_most(size: Any, limit: Any) -> bool:
    return bool(size <= limit)


# By keyword: whether a value follows it; called with the schema, the value, the keyword's value and its node.
_CHECKS: tuple[tuple[str, Callable[[JsonSchema, Any, Any, Any], bool]], ...] = (
    ("type", lambda _, value, __, node: any(_is_of(value, kind) for kind in _types_of(node))),
    ("enum", lambda _, value, choices, __: any(same(value, choice) for choice in choices)),
    ("const", lambda _, value, only, __: same(value, only)),
    ("anyOf", lambda schema, value, nodes, _: any(schema.valid(value, node) for node in nodes)),
    ("oneOf", lambda schema, value, nodes, _: sum(schema.valid(value, node) for node in nodes) == 1),
    ("allOf", lambda schema, value, nodes, _: all(schema.valid(value, node) for node in nodes)),
    ("pattern", lambda schema, value, text, _: not isinstance(value, str) or schema.has_pattern(value, text)),
    ("format", lambda _, value, form, __: not isinstance(value, str) or bool(_FORMATS[form](value))),
    ("minLength", _bound(str, len, _at_least)),
    ("maxLength", _bound(str, len, _at_most)),
    ("minimum", _bound(float, float, _at_least)),
    ("maximum", _bound(float, float, _at_most)),
    ("exclusiveMinimum", _bound(float, float, lambda size, limit: bool(size > limit))),
    ("exclusiveMaximum", _bound(float, float, lambda size, limit: bool(size < limit))),
    ("multipleOf", _is_multiple),
    ("minItems", _bound(list, len, _at_least)),
    ("maxItems", _bound(list, len, _at_most)),
    (
        "uniqueItems",
        lambda _, value, wanted, __: (
            not (wanted and isinstance(value, list)) or len(set(map(_canonical, value))) == len(value)
        ),
    ),
    (
        "items",
        lambda schema, value, node, _: (
            not isinstance(value, list) or all(schema.valid(item, node) for item in value)
        ),
    ),
    ("minProperties", _bound(dict, len, _at_least)),
    ("maxProperties", _bound(dict, len, _at_most)),
    (
        "required",
        lambda _, value, names, __: not isinstance(value, dict) or all(name in value for name in names),
    ),
    ("properties", _follows_properties),
    ("additionalProperties", _follows_others),
)
