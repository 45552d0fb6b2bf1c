"""Reads a YAML text into values, and knows the line of every key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import yaml

from gateway.config.bounded_yaml import CircularAlias, compose
from gateway.config.shown_values import KEY_NOT_SHOWN, NOT_SHOWN, shown, shown_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Location = tuple[str | int, ...]

# So many problems are told at most: a text of a megabyte may have a hundred thousand.
MAX_PROBLEMS = 100
# What PyYAML quotes in its messages. It may be a secret that stands unquoted and begins like *alias or !tag.
_QUOTED = re.compile(r" '[^'<>]{4,}'")
# A dollar that stands for itself, a variable with or without a default, and whatever else looks like one.
_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]{0,254})(?::-((?:[^${}]|\$\$)*))?\}|\$\{")
_LIKE_A_VARIABLE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*|\$\([A-Za-z_][A-Za-z0-9_]*\)")
_FORMS = (
    "holds a ${ that begins no variable: write ${NAME} or ${NAME:-default}, without another variable or a "
    "brace in the default, and $$ for a dollar"
)
_UNQUOTED = '; inside {...} and [...] a variable stands in quotes: "${NAME}"'
# All that variables may come to.
_MAX_EXPANDED = 1024 * 1024
# The longest number, date or other value that is not text: some take time that grows with the square.
_MAX_LITERAL = 100
_IS_TEXT = re.compile(":str$")
_SURROGATE = re.compile("[\ud800-\udfff]")


class FromEnvironment(str):
    """A value with an environment variable in it. It may be a secret, so that no error shows it."""

    __slots__ = ()


class LocatedYaml:
    """One text that is read.

    Attributes:
        problems: a `file:line: key: ...` line for what is wrong with it, `MAX_PROBLEMS` and one at most.
        notes: a `key (line N): ...` line for what is valid and probably not meant, as many at most.
        from_environment: where values stand that have an environment variable in them, and all sections
            and lists around them.
    """

    def __init__(self, file: str, environment: Mapping[str, str]) -> None:
        """Read nothing yet.

        Args:
            file: names the text in problems.
            environment: the variables that it may refer to.
        """
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.from_environment: set[Location] = set()
        self._file = file
        self._environment = environment
        self._lines: dict[Location, int] = {}
        self._valueless: set[Location] = set()
        self._hidden_keys: set[Location] = set()
        self._expanded = 0
        self._loader = yaml.SafeLoader("")

    def read(self, text: str) -> object:
        """Return the text's values, lists as tuples, `${NAME}` and `${NAME:-default}` filled in."""
        try:
            node = compose(text)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            quote = _UNQUOTED if "${" in "".join(text.splitlines()[line - 1 : line]) else ""
            self._refuse(line, _QUOTED.sub("", str(error.problem)) + quote)
        except yaml.reader.ReaderError as error:
            self._refuse(text.count("\n", 0, error.position) + 1, "it has a control character, such as NUL")
        # An escape or a version that is a number, but no possible one.
        except (yaml.YAMLError, ValueError, OverflowError):
            self._refuse(1, "it has a number that is too large")
        else:
            return self._value(node, ()) if node else {}
        return None

    def report(self, problems: Iterable[tuple[Location, str]]) -> None:
        """Add problems, each at the line of its key, or else of the nearest section around it.

        Those after MAX_PROBLEMS are not even looked for.
        """
        for location, message in problems:
            if len(self.problems) >= MAX_PROBLEMS:
                self.problems[MAX_PROBLEMS:] = [f"{self._file}:1: file: there are more problems than these"]
                return
            self.problems.append(
                f"{self._file}:{self._line(location)}: {self._name(location) or 'file'}: {message}"
            )

    def shown(self, value: object, location: Location) -> str:
        """Return a value as an error may name it that stands at a place."""
        secret = "api_key" in location or isinstance(value, FromEnvironment)
        if secret or (location in self.from_environment and not isinstance(value, dict | list | tuple)):
            return NOT_SHOWN
        return shown(value)

    def lacks_value(self, location: Location) -> bool:
        """Return whether nothing stands behind a key."""
        return location in self._valueless

    def hide_key(self, location: Location) -> None:
        """Never show a key, which may be a secret."""
        self._hidden_keys.add(location)

    def _refuse(self, line: int, problem: str) -> None:
        self.problems.append(f"{self._file}:{line}: not valid YAML: {problem}")

    def _line(self, location: Location) -> int:
        known = location
        while known and known not in self._lines:
            known = known[:-1]
        return self._lines.get(known, 1)

    def _name(self, location: Location) -> str:
        steps = []
        for length, step in enumerate(location, start=1):
            if isinstance(step, int):
                steps.append(f"[{step}]")
            else:
                hidden = location[:length] in self._hidden_keys
                steps.append(f".{KEY_NOT_SHOWN if hidden else shown_name(step)}")
        return "".join(steps).removeprefix(".")

    def _value(self, node: yaml.Node, location: Location) -> object:
        match node:
            case CircularAlias():
                self.report([(location, "an alias refers to what it stands in")])
                return None
            case yaml.MappingNode():
                return self._mapping(node, location)
            case yaml.SequenceNode():
                for index, item in enumerate(node.value):
                    self._lines[*location, index] = item.start_mark.line + 1
                return tuple(self._value(item, (*location, index)) for index, item in enumerate(node.value))
        assert isinstance(node, yaml.ScalarNode)  # noqa: S101 - YAML has three kinds of node
        return self._scalar(node, location)

    def _mapping(self, node: yaml.MappingNode, location: Location) -> dict[str, object]:
        seen = set()
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or isinstance(key_node, CircularAlias):
                self.report([(location, f"a key must be a word, in line {key_node.start_mark.line + 1}")])
                return {}
            key = str(key_node.value)
            self._lines[*location, key] = key_node.start_mark.line + 1
            if value_node.value == "":
                self._valueless.add((*location, key))
            if key in seen and key != "<<":
                self.report([((*location, key), "this key stands here twice")])
            if "${" in key:
                self.report([((*location, key), "a key cannot hold a variable, only a value can")])
            seen.add(key)
        try:
            self._loader.flatten_mapping(node)
        except yaml.YAMLError as error:
            self.report([((*location, "<<"), f"cannot be merged: {getattr(error, 'problem', error)}")])
        return {
            str(key_node.value): self._value(value_node, (*location, str(key_node.value)))
            for key_node, value_node in node.value
        }

    def _scalar(self, node: yaml.ScalarNode, location: Location) -> object:
        expanded = self._expand(node.value, location) if "$" in node.value else node.value
        if _SURROGATE.search(expanded):
            self.report([(location, "holds half of a surrogate pair, which is no character")])
            return None
        # It stays a string, so that an API key of digits is not read as a number.
        if expanded != node.value or isinstance(expanded, FromEnvironment):
            return expanded
        if not _IS_TEXT.search(node.tag) and len(node.value) > _MAX_LITERAL:
            self.report(
                [(location, f"is too long: quote it if it is text (at most {_MAX_LITERAL} characters)")]
            )
            return None
        try:
            return self._loader.construct_object(node)
        # An empty `!!int`, a `!!timestamp` that is none: PyYAML checks only values that it tagged itself.
        except Exception:
            self.report([(location, "is not a value of its YAML type")])
            return None

    def _expand(self, text: str, location: Location) -> str:
        """Return a value with its variables filled in; report what looks like one and is none."""
        if _LIKE_A_VARIABLE.fullmatch(text) and len(self.notes) < MAX_PROBLEMS:
            self.notes.append(
                f"{self._name(location)} (line {self._line(location)}): is taken as it stands: a variable is "
                "${NAME}, with braces; $$ is a dollar"
            )
        parts, end = [], 0
        for found in _VARIABLE.finditer(text):
            parts.append(text[end : found.start()])
            end = found.end()
            if found[0] == "$$":
                parts.append("$")
                continue
            name, default = found.groups()
            if name is None:
                self.report([(location, _FORMS)])
                return text
            self._note_variable(location)
            value = self._environment.get(name) or (default and default.replace("$$", "$"))
            if value is None:
                self.report([(location, f"the environment variable {name} is not set, and has no :-default")])
            parts.append(value or "")
            self._expanded += len(parts[-1])
            if self._expanded > _MAX_EXPANDED:
                self.report([(location, f"variables come to over {_MAX_EXPANDED:,} characters by here")])
                return text
        expanded = "".join([*parts, text[end:]])
        return FromEnvironment(expanded) if location in self.from_environment else expanded

    def _note_variable(self, location: Location) -> None:
        self.from_environment.update(location[:length] for length in range(len(location) + 1))
