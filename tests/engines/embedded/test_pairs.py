from __future__ import annotations

from typing import Any

import pytest

from gateway.engines.embedded.filling import fill
from gateway.engines.embedded.lines import Box
from gateway.engines.embedded.pairs import MIN_LIKENESS, Piece, find_pairs


def document(*rows: str) -> list[list[Piece]]:
    """Rows of text, the pieces of each divided by `|`; every piece has the width of its place."""
    return [
        [
            Piece(Box(200 * place, 40 * number, 200 * place + 150, 40 * number + 25), text.strip())
            for place, text in enumerate(row.split("|"))
            if text.strip()
        ]
        for number, row in enumerate(rows)
    ]


def fields(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


TEXT = {"type": "string"}
RECEIPT = document(
    "CORNER BAKERY SDN BHD",
    "12 Mill Street,",
    "Springfield 43300",
    "Tel: 03-2163 2766",
    "Invoice No: 000-074020 | Date: 17/05/2024 13:34",
    "Bread | 2 | RM 6.00",
    "Sub Total | 6.00",
    "Tax 6% | 0.36",
    "Grand Total | 6.36",
    "shop@example.com",
)


@pytest.mark.parametrize(
    ("rows", "pairs"),
    [
        (["Name: Ada"], {"Name": "Ada"}),
        (["Name: | Ada"], {"Name": "Ada"}),
        (["Name | : Ada"], {"Name": "Ada"}),
        (["姓名\uff1a张三"], {"姓名": "张三"}),
        (["Bill to:", "Ada"], {"Bill to": "Ada"}),
        (["Bill to: | Ship to:", "Ada | Bob"], {"Bill to": "Ada", "Ship to": "Bob"}),
        (["Total | 3.50"], {"Total": "3.50"}),
        (["Total: 1", "Total: 2"], {"Total": "1"}),
        (["a | b | 3"], {}),
        (["see http://example.com/x"], {}),
        (["13:34:27"], {}),
        (["12 Main Street, | 5"], {}),
        (["x" * 300 + ": y"], {}),
        (["word " * 12 + ": y"], {}),
        ([], {}),
    ],
)
def test_pairs_are_found(rows: list[str], pairs: dict[str, str]) -> None:
    assert find_pairs(document(*rows)) == pairs


def test_what_stands_far_below_is_no_value() -> None:
    label = Piece(Box(0, 0, 100, 20), "Bill to:")
    assert find_pairs([[label], [Piece(Box(0, 200, 100, 220), "Ada")]]) == {}
    assert find_pairs([[label], [Piece(Box(500, 30, 600, 50), "Ada")]]) == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("invoice_number", "000-074020"),
        ("invoiceNo", "000-074020"),
        ("date", "17/05/2024"),
        ("total", "6.36"),
        ("company", "CORNER BAKERY SDN BHD"),
        ("address", "12 Mill Street, Springfield 43300"),
        ("phone", "03-2163 2766"),
        ("email", "shop@example.com"),
        ("signature", ""),
    ],
)
def test_fields_are_matched_loosely(key: str, value: str) -> None:
    assert fill(fields(**{key: TEXT}), RECEIPT) == {key: value}


def test_unlabelled_fields_are_known_by_their_looks() -> None:
    page = document("ACME LTD (759785-H)", "5 May 2024", "call 03-2163 2766", "me@example.com")
    wanted = fields(date=TEXT, telephone=TEXT, email=TEXT, vendor=TEXT, address=TEXT)
    assert fill(wanted, page) == {
        "date": "5 May 2024",
        "telephone": "03-2163 2766",
        "email": "me@example.com",
        "vendor": "ACME LTD",
        "address": "",
    }


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "number"}, "RM 1,234.50", 1234.5),
        ({"type": "number"}, "1.234,50", 1234.5),
        ({"type": "number"}, "(12.00)", -12.0),
        ({"type": "number"}, "none", None),
        ({"type": "number"}, "1,234", 1234.0),
        ({"type": "number"}, "0.125", 0.125),
        ({"type": "integer"}, "7 pcs", 7),
        ({"type": "boolean"}, "Yes", True),
        ({"type": "boolean"}, "perhaps", None),
        ({"type": "null"}, "x", None),
        ({"type": ["string", "null"]}, "x", "x"),
        ({"type": ["null"]}, "x", None),
        ({"anyOf": [{"type": "null"}, {"type": "number"}]}, "3.5", 3.5),
        ({"anyOf": [{"type": "null"}]}, "3.5", None),
        ({"$ref": "#/$defs/Amount"}, "3.5", 3.5),
        ({"$ref": "#/$defs/Missing"}, "3.5", "3.5"),
        ({"enum": ["cash", "card"]}, "Card 1234", "card"),
        ({"enum": ["cash", "card"]}, "cheque", None),
        ({"type": "array", "items": TEXT}, "red; green", ["red", "green"]),
        ({"type": "array", "items": {"type": "number"}}, "1; 2", [1.0, 2.0]),
        ({"type": "array", "items": fields(name=TEXT)}, "x", []),
        ({"type": "object"}, "x", {}),
        (fields(colour=TEXT), "x", {"colour": "x"}),
        ({}, "x", "x"),
        ({"type": "string", "title": "Colour"}, "x", "x"),
    ],
)
def test_values_have_their_schemas_type(schema: dict[str, Any], text: str, value: object) -> None:
    wanted = {**fields(colour=schema), "$defs": {"Amount": {"type": "number"}}}
    assert fill(wanted, document(f"Colour: {text}")) == {"colour": value}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (TEXT, ""),
        ({"type": "number"}, None),
        ({"type": ["string", "null"]}, None),
        ({"type": "array", "items": TEXT}, []),
        ({"enum": ["a"]}, None),
        (True, None),
    ],
)
def test_what_is_not_found_is_empty(schema: Any, value: object) -> None:
    assert fill(fields(colour=schema), document("Nothing here")) == {"colour": value}


def test_an_object_without_properties_takes_the_pairs_found() -> None:
    assert fill({"type": "object"}, document("Name: Ada")) == {"Name": "Ada"}


def test_endless_references_end() -> None:
    schema = {"$ref": "#/$defs/Node", "$defs": {"Node": fields(next={"$ref": "#/$defs/Node"})}}
    assert "next" in fill(schema, document("x"))
    loop = {"$ref": "#/$defs/Loop", "$defs": {"Loop": {"$ref": "#/$defs/Loop"}}}
    assert fill(loop, document("x")) is None


@pytest.mark.parametrize(
    ("rows", "total"),
    [
        (["Total 5.00", "Total Payable | 5.05"], "5.05"),
        (["Total Qty | 4.00", "Total | 5.00"], "5.00"),
        (["Total: nothing"], "nothing"),
        (["Amount due | 1,234.50"], "1,234.50"),
    ],
)
def test_the_plainest_total_counts(rows: list[str], total: str) -> None:
    assert fill(fields(total=TEXT), document(*rows)) == {"total": total}


def test_a_number_is_not_taken_from_words() -> None:
    assert fill(fields(weight={"type": "number"}), document("Weight: heavy", "Weight | 3")) == {"weight": 3.0}


def test_the_threshold_is_a_likeness() -> None:
    assert 0 < MIN_LIKENESS < 1
