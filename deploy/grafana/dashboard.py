"""`python -m deploy.grafana.dashboard`: writes the Grafana dashboard that ships with the gateway.

Where a rule of deploy/prometheus/ records a figure, its panel reads the rule, which carries the model. Raw
series carry none: they are narrowed to the model's gateways by the hidden variable `instance`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from deploy.grafana.panels import (
    GREEN,
    ORANGE,
    RED,
    SOURCE,
    YELLOW,
    Column,
    Query,
    bars,
    graph,
    number,
    rows_of,
    spread,
    timeline,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grafana_foundation_sdk.cog.builder import Builder
    from grafana_foundation_sdk.models.dashboard import Panel, VariableModel

FILE = Path(__file__).parent / "dashboards" / "ocr-gateway.json"
UID = "ocr-gateway"

MODEL = 'model="$model"'
INSTANCE = 'instance=~"$instance"'
ROUTE, POOL = 'route=~"$route"', 'pool=~"$pool"'
# Requests that were refused before they were sorted have no route, and those that reached no engine no pool.
ANY_ROUTE = 'route=~"$route|"'
EXACT = 'source!="stream"'
CODE_200, CODE_5XX, CODE_NOT_2XX = 'code="200"', 'code=~"5.."', 'code!~"2.."'
# A gateway's pools have one depth each; two gateways need not agree while a configuration is rolled out.
DEPTHS = (
    f'on (job, instance, pool) group_left (depth) count_values by (job, instance, pool) ("depth", '
    f"ocr_gateway_pool_depth{{{INSTANCE}}})"
)

TOKENS_PER_S = "suffix: tok/s"


def raw(metric: str, *selectors: str) -> str:
    """Select a gateway's own series."""
    return f"ocr_gateway_{metric}{{{', '.join((INSTANCE, *selectors))}}}"


def rule(name: str, *selectors: str) -> str:
    """Select what a recording rule gives."""
    return f"ocr_gateway:{name}{{{', '.join((MODEL, *selectors))}}}"


def rate(by: str, metric: str, *selectors: str, times: str = "") -> str:
    """Sum the rates of a counter by labels."""
    factor = f" * {times}" if times else ""
    return f"sum by ({by}) (rate({raw(metric, *selectors)}[$__rate_interval]){factor})"


def total(*selectors: str) -> str:
    """Sum the rates of requests."""
    return f"sum(rate({raw('requests_total', *selectors)}[$__rate_interval]))"


def quantiles(by: str, metric: str, legend: str, *selectors: str, times: str = "") -> list[Query]:
    """Ask for the median and the 95th percentile of a histogram by labels."""
    buckets = rate(f"le, {by}", f"{metric}_bucket", *selectors, times=times)
    return [
        Query(f"histogram_quantile({share}, {buckets})", f"p{share * 100:.0f} {legend}")
        for share in (0.5, 0.95)
    ]


def or_zero(expr: str) -> str:
    """Give 0 for each route that has no series yet: a counter exists from its first event on."""
    return f"{expr} or on (route) 0 * sum by (route) ({raw('in_flight', ROUTE)})"


def named(expr: str) -> str:
    """Name the route of requests that have none."""
    return f'label_replace({expr}, "route", "(before sorting)", "route", "")'


def worst(function: str, metric: str) -> str:
    """Ask for the worst view that any gateway has of an engine."""
    return f"{function} by (pool, engine) ({raw(metric, POOL)})"


NO_SPECULATION = "no speculation in the last 5 minutes"
UP = {0: ("down", RED), 1: ("up", GREEN)}
BREAKER = {0: ("closed", GREEN), 1: ("half-open", YELLOW), 2: ("open", RED)}
MISMATCH = {0: ("as configured", GREEN), 1: ("differs", RED)}
STATES = {
    0: ("takes work", GREEN),
    1: ("on probation", YELLOW),
    2: ("breaker open", ORANGE),
    3: ("down", RED),
}

OVERVIEW = [
    number(
        "Gateways",
        "Gateways that serve $model, by version. Two versions for longer than a rollout: look for a stuck "
        "one.",
        Query(f"count by (model, version) ({raw('build_info', MODEL)})", "{{model}} {{version}}"),
        empty="no gateway is scraped",
    ),
    number(
        "Engines up",
        "Share of engines that answer, are awake and take work, as the most pessimistic gateway sees them. "
        "Below 100%: see the engines' table at the bottom for which.",
        Query(f"avg({worst('min', 'engine_up')})"),
        unit="percentunit",
        empty="no engine is known",
        colors=[(None, RED), (0.5, YELLOW), (1, GREEN)],
    ),
    number(
        "Requests",
        "Requests that ended, refused ones included.",
        Query(total(ANY_ROUTE)),
        unit="reqps",
        empty="no requests",
        decimals=1,
    ),
    number(
        "Output",
        "Output tokens of answers, averaged over 5 minutes.",
        Query(f"sum({rule('completion_tokens:rate5m', ROUTE, POOL)})"),
        unit=TOKENS_PER_S,
        empty="no answers",
        decimals=0,
    ),
    number(
        "Failed",
        "Share of requests that ended with a 5xx, shed ones included. Above 1%: see errors by code.",
        Query(f"({total(ANY_ROUTE, CODE_5XX)} or vector(0)) / {total(ANY_ROUTE)}"),
        unit="percentunit",
        empty="no requests",
        colors=[(None, GREEN), (0.01, YELLOW), (0.05, RED)],
        decimals=1,
    ),
    number(
        "Alerts",
        "Alerts of deploy/prometheus/alerts.yaml that fire now; each one's runbook says what to do.",
        Query('count(ALERTS{alertstate="firing", alertname=~"OcrGateway.*", model=~"$model|"}) or vector(0)'),
        colors=[(None, GREEN), (1, RED)],
    ),
]

EXACT_LENGTHS = raw("acceptance_length_bucket", ROUTE, POOL, EXACT)
ACCEPTANCE = [
    number(
        "Acceptance length now",
        "Tokens of a step, 1 + accepted tokens / drafts, over 5 minutes. 1 means that drafting is in vain. "
        "Estimates, from the chunks of streams, are shown beside exact figures and never mixed with them.",
        Query(rule("acceptance_length:rate5m", ROUTE), "{{route}}"),
        Query(rule("acceptance_length_estimate:rate5m", ROUTE), "{{route}} (estimate)"),
        empty=NO_SPECULATION,
        colors=[(None, RED), (1.2, YELLOW), (1.5, GREEN)],
        decimals=2,
        width=6,
        height=8,
    ),
    number(
        "Against the last hour",
        "Acceptance length of 5 minutes over that of the hour. Below 75%: other documents, another model or "
        "another draft head; compare with what changed.",
        Query(
            f"{rule('acceptance_length:rate5m', ROUTE)} / {rule('acceptance_length:rate1h', ROUTE)}",
            "{{route}}",
        ),
        Query(
            f"{rule('acceptance_length_estimate:rate5m', ROUTE)} / "
            f"{rule('acceptance_length_estimate:rate1h', ROUTE)}",
            "{{route}} (estimate)",
        ),
        unit="percentunit",
        empty=NO_SPECULATION,
        colors=[(None, RED), (0.75, YELLOW), (0.9, GREEN)],
        decimals=0,
        width=6,
        height=8,
    ),
    graph(
        "Acceptance length",
        "Per route, exact; dashed where it is only estimated from streams. A line that falls while the "
        "others stay is a change in that route's documents or prompts.",
        Query(rule("acceptance_length:rate5m", ROUTE), "{{route}}"),
        Query(rule("acceptance_length_estimate:rate5m", ROUTE), "{{route}} (estimate)", dashed=True),
        empty="no speculation in this range",
        low=1,
        width=12,
    ),
    spread(
        "Acceptance length of requests: $route",
        "How the means of single requests spread; exact ones only. Two bands are two kinds of documents in "
        "one route, which may want routes of their own.",
        Query(f"sum by (le) (increase({EXACT_LENGTHS}[$__rate_interval]))", "{{le}}"),
        empty="no request of this route told its acceptance",
        repeat="route",
    ),
    graph(
        "Acceptance length by pool",
        "The same route at different depths. What a deeper pool adds here is what its drafting must be "
        "worth; if it adds little, a smaller depth does.",
        Query(rule("pool_acceptance_length:rate5m", ROUTE, POOL), "{{route}}, {{pool}}"),
        empty="no speculation in this range",
        low=1,
    ),
    bars(
        "Acceptance rate by position",
        "Share of drafts in which the token at this position, 0 being the first, was accepted. Positions "
        "near 0% cost verification and give nothing: choose a smaller depth.",
        Query(rule("acceptance_rate:rate5m", ROUTE, POOL), "{{route}}, {{pool}}, position {{position}}"),
        unit="percentunit",
        empty="no engine tells acceptance by position",
        high=1,
    ),
    graph(
        "Drafting efficiency",
        "Accepted tokens over drafted ones. The rest was drafted and verified in vain, which costs nothing "
        "on an idle engine and throughput on a busy one.",
        Query(rule("drafting_efficiency:rate5m", ROUTE, POOL), "{{route}}, {{pool}}"),
        unit="percentunit",
        empty="no speculation in this range",
        high=1,
    ),
    graph(
        "Drafts by source",
        "Where the figures come from: request is told in the answer and exact, engine is an engine's "
        "counters while it served one route, stream is an estimate. Only streams: start the engines with "
        "--per-request-spec-decode-metrics summary.",
        Query(rate("route, source", "spec_drafts_total", ROUTE, POOL), "{{route}}, {{source}}"),
        unit="cps",
        empty="no speculation in this range",
        stacked=True,
        width=12,
    ),
    graph(
        "Drafts accounted for",
        "Drafts that were booked to a route, over those that the engines counted themselves. Much below "
        "100%: others use these engines too, or their answers do not tell.",
        Query(
            f"sum by (pool) (rate({raw('spec_drafts_total', POOL)}[5m])) / sum by (pool) ("
            f"max by (pool, engine) (rate({raw('engine_spec_drafts_total', POOL)}[5m])) > 0)",
            "{{pool}}",
        ),
        unit="percentunit",
        empty="no engine counts drafts",
        width=12,
    ),
]

DEPTH_AND_LOAD = [
    graph(
        "Depth chosen: $route",
        "Share of the route's requests sent at each depth. It should shift to the lower depth as load nears "
        "the crossover; if it does not, look at whether the plain pool is up and full.",
        Query(rule("depth_share:rate5m", ROUTE), "depth {{depth}}"),
        unit="percentunit",
        empty="no requests of this route",
        stacked=True,
        high=1,
        width=24,
        repeat="route",
    ),
    graph(
        "Load per engine, and from where another depth wins",
        "Requests on each engine, ours and others'; dashed, the load from which another depth wins for a "
        "route.",
        Query(worst("max", "engine_load"), "{{engine}} ({{pool}})"),
        Query(
            f"max by (pool, route) ({raw('crossover_load', POOL, ROUTE)})",
            "crossover of {{pool}}, {{route}}",
            dashed=True,
        ),
        empty="no engine is known",
        width=12,
    ),
    graph(
        "Load over crossover",
        "Above 100% an engine runs a route past the load up to which its depth wins. For long: add engines, "
        "or more of the other depth.",
        Query(
            f"max by (pool, engine, route) ({rule('engine_load_per_crossover', POOL, ROUTE)})",
            "{{engine}} ({{pool}}), {{route}}",
        ),
        unit="percentunit",
        empty="no pool has a crossover: there is one depth, or neither schedules nor profiles",
        limit=1,
        width=12,
    ),
]

THROUGHPUT = [
    graph(
        "Output tokens by route and depth",
        "Output tokens per second of answers, by the depth their pool is configured at; engines with a "
        "schedule of their own may run at less.",
        Query(
            rate("route, pool, depth", "completion_tokens_total", ROUTE, POOL, times=DEPTHS),
            "{{route}}, depth {{depth}} ({{pool}})",
        ),
        unit=TOKENS_PER_S,
        empty="no answers in this range",
        stacked=True,
    ),
    graph(
        "Duration by route and depth",
        "From receipt to the last byte, waiting included. A depth that is slower than another at the same "
        "route runs past its crossover.",
        *quantiles(
            "route, pool, depth",
            "request_duration_seconds",
            "{{route}}, depth {{depth}} ({{pool}})",
            ROUTE,
            POOL,
            times=DEPTHS,
        ),
        unit="s",
        empty="no answers in this range",
    ),
    graph(
        "Time to first token by route and depth",
        "Streams only. It rises with the queue and with prefill on a crowded engine; speculation hardly "
        "changes it.",
        *quantiles(
            "route, pool, depth",
            "time_to_first_token_seconds",
            "{{route}}, depth {{depth}} ({{pool}})",
            ROUTE,
            POOL,
            times=DEPTHS,
        ),
        unit="s",
        empty="no streams in this range",
    ),
    graph(
        "Requests by route",
        "Requests that ended, refused ones included; those refused before sorting have no route. Hold the "
        "other panels' changes against it.",
        Query(named(rate("route", "requests_total", ANY_ROUTE)), "{{route}}"),
        unit="reqps",
        empty="no requests in this range",
        stacked=True,
    ),
    graph(
        "In flight",
        "Requests that occupy an engine. Flat while requests wait: the engines are full.",
        Query(f"sum by (route) ({raw('in_flight', ROUTE)})", "{{route}}"),
        empty="no gateway is scraped",
        stacked=True,
    ),
    graph(
        "Tokens of a request",
        "Mean prompt and output tokens of answers. A route whose answers grow needs more engines for the "
        "same requests.",
        *(
            Query(
                f"{rate('route', f'{kind}_tokens_total', ROUTE, POOL)} / "
                f"{rate('route', 'requests_total', ROUTE, POOL, CODE_200)}",
                f"{{{{route}}}} {word}",
            )
            for kind, word in (("prompt", "prompt"), ("completion", "output"))
        ),
        empty="no answers in this range",
    ),
]

QUEUE = [
    graph(
        "Waiting",
        "Requests in each route's queue. Steadily above 0: the engines are full.",
        Query(f"sum by (route) ({raw('waiting', ROUTE)})", "{{route}}"),
        empty="no gateway is scraped",
        width=6,
    ),
    graph(
        "Oldest wait against its limit",
        "How long the first in each queue has waited; dashed, the route's max_wait_s, at which it is "
        "refused.",
        Query(f"max by (route) ({raw('oldest_wait_seconds', ROUTE)})", "{{route}}"),
        Query(f"min by (route) ({raw('queue_limit_seconds', ROUTE)})", "limit of {{route}}", dashed=True),
        unit="s",
        empty="no gateway is scraped",
        width=6,
    ),
    graph(
        "Time in the queue",
        "Requests that need not wait count as 0, those that waited in vain too. Near the limit above: add "
        "engines before requests are shed.",
        *quantiles("route", "queue_seconds", "{{route}}", ROUTE),
        unit="s",
        empty="no requests in this range",
        width=6,
    ),
    graph(
        "Shed",
        "Requests refused for want of an engine. queue_full and queue_too_slow ask for engines, no_engine "
        "for a look at their health.",
        Query(or_zero(rate("route, reason", "shed_total", ROUTE)), "{{route}} {{reason}}"),
        unit="reqps",
        empty="no gateway is scraped",
        width=6,
    ),
]

ERRORS = [
    graph(
        "Errors by code",
        "Requests that did not end with a 2xx. 499: the client left; 4xx: its request; 502 and 504: an "
        "engine; 503: shed.",
        Query(
            named(or_zero(rate("route, code", "requests_total", ANY_ROUTE, CODE_NOT_2XX))),
            "{{route}} {{code}}",
        ),
        unit="reqps",
        empty="no gateway is scraped",
        width=12,
    ),
    graph(
        "Retries",
        "Attempts made again, by what failed. One engine behind most of them shows in the engines' states "
        "below.",
        Query(or_zero(rate("route, reason", "retries_total", ROUTE)), "{{route}} {{reason}}"),
        unit="reqps",
        empty="no gateway is scraped",
        width=6,
    ),
    graph(
        "Retry budget",
        "Retries that may be made at once; 100 at most. At 0 failures reach clients: mend engines, not the "
        "budget.",
        Query(f"min by (instance) ({raw('retry_budget_remaining')})", "{{instance}}"),
        empty="no gateway is scraped",
        width=6,
    ),
]

SORTING = [
    graph(
        "Sorting reasons",
        "Which evidence gave requests their route. Many by default or image: let clients name the route, or "
        "add prompts to sorting.prompts.",
        Query(rate("route, reason", "sort_decisions_total", ROUTE), "{{route}} by {{reason}}"),
        unit="reqps",
        empty="no requests in this range",
        stacked=True,
        width=10,
    ),
    graph(
        "Overhead by stage",
        "Time the gateway itself takes. sort rises where pictures must be looked at; the rest where its CPU "
        "is short.",
        *quantiles("stage", "overhead_seconds", "{{stage}}"),
        unit="s",
        empty="no requests in this range",
        width=10,
    ),
    number(
        "Configurations taken over",
        "Changed configurations in this range: taken over, and refused as invalid. Refused: the gateway's "
        "log says why.",
        Query(f"sum(increase({raw('config_reloads_total')}[$__range]))", "taken over"),
        Query(f"sum(increase({raw('config_reload_failures_total')}[$__range]))", "refused"),
        empty="no gateway is scraped",
        decimals=0,
        height=8,
    ),
]

ENGINES = [
    rows_of(
        "Engines",
        "As the most pessimistic gateway sees them. Differs: an engine runs at another depth or version "
        "than configured. A reading older than 5 s means that its metrics do not answer. Against profile "
        "far from 100%: measure anew.",
        ("pool", "engine"),
        (
            Column("health", worst("min", "engine_up"), states=UP),
            Column("breaker", worst("max", "engine_breaker_state"), states=BREAKER),
            Column("configuration", worst("max", "engine_config_mismatch"), states=MISMATCH),
            Column(
                "age of reading",
                worst("max", "engine_scrape_age_seconds"),
                unit="s",
                decimals=1,
                colors=[(None, GREEN), (5, YELLOW), (30, RED)],
            ),
            Column("load", worst("max", "engine_load")),
            Column("depth", worst("max", "engine_depth")),
            Column("output", worst("max", "engine_tokens_per_second"), unit=TOKENS_PER_S, decimals=0),
            Column(
                "against profile",
                worst("min", "engine_profile_ratio"),
                unit="percentunit",
                decimals=0,
                colors=[(None, RED), (0.67, GREEN), (1.5, RED)],
            ),
            Column(
                "acceptance length",
                f"max by (pool, engine) ({rule('engine_acceptance_length:rate5m', POOL)})",
                decimals=2,
            ),
        ),
        empty="no engine is known",
    ),
    timeline(
        "Engines' states",
        "Down: it fails its health check or sleeps. Breaker open: failures in a row stopped its traffic. On "
        "probation: a few requests try it.",
        Query(
            "max by (pool, engine) (clamp_max("
            f"{raw('engine_breaker_state', POOL)} + 3 * (1 - {raw('engine_up', POOL)}), 3))",
            "{{engine}} ({{pool}})",
        ),
        STATES,
        empty="no engine is known",
    ),
    graph(
        "Output of engines",
        "By each engine's own counter, all its users' requests included.",
        Query(worst("max", "engine_tokens_per_second"), "{{engine}} ({{pool}})"),
        unit=TOKENS_PER_S,
        empty="no engine tells its tokens",
    ),
    graph(
        "Output against profile",
        "Live tokens per second over what the profiles promise for the load. Outside 67% to 150% for long, "
        "the choice rests on a profile that is no longer true: sweep again.",
        Query(worst("min", "engine_profile_ratio"), "{{engine}} ({{pool}})"),
        unit="percentunit",
        empty="no route has profiles, or there is no load",
    ),
    graph(
        "Acceptance length of engines",
        "By the engine's own counters, all routes and users together. One engine below its pool's others: "
        "compare what it was started with.",
        Query(rule("engine_acceptance_length:rate5m", POOL), "{{engine}} ({{pool}})"),
        empty="no engine speculates",
        low=1,
    ),
]

ROWS: dict[str, Sequence[Builder[Panel]]] = {
    "$model now": OVERVIEW,
    "Acceptance per route": ACCEPTANCE,
    "Depth and load": DEPTH_AND_LOAD,
    "Throughput and latency": THROUGHPUT,
    "Queue and shed": QUEUE,
    "Errors and retries": ERRORS,
    "Sorting, overhead, configuration": SORTING,
    "Engines": ENGINES,
}


def variable(name: str, label: str, text: str, metric: str) -> dashboard.QueryVariable:
    """Build a variable from a label's values."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .description(text)
        .datasource(SOURCE)
        .query({"qryType": 1, "query": f"label_values({metric}, {name})", "refId": name})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )


def several(builder: dashboard.QueryVariable) -> dashboard.QueryVariable:
    """Let a variable have several values, at first all."""
    every = VariableOption(selected=True, text=["All"], value=["$__all"])
    return builder.multi(True).include_all(True).current(every)


def variables() -> list[Builder[VariableModel]]:
    """Build the variables; one model at a time, since acceptance lengths of two models describe neither."""
    of_model = f"ocr_gateway_build_info{{{MODEL}}}"
    return [
        dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        variable("model", "Model", "The model served.", "ocr_gateway_build_info"),
        several(variable("instance", "Gateways", "The model's gateways.", of_model)).hide(
            VariableHide.HIDE_VARIABLE
        ),
        several(variable("route", "Route", "Classes of work.", raw("in_flight"))).all_value(".+"),
        several(variable("pool", "Pool", "Engines of one depth.", raw("pool_depth"))).all_value(".+"),
    ]


def build() -> str:
    """Return the dashboard as JSON text."""
    board = (
        dashboard.Dashboard("OCR gateway")
        .uid(UID)
        .description("Speculation per route, and how the gateway and its engines fare.")
        .tags(["ocr-gateway", "vllm", "speculative-decoding"])
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .editable()
        .variables(variables())
    )
    for title, panels in ROWS.items():
        board = board.with_row(dashboard.Row(title))
        for panel in panels:
            board = board.with_panel(panel)
    built = board.build()
    for number_of_panel, built_panel in enumerate(built.panels or [], start=1):
        built_panel.id_val = number_of_panel
    return json.dumps(built, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(build())
