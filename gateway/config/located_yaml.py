"""Reads a YAML text into values, and knows the line of every key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Location = tuple[str | int, ...]

# What PyYAML quotes in its messages. It may be a secret that stands unquoted and begins like *alias or !tag.
_QUOTED = re.compile(r" '[^'<>]{4,}'")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class FromEnvironment(str):
    """A value with an environment variable in it. It may be a secret, so that no error shows it."""

    __slots__ = ()


class LocatedYaml:
    """One text that is read.

    Attributes:
        problems: a `file:line: key: ...` line for everything that is wrong with it.
    """

    def __init__(self, file: str, environment: Mapping[str, str]) -> None:
        """Read nothing yet.

        Args:
            file: names the text in problems.
            environment: the variables that it may refer to.
        """
        self.problems: list[str] = []
        self._file = file
        self._environment = environment
        self._lines: dict[Location, int] = {}
        self._loader = yaml.SafeLoader("")

    def read(self, text: str) -> object:
        """Return the text's values, lists as tuples, `${NAME}` and `${NAME:-default}` filled in."""
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            problem = _QUOTED.sub("", str(error.problem))
            self.problems.append(f"{self._file}:{line}: not valid YAML: {problem}")
            return None
        except (yaml.YAMLError, RecursionError) as error:
            self.problems.append(f"{self._file}:1: not valid YAML: {error}")
            return None
        return self._value(node, (), ()) if node else {}

    def report(self, problems: Iterable[tuple[Location, str]]) -> None:
        """Add problems, each at the line of its key, or else of the nearest section around it."""
        for location, message in problems:
            known = location
            while known and known not in self._lines:
                known = known[:-1]
            key = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
            line = self._lines.get(known, 1)
            self.problems.append(f"{self._file}:{line}: {key.removeprefix('.') or 'file'}: {message}")

    def _value(self, node: yaml.Node, location: Location, parents: tuple[yaml.Node, ...]) -> object:
        if node in parents:
            self.report([(location, "an alias refers to what it stands in")])
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, location, (*parents, node))
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._lines[*location, index] = item.start_mark.line + 1
            return tuple(
                self._value(item, (*location, index), (*parents, node))
                for index, item in enumerate(node.value)
            )
        assert isinstance(node, yaml.ScalarNode)  # noqa: S101 - YAML has three kinds of node
        return self._scalar(node, location)

    def _mapping(
        self, node: yaml.MappingNode, location: Location, parents: tuple[yaml.Node, ...]
    ) -> dict[str, object]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.report([(location, f"a key must be a word, in line {key_node.start_mark.line + 1}")])
                return {}
            key = str(key_node.value)
            self._lines[*location, key] = key_node.start_mark.line + 1
            if key in seen and key != "<<":
                self.report([((*location, key), "this key stands here twice")])
            seen.add(key)
        try:
            self._loader.flatten_mapping(node)
        except yaml.YAMLError as error:
            self.report([((*location, "<<"), f"cannot be merged: {getattr(error, 'problem', error)}")])
        return {
            str(key_node.value): self._value(value_node, (*location, str(key_node.value)), parents)
            for key_node, value_node in node.value
        }

    def _scalar(self, node: yaml.ScalarNode, location: Location) -> object:
        def expand(match: re.Match[str]) -> str:
            name, default = match.groups()
            value = self._environment.get(name) or default
            if value is None:
                self.report([(location, f"the environment variable {name} is not set, and has no :-default")])
            return value or ""

        # An expanded value stays a string, so that an API key of digits is not read as a number.
        expanded = _VARIABLE.sub(expand, node.value)
        if expanded != node.value:
            return FromEnvironment(expanded)
        try:
            return self._loader.construct_object(node)
        # An empty `!!int`, a `!!timestamp` that is none: PyYAML checks only values that it tagged itself.
        except Exception:
            self.report([(location, "is not a value of its YAML type")])
            return None
