"""All checks of one rendering."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploy.checks import autoscaling, network, pods, schemas, series, serving
from deploy.checks.objects import Problem, Rendering

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploy.checks.objects import Document

_CHECKS = (pods.check, network.check, autoscaling.check, serving.check, series.check)


def problems(documents: Sequence[Document]) -> list[Problem]:
    """Return everything that is wrong with rendered objects, sorted; where shapes are wrong, these alone."""
    return sorted(set(schemas.check(documents))) or policy(documents)


def policy(documents: Sequence[Document]) -> list[Problem]:
    """Return what is wrong with objects whose shapes are right, by our own reading."""
    rendering = Rendering(tuple(documents))
    return sorted({problem for check in _CHECKS for problem in check(rendering)})
