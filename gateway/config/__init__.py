"""routes.yaml: its schema, and validation that says where something is wrong and what would be right.

Imports nothing but `hosts` and `errors`. Begin with `schema`, then `checks`.
"""

from gateway.config.api_keys import Keys
from gateway.config.checks import load, parse, route_notes
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
    "route_notes",
]
