"""`ocr-gateway sweep`: from its options to the report and the configuration."""

from __future__ import annotations

import asyncio
import os
import platform
import random
import resource
import signal
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from gateway import __version__
from gateway.config import load
from gateway.errors import ConfigError
from gateway.tools.output import say
from gateway.tools.sweep import agenda, documents, imported, report, sweep_file, targets, write
from gateway.tools.sweep import sweep_terminal as terminal
from gateway.tools.sweep.findings import findings
from gateway.tools.sweep.measure import Timing, utc_now
from gateway.tools.sweep.request_bodies import RequestBodies, prompt_of
from gateway.tools.sweep.run import Run
from gateway.tools.sweep.sweep_values import RequestShape, Setting
from gateway.upstream.client import EngineClient

if TYPE_CHECKING:
    import argparse
    from collections.abc import Coroutine, Mapping, Sequence

    from gateway.config import Config
    from gateway.model import Engine
    from gateway.tools.sweep.request_bodies import Image, Prompt
    from gateway.tools.sweep.sweep_values import Results

_CONFIG = Path("routes.yaml")
# Enough that a window does not see the same page twice in a row, few enough to be drawn in seconds.
_RENDERED = 24
# Open files beside one for each request.
_OWN_FILES = 100
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class _Material:
    """What a route's requests are made of."""

    prompt: Prompt
    images: Sequence[Image]
    options: argparse.Namespace

    @property
    def shape(self) -> RequestShape:
        return RequestShape(
            prompt=self.prompt.text,
            images=len(self.images),
            rendered=not self.options.images,
            max_tokens=self.options.max_tokens,
            streamed=not self.options.no_stream,
            images_digest=documents.digest(self.images),
        )

    def bodies(self, model: str) -> RequestBodies:
        options, rng = self.options, random.Random(self.options.seed)
        return RequestBodies(
            model,
            self.prompt,
            self.images,
            max_tokens=options.max_tokens,
            stream=not options.no_stream,
            rng=rng,
        )


def run(options: argparse.Namespace) -> int:
    """Measure, report and write as told; return the exit status.

    1: a cell is missing or invalid. 130: interrupted.

    Raises:
        ConfigError: options, configuration, files or engines that cannot be used.
    """
    try:
        return _run(options)
    except OSError as error:
        raise ConfigError([f"{error.filename or options.out}: {error.strerror or error}"]) from error


def _run(options: argparse.Namespace) -> int:
    path = _config_path(options)
    if options.report_only:
        return _conclude(options, path, sweep_file.read(options.out))
    if path:
        config, everything = targets.configured(path, options.pools, options.routes), load(path, keys=False)
    else:
        config = targets.named(options.engine, options.model, options.routes)
        everything = targets.named(options.engine, options.model, None)
    prompts = dict(options.prompt)
    # Those of routes that are not measured this time may stay.
    if unknown := prompts.keys() - config.routes.keys() - everything.routes.keys():
        raise ConfigError([f"--prompt: there is no route {name!r}" for name in sorted(unknown)])
    if options.from_vllm_bench:
        return _import(options, path, config)
    material = _material(options, config, prompts)
    return uvloop.run(_sweep(options, path, config, material))


def _config_path(options: argparse.Namespace) -> Path | None:
    """The routes.yaml to use; None where engines are named instead."""
    if not options.engine:
        return options.config or _CONFIG
    problems = []
    if options.config:
        problems.append("--engine: give engines or a --config, not both")
    if options.pools:
        problems.append("--pools: the engines given are the pools")
    if options.write or options.diff:
        problems.append("--write and --diff want the --config whose pools were measured")
    if problems:
        raise ConfigError(problems)
    return None


def _material(
    options: argparse.Namespace, config: Config, prompts: Mapping[str, str]
) -> dict[str, _Material]:
    model = f"{config.model} {config.model_path or ''}"
    found: dict[str, _Material] = {}
    problems: list[str] = []
    for route in config.routes:
        try:
            prompt = prompt_of(route, model, prompts)
            if options.images:
                images = documents.images(options.images, route)
            else:
                images = documents.rendered(route, _RENDERED, random.Random(options.seed))
        except ConfigError as error:
            problems += error.problems
            continue
        found[route] = _Material(prompt, images, options)
    if problems:
        raise ConfigError(problems)
    return found


async def _sweep(
    options: argparse.Namespace, path: Path | None, config: Config, material: Mapping[str, _Material]
) -> int:
    engines = await targets.engines(config)
    _require_files(options, config, engines)
    async with EngineClient() as client:
        found = await targets.check(client, config, engines)
        setting = Setting(
            model=config.model,
            gpu=options.gpu,
            simulated=found[engines[0].name].simulated,
            pools=targets.pools(config, engines, found),
            routes={name: of.shape for name, of in material.items()},
            loads=options.concurrency,
            window_s=options.window,
            **_circumstances(),
        )
        with sweep_file.SweepFile(options.out) as file:
            before = file.preview(setting) if options.dry_run else file.open(setting)
            plan = agenda.SweepPlan(
                setting=before.setting,
                options=agenda.Options(
                    quick=options.quick,
                    repeats_max=options.repeats_max,
                    rates=options.rate,
                    pools={name: config.pools_of(name) for name in config.routes},
                ),
                engines=engines,
                timing=Timing(options.window, options.max_warmup),
                scales={name: of.time_scale for name, of in found.items()},
            )
            bodies = {route: of.bodies(config.model) for route, of in material.items()}
            with terminal.SweepDisplay(sys.stdout) as display:
                rng = random.Random(options.seed)
                going = Run(plan, before.windows, client, bodies, file.add, display, rng)
                for line in terminal.describe_plan(plan, setting, going.windows, going.due):
                    display.note(line)
                if options.dry_run:
                    return 0
                interrupted = await _until_interrupted(going.run())
            if interrupted:
                print(
                    f"interrupted: {len(going.windows)} windows are in {file.path}; the same command goes on "
                    "from there, and --report-only reports what there is",
                    file=sys.stderr,
                )
                return _INTERRUPTED
            status = _conclude(options, path, sweep_file.read(options.out))
    missing = terminal.describe_missing(going.due, going.lost, going.gone)
    print("\n".join(missing), file=sys.stderr, end="\n" * bool(missing))
    return status or int(bool(missing))


def _require_files(options: argparse.Namespace, config: Config, engines: Sequence[Engine]) -> None:
    """Refuse what cannot be sent: nothing, or more at a time than there may be open files."""
    most = 0
    for engine in engines:
        max_load = config.pools[engine.pool].max_load
        loads = [load for load in options.concurrency if load <= max_load]
        most += max_load if options.rate else max(loads, default=0)
    if not most:
        raise ConfigError(["--concurrency: there is nothing to measure: every load is above max_load"])
    needed = most + _OWN_FILES
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < needed:
        raise ConfigError(
            [
                f"{len(engines)} engines get up to {most:,} requests at a time, for which {allowed:,} open "
                f"files are too few: allow {needed:,} (ulimit -n {needed}), or choose fewer --pools at a time"
            ]
        )


async def _until_interrupted(work: Coroutine[None, None, None]) -> bool:
    """Let work go on until it is done or a signal comes; tell whether one came."""
    loop = asyncio.get_running_loop()
    working = loop.create_task(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, working.cancel)
    try:
        await asyncio.wait([working])
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    if working.cancelled():
        return True
    try:
        working.result()
    except ExceptionGroup as failures:
        # What is no error of the program, such as a full disk, is told without the tasks it came through.
        raise next((one for one in failures.exceptions if isinstance(one, ConfigError)), failures) from None
    return False


def _import(options: argparse.Namespace, path: Path | None, config: Config) -> int:
    """Take windows from files of `vllm bench serve`."""
    names = options.from_vllm_bench, tuple(config.routes), tuple(config.pools)
    windows = imported.windows(*names)
    earlier = (options.out / sweep_file.NAME).exists() and sweep_file.read(options.out).setting.window_s
    setting = Setting(
        model=config.model,
        gpu=options.gpu,
        pools=targets.pools(config, (), {}),
        routes={name: RequestShape("", 0, False, 0) for name in config.routes},
        loads=tuple(sorted({window.cell.load for window in windows})),
        window_s=earlier or round(statistics.median(window.seconds for window in windows)),
        **_circumstances(),
    )
    with sweep_file.SweepFile(options.out) as file:
        before = file.open(setting)
        for window in imported.windows(*names, before.windows):
            file.add(window)
    return _conclude(options, path, sweep_file.read(options.out))


def _circumstances() -> dict[str, str]:
    return {
        "started": utc_now(),
        "tool": f"ocr-gateway {__version__}",
        "client": f"{platform.platform(terse=True)} {platform.machine()}, {os.cpu_count()} CPUs",
    }


def _conclude(options: argparse.Namespace, path: Path | None, results: Results) -> int:
    """Say what was found, and write it down."""
    found = findings(results)
    files = report.write(results, found, options.out)
    say("\n".join(terminal.describe_findings(results, found)), sys.stdout)
    say(f"wrote {', '.join(map(str, files))}", sys.stdout)
    if not found.routes:
        print("no valid window: there is nothing to conclude, and nothing to write", file=sys.stderr)
        return 1
    if not (path and (options.diff or options.write)):
        return 0
    kept, notes = write.permitted(path, results)
    print("".join(f"{note}\n" for note in notes), end="")
    if len(kept.windows) < len(results.windows):
        found = findings(kept)
    if options.diff:
        changes = write.preview(path, kept, found)
        print(changes, end="")
        if "\n@@ " not in changes:  # notes, but no hunk
            print(f"{path} would not change")
    if options.write:
        print("\n".join(write.apply(path, kept, found)))
    return 0
