"""Which of its three answers the engine gives a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from gateway.policy.sort.evidence import SortRules, sort

if TYPE_CHECKING:
    from gateway.model import SortFacts

Task = Literal["text", "key-value", "table"]

_RULES = SortRules(routes=("text", "key-value", "table"), default="text")


def task_of(facts: SortFacts, route: str | None = None) -> Task:
    """Return what a request asks for; text where its words and structure do not tell.

    Unlike its route, the form of an answer is bound by a demand for JSON, whatever the prompt says.

    Args:
        facts: what is known of the request.
        route: where the gateway has sorted it by its picture.
    """
    if facts.schema is not None or facts.wants_json:
        return "key-value"
    decision = sort(facts, _RULES)
    if decision is not None:
        return cast("Task", decision.route)
    return cast("Task", route) if route in _RULES.routes else "text"
