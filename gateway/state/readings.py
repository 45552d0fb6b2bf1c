"""What a reading of an engine's metrics says of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.model import Reading
    from gateway.state.engine_record import EngineRecord
    from gateway.state.fleet import Fleet

log = logging.getLogger(__name__)


def record_reading(record: EngineRecord, reading: Reading, fleet: Fleet, now: float) -> None:
    """Take a reading over into an engine's record; what is new and bad goes into the log."""
    last, record.reading = record.reading, reading
    if last and reading.awake and not last.awake:
        record.back_since = now
    _record_rate(record, last, reading, fleet)
    record.ledger.record_reading(reading)
    record.foreign = max(0, reading.load - reading.own)
    if record.mismatch != reading.mismatch:
        record.mismatch = reading.mismatch
        if record.mismatch:
            log.warning(
                "engine %s differs from its pool's configuration: %s", record.engine.name, record.mismatch
            )


def _record_rate(record: EngineRecord, last: Reading | None, reading: Reading, fleet: Fleet) -> None:
    """Hold what was written between two readings against the profiles; across a gap nobody knows the load."""
    if last is None or reading.generation_tokens < last.generation_tokens:
        return
    polling = fleet.config.polling
    if not last.at < reading.at <= last.at + max(polling.stale_s, 2 * polling.scrape_s):
        return
    did_drift = record.drift.off
    record.drift = record.drift.after(
        reading.generation_tokens - last.generation_tokens,
        reading.at - last.at,
        _promised_rate(record, (last.load + reading.load) / 2, fleet),
    )
    if record.drift.off and not did_drift:
        log.warning(
            "engine %s writes %.2f times what its profiles say", record.engine.name, record.drift.ratio
        )


def _promised_rate(record: EngineRecord, load: float, fleet: Fleet) -> float | None:
    """The tokens per second that the profiles promise for an engine's load, in its own mix of routes."""
    if not load:
        return 0.0
    own = [record.by_route[route] for route in fleet.routes]
    ours = sum(own)
    table = fleet.tables.get(record.engine.pool)
    return table.expected_rate([count * load / ours for count in own]) if table and ours else None
