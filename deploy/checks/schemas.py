"""Strict schemas: an unknown field is a problem, and so are an unknown kind and a key with nothing behind it.

Core objects are held against Kubernetes 1.32's own schemas (kubernetes-validate has them), custom resources
against those in crds/, which `python -m deploy.checks.crds` derives.
"""

from __future__ import annotations

import importlib.resources
import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry, Resource

from deploy.checks.objects import Problem, name_of, namespace_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jsonschema.exceptions import ValidationError

    from deploy.checks.objects import Document

VERSION = "1.32"
CRDS = Path(__file__).with_name("crds")

_BASE = "https://kubernetes.io/api/"
_METADATA = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DNS = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i|e[0-9]+)?")
_LABELS = ("labels", "matchLabels")


def check(documents: Sequence[Document]) -> Iterator[Problem]:
    """Yield what no API server would take, or would silently take otherwise than it was meant."""
    seen = set()
    for document in documents:
        if not isinstance(document.get("metadata"), dict):
            yield Problem(name_of(document), "metadata", "must be a section with a name")
            continue
        key = f"{document.get('apiVersion')} {name_of(document)} {namespace_of(document)}"
        if key in seen:
            yield Problem(name_of(document), "metadata.name", "is there twice; the last one would win")
        seen.add(key)
        yield from _check(document)


def _check(document: Document) -> Iterator[Problem]:
    name = name_of(document)
    validator = _validator(str(document.get("apiVersion")), str(document.get("kind")))
    if validator is None:
        yield Problem(
            name,
            "kind",
            f"no schema of {document.get('apiVersion')} {document.get('kind')}: Kubernetes {VERSION} has "
            f"none, nor has deploy/checks/{CRDS.name}",
        )
        return
    has_spec = isinstance(validator.schema, dict) and "spec" in validator.schema["properties"]
    if has_spec and "spec" not in document and document["kind"] != "Namespace":
        yield Problem(name, "spec", "is missing")
    for error in sorted(validator.iter_errors(document), key=lambda error: list(map(str, error.path))):
        yield _problem(name, document, error)
    yield from (Problem(name, where, text) for where, text in _values(document, ()))
    shape = _DNS_LABEL if document["kind"] == "Service" else _DNS
    if not shape.fullmatch(str(document.get("metadata", {}).get("name", ""))):
        yield Problem(name, "metadata.name", "must be lower-case letters, digits and '-'")


def _problem(name: str, document: Document, error: ValidationError) -> Problem:
    cause = best_match([error]) or error
    text = cause.message
    if cause.validator == "additionalProperties" and isinstance(cause.schema, dict):
        fields = ", ".join(sorted(cause.schema.get("properties", {})))
        text = f"{text.partition('(')[2].partition(' ')[0]} is no field of it; there are {fields}"
    return Problem(
        name, where(document, list(cause.absolute_path)), text if len(text) < 400 else text[:397] + "..."
    )


def where(document: Any, path: Iterable[str | int]) -> str:
    """Write a path; an entry of a list goes by its name where it has one."""
    text, found = "", document
    for step in path:
        found = found[step]
        if isinstance(step, int):
            text += f"[{found.get('name', step) if isinstance(found, dict) else step}]"
        else:
            text += f".{step}"
    return text.removeprefix(".") or "file"


def _values(value: object, path: tuple[str | int, ...]) -> Iterator[tuple[str, str]]:
    """Yield what schemas leave open: empty values, labels, quantities."""
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")
    if value is None:
        yield place, "is empty: write {} (or a value), or leave the key out"
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _values(entry, (*path, index))
    elif isinstance(value, dict):
        if path and path[-1] in _LABELS:
            for key, entry in value.items():
                if problem := _label(key, entry):
                    yield f"{place}[{key}]", problem
        if path[-2:] and path[-1] in ("limits", "requests") and path[-2] == "resources":
            for key, entry in value.items():
                if not _QUANTITY.fullmatch(str(entry)):
                    yield f"{place}.{key}", f"{entry!r} is no quantity; 500m, 2, 1.5Gi and 4e9 are"
        for key, entry in value.items():
            yield from _values(entry, (*path, key))


def _label(key: str, value: object) -> str:
    prefix, _, name = key.rpartition("/")
    if not _LABEL_NAME.fullmatch(name) or (prefix and not _DNS.fullmatch(prefix)) or len(prefix) > 253:
        return "is no label's key: [domain/]name, the name of at most 63 letters, digits, '-', '_' and '.'"
    if value != "" and not _LABEL_NAME.fullmatch(str(value)):
        return f"{value!r} is no label's value: at most 63 letters, digits, '-', '_' and '.'"
    return ""


@cache
def _validator(api_version: str, kind: str) -> Draft202012Validator | None:
    group, _, version = api_version.rpartition("/")
    crd = CRDS / f"{kind.lower()}-{group}-{version}.json"
    if crd.exists():
        schema = json.loads(crd.read_text())
        schema["properties"]["metadata"] = {"$ref": f"{_BASE}_definitions.json#/$defs/{_METADATA}"}
        return Draft202012Validator({"$id": f"{_BASE}crd/{crd.name}", **schema}, registry=_registry())
    core = _core() / f"{kind.lower()}-{group.partition('.')[0]}{'-' * bool(group)}{version}.json"
    if not core.is_file():
        return None
    schema = json.loads(core.read_text())
    own = schema["properties"].get("apiVersion", {}).get("enum")
    return Draft202012Validator(schema, registry=_registry()) if own == [api_version] else None


@cache
def _registry() -> Registry[Any]:
    definitions = json.loads((_core() / "_definitions.json").read_text())
    return Resource.from_contents(definitions) @ Registry()


def _core() -> Path:
    folder = importlib.resources.files("kubernetes_validate") / "kubernetes-json-schema"
    return Path(str(folder)) / f"v{VERSION}.0-local-strict"
