import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.vllm.tiny_model import (
    DOCUMENTS,
    END,
    HEIGHT,
    LAYERS,
    SPECIAL,
    Document,
    safetensors,
    start,
    vocabulary,
    weights,
    write,
)

EACH = pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
TENSORS = weights()
NUMBERS = vocabulary()
PREFIX = "model.language_model."


def normed(state: Any) -> Any:
    return state / np.sqrt(np.mean(state**2) + 1e-5)


def embedded(token: int) -> Any:
    return TENSORS[f"{PREFIX}embed_tokens.weight"][token]


def said(state: Any) -> int:
    """What the output head makes of a state, where one token stands out."""
    logits = TENSORS["lm_head.weight"] @ normed(state)
    second, first = np.sort(logits)[-2:]
    assert first - second > 10
    return int(np.argmax(logits))


def drafted(token: int, state: Any) -> Any:
    """The MTP head's own state: its layers' sizes are vLLM's, and here they add nothing."""
    projection = TENSORS[f"{PREFIX}layers.{LAYERS}.eh_proj.weight"]
    return projection @ np.concatenate([normed(embedded(token)), normed(state)])


def answer(document: str) -> list[int]:
    """The model's own tokens after a document's start, the end included."""
    tokens = [NUMBERS[start(document)]]
    while tokens[-1] != NUMBERS[END]:
        tokens.append(said(embedded(tokens[-1])))
    return tokens[1:]


def accepted_steps(tokens: list[int], depth: int) -> list[int]:
    """Greedy speculative decoding of these tokens with the checkpoint's own tensors."""
    steps, last = [], 0
    while last < len(tokens) - 1:
        right = tokens[last + 1 :] + [NUMBERS[END]] * depth
        token, state, accepted = tokens[last], embedded(tokens[last]), 0
        for _ in range(depth):
            state = drafted(token, state)
            token = said(state)
            if token != right[accepted]:
                break
            accepted += 1
        steps.append(accepted)
        last += accepted + 1
    return steps


@EACH
def test_the_tensors_say_the_document(document: Document) -> None:
    written = {number: token for token, number in NUMBERS.items()}
    tokens = answer(document.name)
    assert len(tokens) == document.length
    assert written[tokens[-1]] == END
    assert len(set(tokens)) == len(tokens)


@EACH
@pytest.mark.parametrize("depth", [1, 3])
def test_drafts_made_with_the_tensors_are_accepted_as_foretold(document: Document, depth: int) -> None:
    assert accepted_steps(answer(document.name), depth) == list(document.steps(depth))


@EACH
def test_a_document_does_nearly_as_ever_longer_ones_would(document: Document) -> None:
    for depth in (1, 2, 3):
        assert document.acceptance_length(depth) == pytest.approx(document.expected(depth), rel=0.03)
    assert Document("endless", (b"",) * 30_000, document.right, 0).acceptance_length(3) == pytest.approx(
        document.expected(3), rel=0.01
    )


@EACH
def test_steps_deliver_the_whole_document_and_no_more(document: Document) -> None:
    for depth in (0, 1, 3):
        sizes = document.sizes(depth)
        assert sum(sizes) == document.length
        assert min(sizes) >= 1
        assert max(sizes) <= depth + 1
        assert len(sizes) == len(document.steps(depth)) + 1


def test_three_routes_differ_and_are_long_enough_to_count() -> None:
    text, pairs, table = (DOCUMENTS[name] for name in ("text", "key-value", "table"))
    assert pairs.acceptance_length(3) + 0.5 < text.acceptance_length(3) < table.acceptance_length(3) - 0.5
    assert text.length > 300
    assert table.length > 120
    assert 40 <= pairs.length <= 60
    assert any(not token.isascii() for token in text.text)
    assert set(json.loads(pairs.text)) > {"end"}


def test_the_file_is_safetensors() -> None:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32)}
    data = safetensors(tensors)
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    first, last = header["b"]["data_offsets"]
    assert header["a"] == {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    assert np.frombuffer(data[8 + size :][first:last], "<f4").tolist() == [1, 1]
    assert len(data) == 8 + size + last


def test_the_checkpoint_is_of_one_piece(tmp_path: Path) -> None:
    write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    text = config["text_config"]
    assert TENSORS["lm_head.weight"].shape == (text["vocab_size"], text["hidden_size"])
    assert sorted(tokenizer["model"]["vocab"].values()) == list(range(text["vocab_size"]))
    assert [token["content"] for token in tokenizer["added_tokens"]] == list(SPECIAL)
    assert TENSORS["lm_head.weight"].max() * np.sqrt(text["hidden_size"] / 2) == pytest.approx(HEIGHT)
    assert (tmp_path / "model.safetensors").stat().st_size < 20_000_000
