"""Loads from Prometheus' history of the gateway's own series. The only module here that talks HTTP."""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx

from gateway.config.shown_values import shown
from gateway.connect_failure import explained
from gateway.errors import ConfigError
from gateway.tools.plan.load_history import History

if TYPE_CHECKING:
    from collections.abc import Iterator

# Prometheus answers no query of more points a series.
_MOST_POINTS = 11_000
# All chunks together: half a year of minutes.
_MOST_STEPS = 300_000
_MOST_BYTES = 64 << 20
_TIMEOUT_S = 60.0
_SERIES = ("ocr_gateway_in_flight", "ocr_gateway_waiting")
_INFO = "ocr_gateway_build_info"
_DURATION = re.compile(r"(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_UNITS_S = (604_800, 86_400, 3_600, 60, 1)


def seconds(text: str) -> float:
    """Return a duration as Prometheus writes them (`7d`, `1h30m`), in seconds.

    Raises:
        ValueError: it is none, or 0.
    """
    match = _DURATION.fullmatch(text)
    total = (
        sum(int(count or 0) * unit for count, unit in zip(match.groups(), _UNITS_S, strict=True))
        if match
        else 0
    )
    if not total:
        raise ValueError(f"not a duration such as 7d or 1h30m: {text!r}")
    return float(total)


async def history(url: str, *, model: str | None, since_s: float, step_s: float, now: float) -> History:
    """Return what was in the system of all of a model's gateways together.

    Moments at which no gateway told anything are left out.

    Args:
        url: Prometheus' base URL.
        model: which; None where there is only one.
        since_s: how far to look back, in seconds.
        step_s: how often to look, in seconds.
        now: seconds since 1970.

    Raises:
        ConfigError: Prometheus cannot be asked, has nothing, or has several models.
    """
    steps = math.ceil(since_s / step_s)
    if steps > _MOST_STEPS:
        raise ConfigError(
            [f"{steps} steps of {step_s:g} s are too many; at most {_MOST_STEPS}: a longer --step"]
        )
    async with Prometheus(url) as source:
        start = now - since_s
        models = await source.models(start, now)
        if model is None and len(models) > 1:
            raise ConfigError([f"{source.name} has several models, choose by --model: {', '.join(models)}"])
        if not models or (model is not None and model not in models):
            told = f"of model {model!r}; it has {', '.join(models)}" if model and models else "of a gateway"
            raise ConfigError([f"{source.name} has no history {told} in this time"])
        chosen = model or models[0]
        found: dict[float, dict[str, float]] = {}
        for first, last in _chunks(start, steps, step_s):
            for series in _SERIES:
                label = json.dumps(chosen)
                query = (
                    f"sum by (route) ({series} * on (instance, job) group_left () "
                    f"max by (instance, job) ({_INFO}{{model={label}}}))"
                )
                for route, at, value in await source.range(query, first, last, step_s):
                    moment = found.setdefault(at, {})
                    moment[route] = moment.get(route, 0.0) + value
    if not found:
        raise ConfigError([f"{source.name} has no history of {' and '.join(_SERIES)} in this time"])
    routes = tuple(sorted({route for moment in found.values() for route in moment}))
    rows = [
        (step_s, tuple(moment.get(route, 0.0) for route in routes)) for _, moment in sorted(found.items())
    ]
    return History(routes, rows, source.name)


def _chunks(start: float, steps: int, step_s: float) -> Iterator[tuple[float, float]]:
    for first in range(0, steps + 1, _MOST_POINTS):
        last = min(first + _MOST_POINTS - 1, steps)
        yield start + first * step_s, start + last * step_s


class Prometheus:
    """Asks one Prometheus."""

    def __init__(self, url: str) -> None:
        """Take its base URL, which may hold a user and password.

        Raises:
            ConfigError: it is no such URL.
        """
        try:
            parts = urlsplit(url)
            host = parts.hostname
        except ValueError as error:
            raise ConfigError([f"{shown(url)} is no URL"]) from error
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigError([f"{shown(url)} is no URL of a Prometheus, such as http://prometheus:9090"])
        path = parts.path.rstrip("/")
        self._url = f"{parts.scheme}://{parts.netloc}{path}"
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"

    async def __aenter__(self) -> Prometheus:
        """Open a session."""
        self._session = httpx.AsyncClient(timeout=_TIMEOUT_S, follow_redirects=True, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self._session.aclose()

    async def models(self, start: float, end: float) -> list[str]:
        """Return the models whose gateways told of themselves in a time."""
        query = {"match[]": _INFO, "start": f"{start:.3f}", "end": f"{end:.3f}"}
        found = await self._ask("api/v1/label/model/values", query)
        if not isinstance(found, list):
            raise self._puzzled()
        return sorted(str(model) for model in found)

    async def range(
        self, query: str, start: float, end: float, step_s: float
    ) -> list[tuple[str, float, float]]:
        """Return a query's values over a time: route, seconds since 1970, value."""
        asked = {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step_s:g}"}
        found = await self._ask("api/v1/query_range", asked)
        try:
            return [
                (str(series["metric"].get("route", "")), float(at), max(0.0, float(value)))
                for series in found["result"]
                for at, value in series["values"]
                if math.isfinite(float(value))
            ]
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise self._puzzled() from error

    async def _ask(self, path: str, query: dict[str, str]) -> Any:
        body = bytearray()
        try:
            async with (
                asyncio.timeout(_TIMEOUT_S),
                self._session.stream("GET", f"{self._url}/{path}", params=query) as answer,
            ):
                async for part in answer.aiter_bytes():
                    body += part
                    if len(body) > _MOST_BYTES:
                        too_long = f"more than {_MOST_BYTES >> 20} MiB; try a longer --step"
                        raise ConfigError([f"{self.name} answers {too_long}"])
        except httpx.ConnectError as error:
            raise ConfigError([f"{self.name} cannot be asked: {explained(error)}"]) from error
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as error:
            told = str(error) or f"no answer within {_TIMEOUT_S:g} s"
            raise ConfigError([f"{self.name} cannot be asked: {told}"]) from error
        try:
            found = json.loads(body)
        except ValueError as error:
            raise self._puzzled(f": HTTP {answer.status_code}") from error
        if not isinstance(found, dict) or found.get("status") != "success":
            why = found.get("error") if isinstance(found, dict) else None
            raise self._puzzled(f": HTTP {answer.status_code}, {why or 'no reason given'}")
        return found.get("data")

    def _puzzled(self, told: str = "") -> ConfigError:
        return ConfigError([f"{self.name} does not answer as Prometheus does{told}"])
