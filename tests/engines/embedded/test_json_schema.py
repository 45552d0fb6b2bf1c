from __future__ import annotations

import itertools
from typing import Any

import pytest

from gateway.engines.embedded.json_schema import JsonSchema, NotUnderstood, Pattern, merged, same


def follows(value: Any, schema: Any) -> bool:
    read = JsonSchema(schema)
    return read.valid(value, read.root)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (True, [1, None, {}], []),
        (False, [], [1, None]),
        ({"type": "string"}, ["", "a"], [1, None, []]),
        ({"type": "number"}, [1, 1.5], [True, "1"]),
        ({"type": "integer"}, [1, 1.0], [1.5, True, "1"]),
        ({"type": "boolean"}, [True], [1, "true"]),
        ({"type": "null"}, [None], [0, ""]),
        ({"type": "array"}, [[]], [{}]),
        ({"type": "object"}, [{}], [[]]),
        ({"type": ["string", "null"]}, ["a", None], [1]),
        ({"enum": ["a", 1, None]}, ["a", 1, 1.0, None], [True, "b"]),
        ({"const": {"a": [1]}}, [{"a": [1.0]}], [{"a": [True]}]),
        ({"minLength": 2, "maxLength": 3}, ["ab", "abc", 7], ["a", "abcd"]),
        ({"minimum": 1, "maximum": 3}, [1, 3, "x", True], [0, 3.5]),
        ({"exclusiveMinimum": 1, "exclusiveMaximum": 3}, [2, 1.1], [1, 3]),
        ({"multipleOf": 0.01}, [20.7, 1e300, "x"], [20.705]),
        ({"pattern": "^a+$"}, ["aa", 7], ["ab", "aa\n"]),
        ({"format": "date"}, ["2026-03-14", 7], ["2026-02-30", "14.03.2026", "20260314"]),
        ({"format": "time"}, ["13:34:00", "13:34:00Z", "13:34:00.5+02:00"], ["25:00:00", "13:34"]),
        (
            {"format": "date-time"},
            ["2026-03-14T13:34:00"],
            ["2026-03-14", "2026-03-14 13:34:00", "xT13:34:00"],
        ),
        ({"format": "email"}, ["a@b.de"], ["a"]),
        ({"format": "uri"}, ["https://a.de/x?y=1"], ["a.de"]),
        ({"format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["123"]),
        ({"type": "number", "format": "double"}, [1.5], ["x"]),
        (
            {"items": {"type": "string"}, "minItems": 1, "maxItems": 2},
            [["a"], "x"],
            [[], ["a", "b", "c"], [1]],
        ),
        ({"uniqueItems": True}, [[1, 2], "aa"], [[1, 1.0]]),
        ({"uniqueItems": False}, [[1, 1]], []),
        ({"required": ["a"]}, [{"a": 1}, 7], [{}]),
        ({"properties": {"a": {"type": "string"}}}, [{"a": "x"}, {}, {"b": 1}, 7], [{"a": 1}]),
        (
            {"properties": {"a": True}, "additionalProperties": False},
            [{"a": 1}, {}, 7],
            [{"b": 1}],
        ),
        ({"additionalProperties": {"type": "string"}}, [{"b": "x"}], [{"b": 1}]),
        ({"minProperties": 1, "maxProperties": 1}, [{"a": 1}], [{}, {"a": 1, "b": 1}]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["a", None], [1]),
        ({"oneOf": [{"type": "integer"}, {"minimum": 5}]}, [1, 5.5], [7, 1.5]),
        ({"allOf": [{"type": "integer"}, {"minimum": 5}]}, [7], [1, 5.5]),
        (
            {"$ref": "#/$defs/A", "minimum": 2, "$defs": {"A": {"type": "integer"}}},
            [2],
            [1, 2.5],
        ),
        (
            {
                "$defs": {"N": {"properties": {"next": {"$ref": "#/$defs/N"}}, "required": ["x"]}},
                "$ref": "#/$defs/N",
            },
            [{"x": 1}, {"x": 1, "next": {"x": 2}}],
            [{}, {"x": 1, "next": {}}],
        ),
        (
            {"properties": {"a~/b": {"type": "null"}, "c": {"$ref": "#/properties/a~0~1b"}}},
            [{"c": None}],
            [{"c": 1}],
        ),
        # Neither of these is a keyword that a value could break.
        ({"title": "A", "description": "B", "default": 1, "x-order": 2, "nullable": True}, [7, "a"], []),
    ],
)
def test_values_follow_a_schema_or_not(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    assert [follows(value, schema) for value in valid] == [True] * len(valid)
    assert [follows(value, schema) for value in invalid] == [False] * len(invalid)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"not": {}}, "`not`"),
        ({"properties": {"a": {"items": {"if": {}}}}}, "`if` at properties.a.items"),
        ({"anyOf": [{}, {"patternProperties": {}}]}, r"`patternProperties` at anyOf\[1\]"),
        ({"$defs": {"a": {"contains": {}}}}, r"`contains` at \$defs.a"),
        ({"prefixItems": []}, "`prefixItems`"),
        ({"items": [{}]}, "`items`"),
        ({"format": "phone"}, "'phone'.*date-time"),
        ({"pattern": "(?=a)"}, "regular expression"),
        ({"pattern": "a" * 5_000}, "4,096"),
        ({"anyOf": [{"pattern": f"{number}"} for number in range(20)]}, "more than 16"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"$ref": "https://example.com/a.json"}, "no schema in it"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, "itself"),
        ({"anyOf": [{"$ref": "#"}]}, "itself"),
        ({"type": "text"}, "one or several of string"),
        ({"type": []}, "one or several of"),
        ({"properties": []}, "object of schemas"),
        ({"properties": {"a": 7}}, "object of schemas"),
        ({"anyOf": []}, "list of schemas"),
        ({"additionalProperties": "no"}, "a schema"),
        ({"required": "a"}, "list of names"),
        ({"enum": []}, "list of values"),
        ({"pattern": 7}, "a string"),
        ({"minLength": 1.5}, "whole number"),
        ({"minItems": -1}, "whole number"),
        ({"minimum": True}, "a number"),
        ({"multipleOf": 0}, "above 0"),
        ({"uniqueItems": 1}, "true or false"),
        (7, "must be an object"),
    ],
)
def test_what_is_not_understood_is_named_with_its_place(schema: Any, words: str) -> None:
    with pytest.raises(NotUnderstood, match=words):
        JsonSchema(schema)


def test_a_tolerant_reading_leaves_out_what_is_not_understood() -> None:
    schema = {
        "type": "object",
        "not": {},
        "properties": {"a": {"type": "string", "pattern": "("}, "b": {"$ref": "#/$defs/B"}},
        "$defs": {"B": {"$ref": "#/$defs/B", "minimum": 3}},
    }
    read = JsonSchema(schema, tolerant=True)
    assert read.valid({"a": "x", "b": 3}, read.root)
    assert not read.valid({"b": 2}, read.root)
    assert "not" in schema  # what was sent is left as it is


def test_alternatives_of_alternatives_are_bounded() -> None:
    names = [f"n{number}" for number in range(40)]
    nodes = {name: {"anyOf": [{"$ref": f"#/$defs/{after}"}] * 2} for name, after in itertools.pairwise(names)}
    read = JsonSchema({"$ref": "#/$defs/n0", "$defs": {**nodes, names[-1]: {"type": "null"}}})
    with pytest.raises(NotUnderstood, match="too many"):
        read.valid("x", read.root)


def test_a_regular_expression_takes_no_longer_for_being_malicious() -> None:
    assert not Pattern("^(a+)+$").found_in("a" * 5_000 + "b")


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        (True, {"type": "string"}, {"type": "string"}),
        (False, {"type": "string"}, False),
        ({"type": "string"}, True, {"type": "string"}),
        ({"type": "string"}, {"minLength": 1}, {"type": "string", "minLength": 1}),
        ({"required": ["a"]}, {"required": ["b"]}, {"required": ["a", "b"]}),
        (
            {"properties": {"a": {"type": "string"}, "b": True}},
            {"properties": {"a": {"minLength": 1}, "c": True}},
            {"properties": {"a": {"type": "string", "minLength": 1}, "b": True, "c": True}},
        ),
    ],
)
def test_two_schemas_become_one(first: Any, second: Any, both: Any) -> None:
    assert merged(first, second) == both


def test_equal_numbers_are_the_same_and_true_is_no_number() -> None:
    assert same({"a": [1, 2.0]}, {"a": [1.0, 2]})
    assert not same(1, True)
