"""What this engine counts as a token, having no tokenizer: a word, a CJK character or a punctuation mark."""

from __future__ import annotations

import math
import re

MAX_IMAGE_TOKENS = 4096
_PATCH = 28  # pixels; the patch of the vision models that this engine stands in for

_TOKEN = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]+|[^\w\s]"
)


def count_tokens(text: str) -> int:
    """Count the tokens of a text."""
    return sum(1 for _ in _TOKEN.finditer(text))


def image_tokens(width: int, height: int) -> int:
    """Count an image's prompt tokens: its patches of 28 x 28 pixels, at most MAX_IMAGE_TOKENS."""
    return min(math.ceil(width / _PATCH) * math.ceil(height / _PATCH), MAX_IMAGE_TOKENS)


class TokenBudget:
    """Counts the tokens of an answer and cuts it at its limit.

    Attributes:
        used: tokens let through.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = math.inf if limit is None else limit
        self.used = 0

    @property
    def exhausted(self) -> bool:
        """Whether the limit is reached.

        As in vLLM, an answer exactly that long counts as cut: its end would be one token more.
        """
        return self.used >= self._limit

    def spend(self, text: str) -> str:
        """Count the tokens of `text`, and return as much of it as the limit still allows."""
        end = len(text) if not self.exhausted else 0
        for token in _TOKEN.finditer(text):
            if self.exhausted:
                return text[:end]
            self.used += 1
            end = token.end()
        return text
