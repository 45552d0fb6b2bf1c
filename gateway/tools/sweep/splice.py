"""Puts schedules and profiles into the text of a routes.yaml; every other byte stays.

No YAML library writes a file back byte for byte, so the text is edited at the places that PyYAML's marks
name, and read again: nothing but the wanted values may have changed."""

from __future__ import annotations

import json
import os
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from gateway.config.located_yaml import LocatedYaml
from gateway.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PLAIN = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./-]*")
_COLON = re.compile(r"[ \t]*:")
_LINE = re.compile(r"[^\r\n\x85\u2028\u2029]*")
_BREAK = re.compile(r"\r\n|[\r\n\x85\u2028\u2029]")
_COMMENT = re.compile(rf"#{_LINE.pattern}")
_ALIAS = "!alias"
_NULL = "tag:yaml.org,2002:null"


class RouteChange(NamedTuple):
    """A route's new values: its schedule, and its profile's path from the file's folder; None: unchanged."""

    schedule: tuple[tuple[int, int, int], ...] | None = None
    profile: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        """By key of the route's section."""
        return {key: value for key, value in self._asdict().items() if value is not None}


class _Edit(NamedTuple):
    start: int
    end: int
    text: str


class _Unsafe(Exception):
    """A value cannot be changed without touching other places of the file."""


class _Loader(yaml.SafeLoader):
    """Composes an alias as a node of its own, with its place in the text."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.get_event()  # type: ignore[no-untyped-call]
            return yaml.ScalarNode(_ALIAS, event.anchor, event.start_mark, event.end_mark)
        return super().compose_node(parent, index)


def updated(
    text: str, file: str, wanted: Mapping[str, RouteChange], environment: Mapping[str, str] = os.environ
) -> str:
    """Return a routes.yaml's text with schedules and profiles put in.

    A comment inside a value that is replaced moves above it.

    Args:
        text: as the file has it, line ends included.
        file: names it in errors.
        wanted: by route.
        environment: fills in `${NAME}` where the values of both texts are compared.

    Raises:
        ConfigError: it is no valid YAML, lacks a route, or says it in a way that cannot be changed without
            touching more, as with an anchor that other routes refer to; tells what to write by hand.
    """
    wanted = {route: change for route, change in wanted.items() if change.values}
    if not wanted:
        return text
    routes = _routes(_values(text, file, environment))
    if lacking := [route for route in wanted if route not in routes]:
        there = ", ".join(routes) or "none"
        raise ConfigError([f"{file}: routes: there is no {route!r}, but {there}" for route in lacking])
    try:
        return _changed(text, file, wanted, environment)
    except _Unsafe as error:
        problems = []
        for route, change in wanted.items():
            try:
                _changed(text, file, {route: change}, environment)
            except _Unsafe as cause:
                problems.append(_by_hand(text, file, route, change, cause))
        # None of them fails by itself where two of them want different things of one place.
        every = [_by_hand(text, file, route, change, error) for route, change in wanted.items()]
        raise ConfigError(problems or every) from error


def _changed(text: str, file: str, wanted: Mapping[str, RouteChange], environment: Mapping[str, str]) -> str:
    """Edit the text, and check that its values have changed as wanted and in nothing else."""
    root = yaml.compose(text, Loader=_Loader)
    after = _spliced(
        text, [edit for route, change in wanted.items() for edit in _edits(text, root, route, change)]
    )
    values = _values(text, file, environment)
    routes = _routes(values)
    for route, change in wanted.items():
        routes[route] = (routes[route] or {}) | change.values
    try:
        same = _values(after, file, environment) == values
    except ConfigError:
        same = False
    if not same:
        raise _Unsafe("an anchor, alias or unusual syntax stands in the way")
    return after


def _values(text: str, file: str, environment: Mapping[str, str]) -> Any:
    document = LocatedYaml(file, environment)
    values = document.read(text)
    if document.problems:
        raise ConfigError(document.problems)
    return values


def _routes(values: Any) -> dict[str, Any]:
    routes = values.get("routes") if isinstance(values, dict) else None
    return routes if isinstance(routes, dict) else {}


def _spliced(text: str, edits: list[_Edit]) -> str:
    edits.sort(key=lambda edit: edit.start)
    if any(first.end > second.start for first, second in pairwise(edits)):
        raise _Unsafe("two of the changes overlap")
    for edit in reversed(edits):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def _by_hand(text: str, file: str, route: str, change: RouteChange, cause: _Unsafe) -> str:
    root = yaml.compose(text, Loader=_Loader)
    found = _entry(root, "routes")
    nearest = found and (_entry(found[1], route) or found)
    line = nearest[0].start_mark.line + 1 if nearest else 1
    lines = ", ".join(f"{key}: {json.dumps(value)}" for key, value in change.values.items())
    return f"{file}:{line}: routes.{route}: cannot be updated in place: {cause}; write there: {lines}"


def _entry(node: yaml.Node | None, name: str) -> tuple[yaml.ScalarNode, yaml.Node] | None:
    """A key of a mapping and its value; None where the mapping lacks it or merges it in."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _ALIAS and key.value == name:
                return key, value
    return None


def _edits(text: str, root: yaml.Node | None, route: str, change: RouteChange) -> Iterator[_Edit]:
    routes_key, routes = _entry(root, "routes") or (None, None)
    found = _entry(routes, route)
    if routes_key is None or routes is None or found is None:
        raise _Unsafe("it comes from an alias or a merge key")
    key, section = found
    if section.tag == _NULL:
        yield _fill(text, routes_key, routes, key, section, change)
        return
    if not isinstance(section, yaml.MappingNode):
        raise _Unsafe("it is an alias" if section.tag == _ALIAS else "it is not a section")
    quote = _quoted(section.value[0][0] if section.value else key)
    behind: int | None = None  # the end of the value after which the next entry goes
    missing: list[str] = []
    for name, value in change.values.items():
        if there := _entry(section, name):
            yield from _replaced(text, *there, _written(value, _quoted(there[0])))
            behind = _end(there[1])
        else:
            missing.append(f"{_written(name, quote)}: {_written(value, quote)}")
    if missing:
        yield _insert(text, key, section, missing, behind)


def _fill(
    text: str,
    routes_key: yaml.Node,
    routes: yaml.Node,
    key: yaml.Node,
    section: yaml.Node,
    change: RouteChange,
) -> _Edit:
    """Give an empty route its section."""
    quote = _quoted(key)
    entries = [f"{_written(name, quote)}: {_written(value, quote)}" for name, value in change.values.items()]
    start, end = section.start_mark.index, section.end_mark.index
    if start < end or not _is_block(routes):
        return _Edit(start, end, f"{' ' * (start == end)}{{{', '.join(entries)}}}")
    step = key.start_mark.column - routes_key.start_mark.column
    at = _line_end(text, start)
    return _Edit(at, at, _lines(text, key.start_mark.column + step, entries))


def _insert(
    text: str, key: yaml.Node, section: yaml.MappingNode, entries: list[str], behind: int | None
) -> _Edit:
    """Put entries into a section: behind the entry that was replaced, else first."""
    if _is_block(section):
        at = _line_end(text, key.end_mark.index if behind is None else behind)
        return _Edit(at, at, _lines(text, section.value[0][0].start_mark.column, entries))
    if behind is not None:
        return _Edit(behind, behind, "".join(f", {entry}" for entry in entries))
    if section.value:
        at = section.value[0][0].start_mark.index
        return _Edit(at, at, "".join(f"{entry}, " for entry in entries))
    at = section.end_mark.index - 1  # before the closing brace
    return _Edit(at, at, ", ".join(entries))


def _replaced(text: str, key: yaml.Node, value: yaml.Node, written: str) -> Iterator[_Edit]:
    start, end = value.start_mark.index, _end(value)
    if _is_block(value):
        # It begins on a line below its key's, which keeps its comment.
        colon = _COLON.match(text, key.end_mark.index)
        if colon is None:
            raise _Unsafe("its key is written with a question mark")
        yield _Edit(colon.end(), colon.end(), f" {written}")
        start = _line_end(text, colon.end())
        written = ""
    elif start == end:
        written = f" {written}"
    if comments := list(_comments(text, value, start)):
        first = int(text.startswith("\ufeff"))  # a byte order mark stays first
        line = max((match.end() for match in _BREAK.finditer(text, 0, key.start_mark.index)), default=first)
        indent = " " * (len(text[line:]) - len(text[line:].lstrip(" ")))
        above = "".join(f"{indent}{comment}{_newline(text)}" for comment in comments)
        yield _Edit(line, line, above)
    yield _Edit(start, end, written)


def _comments(text: str, value: yaml.Node, start: int) -> Iterator[str]:
    """The comments inside a value: they stand between its scalars."""
    for leaf in (*_leaves(value), None):
        yield from _COMMENT.findall(text[start : _end(value) if leaf is None else leaf.start_mark.index])
        start = leaf.end_mark.index if leaf else start


def _leaves(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.ScalarNode):
        yield node
    else:
        for child in _children(node):
            yield from _leaves(child)


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    children: list[yaml.Node] = node.value
    return children


def _end(node: yaml.Node) -> int:
    """Where a value ends; a block's own mark lies beyond the comments that follow it."""
    while _is_block(node):
        node = _children(node)[-1]
    end: int = node.end_mark.index
    return end


def _is_block(node: yaml.Node) -> bool:
    return isinstance(node, yaml.CollectionNode) and not node.flow_style


def _quoted(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style == '"'


def _lines(text: str, column: int, entries: list[str]) -> str:
    return "".join(f"{_newline(text)}{' ' * column}{entry}" for entry in entries)


def _line_end(text: str, start: int) -> int:
    found = _LINE.match(text, start)
    return found.end() if found else start


def _newline(text: str) -> str:
    found = _BREAK.search(text)
    return found[0] if found else "\n"


def _written(value: Any, quoted: bool) -> str:
    if isinstance(value, str) and not quoted and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value)
