"""Sort: a request gets its route by the strongest evidence that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.policy.sort import evidence

if TYPE_CHECKING:
    from gateway.images.inspector import ImageInspector
    from gateway.model import Buffer, SortDecision
    from gateway.policy.sort.evidence import SortRules
    from gateway.request.receive import ReceivedRequest


async def sort(
    received: ReceivedRequest, rules: SortRules, vision: ImageInspector, client: str
) -> SortDecision:
    """Return a request's route; its first image is looked at only where nothing cheaper decides.

    Args:
        received: the request.
        rules: by which requests are sorted.
        vision: looks at images.
        client: whose the image is: clients take turns at being looked at.

    Raises:
        BadRequest: it names a route that there is not.
    """
    decision = evidence.sort(received.facts, rules)
    first = received.images.first
    if decision is None and first is not None:
        decision = await sort_by_image(first, received.images.first_weight, rules, vision, client)
    return decision or evidence.by_default(rules)


async def sort_by_image(
    url: Buffer, weight: int, rules: SortRules, vision: ImageInspector, client: str
) -> SortDecision | None:
    """Return the route that an image looks like; None where that cannot be told in time.

    Args:
        url: its data URL.
        weight: bytes of memory that decoding it takes.
        rules: by which requests are sorted.
        vision: looks at images.
        client: whose it is.
    """
    guess = await vision.guess(url, weight=weight, client=client)
    return evidence.sort_by_layout(guess, rules) if guess else None
