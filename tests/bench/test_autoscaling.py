"""The simulated autoscaling is of what ships: the rules' transcription, the arithmetic, the settings."""

from __future__ import annotations

import math
import shutil
import subprocess
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from bench.autoscaling import day
from bench.autoscaling.hpa import Autoscaler, Behaviour
from bench.autoscaling.rule import demands
from bench.choice.fleet import ROUTES
from bench.choice.sweep import LOADS, Sweep, alone, model_rate
from bench.serving import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.autoscaling.rule import Page
    from bench.choice.fleet import Ranges

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
def test_the_transcription_says_what_prometheus_says(tmp_path: Path) -> None:
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
    path = tmp_path / "transcription.yaml"
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    path.write_text(yaml.safe_dump(document))
    done = subprocess.run(
        ["promtool", "test", "rules", path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[:4000]


QUICK = Behaviour(0, 100, 15)


class TestArithmetic:
    """What Kubernetes documents of its autoscaler."""

    def test_the_value_over_the_target_is_rounded_up(self) -> None:
        assert Autoscaler(0.8, 1, 10, QUICK, QUICK).replicas(0, 2, 2.5) == 4

    def test_a_ratio_within_a_tenth_changes_nothing(self) -> None:
        scaler = Autoscaler(1, 1, 20, QUICK, QUICK)
        assert scaler.replicas(0, 10, 10.9) == 10
        assert scaler.replicas(15, 10, 9.1) == 10
        assert scaler.replicas(30, 10, 11.1) == 12

    def test_limits_hold(self) -> None:
        scaler = Autoscaler(1, 2, 4, QUICK, QUICK)
        assert scaler.replicas(0, 3, 9) == 4
        assert scaler.replicas(15, 4, 0) == 2

    def test_up_takes_the_least_of_its_window_and_down_the_largest(self) -> None:
        scaler = Autoscaler(1, 1, 10, Behaviour(60, 10, 15), Behaviour(60, 10, 15))
        assert [scaler.replicas(at, 1, 3) for at in (0, 30, 45, 60)] == [1, 1, 1, 3]
        assert [scaler.replicas(at, 3, 1) for at in (75, 90, 105, 120)] == [3, 3, 3, 1]

    def test_policies_bound_how_fast_it_goes(self) -> None:
        scaler = Autoscaler(1, 1, 10, Behaviour(0, 2, 60), QUICK)
        replicas, course = 1, []
        for at in range(0, 120, 15):
            replicas = scaler.replicas(at, replicas, 9)
            course.append(replicas)
        assert course == [3, 3, 3, 3, 5, 5, 5, 5]


def objects(component: str, kind: str) -> dict[str, dict[str, Any]]:
    found = {}
    for path in (COMPONENTS / component).glob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            if document.get("kind") == kind:
                found[document["metadata"]["name"]] = document["spec"]
    return found


def behaviour(settings: dict[str, Any]) -> Behaviour:
    (policy,) = settings["policies"]
    assert policy["type"] == "Pods"
    return Behaviour(settings["stabilizationWindowSeconds"], policy["value"], policy["periodSeconds"])


@pytest.mark.parametrize("pool", day.MOST)
def test_what_is_simulated_is_set_as_what_ships(pool: str) -> None:
    keda, hpa = objects("keda", "ScaledObject")[f"vllm-{pool}"], objects("hpa", "HorizontalPodAutoscaler")
    settings = keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behaviour(settings["scaleUp"]) == day.UP[pool]
    assert behaviour(settings["scaleDown"]) == day.DOWN[pool]
    assert float(keda["triggers"][0]["metadata"]["threshold"]) == day.TARGETS[pool]
    assert (keda["minReplicaCount"], keda["maxReplicaCount"]) == (1, day.MOST[pool])
    plain = hpa[f"vllm-{pool}"]
    assert plain["behavior"] == settings
    value = plain["metrics"][0]["external"]["target"]["averageValue"]
    assert float(value.replace("m", "e-3")) == day.TARGETS[pool]
    assert (plain["minReplicas"], plain["maxReplicas"]) == (1, day.MOST[pool])


def test_the_gateways_autoscalers_agree_and_start_no_more_replicas_than_are_configured() -> None:
    keda = objects("keda", "ScaledObject")["ocr-gateway"]
    hpa = objects("hpa", "HorizontalPodAutoscaler")["ocr-gateway"]
    assert keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa["behavior"]
    assert keda["minReplicaCount"] == hpa["minReplicas"]
    routes = yaml.safe_load((ROOT / "deploy/kubernetes/overlays/production/routes.yaml").read_text())
    assert keda["maxReplicaCount"] == hpa["maxReplicas"] <= routes["server"]["replicas"]


def exact(fit: str) -> Sweep:
    """A sweep without measuring: the model's own rates."""
    rates: dict[tuple[str, int, Ranges, int], float] = {
        (route, depth, (), load): model_rate(fit, depth, (), alone(place, load))
        for place, route in enumerate(ROUTES)
        for depth in (3, 0)
        for load in LOADS
    }
    return Sweep(fit, rates)


def test_a_pool_that_is_too_small_grows_and_stays() -> None:
    case = day.Case("slow-verify", "open", 8, 1, length=600)
    course = day.run(case, exact("slow-verify"))
    assert course.moments[-1].up["plain"] > 1 == course.moments[-1].up["mtp3"]
    assert course.turns("plain") == course.turns("mtp3") == 0
    assert len(course.answers) == pytest.approx(8 * 600, rel=0.2)
    assert course.tokens > 0
    assert math.isfinite(course.latency(95))
