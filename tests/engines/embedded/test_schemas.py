from __future__ import annotations

from typing import Any

import pytest

from gateway.engines.embedded.schemas import schema_of, wanted_schema
from gateway.model import SortFacts

TEXT = {"type": "string"}


def fields(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(names, TEXT)}


@pytest.mark.parametrize(
    ("facts", "schema"),
    [
        (SortFacts(prompt="Text Recognition:"), None),
        (SortFacts(schema={"type": "object"}, prompt='{"a": ""}'), {"type": "object"}),
        (SortFacts(template={"a": ""}), fields("a")),
        (SortFacts(template='{"a": "string"}'), fields("a")),
        (SortFacts(template="nonsense"), None),
        (SortFacts(prompt='请按下列JSON格式输出图中信息:\n{"a": "", "b": ""}'), fields("a", "b")),
        (SortFacts(prompt="x {y} {} {", system='{"a": ""}'), fields("a")),
        (SortFacts(prompt='{"properties": {"a": {"type": "string"}}}'), {"properties": {"a": TEXT}}),
        (
            SortFacts(prompt="Extract the content of the fields: ['a', 'b c'] from the image"),
            fields("a", "b c"),
        ),
        (SortFacts(prompt="提取图片中的: ['单价', '数量'] 的字段内容"), fields("单价", "数量")),
        (SortFacts(prompt="Output the value of Total Due."), fields("Total Due")),
        (SortFacts(prompt="{" * 40), None),
    ],
)
def test_the_fields_are_found_where_clients_put_them(facts: SortFacts, schema: object) -> None:
    assert wanted_schema(facts) == schema


@pytest.mark.parametrize(
    ("template", "schema"),
    [
        ("", TEXT),
        ("verbatim-string", TEXT),
        ("number", {"type": "number"}),
        ("<float>", {"type": "number"}),
        ("integer", {"type": "integer"}),
        ("bool", {"type": "boolean"}),
        (True, {"type": "boolean"}),
        (0, {"type": "number"}),
        (None, {}),
        ([], {"type": "array", "items": TEXT}),
        (["number"], {"type": "array", "items": {"type": "number"}}),
        (["a", "b"], {"enum": ["a", "b"]}),
        ([{"a": ""}], {"type": "array", "items": fields("a")}),
    ],
)
def test_a_template_is_a_schema(template: object, schema: object) -> None:
    assert schema_of(template) == schema
