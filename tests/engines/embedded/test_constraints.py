from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.engines.embedded.constraints import constraint_of, tools_to_call
from gateway.errors import BadRequest

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def members(**fields: Any) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, "response_format"),
        ({"guided_json": SCHEMA}, "guided_json"),
        ({"guided_json": msgspec.json.encode(SCHEMA).decode()}, "guided_json"),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, "structured_outputs.json"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}}, "text.format"),
    ],
)
def test_a_schema_is_found_where_clients_put_it(fields: dict[str, Any], param: str) -> None:
    found = constraint_of(members(**fields))
    assert found is not None
    assert found.schema is not None
    assert (found.param, found.schema.root) == (param, SCHEMA)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}},
        {"text": {"format": {"type": "json_object"}}},
    ],
)
def test_any_object_may_be_asked_for(fields: dict[str, Any]) -> None:
    found = constraint_of(members(**fields))
    assert found is not None
    assert found.is_object


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None, "guided_json": None, "text": {"verbosity": "low"}},
        {"response_format": {"type": "text"}},
        {"text": {"format": {"type": "text"}}},
        {"structured_outputs": {"json": None, "json_object": False, "disable_any_whitespace": True}},
    ],
)
def test_nothing_binds_the_answer(fields: dict[str, Any]) -> None:
    assert constraint_of(members(**fields)) is None


def test_choices_and_a_regular_expression() -> None:
    for choices in (
        constraint_of(members(guided_choice=["a", "b"])),
        constraint_of(members(structured_outputs={"choice": ["a", "b"]})),
    ):
        assert choices is not None
        assert choices.choices == ("a", "b")
    pattern = constraint_of(members(guided_regex="a|b+"))
    assert pattern is not None
    assert pattern.pattern is not None
    # It holds for the answer as a whole.
    assert [pattern.pattern.found_in(text) for text in ("a", "bb", "ab", "bb\n", "")] == [
        *(True, True, False, False, False)
    ]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "json_object"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
        ({"response_format": "json"}, "response_format", "object"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 7}}},
            "response_format",
            "object",
        ),
        ({"guided_json": "{"}, "guided_json", "object"),
        ({"guided_json": {"not": {}}}, "guided_json", "`not`"),
        ({"guided_regex": 7}, "guided_regex", "string"),
        ({"guided_regex": "("}, "guided_regex", "regular expression"),
        ({"guided_choice": []}, "guided_choice", "1 to 1,000"),
        ({"guided_choice": "a"}, "guided_choice", "list"),
        ({"guided_choice": [1]}, "guided_choice", "strings"),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs", "regex"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "x"}}, "structured_outputs.regex", "only one"),
        ({"response_format": {"type": "json_object"}, "guided_choice": ["a"]}, "guided_choice", "only one"),
    ],
)
def test_what_cannot_be_followed_is_refused(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        constraint_of(members(**fields))
    assert caught.value.param == param


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(BadRequest, match="cannot be read"):
        constraint_of({"guided_json": msgspec.Raw(b'{"maximum": 1e999}')})


def chat_tool(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def test_the_tools_of_which_one_is_called() -> None:
    tools = [chat_tool("a", SCHEMA), chat_tool("b")]
    assert [tool.name for tool in tools_to_call(members(tools=tools, tool_choice="required"))] == ["a", "b"]
    named = {"type": "function", "function": {"name": "b"}}
    (only,) = tools_to_call(members(tools=tools, tool_choice=named))
    assert (only.name, only.schema.root) == ("b", {"type": "object", "properties": {}})
    flat = [{"type": "function", "name": "a", "parameters": {"properties": {"x": {}}}}]
    (only,) = tools_to_call(members(tools=flat, tool_choice={"type": "function", "name": "a"}, input="x"))
    assert only.schema.root == {"type": "object", "properties": {"x": {}}}


def test_a_response_after_a_tools_result_is_text() -> None:
    flat = [{"type": "function", "name": "a"}]
    items = [{"role": "user", "content": "x"}, {"type": "function_call"}, {"type": "function_call_output"}]
    asked = {"tools": flat, "tool_choice": "required"}
    assert tools_to_call(members(**asked, input=items)) == ()
    assert tools_to_call(members(**asked, input=items[:2]))
    assert tools_to_call(members(**asked, input=items[1:2]))


def test_a_tool_that_is_not_understood_is_passed_over_unless_it_is_the_only_one() -> None:
    tools = [chat_tool("a", {"not": {}}), chat_tool("b", SCHEMA)]
    assert [tool.name for tool in tools_to_call(members(tools=tools, tool_choice="required"))] == ["b"]
    with pytest.raises(BadRequest, match=r"'a'.*`not`") as caught:
        tools_to_call(members(tools=tools[:1], tool_choice="required"))
    assert caught.value.param == "tools"


@pytest.mark.parametrize("tools", ["x", [7], [{"type": "function"}], [{"function": {"name": 7}}]])
def test_odd_tools_are_refused(tools: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        tools_to_call(members(tools=tools, tool_choice="required"))
    assert caught.value.param == "tools"
