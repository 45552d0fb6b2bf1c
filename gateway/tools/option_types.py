"""Types of command-line options that several commands have."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def whole(least: int, most: int, allowed: str = "") -> Callable[[str], int]:
    """Return the type of a whole number in a range; `allowed` says so where the plain range would not."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(
                f"{allowed or f'a number from {least} to {most:,}'}, not {text!r}"
            )
        return int(text)

    return read


port = whole(0, 65535, "a port is a number from 0 to 65535")


def positive(text: str) -> float:
    """Read a finite number above 0."""
    if not 0 < (value := float(text)) < float("inf"):
        raise ValueError
    return value
