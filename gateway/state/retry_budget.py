"""The budget of further attempts that all requests share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.policy.fail.retry import Budget, budget_after_retry, may_try_again

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.config import Config
    from gateway.policy.fail.retry import Failure


class RetryBudget:
    """What is left of it, and how it is spent (`retry` in routes.yaml).

    Attributes:
        requests: begun since the budget was last asked for; each adds to it.
    """

    def __init__(self, config: Config, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._per_request = config.retry.per_request
        self._budget = Budget(config.retry.budget)
        self.requests = 0

    def configure(self, config: Config) -> None:
        """Take other rules over; what is left is left."""
        self._budget = self._current()
        self._per_request = config.retry.per_request
        self._budget = replace(self._budget, share=config.retry.budget)

    def within_limits(self, attempts: int, seconds_left: float) -> bool:
        """Whether a request may be tried again, were there no budget."""
        return may_try_again(attempts, self._per_request, seconds_left)

    def may_retry(self, failure: Failure, *, attempts: int, seconds_left: float) -> bool:
        """Decide on another attempt, and take it from the budget; see policy.fail.retry."""
        left = budget_after_retry(
            failure,
            attempts=attempts,
            per_request=self._per_request,
            seconds_left=seconds_left,
            budget=self._current(),
            now=self._clock(),
        )
        if left:
            self._budget = left
        return left is not None

    def remaining(self) -> float:
        """Return how many further attempts may be made at once."""
        return self._current().remaining(self._clock())

    def _current(self) -> Budget:
        self._budget, self.requests = self._budget.begun(self._clock(), self.requests), 0
        return self._budget
