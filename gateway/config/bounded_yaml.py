"""A YAML text to nodes, within bounds that no alias, nesting or long value gets around."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from yaml.nodes import Node

# Far more than any configuration has, and few enough to be read in a second or two.
MAX_VALUES = 50_000
MAX_DEPTH = 32
# A long value counts as one for every so many characters: aliases make it as dear as many short ones.
_CHARS = 100


class CircularAlias(yaml.ScalarNode):
    """Stands for an alias that refers to what it stands in."""


class _Loader(yaml.SafeLoader):
    """Composes nodes, and counts what they would be if every alias were written out."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._size = self._depth = 0
        self._sizes: dict[Node, int] = {}

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        """Compose the next node.

        Raises:
            MarkedYAMLError: the text is not YAML, or exceeds a bound.
        """
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        start: Any = event.start_mark
        before = self._size
        if isinstance(event, yaml.AliasEvent) and event.anchor in self.anchors:
            self.get_event()  # type: ignore[no-untyped-call]
            anchored: Node = self.anchors[event.anchor]
            if anchored not in self._sizes:  # it is still being composed
                return CircularAlias("", "", start, start)
            self._count(self._sizes[anchored], event)
            return anchored
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"it nests deeper than {MAX_DEPTH} levels", problem_mark=start)
        self._count(1 + len(getattr(event, "value", "")) // _CHARS, event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None:
            self._sizes[node] = self._size - before
        return node

    def _count(self, values: int, event: Any) -> None:
        self._size += values
        if self._size > MAX_VALUES:
            raise yaml.MarkedYAMLError(
                problem=f"it holds over {MAX_VALUES:,} values (an alias counts as all that it stands for)",
                problem_mark=event.start_mark,
            )


def compose(text: str) -> Node | None:
    """Return a text's root node; None where there is none.

    Raises:
        MarkedYAMLError: the text is not YAML, or exceeds a bound; it knows where.
        YAMLError, ValueError: the same, without a place.
    """
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()
