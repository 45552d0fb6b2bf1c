from __future__ import annotations

import pytest

from gateway.engines.embedded.tasks import task_of
from gateway.model import SortFacts


@pytest.mark.parametrize(
    ("facts", "task"),
    [
        (SortFacts(has_image=True), "text"),
        (SortFacts(prompt="Text Recognition:", has_image=True), "text"),
        (SortFacts(prompt="Table Recognition:", has_image=True), "table"),
        (SortFacts(schema={"properties": {"a": {}}}, has_image=True), "key-value"),
        (SortFacts(schema={"type": "array"}, prompt="Text Recognition:", has_image=True), "key-value"),
        (SortFacts(wants_json=True, prompt="Table Recognition:", has_image=True), "key-value"),
        (SortFacts(template={"a": ""}, has_image=True), "key-value"),
        (SortFacts(prompt='{"a": ""}', has_image=True), "key-value"),
        (SortFacts(prompt="hello"), "text"),
    ],
)
def test_words_and_structure_tell_the_task(facts: SortFacts, task: str) -> None:
    assert task_of(facts) == task
