"""Inspects images, and is the program of the process that does so (`python -m gateway.images.worker`).

Reading a hostile file is what image libraries are attacked by. This process holds nothing else: no keys, no
other request, and its answers are a line of JSON each, in which nothing can be hidden that the gateway runs.
"""

from __future__ import annotations

import importlib.resources
import struct
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

import msgspec
from PIL import Image

from gateway.errors import BadImage
from gateway.images.confined import confine, outlive_signals
from gateway.policy.sort import layout
from gateway.policy.sort.layout import LayoutModel
from gateway.wire.image import headers
from gateway.wire.image.pixels import thumbnail

if TYPE_CHECKING:
    from gateway.model import LayoutGuess

# What comes before each image: whether its route is asked for, and how many bytes follow. They are then its
# data URL, which need not be decoded before its turn has come; else the encoded image itself.
HEAD = struct.Struct(">?Q")


class Answer(msgspec.Struct, omit_defaults=True):
    """What came of an image.

    Attributes:
        route: that it looks like; empty where that was not asked for.
        confidence: 0 to 1.
        refused: why it cannot be decoded, in the words of a BadImage.
        code: that one's.
        failed: why nothing can be told of it.
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


def look(data: bytes, model: LayoutModel) -> LayoutGuess:
    """Return the route that an encoded image looks like; blocks while it decodes.

    Raises:
        BadImage: its pixels cannot be decoded.
    """
    return layout.guess(thumbnail(data, layout.THUMBNAIL_SIDE), model)


def answers(asked: BinaryIO, told: BinaryIO, model: LayoutModel) -> None:
    """Look at one image after the other until no more are asked for."""
    while head := asked.read(HEAD.size):
        guess, size = HEAD.unpack(head)
        answer = _answer(asked.read(size), model if guess else None)
        told.write(msgspec.json.encode(answer) + b"\n")
        told.flush()


def _answer(data: bytes, model: LayoutModel | None) -> Answer:
    try:
        if model is None:
            thumbnail(data, layout.THUMBNAIL_SIDE)
            return Answer()
        found = look(headers.parse_data_url(data).data, model)
    except BadImage as error:
        return Answer(refused=error.message, code=error.code or "")
    except MemoryError:
        return Answer(failed="needs more memory than it may have")
    return Answer(found.route, found.confidence)


def main(room: int) -> None:
    """Serve the process that started this one, until that ends.

    Args:
        room: bytes of memory that may be taken beyond what the process has when it begins to serve.
    """
    outlive_signals()
    model = layout_model()
    Image.init()  # loads the formats' modules
    confine(room)
    with suppress(BrokenPipeError):  # the gateway is gone
        answers(sys.stdin.buffer, sys.stdout.buffer, model)


if __name__ == "__main__":
    main(int(sys.argv[1]))
