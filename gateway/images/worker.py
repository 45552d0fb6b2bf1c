"""Decodes and classifies images; the program of a process (`python -m gateway.images.worker`).

Image libraries are attacked with hostile files. This process holds nothing else: no keys and no other
request. Each of its responses is a line of JSON, in which nothing can hide that the gateway would run.
"""

from __future__ import annotations

import importlib.resources
import struct
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

import msgspec
from PIL import Image

from gateway import child
from gateway.errors import BadImage
from gateway.images.confined import confine, outlive_signals
from gateway.policy.sort import layout
from gateway.policy.sort.layout import LayoutModel
from gateway.wire.image import headers
from gateway.wire.image.pixels import thumbnail

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.model import LayoutGuess

# What precedes each image: whether its route is asked for, and how many bytes follow. Where it is, they are
# the image's data URL, which is decoded here and not in the gateway; else they are the encoded image.
REQUEST_HEAD = struct.Struct(">?Q")
# The CPU seconds of one image. The largest that the limits let through takes some three.
_CPU_S = 15.0


class Inspection(msgspec.Struct, omit_defaults=True):
    """What was found out about an image.

    Attributes:
        route: the one it looks like; empty where that was not asked for.
        confidence: 0 to 1.
        refused: why it cannot be decoded, as a BadImage's message; empty where it can.
        code: that error's code.
        failed: why nothing was found out; empty where something was.
    """

    route: str = ""
    confidence: float = 0.0
    refused: str = ""
    code: str = ""
    failed: str = ""


def layout_model() -> LayoutModel:
    """Load the layout classifier that ships with the package."""
    return LayoutModel.from_bytes(
        importlib.resources.files(__package__ or "gateway.images").joinpath("layout.npz").read_bytes()
    )


def guess_layout(data: bytes, model: LayoutModel) -> LayoutGuess:
    """Return the route that an encoded image looks like; blocks while it decodes.

    Raises:
        BadImage: its pixels cannot be decoded.
    """
    return layout.guess(thumbnail(data, layout.THUMBNAIL_SIDE), model)


def serve(
    requests: BinaryIO, responses: BinaryIO, model: LayoutModel, begin: Callable[[], None] = lambda: None
) -> None:
    """Inspect one image after the other until the requests end; `begin` is called before each."""
    while head := requests.read(REQUEST_HEAD.size):
        guess, size = REQUEST_HEAD.unpack(head)
        begin()
        inspection = _inspect(requests.read(size), model if guess else None)
        responses.write(msgspec.json.encode(inspection) + b"\n")
        responses.flush()


def _inspect(data: bytes, model: LayoutModel | None) -> Inspection:
    try:
        if model is None:
            thumbnail(data, layout.THUMBNAIL_SIDE)
            return Inspection()
        guess = guess_layout(headers.parse_data_url(data).data, model)
    except BadImage as error:
        return Inspection(refused=error.message, code=error.code or "")
    except MemoryError:
        return Inspection(failed="needs more memory than it may have")
    return Inspection(guess.route, guess.confidence)


def main(room: int) -> None:
    """Serve the process that started this one, until that ends.

    Args:
        room: bytes of memory that may be taken beyond what the process has when it begins to serve.
    """
    outlive_signals()
    model = layout_model()
    Image.init()  # loads the formats' modules
    confine(room)
    with suppress(BrokenPipeError):  # the gateway has ended
        serve(sys.stdin.buffer, sys.stdout.buffer, model, partial(child.limit_cpu, _CPU_S))


if __name__ == "__main__":
    main(int(sys.argv[1]))
