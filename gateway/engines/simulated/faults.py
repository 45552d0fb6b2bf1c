"""What goes wrong in a simulated engine, on request."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from gateway.errors import BadRequest

Kind = Literal[
    "none",
    "slow",
    "hang",
    "die",
    "die_mid_stream",
    "garbage",
    "unavailable",
    "not_ready",
    "reset_counters",
    "sleep",
    "drain",
]


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault as asked for.

    Attributes:
        kind: what goes wrong.
            `none`: nothing any more. `slow`: steps take `factor` times as long. `hang`: nothing is answered
            or written. `die`: the process ends at once. `die_mid_stream`: connections are cut after
            `after_tokens`. `garbage`: 200 with a body that is no answer. `unavailable`: 503, as from a paused
            engine. `not_ready`: /health is 503. `reset_counters`: as after a restart, once. `sleep`: asleep,
            requests wait. `drain`: as after SIGTERM, new requests get a 500, those in flight
            are finished.
        probability: share of requests that it hits (die_mid_stream, garbage, unavailable).
        after_tokens: see die_mid_stream.
        factor: see slow.
        health: /health still answers (hang).
    """

    kind: Kind
    probability: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    after_tokens: Annotated[int, msgspec.Meta(ge=0)] = 20
    factor: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 10.0
    health: bool = False


NO_FAULT = Fault("none")

_FAULT = msgspec.json.Decoder(Fault)


def parse_fault(body: bytes) -> Fault:
    """Read the body of POST /faults.

    Raises:
        BadRequest: it is no fault.
    """
    try:
        return _FAULT.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(str(error)) from error
