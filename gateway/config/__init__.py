"""routes.yaml: its schema, and validation that says where and what is wrong."""

from gateway.config.checks import load, not_in_effect, not_safe_yet, parse
from gateway.config.schema import EMBEDDED, Config, Pool, Route, Timeouts

__all__ = [
    "EMBEDDED",
    "Config",
    "Pool",
    "Route",
    "Timeouts",
    "load",
    "not_in_effect",
    "not_safe_yet",
    "parse",
]
