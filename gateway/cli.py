"""Commands; nothing but wiring and printing."""

from __future__ import annotations

import argparse
import importlib.util
import ipaddress
import json
import logging
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway import __version__
from gateway.config import load
from gateway.errors import ConfigError, GatewayError
from gateway.images.worker import guess_layout, layout_model
from gateway.model import SortFacts
from gateway.policy.sort import evidence
from gateway.server import app, listen, workers
from gateway.state.fleet import Fleet, sort_rules
from gateway.telemetry import logs
from gateway.tools import engine_args
from gateway.tools.ocr.ocr_options import arguments as ocr_arguments
from gateway.tools.plan import plan_command as sizing
from gateway.tools.sweep.sweep_options import arguments as sweep_arguments
from gateway.wire.image import headers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.config import Config

log = logging.getLogger(__name__)

_CONFIG = Path("routes.yaml")
_SORT_ROW = "{route:<10} {reason:<9} {confidence:<5} {milliseconds:>7} ms  {image}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status."""
    options = parser().parse_args(arguments)
    try:
        status: int = options.command(options)
    except ConfigError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130  # as a shell has it
    return status


def _serve(options: argparse.Namespace) -> int:
    logs.configure(options.log_format, options.log_level)
    config = load(options.config, workers=options.workers)
    app.require_embedded(config)
    _tell_who_gets_in(config, options.host, options.port)
    if options.workers > 1:
        log_as = options.log_format, options.log_level
        return workers.serve(config, options.config, options.host, options.port, log_as)
    listen.serve(config, options.config, options.host, options.port)
    return 0


def _tell_who_gets_in(config: Config, host: str, port: int) -> None:
    where = f"{host}:{port}"
    if config.auth.keys_file:
        log.info("%s", _keys(config))
    elif _is_loopback(host):
        log.warning("no API keys are configured: whoever on this machine reaches %s may use it", where)
    else:
        log.error(
            "NO API KEYS ARE CONFIGURED, and %s is open to the network: whoever reaches it may use it. "
            "Name a file of keys (auth.keys_file), or let nobody through who has not shown who they are",
            where,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _keys(config: Config) -> str:
    keys, names = len(config.keys), len(config.keys.names)
    return f"{keys} API key{'s' * (keys != 1)} of {names} name{'s' * (names != 1)}" if keys else "no API keys"


def _check(options: argparse.Namespace) -> int:
    config = load(options.config, workers=options.workers)
    for note in Fleet.of(config).notes:
        print(f"note: {options.config}: {note}")
    engines = sum(len(pool.engines) for pool in config.pools.values())
    print(
        f"{options.config}: valid - model {config.model}, routes {', '.join(config.routes)}, "
        f"{engines} engine{'s' * (engines != 1)} in {', '.join(config.pools)}, {_keys(config)}"
    )
    return 0


def _sort(options: argparse.Namespace) -> int:
    config = load(options.config, keys=False)
    rules, model = sort_rules(config), layout_model()
    failed = False
    for path in options.images:
        started = time.perf_counter()
        try:
            data = path.read_bytes()
            headers.inspect(data, max_pixels=config.limits.image_pixels)
            decision = evidence.sort(SortFacts(prompt=options.prompt, has_image=True), rules)
            if decision is None:
                decision = evidence.sort_by_layout(guess_layout(data, model), rules)
        except (GatewayError, OSError) as error:
            failed = True
            print(f"{path}: {error}", file=sys.stderr)
            continue
        row = {
            "image": str(path),
            "route": decision.route,
            "reason": str(decision.reason),
            "confidence": round(decision.confidence, 3),
            "milliseconds": round((time.perf_counter() - started) * 1000, 1),
        }
        print(json.dumps(row) if options.json else _SORT_ROW.format(**row))
    return int(failed)


def _engine_args(options: argparse.Namespace) -> int:
    config = load(options.config, keys=False)
    if options.pool not in (None, *config.pools):
        raise ConfigError(
            [f"{options.config}: unknown pool {options.pool!r}; there are: {', '.join(config.pools)}"]
        )
    pools = [options.pool] if options.pool else list(config.pools)
    if options.kustomize:
        print(_patch(config, pools, options.config), end="")
    elif options.json:
        print(json.dumps({pool: engine_args.arguments(config, pool) for pool in pools}, indent=2))
    else:
        print("\n\n".join(engine_args.command(config, pool) for pool in pools))
    return 0


def _patch(config: Config, pools: Sequence[str], path: Path) -> str:
    if len(pools) > 1:
        raise ConfigError([f"--kustomize is for one pool: --pool {' or '.join(pools)}"])
    (pool,) = pools
    if not engine_args.arguments(config, pool):
        raise ConfigError([f"{path}: pool {pool} has no engine to start but the embedded one"])
    return engine_args.kustomize(config, pool, path.name)


def _embedded_engine(options: argparse.Namespace) -> int:
    from gateway.engines.embedded.embedded_server import (
        main as serve_embedded,  # heavy: only where it is asked for
    )

    print(
        f"the embedded engine loads its models, then serves on http://{options.host}:{options.port}",
        file=sys.stderr,
    )
    serve_embedded(host=options.host, port=options.port, model=options.model)
    return 0


def _simulated_engine(options: argparse.Namespace) -> int:
    # numpy's generators: only where they are asked for
    from gateway.engines.simulated import simulated_server, step_model

    named = options.model_file in step_model.builtin_fits()
    fit = (
        step_model.Fit.builtin(options.model_file) if named else step_model.Fit.load(Path(options.model_file))
    )
    try:
        step_model.Depths(options.depth, options.schedule)
    except ValueError as error:
        raise ConfigError([f"simulated-engine: {error}"]) from error
    print(
        f"a simulated engine, fit {fit.name}, serves on http://{options.host}:{options.port}", file=sys.stderr
    )
    simulated_server.main(
        fit,
        host=options.host,
        port=options.port,
        depth=options.depth,
        schedule=options.schedule,
        model=options.model,
        time_scale=options.time_scale,
        seed=options.seed,
        per_request=options.per_request_spec_decode_metrics == "summary",
        shutdown_timeout=options.shutdown_timeout,
    )
    return 0


def _sweep(options: argparse.Namespace) -> int:
    if missing := [name for name in ("matplotlib", "rich") if importlib.util.find_spec(name) is None]:
        raise ConfigError([f"sweep needs {' and '.join(missing)}: pip install 'ocr-gateway[sweep]'"])
    from gateway.tools.sweep.sweep_command import run  # what it imports takes a second

    listen.allow_many_connections()
    return run(options)


def _ocr(options: argparse.Namespace) -> int:
    from gateway.tools.ocr.ocr_command import run

    return run(options)


def _demo(options: argparse.Namespace) -> int:
    from gateway.tools.demo.demo_command import run

    return run(options)


def _positive(text: str) -> float:
    if not 0 < (value := float(text)) < float("inf"):
        raise ValueError
    return value


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, not {text!r}")
    return int(text)


def _workers(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"workers are 1 to 64, not {text!r}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    found = argparse.ArgumentParser(
        prog="ocr-gateway",
        description="An OpenAI-compatible gateway for document OCR in front of vLLM engines.",
    )
    found.add_argument("--version", action="version", version=f"ocr-gateway {__version__}")
    commands = found.add_subparsers(required=True, metavar="COMMAND")
    config: dict[str, Any] = {
        "type": Path,
        "default": _CONFIG,
        "metavar": "FILE",
        "help": "default: routes.yaml",
    }

    serve = commands.add_parser("serve", help="serve the gateway")
    serve.add_argument("--config", **config)
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on; default: 127.0.0.1")
    serve.add_argument("--port", type=_port, default=8000, help="default: 8000; 0: any free one")
    serve.add_argument("--log-format", choices=("text", "json"), default="text", help="default: text")
    serve.add_argument(
        "--log-level",
        choices=("warning", "info", "debug"),
        default="info",
        help="warning: no line for each request; debug: every choice, with its reasons; default: info",
    )
    shared: dict[str, Any] = {"type": _workers, "default": 1, "metavar": "N"}
    serve.add_argument(
        "--workers", **shared, help="processes that share the port, each with an admin port; default: 1"
    )
    serve.set_defaults(command=_serve)

    check = commands.add_parser("check", help="validate a configuration; exit 1 on any error")
    check.add_argument("--config", **config)
    check.add_argument("--workers", **shared, help="as many as `serve` is to have; default: 1")
    check.set_defaults(command=_check)

    sort = commands.add_parser("sort", help="print the route of images, with reason, confidence and time")
    sort.add_argument("images", nargs="+", type=Path, metavar="IMAGE")
    sort.add_argument("--prompt", default="", help="the text that comes with the images")
    sort.add_argument("--json", action="store_true", help="one JSON object a line")
    sort.add_argument("--config", **config)
    sort.set_defaults(command=_sort)

    arguments = commands.add_parser("engine-args", help="print the `vllm serve` command line of each pool")
    arguments.add_argument("--config", **config)
    arguments.add_argument("--pool", metavar="NAME", help="of this pool only")
    form = arguments.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="{pool: what follows `vllm serve`}, for one engine of each"
    )
    form.add_argument(
        "--kustomize", action="store_true", help="a patch of deploy/kubernetes/engine, for one pool"
    )
    arguments.set_defaults(command=_engine_args)

    embedded = commands.add_parser("embedded-engine", help="run the CPU OCR engine by itself")
    embedded.add_argument("--host", default="127.0.0.1", help="address to listen on; default: 127.0.0.1")
    embedded.add_argument("--port", type=_port, default=8001, help="default: 8001")
    embedded.add_argument("--model", default="glm-ocr", help="name to serve under; default: glm-ocr")
    embedded.set_defaults(command=_embedded_engine)

    simulated = commands.add_parser(
        "simulated-engine", help="run a simulated vLLM, for trials and benchmarks"
    )
    simulated.add_argument("--host", default="127.0.0.1", help="address to listen on; default: 127.0.0.1")
    simulated.add_argument("--port", type=_port, default=8002, help="default: 8002")
    simulated.add_argument("--depth", type=int, default=0, metavar="N", help="draft tokens; default: 0")
    simulated.add_argument(
        "--schedule", type=json.loads, metavar="JSON", help="depth by batch size: [[from, to, depth], ...]"
    )
    simulated.add_argument("--model", default="glm-ocr", help="name to serve under; default: glm-ocr")
    simulated.add_argument(
        "--model-file",
        default="h100-9b",
        metavar="FIT",
        help="h100-9b, slow-verify, or a JSON file; default: h100-9b",
    )
    simulated.add_argument(
        "--time-scale", type=_positive, default=1.0, metavar="X", help="run X times as fast; default: 1"
    )
    simulated.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    simulated.add_argument(
        "--per-request-spec-decode-metrics", choices=("none", "summary"), default="summary", help="as vLLM's"
    )
    simulated.add_argument(
        "--shutdown-timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="for what is in flight on SIGTERM; default: 60",
    )
    simulated.set_defaults(command=_simulated_engine)

    sweep = commands.add_parser(
        "sweep", help="measure engines; get crossovers, a report and the configuration"
    )
    sweep_arguments(sweep)
    sweep.set_defaults(command=_sweep)

    plan = commands.add_parser("plan", help="which fleet to run, from profiles and a history of load")
    sizing.arguments(plan)
    plan.set_defaults(command=sizing.run)

    ocr = commands.add_parser("ocr", help="read PDFs and images: markdown, text or JSON of them")
    ocr_arguments(ocr)
    ocr.set_defaults(command=_ocr)

    demo = commands.add_parser(
        "demo", help="simulated engines at three depths, the gateway, and a load that breathes"
    )
    demo.add_argument(
        "--port", type=_port, default=8000, help="the gateway's; default: 8000; 0: any free one"
    )
    demo.add_argument(
        "--minutes", type=_positive, default=math.inf, metavar="N", help="default: until Ctrl-C"
    )
    demo.add_argument(
        "--prometheus", choices=("auto", "never"), default="auto", help="auto: where it is installed"
    )
    demo.set_defaults(command=_demo)
    return found


if __name__ == "__main__":
    sys.exit(main())
