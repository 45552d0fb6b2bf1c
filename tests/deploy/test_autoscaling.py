"""The rules that the autoscalers read, against the same written in Python; and the autoscalers' settings."""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import yaml

from bench.serving import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    # A replica's gauges: metric, then label values in alphabetical order of their labels, as exported.
    Page = Mapping[tuple[str, ...], float]

RULES = ROOT / "deploy/prometheus/rules.yaml"
COMPONENTS = ROOT / "deploy/kubernetes/components"
LABELS = {
    "useful_load": ("pool", "route"),
    "engine_up": ("engine", "pool"),
    "engine_busy_ratio": ("engine", "pool"),
    "waiting": ("route",),
    "oldest_wait_seconds": ("route",),
    "queue_limit_seconds": ("route",),
}
STEPS = 8
OLD = 0.5
REFUSED = 0.01


class Demand(NamedTuple):
    """One pool: engines that are up, and the rules' other values, under the rules' names."""

    up: float
    pressure: float
    work: float
    engines: float


def demands(
    pages: Sequence[Page], refused: Mapping[str, float], before: Mapping[str, float]
) -> dict[str, Demand]:
    """Evaluate the group `ocr-gateway-autoscaling` once, for one model.

    Args:
        pages: the replicas' gauges, without the prefix `ocr_gateway_`.
        refused: by route, the share of its requests that got 503 in five minutes.
        before: by pool, the `engines` of the evaluation before.
    """
    useful = largest(pages, "useful_load")  # (pool, route)
    up = largest(pages, "engine_up")  # (engine, pool)
    busy = largest(pages, "engine_busy_ratio")
    waiting: defaultdict[str, float] = defaultdict(float)
    age: defaultdict[str, float] = defaultdict(float)
    for page in pages:
        for name, *labels in page:
            if name == "waiting":
                (route,) = labels
                waiting[route] += page["waiting", route]
                old = page["oldest_wait_seconds", route] / page["queue_limit_seconds", route]
                age[route] = max(age[route], min(old, 1))
    room: defaultdict[str, float] = defaultdict(float)
    for (_, route), load in useful.items():
        room[route] += load
    found = {}
    for pool in {pool for pool, _ in useful}:
        routes = [route for other, route in useful if other == pool]
        ups = [value for (_, other), value in up.items() if other == pool]
        pressure = max(1 if refused.get(route, 0) > REFUSED else age[route] for route in routes)
        work = sum(value for (_, other), value in busy.items() if other == pool)
        work += sum(waiting[route] / room[route] for route in routes)
        engines = work
        if pressure > OLD:
            engines = max(engines, sum(ups) * (1 + pressure / 4))
        if pressure > OLD or not sum(ups) or min(ups) == 0:
            engines = max(engines, before.get(pool, 0))
        found[pool] = Demand(sum(ups), pressure, work, engines)
    return found


def largest(pages: Iterable[Page], metric: str) -> dict[tuple[str, str], float]:
    """By two labels, the largest of what the replicas read."""
    found: dict[tuple[str, str], float] = {}
    for page in pages:
        for (name, *labels), value in page.items():
            if name == metric:
                first, second = labels
                found[first, second] = max(value, found.get((first, second), value))
    return found


def pages(rng: Random) -> list[Page]:
    """Two replicas' gauges at one moment: engines that are down, queues that are old or empty."""
    serves = {"text": ("mtp3", "plain"), "table": ("mtp3",), "key-value": ("plain",)}
    found: tuple[dict[tuple[str, ...], float], ...] = ({}, {})
    down = rng.random() < 0.3
    old = rng.random() < 0.3
    for page in found:
        for route, pools in serves.items():
            for pool in pools:
                page["useful_load", pool, route] = 64 if pool == "mtp3" else 256
            page["waiting", route] = rng.choice([0, rng.randrange(100)])
            page["oldest_wait_seconds", route] = rng.choice([0, rng.uniform(0, 40 if old else 12)])
            page["queue_limit_seconds", route] = 30
        for engine, pool in (("a", "mtp3"), ("b", "mtp3"), ("c", "plain")):
            page["engine_up", engine, pool] = float(not (down and engine in "bc"))
            page["engine_busy_ratio", engine, pool] = round(rng.uniform(0, 1.5), 3)
    return list(found)


def inputs(histories: list[list[Page]], refused: dict[str, float]) -> Iterator[dict[str, str]]:
    """The same gauges as promtool takes them, and counters of requests with their refusals."""
    for replica in range(2):
        own = f'instance="gw-{replica}", job="ocr"'
        yield {"series": f'ocr_gateway_build_info{{{own}, model="m"}}', "values": f"1x{STEPS}"}
        for key in histories[0][replica]:
            labels = ", ".join(
                f'{name}="{value}"' for name, value in zip(LABELS[key[0]], key[1:], strict=True)
            )
            values = " ".join(str(step[replica][key]) for step in histories)
            yield {"series": f"ocr_gateway_{key[0]}{{{own}, {labels}}}", "values": values}
    for route, share in refused.items():
        for code, count in (("200", 1 - share), ("503", share)):
            series = (
                f'ocr_gateway_requests_total{{instance="gw-0", job="ocr", route="{route}", code="{code}"}}'
            )
            yield {"series": series, "values": f"0+{1000 * count:g}x{STEPS}"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_evaluates_the_rules_as_python_does(tmp_path: Path) -> None:
    rng = Random(7)
    tests = []
    for case in range(20):
        histories = [pages(rng) for _ in range(STEPS)]
        refused = {"text": rng.choice([0, 0.005, 0.02])} if case % 2 else {}
        before: dict[str, float] = {}
        expected = []
        for step, now in enumerate(histories):
            # A rate needs two samples.
            found = demands(now, refused if step else {}, before)
            before = {pool: demand.engines for pool, demand in found.items()}
            for record, field in (
                ("pool_engines:up", "up"),
                ("pool_pressure", "pressure"),
                ("pool_work:engines", "work"),
                ("pool_demand:engines", "engines"),
            ):
                for pool, demand in found.items():
                    said = f'ocr_gateway:{record}{{pool="{pool}"}}'
                    expr = f"abs(sum({said}) - {getattr(demand, field)!r}) < bool 1e-9"
                    expected.append(
                        {
                            "expr": expr,
                            "eval_time": f"{step}m",
                            "exp_samples": [{"labels": "{}", "value": 1}],
                        }
                    )
        tests.append(
            {
                "name": f"case {case}",
                "interval": "1m",
                "input_series": list(inputs(histories, refused)),
                "promql_expr_test": expected,
            }
        )
    path = tmp_path / "rules-in-python.yaml"
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    path.write_text(yaml.safe_dump(document))
    done = subprocess.run(
        ["promtool", "test", "rules", path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[:4000]


def objects(component: str, kind: str) -> dict[str, dict[str, Any]]:
    found = {}
    for path in (COMPONENTS / component).glob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            if document.get("kind") == kind:
                found[document["metadata"]["name"]] = document["spec"]
    return found


# What the simulated days of bench/results/autoscaling.md ran with: the target, the most engines, and for each
# direction the window, the engines a step and the seconds of a step.
SIMULATED = {"mtp3": (1.0, 4, (600, 1, 300), (1800, 1, 600)), "plain": (0.8, 8, (60, 2, 60), (1800, 1, 300))}


def behaviour(settings: dict[str, Any]) -> tuple[int, int, int]:
    (policy,) = settings["policies"]
    assert policy["type"] == "Pods"
    return settings["stabilizationWindowSeconds"], policy["value"], policy["periodSeconds"]


@pytest.mark.parametrize("pool", SIMULATED)
def test_what_was_simulated_is_set_as_what_ships(pool: str) -> None:
    target, most, up, down = SIMULATED[pool]
    keda, hpa = objects("keda", "ScaledObject")[f"vllm-{pool}"], objects("hpa", "HorizontalPodAutoscaler")
    settings = keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behaviour(settings["scaleUp"]) == up
    assert behaviour(settings["scaleDown"]) == down
    assert float(keda["triggers"][0]["metadata"]["threshold"]) == target
    assert (keda["minReplicaCount"], keda["maxReplicaCount"]) == (1, most)
    plain = hpa[f"vllm-{pool}"]
    assert plain["behavior"] == settings
    value = plain["metrics"][0]["external"]["target"]["averageValue"]
    assert float(value.replace("m", "e-3")) == target
    assert (plain["minReplicas"], plain["maxReplicas"]) == (1, most)


def test_the_gateways_autoscalers_agree_and_start_no_more_replicas_than_are_configured() -> None:
    keda = objects("keda", "ScaledObject")["ocr-gateway"]
    hpa = objects("hpa", "HorizontalPodAutoscaler")["ocr-gateway"]
    assert keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa["behavior"]
    assert keda["minReplicaCount"] == hpa["minReplicas"]
    routes = yaml.safe_load((ROOT / "deploy/kubernetes/overlays/production/routes.yaml").read_text())
    assert keda["maxReplicaCount"] == hpa["maxReplicas"] <= routes["server"]["replicas"]
