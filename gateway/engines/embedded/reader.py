"""One OCR session: pixels to boxes, boxes to texts. The only importer of rapidocr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from rapidocr import RapidOCR

from gateway.engines.embedded.lines import Box

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

DETECT_PIXELS = 1_000_000  # detection's cost grows with this alone
DETECT_SHORT_SIDE, DETECT_LONG_SIDE = 500, 2000  # enlarged to one of these: small pictures have small print
MIN_SCORE = 0.5
MAX_LINE_RATIO = 100  # width to height; a longer line is squeezed, for recognition's memory grows with it
_MARGIN = 32


class TextPage:
    """A decoded page with its text boxes found and nothing read yet."""

    def __init__(self, pixels: NDArray[np.uint8], quads: NDArray[np.float32]) -> None:
        self._pixels = pixels
        self._quads = quads
        self.boxes = [Box(*quad.min(axis=0).tolist(), *quad.max(axis=0).tolist()) for quad in quads]
        heights = [box.height for box in self.boxes if box.width > box.height]
        # A single tall letter is no vertical line: those are at least two letters long.
        self._vertical_from = 1.6 * float(np.median(heights)) if heights else 0.0

    def crop(self, index: int) -> NDArray[np.uint8]:
        """Cut box `index` out, levelled; vertical lines are turned to read from left to right."""
        quad = self._quads[index]
        width = max(1, int(max(_distance(quad[0], quad[1]), _distance(quad[2], quad[3]))))
        height = max(1, int(max(_distance(quad[0], quad[3]), _distance(quad[1], quad[2]))))
        width, height = min(width, MAX_LINE_RATIO * height), min(height, MAX_LINE_RATIO * width)
        target = np.array([[0, 0], [width, 0], [width, height], [0, height]], dtype=np.float32)
        cut = cv2.warpPerspective(
            self._pixels,
            cv2.getPerspectiveTransform(quad, target),
            (width, height),
            borderMode=cv2.BORDER_REPLICATE,
            flags=cv2.INTER_CUBIC,
        )
        if height >= 1.5 * width and height > self._vertical_from:
            cut = np.rot90(cut)
        return np.asarray(cut, dtype=np.uint8)


class Reader:
    """A loaded detector and recogniser, for one thread at a time."""

    def __init__(self) -> None:
        cv2.setNumThreads(1)  # each reader has one core's worth of everything
        self._ocr = RapidOCR(
            params={
                "Global.log_level": "error",
                "Global.use_cls": False,
                "Global.max_side_len": 1_000_000,  # both limits off: detect() scales
                "Global.use_vertical_padding": False,  # it would square a strip up
                "Global.min_side_len": 1,
                "Rec.rec_img_shape": [3, 48, 160],
                "Det.limit_type": "max",
                "Det.limit_side_len": 1_000_000,
                "EngineConfig.onnxruntime.intra_op_num_threads": 1,
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )
        blank = np.full((64, 320, 3), 255, dtype=np.uint8)
        self.detect(blank)
        self.recognise([blank])

    def detect(self, pixels: NDArray[np.uint8]) -> TextPage:
        """Find the text boxes of a page (BGR, uint8 (height, width, 3))."""
        scaled = _scaled(pixels)
        height, width = scaled.shape[:2]
        # The detector overlooks text that touches the border of a strip.
        margin = _MARGIN if min(height, width) < 2 * _MARGIN else 0
        framed = np.pad(scaled, ((margin, margin), (margin, margin), (0, 0)), mode="edge")
        found: Any = self._ocr(framed, use_det=True, use_cls=False, use_rec=False)
        if found.boxes is None:
            return TextPage(pixels, np.zeros((0, 4, 2), dtype=np.float32))
        quads = (np.asarray(found.boxes, dtype=np.float32) - margin).clip(0, (width, height))
        return TextPage(
            pixels, (quads * (pixels.shape[1] / width, pixels.shape[0] / height)).astype(np.float32)
        )

    def recognise(self, crops: Sequence[NDArray[np.uint8]]) -> list[str]:
        """Read crops of text lines; what is illegible comes back empty."""
        read: Any = self._ocr.recognize_txt(list(crops))
        return [
            text.strip() if score >= MIN_SCORE else ""
            for text, score in zip(read.txts, read.scores, strict=True)
        ]


def _scaled(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Scale a page for detection: large ones down to DETECT_PIXELS, small ones up."""
    height, width = pixels.shape[:2]
    enlarged = min(DETECT_SHORT_SIDE / min(height, width), DETECT_LONG_SIDE / max(height, width))
    scale = min((DETECT_PIXELS / (height * width)) ** 0.5, max(1.0, enlarged))
    if scale == 1:
        return pixels
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    interpolation = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(pixels, size, interpolation=interpolation), dtype=np.uint8)


def _distance(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(a - b))
