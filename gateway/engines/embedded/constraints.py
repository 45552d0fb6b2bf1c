"""What binds the form of an answer: a JSON schema, a regular expression, choices, or tools to be called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gateway.engines.embedded.json_schema import JsonSchema, NotUnderstood, Pattern
from gateway.errors import BadRequest
from gateway.wire.partial_json import NULL, built, is_set

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Members = Mapping[str, msgspec.Raw]

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
_MAX_CHOICES = 1_000


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer must be, by exactly one of these.

    Attributes:
        param: the field that says so.
        schema: it follows this JSON schema.
        is_object: it is any JSON object.
        pattern: it matches this regular expression as a whole.
        choices: it is one of these.
    """

    param: str
    schema: JsonSchema | None = None
    is_object: bool = False
    pattern: Pattern | None = None
    choices: tuple[str, ...] = ()


class Tool(NamedTuple):
    """A function that may be called with an answer; `schema` describes its arguments."""

    name: str
    schema: JsonSchema


class _Tools(NamedTuple):
    """The tools that a request offers, as name and parameters, and which it wants called."""

    offered: Sequence[tuple[str, Any]]
    choice: Any


def constraint_of(members: Members) -> Constraint | None:
    """Return what binds the text of an answer; None where nothing does.

    Args:
        members: those of a request for a chat completion or for a response.

    Raises:
        BadRequest: two things do, or one that is not understood.
    """
    found = list(_constraints(members))
    if len(found) > 1:
        raise BadRequest(
            f"only one of {', '.join(f'`{param}`' for param, _, _ in found)} may bind the answer",
            param=found[1][0],
        )
    for param, kind, value in found:
        try:
            return _constraint(param, kind, value)
        except NotUnderstood as error:
            raise BadRequest(f"`{param}`: {error}", param=param) from error
    return None


def _constraints(members: Members) -> Iterator[tuple[str, str, Any]]:
    """Yield field, kind and value of all that binds an answer."""
    text = _built(members, "text")
    for param, form in (
        ("response_format", _built(members, "response_format")),
        ("text.format", text.get("format") if isinstance(text, dict) else None),
    ):
        if isinstance(form, dict):
            kind = form.get("type")
            if kind not in ("text", "json_object", "json_schema"):
                raise BadRequest(f"`{param}.type` must be text, json_object or json_schema", param=param)
            # The Responses API has the schema beside the type.
            described = form if param == "text.format" else form.get("json_schema")
            if kind == "json_object":
                yield param, kind, True
            elif kind == "json_schema":
                if not isinstance(described, dict):
                    raise BadRequest(f"`{param}` of type json_schema needs a `json_schema`", param=param)
                yield param, "json", described.get("schema", {})
        elif form is not None:
            raise BadRequest(f"`{param}` must be an object", param=param)
    for kind in ("json", "regex", "choice"):
        if (value := _built(members, f"guided_{kind}")) is not None:
            yield f"guided_{kind}", kind, value
    others = _built(members, "structured_outputs")
    for kind, value in others.items() if isinstance(others, dict) else ():
        if kind in ("grammar", "structural_tag") and value is not None:
            raise BadRequest(
                f"`structured_outputs.{kind}`: the embedded engine follows json, regex and choice only",
                param="structured_outputs",
                code="unsupported_parameter",
            )
        if kind in ("json", "json_object", "regex", "choice") and value not in (None, False):
            yield f"structured_outputs.{kind}", kind, value


def _constraint(param: str, kind: str, value: Any) -> Constraint:
    if kind == "json_object":
        return Constraint(param, is_object=True)
    if kind == "json":
        schema = built(value.encode()) if isinstance(value, str) else value
        return Constraint(param, schema=JsonSchema(schema))
    if kind == "regex":
        if not isinstance(value, str):
            raise NotUnderstood("must be a string")
        return Constraint(param, pattern=Pattern(rf"\A(?:{value})\z"))
    if not (
        isinstance(value, list)
        and 0 < len(value) <= _MAX_CHOICES
        and all(isinstance(one, str) for one in value)
    ):
        raise NotUnderstood(f"must be a list of 1 to {_MAX_CHOICES:,} strings")
    return Constraint(param, choices=tuple(value))


def tools_to_call(members: Members) -> tuple[Tool, ...]:
    """Return the tools of which one must be called; empty where the answer is text.

    As in vLLM: `required` leaves the choice, a named tool has none. After a tool's result the required call
    has been made, and the answer is text.

    Raises:
        BadRequest: `tool_choice` is none of these, names no tool, or all schemas are not understood.
    """
    tools = _tools(members)
    choice = tools.choice
    if choice in (None, "none", "auto"):
        return ()
    if choice == "required":
        if not tools.offered:
            raise BadRequest("tool_choice is required but tools is empty", param="tools")
        wanted = () if _has_tool_result(members) else tools.offered
    else:
        name = _named(choice)
        wanted = tuple(tool for tool in tools.offered if tool[0] == name)[:1]
        if not wanted:
            raise BadRequest("tool_choice names a function that tools lacks", param="tool_choice")
    understood: list[Tool] = []
    faults: list[str] = []
    for name, parameters in wanted:
        try:
            understood.append(Tool(name, JsonSchema(_arguments(parameters))))
        except NotUnderstood as error:
            faults.append(f"{name[:64]!r}: {error}")
    if wanted and not understood:
        raise BadRequest(f"`tools`: {faults[0]}", param="tools")
    return tuple(understood)


def _named(choice: Any) -> str:
    """Return the name in a `tool_choice`, which the Responses API has outside of `function`."""
    inner = choice.get("function", choice) if isinstance(choice, dict) else None
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(name, str):
        raise BadRequest(
            f'Invalid value for `tool_choice`: {str(choice)[:64]}! Only named tools, "none", "auto" or '
            '"required" are supported.',
            param="tool_choice",
        )
    return name


def _tools(members: Members) -> _Tools:
    offered = []
    listed = _built(members, "tools")
    if not isinstance(listed, list | None):
        raise BadRequest("`tools` must be a list", param="tools")
    for place, tool in enumerate(listed or ()):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not (isinstance(function, dict) and isinstance(name, str)):
            raise BadRequest(f"`tools[{place}]` must be a function with a `name`", param="tools")
        offered.append((name, function.get("parameters")))
    return _Tools(offered, _built(members, "tool_choice"))


def _arguments(parameters: Any) -> Any:
    """Return the schema of a tool's arguments, which are an object whatever it says."""
    if isinstance(parameters, dict) and parameters:
        return (
            parameters if "type" in parameters or "$ref" in parameters else {"type": "object", **parameters}
        )
    return _NO_ARGUMENTS


def _has_tool_result(members: Members) -> bool:
    """Whether a tool has answered since the user last spoke."""
    told = _TURNS.decode(members.get("messages", members.get("input", NULL)))
    turns: list[_Turn] = told if isinstance(told, list) else []
    for turn in reversed(turns):
        if turn.role == "tool" or turn.type == "function_call_output":
            return True
        if turn.role == "user":
            return False
    return False


class _Turn(msgspec.Struct):
    role: str | None = None
    type: str | None = None


_TURNS = msgspec.json.Decoder(list[_Turn] | str | None)


def _built(members: Members, name: str) -> Any:
    raw = members.get(name, NULL)
    if not is_set(raw):
        return None
    value = built(raw)
    if value is None:
        raise BadRequest(f"`{name}` cannot be read", param=name)
    return value
