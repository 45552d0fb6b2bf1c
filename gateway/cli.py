"""Commands: their options, and which tool carries each out; nothing but wiring and printing."""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway import __version__
from gateway.errors import ConfigError
from gateway.tools.ocr.ocr_options import arguments as ocr_arguments
from gateway.tools.option_types import port, positive, whole
from gateway.tools.output import listed
from gateway.tools.plan.plan_options import arguments as plan_arguments
from gateway.tools.sweep.sweep_options import arguments as sweep_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_CONFIG = Path("routes.yaml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status."""
    _open_standard_streams()
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


def _command(module: str, name: str = "run") -> Callable[[argparse.Namespace], int]:
    """A tool's function, whose module is imported only when it runs: some take a second."""

    def run(options: argparse.Namespace) -> int:
        status: int = getattr(importlib.import_module(f"gateway.tools.{module}"), name)(options)
        return status

    return run


def _open_standard_streams() -> None:
    """Open those that are closed on nothing: else files and sockets would take their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest free number


def _serve(options: argparse.Namespace) -> int:
    # It asks for a reload: one that comes before there is anything to reload must not end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return _command("serve_command", "serve")(options)


def _sweep(options: argparse.Namespace) -> int:
    needed = ("jinja2", "matplotlib", "rich")
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise ConfigError([f"sweep needs {listed(missing)}: pip install 'ocr-gateway[sweep]'"])
    from gateway.server.listen import allow_many_connections  # takes half a second

    allow_many_connections()
    return _command("sweep.sweep_command")(options)


def _embedded_engine(options: argparse.Namespace) -> int:
    from gateway.engines.embedded import embedded_server  # heavy: only where it is asked for

    where = f"http://{options.host}:{options.port}"
    print(f"the embedded engine loads its models, then serves on {where}", file=sys.stderr)
    embedded_server.main(host=options.host, port=options.port, model=options.model)
    return 0


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
    serve.add_argument("--port", type=port, default=8000, help="default: 8000; 0: any free one")
    serve.add_argument("--log-format", choices=("text", "json"), default="text", help="default: text")
    serve.add_argument(
        "--log-level",
        choices=("warning", "info", "debug"),
        default="info",
        help="warning: no line for each request; debug: every choice, with its reasons; default: info",
    )
    shared: dict[str, Any] = {"type": whole(1, 64, "workers are 1 to 64"), "default": 1, "metavar": "N"}
    serve.add_argument(
        "--workers", **shared, help="processes that share the port, each with an admin port; default: 1"
    )
    serve.set_defaults(command=_serve)

    check = commands.add_parser("check", help="validate a configuration; exit 1 on any error")
    check.add_argument("--config", **config)
    check.add_argument("--workers", **shared, help="as many as `serve` is to have; default: 1")
    check.set_defaults(command=_command("serve_command", "check"))

    sort = commands.add_parser("sort", help="print the route of images, with reason, confidence and time")
    sort.add_argument("images", nargs="+", type=Path, metavar="IMAGE")
    sort.add_argument("--prompt", default="", help="the text that comes with the images")
    sort.add_argument("--json", action="store_true", help="one JSON object a line")
    sort.add_argument("--config", **config)
    sort.set_defaults(command=_command("sort_command"))

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
    arguments.set_defaults(command=_command("engine_args"))

    embedded = commands.add_parser("embedded-engine", help="run the CPU OCR engine by itself")
    embedded.add_argument("--host", default="127.0.0.1", help="address to listen on; default: 127.0.0.1")
    embedded.add_argument("--port", type=port, default=8001, help="default: 8001")
    embedded.add_argument("--model", default="glm-ocr", help="name to serve under; default: glm-ocr")
    embedded.set_defaults(command=_embedded_engine)

    simulated = commands.add_parser(
        "simulated-engine", help="run a simulated vLLM, for trials and benchmarks"
    )
    simulated.add_argument("--host", default="127.0.0.1", help="address to listen on; default: 127.0.0.1")
    simulated.add_argument("--port", type=port, default=8002, help="default: 8002")
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
        "--time-scale", type=positive, default=1.0, metavar="X", help="run X times as fast; default: 1"
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
    simulated.set_defaults(command=_command("simulated_command"))

    sweep = commands.add_parser(
        "sweep", help="measure engines; get crossovers, a report and the configuration"
    )
    sweep_arguments(sweep)
    sweep.set_defaults(command=_sweep)

    plan = commands.add_parser("plan", help="which fleet to run, from profiles and a history of load")
    plan_arguments(plan)
    plan.set_defaults(command=_command("plan.plan_command"))

    ocr = commands.add_parser("ocr", help="read PDFs and images: markdown, text or JSON of them")
    ocr_arguments(ocr)
    ocr.set_defaults(command=_command("ocr.ocr_command"))

    demo = commands.add_parser(
        "demo", help="simulated engines at three depths, the gateway, and a load that breathes"
    )
    demo.add_argument("--port", type=port, default=8000, help="the gateway's; default: 8000; 0: any free one")
    demo.add_argument("--minutes", type=positive, default=math.inf, metavar="N", help="default: until Ctrl-C")
    demo.add_argument(
        "--prometheus", choices=("auto", "never"), default="auto", help="auto: where it is installed"
    )
    demo.set_defaults(command=_command("demo.demo_command"))
    return found


if __name__ == "__main__":
    sys.exit(main())
