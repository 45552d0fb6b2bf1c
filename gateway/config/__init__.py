"""routes.yaml: its schema, and validation that says where and what is wrong."""

from gateway.config.checks import load, parse, require_safe
from gateway.config.schema import EMBEDDED, Config, Pool, Profile, Queue, Route, Timeouts

__all__ = [
    "EMBEDDED",
    "Config",
    "Pool",
    "Profile",
    "Queue",
    "Route",
    "Timeouts",
    "load",
    "parse",
    "require_safe",
]
