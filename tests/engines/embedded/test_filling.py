from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.engines.embedded.filling import Unfillable, chosen, fill, fill_strictly
from gateway.engines.embedded.json_schema import JsonSchema, NotUnderstood
from tests.engines.embedded.test_pairs import document

RECEIPT = document(
    "CORNER BAKERY",
    "Date: 14 March 2026 | 13:34",
    "Status: Not paid",
    "Count: 3",
    "Items: bread; cake; tea",
    "Sizes: 1; 2; 3",
    "Account: 12345678901234567890",
    "Discount: none",
    "Total | EUR 20.70",
)


def filled(properties: dict[str, Any], rows: Any = RECEIPT, **more: Any) -> Any:
    schema = {"type": "object", "properties": properties, "required": list(properties), **more}
    value, _ = fill_strictly(JsonSchema(schema), rows)
    jsonschema.validate(value, schema)
    return value


@pytest.mark.parametrize(
    ("name", "schema", "value"),
    [
        ("total", {"type": "number"}, 20.7),
        ("total", {"type": "number", "minimum": 20, "maximum": 21}, 20.7),
        ("total", {"type": "string"}, "20.70"),
        ("count", {"type": "integer"}, 3),
        ("count", {"enum": [1, 2, 3]}, 3),
        ("account", {"type": "integer"}, 12345678901234567890),
        ("account", {"type": "number"}, 12345678901234567890),
        ("date", {"type": "string", "format": "date"}, "2026-03-14"),
        ("date", {"type": "string", "pattern": r"^\d{1,2} \w+ \d{4}$"}, "14 March 2026"),
        ("date", {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"}, "2026-03-14"),
        ("date", {"type": "string", "pattern": r"^20\d\d$"}, "2026"),
        ("items", {"type": "array", "items": {"type": "string"}}, ["bread", "cake", "tea"]),
        ("items", {"type": "array", "items": {"type": "string"}, "maxItems": 2}, ["bread", "cake"]),
        ("items", {"type": "array", "items": {"enum": ["tea", "milk"]}}, ["tea"]),
        ("sizes", {"type": "array", "items": {"type": "integer"}, "minItems": 3}, [1, 2, 3]),
        ("sizes", {"type": "array", "items": {"anyOf": [{"type": "null"}, {"type": "integer"}]}}, [1, 2, 3]),
        ("lines", {"type": "array", "items": {"type": "object"}}, []),
        ("lines", {"type": "array", "items": False}, []),
        ("items", {"type": "array", "items": {"anyOf": [False, {"enum": ["tea"]}]}}, ["tea"]),
        ("status", {"enum": ["paid", "not paid"]}, "not paid"),
        # No label, and one of the choices on the page.
        ("currency", {"enum": ["EUR", "USD"]}, "EUR"),
        ("currency", {"type": "string", "enum": ["EUR", "USD"]}, "EUR"),
        ("currency", {"enum": ["GBP", "USD", None]}, None),
        # What may be nothing else is that.
        ("kind", {"const": "receipt"}, "receipt"),
        ("kind", {"type": "string", "enum": ["receipt"]}, "receipt"),
        ("signature", {"type": "string"}, ""),
        ("signature", {"type": ["string", "null"]}, None),
        ("signature", {"anyOf": [{"type": "number"}, {"type": "null"}]}, None),
        ("total", {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^\d+\.\d\d$"}]}, 20.7),
        ("total", {"anyOf": [{"type": "null"}, {"type": "string", "pattern": r"^\d+\.\d\d$"}]}, "20.70"),
        ("total", {"oneOf": [{"type": "integer"}, {"type": "number"}]}, 20.7),
        ("total", {"allOf": [{"type": "number"}], "title": "Sum"}, 20.7),
        ("sum", {"type": "number", "title": "Total"}, 20.7),
        (
            "vendor",
            {"type": "object", "properties": {"company": {"type": "string"}}},
            {"company": "CORNER BAKERY"},
        ),
        ("anything", {}, None),
        ("anything", True, None),
        ("deep", {"type": "object"}, {}),
    ],
)
def test_a_required_field_has_the_value_on_the_page(name: str, schema: Any, value: Any) -> None:
    found = filled({name: schema})[name]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "schema", "words"),
    [
        ("tip", {"type": "number"}, "`tip`: a number is required"),
        ("total", {"type": "integer"}, "`total`: a whole number"),
        ("total", {"type": "number", "maximum": 5}, r"a number \(`maximum`\)"),
        ("discount", {"type": "boolean"}, "`discount`: true or false"),
        ("currency", {"enum": ["GBP", "USD"]}, "one of the values"),
        ("signature", {"type": "string", "minLength": 1}, "`minLength`"),
        ("date", {"type": "string", "pattern": r"^\d{9}$"}, "`pattern`"),
        ("total", {"type": "string", "format": "email"}, "`format`"),
        ("items", {"type": "array", "items": {"type": "string"}, "minItems": 4}, "at least 4 items.*found 3"),
        ("lines", {"type": "array", "items": {"type": "object"}, "minItems": 1}, "found 0"),
        (
            "vendor",
            {"type": "object", "properties": {"tip": {"type": "number"}}, "required": ["tip"]},
            "`vendor.tip`",
        ),
        ("never", False, "no value"),
        ("total", {"oneOf": [{"type": "number"}, {"type": "number", "minimum": 1}]}, "none of its alter"),
        ("total", {"anyOf": [{"type": "boolean"}, {"type": "integer"}]}, "a whole number"),
        ("deep", {"type": "object", "minProperties": 1}, "does not follow"),
        ("word", {"not": {}}, None),
    ],
)
def test_what_the_page_has_not_is_refused_and_never_made_up(
    name: str, schema: Any, words: str | None
) -> None:
    if words is None:
        with pytest.raises(NotUnderstood):
            filled({name: schema})
        return
    with pytest.raises(Unfillable, match=words):
        filled({name: schema})


def test_what_need_not_be_there_is_left_out() -> None:
    schema = {"type": "object", "properties": {"tip": {"type": "number"}, "total": {"type": "number"}}}
    assert fill_strictly(JsonSchema(schema), RECEIPT) == ({"total": 20.7}, 1)
    other = {"type": "object", "required": ["total", "note"], "additionalProperties": {"type": "string"}}
    assert fill_strictly(JsonSchema(other), RECEIPT) == ({"total": "20.70", "note": ""}, 1)


def test_an_object_of_any_members_takes_the_pairs() -> None:
    rows = document("Name: Ada", "Age: 36")
    for others, value in (
        (True, {"Name": "Ada", "Age": "36"}),
        ({"type": "number"}, {"Age": 36.0}),
        (False, {}),
    ):
        schema = JsonSchema({"type": "object", "additionalProperties": others})
        assert fill_strictly(schema, rows) == (value, len(value))


def test_fields_of_bare_writing_take_all_that_the_page_says() -> None:
    rows = document("one | two", "three")
    for name in ("text", "content", "markdown", "extracted_text", "natural_text"):
        assert filled({name: {"type": "string"}}, rows) == {name: "one two\nthree"}
    assert filled({"text_color": {"type": "string"}}, rows) == {"text_color": ""}


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("2026-03-14", "2026-03-14"),
        ("2026/3/4", "2026-03-04"),
        ("2026年3月14日", "2026-03-14"),
        ("17/05/2024", "2024-05-17"),
        ("05/17/2024", "2024-05-17"),
        ("05.04.2024", "2024-04-05"),
        ("04/04/2024", "2024-04-04"),
        ("14 March 2026", "2026-03-14"),
        ("March 14, 2026", "2026-03-14"),
        # Day or month: the page does not tell.
        ("05/04/2024", None),
        ("31 February 2026", None),
        ("14 Foo 2026", None),
    ],
)
def test_dates_become_the_formats_own_where_they_are_certain(text: str, date: str | None) -> None:
    schema = {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}
    assert filled({"date": schema}, document(f"Date: {text}")) == {"date": date}


@pytest.mark.parametrize(
    ("form", "text", "value"),
    [
        ("time", "at 9:05", "09:05:00"),
        ("date-time", "2026-03-14 13:34:05", "2026-03-14T13:34:05"),
        ("date-time", "2026-03-14", None),
        ("time", "noon", None),
        ("email", "me@example.com (office)", "me@example.com"),
        ("uri", "see https://example.com/a", "https://example.com/a"),
        ("uuid", "id 123e4567-e89b-12d3-a456-426614174000", "123e4567-e89b-12d3-a456-426614174000"),
    ],
)
def test_formats_are_read_out_of_what_stands_around_them(form: str, text: str, value: str | None) -> None:
    schema = {"anyOf": [{"type": "string", "format": form}, {"type": "null"}]}
    assert filled({"stamp": schema}, document(f"Stamp: {text}")) == {"stamp": value}


@pytest.mark.parametrize(
    ("choices", "text", "choice"),
    [
        (("invoice", "receipt"), "INVOICE No. 7", "invoice"),
        (("invoice", "receipt"), "an invoice and its receipt", None),
        (("invoice", "receipt"), "a letter", None),
        (("paid", "not paid"), "Not paid", "not paid"),
        (("paid",), "unpaid", None),
        (("", "C++"), "in C++, mostly", "C++"),
    ],
)
def test_the_choice_that_a_text_has(choices: tuple[str, ...], text: str, choice: str | None) -> None:
    assert chosen(choices, text) == choice


def test_a_schema_that_grows_without_end_is_refused() -> None:
    many = {f"f{number}": {"type": "string"} for number in range(3_000)}
    with pytest.raises(NotUnderstood, match="2,000 values"):
        filled(many, document("a: b"))
    assert fill({"type": "object", "properties": many}, document("a: b")) is None
    tree = {"properties": {"next": {"$ref": "#"}}, "required": ["next"], "type": "object"}
    with pytest.raises(Unfillable):
        fill_strictly(JsonSchema(tree), document("a: b"))
    nested: Any = {}
    for _ in range(2_000):
        nested = {"anyOf": [nested]}
    with pytest.raises(NotUnderstood, match="nested"):
        fill_strictly(JsonSchema(nested), document("a: b"))
    optional = {"properties": {"next": {"$ref": "#"}}, "type": "object"}
    assert fill_strictly(JsonSchema(optional), document("a: b"))[1] == 0


NAMES = ("total", "date", "name", "currency", "paid", "count", "items", "address", "note", "text", "email")
BOUNDS = {
    "minimum": st.integers(-5, 20),
    "maximum": st.integers(-5, 2000),
    "exclusiveMinimum": st.integers(-5, 5),
    "exclusiveMaximum": st.integers(0, 50),
    "multipleOf": st.integers(1, 3),
}
SCALARS = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={
            "minLength": st.integers(0, 3),
            "maxLength": st.integers(0, 12),
            "pattern": st.sampled_from([r"^[0-9]+$", "^[A-Z]{3}$", "[0-9]{4}-[0-9]{2}-[0-9]{2}", ".*"]),
        },
    ),
    st.fixed_dictionaries({"type": st.sampled_from(["number", "integer"])}, optional=BOUNDS),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, True, False, {}]),
    st.sampled_from([{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B", "title": "Count"}]),
    st.fixed_dictionaries(
        {
            "enum": st.lists(
                st.sampled_from(["EUR", "USD", 3, 20.7, None, True, "red"]), min_size=1, max_size=4
            )
        }
    ),
    st.fixed_dictionaries({"const": st.sampled_from(["EUR", 3, None, False])}),
    st.fixed_dictionaries(
        {"type": st.lists(st.sampled_from(["string", "number", "null", "boolean"]), min_size=1, unique=True)}
    ),
)


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.fixed_dictionaries(
        {
            "type": st.just("object"),
            "properties": st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
            "required": st.lists(st.sampled_from(NAMES), max_size=3, unique=True),
        },
        optional={
            "additionalProperties": inner,
            "minProperties": st.integers(0, 2),
            "maxProperties": st.integers(0, 4),
        },
    )
    arrays = st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={
            "items": inner,
            "minItems": st.integers(0, 3),
            "maxItems": st.integers(0, 3),
            "uniqueItems": st.booleans(),
        },
    )
    alternatives = st.builds(
        lambda name, nodes, beside: {name: nodes, **beside},
        st.sampled_from(["anyOf", "oneOf", "allOf"]),
        st.lists(inner, min_size=1, max_size=3),
        st.sampled_from([{}, {"title": "Total"}, {"type": "string"}]),
    )
    return st.one_of(objects, arrays, alternatives)


SCHEMAS = st.recursive(SCALARS, larger, max_leaves=12)
PAGES = st.lists(
    st.builds(
        lambda label, between, value: f"{label}{between}{value}",
        st.sampled_from(["Total", "Date", "Name", "Currency", "Paid", "Count", "Items", "E-mail", "EUR"]),
        st.sampled_from([": ", " | ", " "]),
        st.sampled_from(
            [
                "EUR",
                "yes",
                "no",
                "3",
                "20.70",
                "1,234.50",
                "2026-03-14",
                "Ada",
                "-5",
                "",
                "a@b.de",
                "red; green",
                "1; 2; 3",
            ]
        ),
    ),
    max_size=6,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=300)
@given(SCHEMAS, SCHEMAS, SCHEMAS, PAGES)
def test_whatever_is_answered_follows_its_schema(root: Any, first: Any, second: Any, page: list[str]) -> None:
    if isinstance(root, dict):
        root = {**root, "$defs": {"A": first, "B": second}}
    try:
        value, _ = fill_strictly(JsonSchema(root), document(*page))
    except (NotUnderstood, Unfillable):
        return
    # As it is sent, and by the judgement of others.
    jsonschema.Draft202012Validator(root).validate(json.loads(json.dumps(value)))


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(["type", "properties", "items", "$ref", "anyOf", "enum", "required"]), inner
            ),
        ),
        max_leaves=10,
    )
)
def test_a_form_of_any_shape_is_filled_in_somehow(form: Any) -> None:
    json.dumps(fill({"properties": {"total": form}}, RECEIPT))
