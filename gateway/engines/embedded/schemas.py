"""The fields a key-value request names, in whichever of its places, as one JSON schema."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gateway.policy.sort.evidence import json_objects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.model import SortFacts

_NAMED_FIELDS = re.compile(r"(?:fields?|提取图片中的)\W{0,4}\[([^\[\]]{1,4000})\]", re.IGNORECASE)
_NAMED_VALUE = re.compile(r"output the value of (.{1,200}?)[.\s]*", re.IGNORECASE | re.DOTALL)
_QUOTES = " \t\n'\"\u201c\u201d\u2018\u2019"
_NUMBERS = re.compile(r"number|float|currency|amount", re.IGNORECASE)
_INTEGERS = re.compile(r"int(?:eger)?", re.IGNORECASE)
_BOOLEANS = re.compile(r"bool(?:ean)?", re.IGNORECASE)


def wanted_schema(facts: SortFacts) -> Mapping[str, Any] | None:
    """Return the JSON schema a key-value answer must follow; None where the request names no fields."""
    if facts.schema is not None:
        return facts.schema
    template = facts.template
    if isinstance(template, str):
        template = next(json_objects(template), None)
    if isinstance(template, dict):
        return schema_of(template)
    for value in json_objects(facts.prompt + "\n" + facts.system):
        return value if isinstance(value.get("properties"), dict) else schema_of(value)
    if named := _NAMED_FIELDS.search(facts.prompt):
        names = [name.strip(_QUOTES) for name in re.split(r"[,\uff0c\u3001]", named.group(1))]
        return schema_of({name: "" for name in names if name})
    if one := _NAMED_VALUE.fullmatch(facts.prompt.strip()):
        return schema_of({one.group(1).strip(" '\""): ""})
    return None


def schema_of(template: object) -> dict[str, Any]:
    """Read a template (`{"total": "number", "items": [{"name": ""}]}`) as a JSON schema."""
    match template:
        case dict():
            return {"type": "object", "properties": {str(name): schema_of(v) for name, v in template.items()}}
        case [str(), str(), *_]:
            return {"enum": template}
        case [first, *_]:
            return {"type": "array", "items": schema_of(first)}
        case list():
            return {"type": "array", "items": {"type": "string"}}
        case str():
            return {"type": _type_named(template)}
        case bool():
            return {"type": "boolean"}
        case int() | float():
            return {"type": "number"}
    return {}


def _type_named(name: str) -> str:
    for kind, names in (("number", _NUMBERS), ("integer", _INTEGERS), ("boolean", _BOOLEANS)):
        if names.fullmatch(name.strip("<> ")):
            return kind
    return "string"
