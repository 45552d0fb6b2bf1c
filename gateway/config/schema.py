"""Every key of routes.yaml, with its type, bounds and default."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    IPvAnyNetwork,
    PrivateAttr,
    field_validator,
    model_validator,
)

from gateway.config.api_keys import Keys
from gateway.hosts import canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

EMBEDDED = "embedded"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Positive
Count = Annotated[int, Field(ge=1)]
# Bounds on what is worked out for each route, pool and load when a configuration is taken over.
_MOST_ROUTES, _MOST_POOLS, _MOST_RANGES, _MOST_POINTS, _MOST_DEPTH = 64, 32, 256, 4096, 1024
# A range that begins beyond every load that an engine can have.
_LAST_FROM = 65_536
_Range = tuple[Count, Count, Annotated[int, Field(ge=0)]]
Schedule = Annotated[tuple[_Range, ...], Field(max_length=_MOST_RANGES)]

_ENGINE_FORM = "must be http(s)://host:port, dns+http(s)://name:port or embedded; a path prefix may follow"
_ENGINE_URL = re.compile(
    r"(?P<base>(?:dns\+)?https?://(?P<place>[^/?#]*)(?P<path>[^?#]*))(?P<rest>[?#].*)?", re.DOTALL
)
_PLACE = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
# Segments of a path that every server and proxy reads alike.
_PREFIX = re.compile(r"(?:/(?!\.{1,2}(?:/|$))(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})+)*")
# What the gateway puts behind an engine's address itself.
_OWN_PATH = re.compile(r"(?:/v1(?:/(?:chat/)?completions|/models|/responses)?|/health|/metrics)$")

_LISTED = re.compile(r"(?P<host>\[[^\]]*\]|[^:]*)(?::(?P<port>[0-9]{1,5}))?")

_METHODS = "such as mtp, eagle3, ngram, draft_model or suffix"
# vLLM's own default where a suffix pool names no depth (SpeculativeConfig.suffix_decoding_max_tree_depth).
_SUFFIX_DEPTH = 24


class ValueFault(ValueError):
    """What is wrong inside a value that a validator saw as a whole.

    Attributes:
        message: what would be right.
        rule: the same without what stands there, where the message names it.
        location: the keys and indexes that lead to it from that value.
        found: a tuple with what stands there; empty where the message says all.
    """

    def __init__(
        self, message: str, location: tuple[str | int, ...] = (), *found: object, rule: str = ""
    ) -> None:
        super().__init__(f"{'.'.join(map(str, location))}: {message}" if location else message)
        self.message = message
        self.rule = rule or message
        self.location = location
        self.found = found


def _engine_url(engine: str) -> str:
    if engine == EMBEDDED:
        return engine
    url = _ENGINE_URL.fullmatch(engine)
    if url is None:
        raise ValueError(_ENGINE_FORM)
    base, path = url["base"].rstrip("/"), url["path"].rstrip("/")
    if "@" in base:
        raise ValueError(f"{_ENGINE_FORM}, but no user or password: the engines' key is the pool's api_key")
    if url["rest"]:
        kind = "query (?...)" if url["rest"].startswith("?") else "fragment (#...)"
        raise ValueError(f"{_ENGINE_FORM}, but no {kind}")
    place = _PLACE.fullmatch(url["place"])
    if place is None or not _is_host(place["host"]) or not 0 < int(place["port"] or 1) < 65536:
        raise ValueError(_ENGINE_FORM)
    if not _PREFIX.fullmatch(path):
        raise ValueError(f"{_ENGINE_FORM}, of words between single slashes")
    if own := _OWN_PATH.search(path):
        rule = f"must not end in {own[0]}, which the gateway adds itself"
        raise ValueFault(f"{rule}: write {base.removesuffix(own[0])}", (), engine, rule=rule)
    return base


def _is_host(host: str) -> bool:
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False


def _listed_host(entry: str) -> str:
    found = _LISTED.fullmatch(entry)
    host = canonical(found["host"]) if found else None
    if found is None or host is None or not 0 < int(found["port"] or 1) < 65536:
        raise ValueError("must be a host or host:port, without scheme, path or wildcard")
    return f"{host}:{int(found['port'])}" if found["port"] else host


def _text(value: object) -> object:
    """Refuse what `ipaddress` would take for a network, and fail at: numbers and lists."""
    if not isinstance(value, str):
        raise ValueError("must be a network such as 10.0.0.0/8")
    return value


class Section(BaseModel):
    """What all sections have in common: frozen, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, values: object) -> object:
        """Take a key without a value for an empty section."""
        return {} if values is None else values


class Pool(Section):
    """Engines started with the same speculative config; `speculative_config` is vLLM's own object.

    `ca_file` holds the authorities that sign their certificates, in place of those that the system trusts.
    """

    speculative_config: dict[str, Any] = {}
    engines: Annotated[tuple[Annotated[str, AfterValidator(_engine_url)], ...], Field(min_length=1)]
    max_load: Annotated[int, Field(ge=1, le=4096)] = 256
    api_key: Annotated[str, Field(repr=False)] = ""
    ca_file: Annotated[str, Field(min_length=1)] | None = None

    @property
    def depth(self) -> int:
        """The pool's num_speculative_tokens; 0 = ordinary decoding."""
        config = self.speculative_config
        unset = config.get("suffix_decoding_max_tree_depth", _SUFFIX_DEPTH) if config else 0
        depth: int = config.get("num_speculative_tokens") or unset
        return depth

    @property
    def ranges(self) -> tuple[tuple[int, int, int], ...]:
        """The engines' own schedule by batch size, `(from, to, depth)`; empty where they have none."""
        table = self.speculative_config.get("num_speculative_tokens_per_batch_size") or ()
        return tuple((first, to, min(depth, self.depth)) for first, to, depth in table)

    @property
    def depths(self) -> frozenset[int]:
        """Every depth its engines may run at: more than one where they schedule it by batch size."""
        return frozenset((self.depth, *(depth for _, _, depth in self.ranges)))

    @property
    def step_depth(self) -> int:
        """The most tokens that a step drafts; 0 where a step may draft none."""
        by_copying = self.speculative_config.get("method", "") in ("ngram", "suffix")
        return 0 if by_copying or 0 in self.depths else self.depth

    @field_validator("api_key")
    @classmethod
    def _header_value(cls, key: str) -> str:
        key = key.strip()  # secrets often end with a line end
        if not (key.isascii() and (key == "" or key.isprintable())):
            raise ValueError("must be printable ASCII")
        return key

    @field_validator("speculative_config")
    @classmethod
    def _vllm_object(cls, config: dict[str, Any]) -> dict[str, Any]:
        if not config:
            return config
        method = config.get("method")
        if method is None and "model" not in config:
            raise ValueFault(f"needs a method, as vLLM does: {_METHODS}")
        if not isinstance(method, str | None):
            raise ValueFault(f"must be {_METHODS}", ("method",), method)
        key, why = "num_speculative_tokens", ""
        depth = config.get(key)
        if depth is None and method == "suffix":
            key, why = "suffix_decoding_max_tree_depth", ", as num_speculative_tokens is"
            depth = config.get(key, _SUFFIX_DEPTH)
        elif key not in config:
            raise ValueFault(f"needs {key}: an integer of at least 1")
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            raise ValueFault(f"must be an integer of at least 1{why}", (key,), depth)
        if depth > _MOST_DEPTH:
            raise ValueFault(f"must be at most {_MOST_DEPTH:,}", (key,), depth)
        key = "num_speculative_tokens_per_batch_size"
        if table := config.get(key):
            try:
                check_ranges(table)
            except ValueFault as fault:
                raise ValueFault(
                    fault.message, (key, *fault.location), *fault.found, rule=fault.rule
                ) from None
        _check_json(config)
        return config


class Queue(Section):
    """How many requests of a route may wait for an engine, and for how long."""

    max_waiting: Annotated[int, Field(ge=0)] = 512
    max_wait_s: Seconds = 30


class Timeouts(Section):
    """Limits in seconds; first_event_s and idle_s hold for streams only."""

    connect_s: Seconds = 2
    first_event_s: Seconds = 60
    idle_s: Seconds = 30
    total_s: Seconds = 600


class Route(Section):
    """One class of OCR work: its schedule or profile, the pools it may use (None: all), and its limits.

    `weight` is what one of its output tokens is worth against other routes' when an engine is chosen.
    """

    schedule: Schedule = ()
    profile: str | None = None
    pools: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    weight: Annotated[float, Field(ge=1e-3, le=1e3)] = 1
    queue: Queue = Queue()
    timeouts: Timeouts = Timeouts()

    @field_validator("schedule")
    @classmethod
    def _ranges(cls, schedule: Schedule) -> Schedule:
        check_ranges(schedule)
        return schedule


class Sorting(Section):
    """The default route, and operators' own prompt patterns by route."""

    default: str = ""
    prompts: dict[str, tuple[str, ...]] = {}


class Polling(Section):
    """How often engines are read, when a reading is stale, how often names are resolved; seconds."""

    scrape_s: Seconds = 1
    stale_s: Seconds = 5
    resolve_s: Seconds = 10


class BreakerSection(Section):
    """The failures that open an engine's breaker, seconds it stays open, and successes that close it."""

    failures: Count = 5
    open_s: Seconds = 10
    probes: Count = 2


class Retry(Section):
    """The share of requests that may be retried, and the retries of one request."""

    budget: Annotated[float, Field(ge=0, le=1)] = 0.1
    per_request: Annotated[int, Field(ge=0, le=1)] = 1


class Server(Section):
    """Stopping (seconds), the most gateway processes that share these engines, and the admin port."""

    drain_s: Seconds = 60
    linger_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 5
    replicas: Count = 2
    admin_port: Annotated[int, Field(ge=1, le=65535)] | None = None


class Limits(Section):
    """Bounds on one request, on one connection, and on all of them together.

    `connections` None: as many as the limit of open files allows. `inflight_bytes` None: a share of the
    memory that the process may use. `body_s` is for a small body; larger ones get more time.
    """

    body_bytes: Count = 32 * 1024 * 1024
    image_pixels: Count = 100_000_000
    images_per_request: Count = 32
    request_pixels: Count = 400_000_000
    header_bytes: Annotated[int, Field(ge=1024, le=1024 * 1024)] = 32 * 1024
    header_s: Seconds = 10
    body_s: Seconds = 30
    keep_alive_s: Seconds = 75
    connections: Count | None = None
    inflight_bytes: Count | None = None
    answer_bytes: Count = 64 * 1024 * 1024


class KeyLimits(Section):
    """Bounds on one API key."""

    requests_per_minute: Count | None = None
    image_bytes_per_minute: Count | None = None
    concurrent: Count | None = None


class Auth(Section):
    """The keys' file, limits by a key's name (`*`: every other), and the names that may read admin pages.

    Without `admins` every key may read them.
    """

    keys_file: str | None = None
    limits: dict[str, KeyLimits] = {}
    admins: tuple[str, ...] = ()


class RemoteImages(Section):
    """Hosts whose images the gateway fetches, and what a fetch may cost.

    A host stands for its scheme's own port, `host:port` for that port. `allow_networks` lists networks that
    are not public and in which the hosts may be, such as an object store's.
    """

    allow_hosts: tuple[Annotated[str, AfterValidator(_listed_host)], ...] = ()
    allow_networks: tuple[Annotated[IPvAnyNetwork, BeforeValidator(_text)], ...] = ()
    max_bytes: Count = 20 * 1024 * 1024
    timeout_s: Seconds = 10


class Documents(Section):
    """Bounds on documents (POST /v1/ocr), how pages are rendered, and a page's prompt by route.

    `at_once` None: as many as the memory has room for.
    """

    max_pages: Annotated[int, Field(ge=1, le=100_000)] = 500
    at_once: Annotated[int, Field(ge=1, le=256)] | None = None
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 8
    dpi: Annotated[int, Field(ge=36, le=1200)] = 200
    max_side: Annotated[int, Field(ge=256, le=16_384)] = 2400
    total_s: Seconds = 1800
    prompts: Annotated[dict[str, Annotated[str, Field(min_length=1)]], Field(min_length=1)] = {
        "text": "Text Recognition:",
        "table": "Table Recognition:",
    }


Measurement = Annotated[tuple[Annotated[float, Field(gt=0, le=1e9)], ...], Field(min_length=2, max_length=3)]


class Profile(Section):
    """A route's measured curves.

    Attributes:
        route: which.
        pools: by pool, points `[load, tokens per second of one engine]`, where known with the standard error
            of the tokens per second as a third number.
        meta: what it was measured on: `model`, `gpu`, `engine_version`, `pools` (speculative configs), ...
    """

    route: str
    pools: dict[str, Annotated[tuple[Measurement, ...], Field(min_length=1, max_length=_MOST_POINTS)]]
    meta: dict[str, Any]

    @field_validator("pools")
    @classmethod
    def _one_rate_a_load(cls, pools: dict[str, tuple[Measurement, ...]]) -> object:
        for name, points in pools.items():
            loads = {point[0] for point in points}
            if len(loads) < len(points) or min(loads) < 1:
                raise ValueFault(f"the loads of pool {name!r} must be at least 1, each once")
        return pools


class Config(Section):
    """The whole of routes.yaml; `sorting.default` is always one of the routes."""

    model: Annotated[str, Field(min_length=1)]
    model_path: str | None = None
    pools: Annotated[dict[str, Pool], Field(min_length=1, max_length=_MOST_POOLS)]
    routes: Annotated[dict[str, Route], Field(min_length=1, max_length=_MOST_ROUTES)]
    sorting: Sorting = Sorting()
    polling: Polling = Polling()
    breaker: BreakerSection = BreakerSection()
    retry: Retry = Retry()
    server: Server = Server()
    limits: Limits = Limits()
    auth: Auth = Auth()
    remote_images: RemoteImages = RemoteImages()
    documents: Documents = Documents()
    _profiles: Mapping[str, Profile] = PrivateAttr(default_factory=dict)
    _authorities: Mapping[str, str] = PrivateAttr(default_factory=dict)
    _keys: Keys = PrivateAttr(default_factory=Keys)
    _sources: Mapping[Path, bytes] = PrivateAttr(default_factory=dict)
    _workers: int = PrivateAttr(default=1)
    _notes: tuple[str, ...] = PrivateAttr(default=())
    _from_environment: frozenset[tuple[str | int, ...]] = PrivateAttr(default=frozenset())

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """The profiles that the routes' files hold, by route."""
        return self._profiles

    @property
    def authorities(self) -> Mapping[str, str]:
        """By pool, the certificates in its `ca_file`, as PEM text."""
        return self._authorities

    @property
    def keys(self) -> Keys:
        """The API keys; none where `auth.keys_file` is not set."""
        return self._keys

    @property
    def workers(self) -> int:
        """The gateway processes of this host, a number that the file does not hold."""
        return self._workers

    @property
    def sources(self) -> Mapping[Path, bytes]:
        """The files that all of this was read from, with the SHA-256 of what they held then."""
        return self._sources

    @property
    def notes(self) -> tuple[str, ...]:
        """What in the file is valid and probably not meant."""
        return self._notes

    @property
    def from_environment(self) -> frozenset[tuple[str | int, ...]]:
        """Where values stand that have an environment variable in them, by keys and indexes from the top."""
        return self._from_environment

    def pools_of(self, route: str) -> tuple[str, ...]:
        """Return the pools that a route may use, in the file's order."""
        return self.routes[route].pools or tuple(self.pools)

    def completed(
        self,
        *,
        profiles: Mapping[str, Profile],
        authorities: Mapping[str, str] | None = None,
        keys: Keys = Keys(),  # noqa: B008 - it is never changed
        sources: Mapping[Path, bytes] | None = None,
        workers: int = 1,
        notes: Iterable[str] = (),
        from_environment: Iterable[tuple[str | int, ...]] = (),
    ) -> Config:
        """Return this with what other files hold, and with the default route by name.

        Args:
            profiles: by route.
            authorities: see the property.
            keys: what `auth.keys_file` holds.
            sources: see the property.
            workers: see the property.
            notes: see the property.
            from_environment: see the property.
        """
        default = self.sorting.default or next(iter(self.routes))
        complete = self.model_copy(update={"sorting": self.sorting.model_copy(update={"default": default})})
        complete._profiles = dict(profiles)
        complete._keys = keys
        complete._sources = dict(sources or {})
        complete._workers = workers
        complete._authorities = dict(authorities or {})
        complete._notes = tuple(notes)
        complete._from_environment = frozenset(from_environment)
        return complete


def _check_json(value: object, location: tuple[str | int, ...] = ()) -> None:
    """Check that JSON has a value: YAML has dates, binary data and numbers that it has not.

    Raises:
        ValueFault: the first part that it has not.
    """
    if isinstance(value, dict | tuple):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            _check_json(part, (*location, key))
    elif not isinstance(value, str | int | float | None) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise ValueFault("must be a value that JSON has, as vLLM's own object is JSON", location, value)


def check_ranges(ranges: object) -> None:
    """Check `[[from, to, depth], ...]` as vLLM does: from 1 on, inclusive, ascending, no overlap.

    Raises:
        ValueFault: the first range that is wrong.
    """
    shape = "must be ranges [from, to, depth], such as [[1, 63, 3], [64, 4096, 0]]"
    if not isinstance(ranges, tuple):
        raise ValueFault(shape, (), ranges)
    if len(ranges) > _MOST_RANGES:
        raise ValueFault(f"has over {_MOST_RANGES} ranges")
    last = 0
    for index, entry in enumerate(ranges):
        if not (
            isinstance(entry, tuple) and len(entry) == 3 and all(type(number) is int for number in entry)
        ):
            raise ValueFault(shape, (index,), entry)
        first, to, depth = entry
        if first <= last or to < first or depth < 0 or (last == 0 and first != 1):
            rule = "does not fit; they start at 1, ascend, never overlap; depth >= 0"
            raise ValueFault(f"range {list(entry)} {rule}", (index,), rule=f"this range {rule}")
        if first > _LAST_FROM:
            raise ValueFault(f"must begin at {_LAST_FROM:,} at most", (index,))
        last = to
