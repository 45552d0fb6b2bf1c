"""The local stack: the dashboard's queries on a real Prometheus, and the files that start it elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from bench.serving import ROOT
from deploy.stack import __main__ as command
from deploy.stack import load, services
from gateway.cli import parser
from gateway.config import load as load_config
from gateway.engines.simulated.step_model import Fit, throughput
from gateway.tools.demo.processes import GATEWAY, PROMETHEUS, ServiceFailed, simulated_engine
from tests.deploy.panels import NAME, QUERIES, VARIABLES, Query, filled
from tests.deploy.rule_files import FILES, RECORDS, RULES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONG_S = 90
STACK = ROOT / "deploy/stack"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]

# The queries of components/keda, which kustomize puts the model into.
SCALED_BY = [
    trigger["metadata"]["query"]
    for path in sorted((ROOT / "deploy/kubernetes/components/keda").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
    if document["kind"] == "ScaledObject"
    for trigger in document["spec"]["triggers"]
]


def free_shift() -> int:
    """How far to move every port, so that none is taken or given to somebody's outgoing connection."""
    start = os.getpid() % 150
    for by in range(start, start + 150):
        shift = 1000 + by % 150 * 100
        with contextlib.suppress(ServiceFailed):
            services.require_free(services.shifted(shift))
            return shift
    raise AssertionError("no free ports")


@dataclass(frozen=True)
class Prometheus:
    """The stack's Prometheus."""

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as reply:
            return json.load(reply)["data"]

    def ask(self, expr: str) -> list[dict[str, Any]]:
        return list(self.get("query", query=expr)["result"])

    def values(self, variable: str) -> list[str]:
        """What Grafana would offer for a variable."""
        asked = re.fullmatch(r"label_values\((.*), (\w+)\)", VARIABLES[variable]["query"]["query"])
        assert asked
        series = filled(asked[1], model=services.MODEL)
        return list(self.get(f"label/{asked[2]}/values", **{"match[]": series}))

    def shown(self, one: Query, **values: str) -> list[dict[str, Any]]:
        """What a panel's query shows for the stack's model."""
        instances = "|".join(self.values("instance"))
        expr = filled(
            one.expr, model=services.MODEL, instance=f"({instances})", __rate_interval="15s", **values
        )
        return self.ask(expr)


def until(condition: Callable[[], bool], within_s: float = LONG_S) -> bool:
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
    return True


@pytest.fixture(scope="class")
def prometheus() -> Iterator[Prometheus]:
    """The stack under as many clients as it takes to shed some."""
    ports = services.shifted(free_shift())
    with services.running(ports, load=["--clients=130", "--max-tokens=60"], scrape_s=1):
        yield Prometheus(services.url(ports, PROMETHEUS))


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
class TestLive:
    """A real Prometheus on a real gateway, under load on simulated engines."""

    def test_every_query_of_every_panel_returns_data(self, prometheus: Prometheus) -> None:
        left = {str(one): one for one in QUERIES}

        def all_shown() -> bool:
            for name, one in list(left.items()):
                if prometheus.shown(one):
                    del left[name]
            return not left

        assert until(all_shown), f"no data: {', '.join(left)}"

    @pytest.mark.parametrize("expr", SCALED_BY)
    def test_every_query_that_scales_something_returns_one_figure(
        self, prometheus: Prometheus, expr: str
    ) -> None:
        query = expr.replace("from autoscaling.yaml", services.MODEL)
        assert query != expr
        assert until(lambda: len(prometheus.ask(query)) == 1), query

    def test_legends_name_labels_that_the_figures_have(self, prometheus: Prometheus) -> None:
        for one in QUERIES:
            wanted = set(re.findall(r"\{\{(\w+)\}\}", one.legend))
            assert until(
                lambda one=one, wanted=wanted: any(
                    wanted <= row["metric"].keys() for row in prometheus.shown(one)
                )
            ), str(one)

    def test_every_metric_of_the_dashboard_and_the_rules_exists(self, prometheus: Prometheus) -> None:
        asked = [*(one.expr for one in QUERIES), *(rule["expr"] for rule in RULES)]
        wanted = set(NAME.findall(" ".join(asked))) | RECORDS.keys()

        def missing() -> set[str]:
            return wanted - set(prometheus.get("label/__name__/values"))

        assert until(lambda: not missing()), missing()

    def test_rules_are_evaluated_without_errors_and_targets_are_up(self, prometheus: Prometheus) -> None:
        def rules() -> list[dict[str, Any]]:
            return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]

        assert {rule["type"] for rule in rules()} == {"recording", "alerting"}
        assert until(lambda: all(rule["health"] == "ok" for rule in rules())), rules()
        assert [target["health"] for target in prometheus.get("targets")["activeTargets"]] == ["up"]

    def test_the_load_is_of_every_kind(self, prometheus: Prometheus) -> None:
        def seen(metric: str, label: str) -> set[str]:
            return {row["metric"][label] for row in prometheus.ask(f"sum by ({label}) ({metric})")}

        reasons = {"header", "model", "metadata", "prompt", "structure", "default"}
        assert until(lambda: reasons <= seen("ocr_gateway_sort_decisions_total", "reason"))
        assert until(
            lambda: {"200", "400", "404", "499", "503"} <= seen("ocr_gateway_requests_total", "code")
        )
        assert until(
            lambda: {"request", "stream", "engine"} <= seen("ocr_gateway_spec_drafts_total > 0", "source")
        )

    def test_variables_offer_what_is_configured(self, prometheus: Prometheus) -> None:
        config = load_config(STACK / "routes.yaml")
        assert prometheus.values("model") == [services.MODEL]
        assert prometheus.values("route") == sorted(config.routes)
        assert prometheus.values("pool") == sorted(config.pools)
        assert len(prometheus.values("instance")) == 1

    def test_a_chosen_route_is_the_only_one_shown(self, prometheus: Prometheus) -> None:
        for one in QUERIES:
            if "$route" in one.expr and "{{route}}" in one.legend:
                found = {row["metric"].get("route") for row in prometheus.shown(one, route="table")}
                assert found <= {"table", "(before sorting)"}, str(one)

    def test_each_routes_acceptance_is_its_own(self, prometheus: Prometheus) -> None:
        fit, routes = Fit.builtin(services.FIT), {"text": 3, "table": 3, "key-value": 1}

        def figures() -> dict[str, float]:
            rows = prometheus.ask("ocr_gateway:acceptance_length:rate5m")
            return {row["metric"]["route"]: float(row["value"][1]) for row in rows}

        # A few drafts tell little: the figures come nearer as there are more.
        expected = {route: fit.routes[route].acceptance_length(depth) for route, depth in routes.items()}
        assert until(lambda: figures() == pytest.approx(expected, rel=0.1)), (figures(), expected)


def stack(*arguments: str, path: str = os.environ["PATH"]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "deploy.stack", *arguments],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_without_prometheus_it_serves_says_what_is_missing_and_ends_at_ctrl_c() -> None:
    shift = free_shift()
    ports = services.shifted(shift)
    with stack("--no-load", f"--shift={shift}", path="/nonexistent") as process:
        assert process.stdout
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                break
        with urllib.request.urlopen(services.url(ports, GATEWAY) + "/ready", timeout=30) as page:
            assert json.load(page)["status"] == "ready"
        process.send_signal(signal.SIGINT)
        assert process.wait(LONG_S) == 0
        assert process.stdout.read().strip().endswith("ended")
    assert any("Prometheus is not installed" in line for line in lines)
    assert all("simulated" in line for line in lines)
    services.require_free(ports)


def test_a_port_that_is_taken_is_named_with_what_would_be_right() -> None:
    shift = free_shift()
    port = services.shifted(shift)[PROMETHEUS]
    with socket.create_server(("127.0.0.1", port)), stack(f"--shift={shift}") as process:
        assert process.stdout
        said = process.stdout.read()
        assert process.wait(LONG_S) == 1
    assert f"port {port} is taken, and Prometheus wants it" in said
    (other,) = re.findall(r"make stack ARGS='--shift (\d+)'", said)
    services.require_free(services.shifted(int(other)))


@pytest.mark.parametrize("wrong", ["--shift=60000", "--shift=-1", "--clients=3,many", "--clients=-3"])
def test_a_wrong_option_is_told(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.parser().parse_args([wrong])
    assert wrong.partition("=")[2] in capsys.readouterr().err


def test_the_loads_options_are_passed_on() -> None:
    chosen = command.parser().parse_args(["--clients=5,7", "--period=3", "--max-tokens=9"])
    passed = load.parser().parse_args(load.command_line(chosen))
    assert (passed.clients, passed.period, passed.max_tokens) == ((5, 7), 3, 9)


@pytest.mark.parametrize("name", ["grafana", "grafana-server"])
def test_grafana_gets_all_that_its_provisioning_asks_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in (name, "prometheus"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    grafana = services.watching(services.PORTS, tmp_path, scrape_s=5)[1]
    assert grafana.command[0] == str(tmp_path / name)
    asked = set(re.findall(r"\$\{(\w+)\}", provisioned()))
    assert asked <= grafana.environment.keys()
    assert (Path(grafana.environment["DASHBOARDS"]) / "ocr-gateway.json").exists()
    assert Path(grafana.environment["GF_PATHS_PROVISIONING"], "datasources").is_dir()


def provisioned() -> str:
    files = (ROOT / "deploy/grafana/provisioning").glob("*/*.yaml")
    return "".join(path.read_text() for path in files)


def test_profiles_are_what_the_simulated_engines_give() -> None:
    fit, config = Fit.builtin(services.FIT), load_config(STACK / "routes.yaml")
    for route, settings in config.routes.items():
        profile = json.loads((STACK / f"profiles/{route}.json").read_text())
        assert "simulated" in profile["meta"]
        for pool, points in profile["pools"].items():
            depth = config.pools[pool].depth
            expected = [
                [n, pytest.approx(throughput(fit, depth, {route: n})[route], abs=0.1)] for n, _ in points
            ]
            assert points == expected
        assert profile["pools"].keys() == set(config.pools_of(route)), settings


class TestCompose:
    """Without docker: what its services are told is held against the programs and files themselves."""

    def test_commands_are_valid_and_the_stacks_own(self) -> None:
        read = parser().parse_args
        for name in services.ENGINES:
            service = COMPOSE[name.lower().replace("_", "-")]
            options = vars(read(service["command"]))
            mine = simulated_engine(name, 8000, **services.engine_options(name)).command
            own = mine[mine.index("simulated-engine") :]
            assert options == vars(read([*own, "--host=0.0.0.0"]))
        gateway = read(COMPOSE["gateway"]["command"])
        assert str(gateway.config) == "/etc/ocr-gateway/routes.yaml"
        loaded = load.parser().parse_args(COMPOSE["load"]["command"])
        assert loaded.gateway == f"http://gateway:{gateway.port}"
        assert loaded.trouble == "http://" + COMPOSE["gateway"]["environment"][services.TROUBLED]
        for engine, address in COMPOSE["gateway"]["environment"].items():
            assert address == f"{engine.lower().replace('_', '-')}:8000"
            assert engine in services.ENGINES

    def test_files_exist_where_they_are_looked_for(self) -> None:
        for name, service in COMPOSE.items():
            for volume in service.get("volumes", []):
                source, _, mode = volume.split(":")
                assert (ROOT / "deploy" / source).exists(), name
                assert mode == "ro", name
        inside = {volume.split(":")[1] for volume in COMPOSE["prometheus"]["volumes"]}
        config = yaml.safe_load((STACK / "prometheus.yml").read_text())
        assert {str(Path(path).parent) for path in config["rule_files"]} <= inside
        assert [Path(path).name for path in config["rule_files"]] == [path.name for path in FILES]
        assert config["scrape_configs"][0]["static_configs"] == [{"targets": ["gateway:8000"]}]
        asked = set(re.findall(r"\$\{(\w+)\}", provisioned()))
        assert asked <= COMPOSE["grafana"]["environment"].keys()
        assert COMPOSE["grafana"]["environment"]["DASHBOARDS"] in {
            volume.split(":")[1] for volume in COMPOSE["grafana"]["volumes"]
        }

    def test_the_image_is_the_one_that_is_shipped(self) -> None:
        for name in ("gateway", "load", *(name for name in COMPOSE if name.startswith("engine-"))):
            build = COMPOSE[name]["build"]
            folder = (ROOT / "deploy" / build["context"]).resolve()
            assert folder == ROOT, name
            dockerfile = (folder / build.get("dockerfile", "Dockerfile")).read_text()
            assert f" AS {build['target']}\n" in dockerfile, name

    def test_the_loads_module_lies_where_python_looks_for_it(self) -> None:
        (volume,) = COMPOSE["load"]["volumes"]
        assert volume.split(":")[1] == COMPOSE["load"]["working_dir"] + "/deploy/stack"

    def test_services_are_locked_down_pinned_and_local(self) -> None:
        for name, service in COMPOSE.items():
            assert service["read_only"], name
            assert service["cap_drop"] == ["ALL"], name
            assert service["security_opt"] == ["no-new-privileges:true"], name
            assert "user" in service or "build" in service, (
                name
            )  # tests/deploy/test_image.py: the image has one
            assert "build" in service or re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name
            assert "healthcheck" in service or name == "load", name
            assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name

    def test_it_waits_for_what_is_healthy(self) -> None:
        for name, service in COMPOSE.items():
            for other, wish in service.get("depends_on", {}).items():
                assert wish == {"condition": "service_healthy"}, name
                assert "healthcheck" in COMPOSE[other], name
