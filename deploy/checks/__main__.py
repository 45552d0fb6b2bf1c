"""Render kustomizations and print every problem: `python -m deploy.checks DIR...`; exit 1 on any."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deploy.checks.render import RenderError, render
from deploy.checks.run import problems


def main(arguments: list[str] | None = None) -> int:
    """Check each directory; problems go to stdout, one a line."""
    parser = argparse.ArgumentParser(prog="python -m deploy.checks", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="with a kustomization.yaml")
    found = 0
    for folder in parser.parse_args(arguments).folders:
        try:
            documents = render(folder)
        except RenderError as error:
            print(f"{folder}: cannot be rendered: {error}")
            found += 1
            continue
        wrong = problems(documents)
        found += len(wrong)
        for problem in wrong:
            print(f"{folder}: {problem}")
        if not wrong:
            print(f"{folder}: {len(documents)} objects, nothing wrong")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
