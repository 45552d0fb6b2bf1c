"""Derive strict JSON schemas of custom resources from their Python models: `python -m deploy.checks.crds`.

The models accept unknown fields and take seconds to import; the files in crds/ do neither.
The Gateway API has no such models: gateway- and httproute-*.json are written by hand, for what is used here.
"""

from __future__ import annotations

import importlib
import json
from importlib.metadata import version
from typing import Any

from deploy.checks.schemas import CRDS

# By distribution: its module, and the kinds that are used here.
MODELS = {
    "cloudcoil-models-keda": ("cloudcoil.models.keda.v1alpha1", ("ScaledObject", "TriggerAuthentication")),
    "cloudcoil-models-prometheus-operator": (
        "cloudcoil.models.prometheus_operator.v1",
        ("PodMonitor", "ServiceMonitor", "PrometheusRule"),
    ),
}
_NO_RULE = ("title", "default", "description")


def derive(distribution: str) -> dict[str, dict[str, Any]]:
    """Return the schemas of a distribution's kinds, by file name."""
    name, kinds = MODELS[distribution]
    module = importlib.import_module(name)
    found = {}
    for kind in kinds:
        schema = strict(getattr(module, kind).model_json_schema())
        own = schema["properties"]
        for key in ("apiVersion", "kind"):
            own[key] = {"const": own[key]["const"]}
        own["metadata"] = {"type": "object"}
        group = own["apiVersion"]["const"].replace("/", "-")
        used = _used(schema)
        schema["$defs"] = {key: value for key, value in schema.get("$defs", {}).items() if key in used}
        schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
        schema["$comment"] = f"{distribution} {version(distribution)}"
        found[f"{kind.lower()}-{group}.json"] = schema
    return found


def strict(schema: Any) -> Any:
    """Close every object to fields that it does not name, and every value to null."""
    if isinstance(schema, list):
        return [strict(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    if options := [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]:
        rest = {key: value for key, value in schema.items() if key != "anyOf"}
        schema = rest | (options[0] if len(options) == 1 else {"anyOf": options})
    if "pattern" in schema:  # Go takes a flag anywhere, Python at the start
        schema = schema | {"pattern": schema["pattern"].replace("^(?i)", "(?i)^")}
    closed = {
        key: {name: strict(value) for name, value in found.items()}
        if key in ("properties", "$defs")
        else strict(found)
        for key, found in schema.items()
        if key not in _NO_RULE
    }
    if "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def _used(schema: dict[str, Any]) -> set[str]:
    """The definitions that a schema needs, however indirectly."""
    definitions, used = schema.get("$defs", {}), set[str]()
    left = [{key: value for key, value in schema.items() if key != "$defs"}]
    while left:
        text = json.dumps(left.pop())
        found = {name for name in definitions if f'"#/$defs/{name}"' in text} - used
        used |= found
        left += [definitions[name] for name in found]
    return used


def written(schema: dict[str, Any]) -> str:
    """Return a schema's file."""
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    for one in MODELS:
        for file, derived in derive(one).items():
            (CRDS / file).write_text(written(derived))
