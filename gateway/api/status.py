"""What /status tells: routes, pools, engines, and how they stand to be chosen now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gateway
from gateway.config.located_yaml import FromEnvironment
from gateway.config.shown_values import NOT_SHOWN
from gateway.policy.account.acceptance import Source, added

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.model import RequestRecord, Speculation
    from gateway.policy.account.acceptance import Recent
    from gateway.state.fleet import Fleet
    from gateway.state.snapshot import EngineStatus, Snapshot


def report(snapshot: Snapshot, fleet: Fleet) -> dict[str, Any]:
    """Return the state as JSON values; times in seconds, rates in output tokens per second."""
    return {
        "version": gateway.__version__,
        "model": fleet.config.model,
        "draining": snapshot.draining,
        "retry_budget": round(snapshot.retry_budget, 1),
        "notes": list(fleet.notes),
        "kept_apart": {
            pool: dict(zip(fleet.routes, map(round, part), strict=True))
            for pool, part in (snapshot.split.targets if snapshot.split else {}).items()
        },
        "routes": {name: _route(name, snapshot, fleet) for name in fleet.routes},
        "pools": {
            name: {
                "depth": pool.depth,
                "max_load": pool.max_load,
                "speculative_config": _without_variables(pool.speculative_config),
                "engines": [status.view.engine.name for status in _of_pool(name, snapshot)],
                "unresolved": list(snapshot.unresolved.get(name, ())),
            }
            for name, pool in fleet.config.pools.items()
        },
        "engines": [_engine(status, fleet) for status in snapshot.engines],
        "recent": [_recent(record) for record in snapshot.recent],
    }


def _without_variables(value: object) -> object:
    """A value of the configuration without what came from the environment, which may be a secret."""
    match value:
        case FromEnvironment():
            return NOT_SHOWN
        case dict():
            return {key: _without_variables(part) for key, part in value.items()}
        case tuple() | list():
            return [_without_variables(part) for part in value]
    return value


def _of_pool(pool: str, snapshot: Snapshot) -> list[EngineStatus]:
    return [status for status in snapshot.engines if status.view.engine.pool == pool]


def _route(name: str, snapshot: Snapshot, fleet: Fleet) -> dict[str, Any]:
    """One route, and the table its next request is chosen by, best first."""
    route, index = snapshot.routes[name], fleet.routes.index(name)
    pools = fleet.config.pools_of(name)
    table: list[dict[str, Any]] = [
        {
            "engine": status.view.engine.name,
            "pool": status.view.engine.pool,
            "depth": fleet.depth(status.view.engine.pool, status.view.load + 1),
            "load": status.view.load,
            "gain": round(status.view.gains[index], 4),
            "fitness": status.fitness,
        }
        for status in snapshot.engines
        if status.view.engine.pool in pools and index < len(status.view.gains)
    ]
    table.sort(key=lambda row: (row["fitness"] != "free", -row["gain"], row["load"]))
    return {
        "in_flight": route.in_flight,
        "waiting": route.waiting,
        "oldest_wait_s": round(route.oldest_wait_s, 3),
        "mean_tokens": round(route.mean_tokens, 1),
        "requests": route.requests,
        "errors": route.errors,
        "tokens_per_second": round(route.rate, 1),
        "acceptance_length": _rounded(_length(route.acceptance)),
        "depth": next((row["depth"] for row in table if row["fitness"] == "free"), None),
        "chosen_by": fleet.chosen_by[name],
        "crossovers": {pool: fleet.tables[pool].crossover(index).load for pool in pools},
        "wins": {pool: fleet.wins[pool][index] for pool in pools},
        "acceptance": {
            pool: {
                source: _acceptance(recent.sums)
                for (of, source), recent in route.acceptance.items()
                if of == pool
            }
            for pool in sorted({pool for pool, _ in route.acceptance})
        },
        "candidates": table,
    }


def _length(acceptance: Mapping[tuple[str, Source], Recent]) -> float | None:
    """The acceptance length over all pools; estimates stand in where there is nothing better."""
    exact = added(recent.sums for (_, source), recent in acceptance.items() if source is not Source.STREAM)
    sums = exact or added(recent.sums for recent in acceptance.values())
    return sums.length if sums else None


def _recent(record: RequestRecord) -> dict[str, Any]:
    return {
        "at": round(record.at, 3),
        "request_id": record.request_id,
        "route": record.route,
        "reason": record.reason,
        "pool": record.pool,
        "engine": record.engine,
        "depth": record.depth,
        "code": record.code,
        "seconds": round(record.seconds, 4),
        "waited_s": round(record.waited_s, 4),
        "acceptance_length": _rounded(record.acceptance_length),
        "completion_tokens": record.usage.completion_tokens if record.usage else None,
        "why": record.why,
    }


def _acceptance(sums: Speculation) -> dict[str, Any]:
    """Speculation of about five minutes; `efficiency` is accepted by draft tokens."""
    return {
        "length": _rounded(sums.length),
        "drafts": round(sums.drafts),
        "efficiency": round(sums.accepted / sums.draft_tokens, 3) if sums.draft_tokens else None,
        "per_position": [round(count / sums.drafts, 3) for count in sums.accepted_per_position],
    }


def _engine(status: EngineStatus, fleet: Fleet) -> dict[str, Any]:
    view = status.view
    return {
        "engine": view.engine.name,
        "pool": view.engine.pool,
        "up": view.up,
        "fault": status.fault or None,
        "fitness": status.fitness,
        "load": view.load,
        "ours": dict(zip(fleet.routes, view.own, strict=False)),
        "holds_from": view.cap,
        "breaker": status.phase.name.lower(),
        "leaving": status.leaving,
        "stale": status.stale,
        "reading_age_s": _rounded(status.reading_age_s),
        "tokens_per_s": round(status.rate, 1),
        "profile_ratio": _rounded(status.ratio),
        "drifts": status.drifts,
        "acceptance_length": _rounded(status.recent.sums.length),
        "merges_chunks": status.merges_chunks,
        "speculation_rejected": dict(status.rejected),
        "simulated": status.simulated,
        "mismatch": status.mismatch or None,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
