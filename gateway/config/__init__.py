"""routes.yaml: its schema, and validation that says where and what is wrong."""

from gateway.config.api_keys import Keys
from gateway.config.checks import load, parse
from gateway.config.schema import (
    EMBEDDED,
    Config,
    Documents,
    KeyLimits,
    Limits,
    Pool,
    Profile,
    Queue,
    RemoteImages,
    Route,
    Timeouts,
)

__all__ = [
    "EMBEDDED",
    "Config",
    "Documents",
    "KeyLimits",
    "Keys",
    "Limits",
    "Pool",
    "Profile",
    "Queue",
    "RemoteImages",
    "Route",
    "Timeouts",
    "load",
    "parse",
]
