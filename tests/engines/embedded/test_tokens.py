from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engines.embedded.tokens import MAX_IMAGE_TOKENS, TokenBudget, count_tokens, image_tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("hello", 1), ("Total: 8.25", 5), ("文字识别", 4), ("발행일 x", 4), (" \n", 0), ("a_b", 1)],
)
def test_words_cjk_characters_and_marks_count(text: str, tokens: int) -> None:
    assert count_tokens(text) == tokens


@pytest.mark.parametrize(
    ("size", "tokens"), [((28, 28), 1), ((29, 28), 2), ((1, 1), 1), ((10_000, 10_000), MAX_IMAGE_TOKENS)]
)
def test_images_count_by_patches(size: tuple[int, int], tokens: int) -> None:
    assert image_tokens(*size) == tokens


def test_a_budget_without_a_limit_takes_all() -> None:
    budget = TokenBudget(None)
    assert budget.spend("one two") == "one two"
    assert (budget.used, budget.exhausted) == (2, False)


def test_a_budget_cuts_at_its_limit() -> None:
    budget = TokenBudget(3)
    assert budget.spend("one two") == "one two"
    assert budget.spend("\nthree four") == "\nthree"
    assert (budget.used, budget.exhausted) == (3, True)


def test_an_exactly_spent_budget_is_exhausted() -> None:
    budget = TokenBudget(2)
    assert budget.spend("one two ") == "one two "
    assert budget.exhausted
    assert budget.spend("three") == ""


@given(st.text(), st.integers(1, 20))
def test_no_more_than_the_limit_is_let_through(text: str, limit: int) -> None:
    budget = TokenBudget(limit)
    taken = budget.spend(text)
    assert text.startswith(taken)
    assert count_tokens(taken) == budget.used == min(limit, count_tokens(text))
