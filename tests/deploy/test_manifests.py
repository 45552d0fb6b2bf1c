"""What the manifests share with routes.yaml and with the command line; deploy/checks has the rest."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import pytest

from deploy.checks.render import render
from gateway import cli
from gateway.config import load
from gateway.tools.sweep.sweep_options import arguments as sweep_arguments
from tests.deploy.renderings import KUBERNETES, Combination, rendered

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

OVERLAYS = sorted(path.parent for path in KUBERNETES.glob("overlays/*/kustomization.yaml"))
ARGUMENTS = sorted(KUBERNETES.glob("overlays/*/*/args.yaml"))


def by_name(documents: Iterable[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Objects by kind and name."""
    return {(found["kind"], found["metadata"]["name"]): found for found in documents}


def overlay_with(overlay: Path, *components: str) -> dict[tuple[str, str], dict[str, Any]]:
    return by_name(rendered(Combination(overlay.name, components)))


SWEEP = by_name(render(KUBERNETES / "sweep"))
PRODUCTION = KUBERNETES / "overlays/production"


def longest_s(overlay: Path) -> float:
    """How long a client may wait for its answer: in a queue, then for an engine."""
    return max(
        route.queue.max_wait_s + route.timeouts.total_s
        for route in load(overlay / "routes.yaml", keys=False).routes.values()
    )


@pytest.mark.parametrize("path", ARGUMENTS, ids=lambda path: path.parent.name)
def test_engines_are_started_as_engine_args_says(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool, command = path.parent.name, ["engine-args", "--config", str(path.parents[1] / "routes.yaml")]
    assert cli.main([*command, "--pool", pool, "--kustomize"]) == 0
    assert path.read_text() == capsys.readouterr().out, f"write {path} again: its first line says how"
    assert cli.main([*command, "--pool", pool, "--json"]) == 0
    engine = overlay_with(path.parents[1])["StatefulSet", f"vllm-{pool}"]["spec"]["template"]["spec"]
    assert engine["containers"][0]["args"] == json.loads(capsys.readouterr().out)[pool]


def test_every_pool_of_engines_has_its_arguments() -> None:
    wanted = {
        (overlay.name, pool)
        for overlay in OVERLAYS
        for pool, of in load(overlay / "routes.yaml", keys=False).pools.items()
        if of.engines != ("embedded",)
    }
    assert {(path.parents[1].name, path.parent.name) for path in ARGUMENTS} == wanted != set()


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_gateways_end_only_after_the_longest_answer(overlay: Path) -> None:
    assert load(overlay / "routes.yaml", keys=False).server.drain_s >= longest_s(overlay)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_what_stands_in_front_lets_through_what_the_gateway_takes(overlay: Path) -> None:
    ingress = overlay_with(overlay, "ingress-nginx")["Ingress", "ocr-gateway"]
    told = {
        key.removeprefix("nginx.ingress.kubernetes.io/"): value
        for key, value in ingress["metadata"]["annotations"].items()
    }
    megabytes = int(told["proxy-body-size"].removesuffix("m"))
    assert megabytes * 1024**2 >= load(overlay / "routes.yaml", keys=False).limits.body_bytes
    assert int(told["proxy-read-timeout"]) > longest_s(overlay)
    assert told["proxy-buffering"] == "off"


def test_a_route_of_the_gateway_api_waits_for_the_longest_answer_and_is_let_in() -> None:
    objects = overlay_with(PRODUCTION, "gateway-api")
    (rule,) = objects["HTTPRoute", "ocr-gateway"]["spec"]["rules"]
    assert float(rule["timeouts"]["request"].removesuffix("s")) > longest_s(PRODUCTION)
    service = objects["Service", "ocr-gateway"]
    assert [port["port"] for port in service["spec"]["ports"]] == [rule["backendRefs"][0]["port"]]
    proxies, prometheus = objects["NetworkPolicy", "ocr-gateway"]["spec"]["ingress"]
    assert "envoy-gateway-system" in str(proxies["from"])
    assert "monitoring" in str(prometheus["from"])
    assert (proxies["ports"], prometheus["ports"]) == ([{"port": 8000}], [{"port": 9090}])


def test_a_swept_routes_file_finds_its_profiles_where_they_are_mounted(tmp_path: Path) -> None:
    objects = overlay_with(PRODUCTION)
    data = dict(objects["ConfigMap", "ocr-gateway-routes"]["data"])
    data["table.json"] = json.dumps({"route": "table", "pools": {"plain": [[1, 90]]}, "meta": {}})
    data["routes.yaml"] = data["routes.yaml"].replace(
        "  table:\n", "  table:\n    profile: profiles/table.json\n"
    )
    pods = objects["Deployment", "ocr-gateway"], SWEEP["Job", "ocr-gateway-sweep"]
    for index, pod in enumerate(pods):
        volumes = {volume["name"]: volume for volume in pod["spec"]["template"]["spec"]["volumes"]}
        mounted = tmp_path / str(index)
        for source in (part["configMap"] for part in volumes["routes"]["projected"]["sources"]):
            for item in source.get("items") or [{"key": key, "path": key} for key in data]:
                if item["key"] in data or not source.get("optional"):
                    target = mounted / item["path"]
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(data[item["key"]])
        assert load(mounted / "routes.yaml", keys=False).profiles["table"].pools["plain"] == ((1.0, 90.0),)


def test_the_sweep_is_told_what_it_understands_and_reaches_engines_alone() -> None:
    template = SWEEP["Job", "ocr-gateway-sweep"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    command, *options = container["args"]
    parser = argparse.ArgumentParser()
    sweep_arguments(parser)
    told = parser.parse_args(options)
    mounts = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert command == "sweep"
    assert str(told.out.parent) in mounts
    _, way = SWEEP["NetworkPolicy", "ocr-gateway-sweep"]["spec"]["egress"]
    assert way["to"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "engine"
    engines = overlay_with(PRODUCTION)["NetworkPolicy", "vllm-mtp3"]
    component = template["metadata"]["labels"]["app.kubernetes.io/component"]
    assert component in str(engines["spec"]["ingress"])
