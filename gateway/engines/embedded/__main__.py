"""`python -m gateway.engines.embedded`: the CPU OCR engine by itself."""

from __future__ import annotations

import argparse

from gateway import child
from gateway.engines.embedded.embedded_server import main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m gateway.engines.embedded", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--fd", type=int, help="inherited listening socket, instead of host and port")
    parser.add_argument("--model", default="glm-ocr")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--exit-with-stdin", action="store_true", help="stop when stdin ends")
    options = parser.parse_args()
    if options.exit_with_stdin:
        child.end_with_parent()
    main(**vars(options))
