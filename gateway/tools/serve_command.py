"""`ocr-gateway serve` and `ocr-gateway check`: a configuration is served, or told to be valid."""

from __future__ import annotations

import ipaddress
import logging
from typing import TYPE_CHECKING

from gateway.config import load
from gateway.server import embedded_process, listen, worker_parent
from gateway.state.fleet import Fleet
from gateway.telemetry import logs
from gateway.tools.output import counted

if TYPE_CHECKING:
    import argparse

    from gateway.config import Config

log = logging.getLogger(__name__)


def serve(options: argparse.Namespace) -> int:
    """Serve until a signal ends it; return the exit status.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    logs.configure(options.log_format, options.log_level)
    config = load(options.config, workers=options.workers)
    embedded_process.require_embedded(config)
    _log_who_may_use_it(config, options.host, options.port)
    if options.workers > 1:
        log_as = options.log_format, options.log_level
        return worker_parent.serve(config, options.config, options.host, options.port, log_as)
    listen.serve(config, options.config, options.host, options.port)
    return 0


def check(options: argparse.Namespace) -> int:
    """Print what a valid configuration holds; return the exit status.

    Raises:
        ConfigError: it is not valid.
    """
    config = load(options.config, workers=options.workers)
    for note in Fleet.of(config).notes:
        print(f"note: {options.config}: {note}")
    engines = counted(sum(len(pool.engines) for pool in config.pools.values()), "engine")
    model = "of a variable" if ("model",) in config.from_environment else config.model
    print(
        f"{options.config}: valid - model {model}, routes {', '.join(config.routes)}, "
        f"{engines} in {', '.join(config.pools)}, {_keys(config)}"
    )
    return 0


def _keys(config: Config) -> str:
    keys, names = counted(len(config.keys), "API key"), counted(len(config.keys.names), "name")
    return f"{keys} of {names}" if len(config.keys) else "no API keys"


def _log_who_may_use_it(config: Config, host: str, port: int) -> None:
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
