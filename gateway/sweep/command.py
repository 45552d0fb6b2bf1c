"""`ocr-gateway sweep`: from its options to the report and the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def run(options: argparse.Namespace) -> int:
    """Measure, report and write as told; return the exit status.

    1: a cell is missing or invalid. 130: interrupted.

    Raises:
        ConfigError: options, configuration or engines that cannot be used.
    """
    raise NotImplementedError(options)
