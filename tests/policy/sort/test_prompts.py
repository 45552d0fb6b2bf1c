import pytest

from gateway.policy.sort.evidence import normalise
from gateway.policy.sort.prompts import EXACT, KEY_VALUE, PATTERNS, STARTS, TABLE, TEXT


@pytest.mark.parametrize("prompt", [*EXACT, *(start for start, _ in STARTS)])
def test_known_prompts_stand_in_the_form_they_are_compared_in(prompt: str) -> None:
    assert normalise(prompt) == prompt


def test_every_prompt_asks_for_a_route_of_the_design() -> None:
    routes = [*EXACT.values(), *(route for _, route in PATTERNS), *(route for _, route in STARTS)]
    assert set(routes) == {TEXT, KEY_VALUE, TABLE}
