"""`python -m tests.vllm.tiny_model FOLDER`: a GLM-OCR checkpoint whose text and acceptance are known.

The model is a chain: every token has one successor. A hidden state holds two ones among zeros, one for the
token and one, the marker, for how deep a draft is: 0 in the model itself, one more each time the MTP head
runs. Attention and MLP add nothing, so that the output head alone decides. It gives a token's successor the
logit HEIGHT, and to one wrong token, of those that are only ever drafted, HEIGHT - GAP * (level + 1/2), to
which a marker d adds GAP * d. A draft at depth d is right, then, exactly where the level of the token it is
made from is at least d, and the model's own text never changes.

The share `right[d - 1]` of a document's tokens has a level of at least d, in random order. Of a step's drafts
p are accepted with the chance right[0] * ... * right[p - 1], since each is made from a token of its own, and
the expected acceptance length is 1 plus the sum of these products (`Document.expected`). What a document of
finite length gives is found by walking it (`Document.steps`), and is exact.

Images are encoded, by a vision tower of random weights, and do not change the text. The prompt chooses the
document: one with `table` or `value` in it, and any other for the text.
"""

from __future__ import annotations

import json
import math
import random
import sys
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, count
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Weights = dict[str, np.ndarray[Any, np.dtype[np.float32]]]

# Drafts are marked up to this depth; deeper ones count as this deep.
MARKERS = 8
GAP = 40.0
HEIGHT = GAP * (MARKERS + 1)
LAYERS = 2
# Sizes without a meaning of their own: small, and such as vLLM's CPU kernels take.
HEADS, HEAD_SIZE, INNER, VISION = 2, 64, 64, 64
PATCH, MERGED = 14, 2

END, UNKNOWN, PADDING = "<|endoftext|>", "<unk>", "<|pad|>"
IMAGE = ("<|begin_of_image|>", "<|image|>", "<|end_of_image|>")
VIDEO = ("<|begin_of_video|>", "<|video|>", "<|end_of_video|>")
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")


@dataclass(frozen=True)
class Document:
    """What the model writes for one kind of prompt.

    Attributes:
        name: after which its first token's predecessor is called, `<|name|>`.
        tokens: as bytes, each of them once; a character may be spread over several.
        right: the share of right drafts at depth 1, 2 ... of those whose predecessors were right.
        seed: of the order of the levels; such that the document does as a longer one would.
    """

    name: str
    tokens: tuple[bytes, ...]
    right: tuple[float, ...]
    seed: int

    @property
    def text(self) -> str:
        """The whole answer."""
        return b"".join(self.tokens).decode()

    @property
    def length(self) -> int:
        """Its completion tokens, the end's included."""
        return len(self.tokens) + 1

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """For each token, how deep a draft made from it is right."""
        total = len(self.tokens)
        reached = [round(share * total) for share in self.right]
        levels = [sum(place < number for number in reached) for place in range(total)]
        random.Random(f"{self.name}{self.seed}").shuffle(levels)
        return tuple(levels)

    def steps(self, depth: int) -> tuple[int, ...]:
        """Return how many drafts each step accepts, the first token's own aside; greedy decoding.

        What follows the end is drafted rightly: it is accepted, and counted, and never delivered.
        """
        levels, steps, last = (*self.levels, *[MARKERS] * depth), [], 0
        while last < len(self.tokens):  # the end is the token of that number
            steps.append(next((deep for deep in range(depth) if levels[last + deep] <= deep), depth))
            last += steps[-1] + 1
        return tuple(steps)

    def sizes(self, depth: int) -> tuple[int, ...]:
        """Return how many tokens each step delivers, the first token's included."""
        delivered = [1, *(accepted + 1 for accepted in self.steps(depth))]
        delivered[-1] -= sum(delivered) - self.length
        return tuple(delivered)

    def acceptance_length(self, depth: int) -> float:
        """Return 1 + accepted / drafts, as the engine counts them for this document."""
        steps = self.steps(depth)
        return 1 + sum(steps) / len(steps)

    def expected(self, depth: int) -> float:
        """Return what the acceptance length of ever longer documents of this kind tends to."""
        return math.fsum((1.0, *accumulate(self.right[:depth], mul)))


def _words() -> Iterator[str]:
    """Words that nobody has written, each once."""
    syllables = ("ba", "ce", "di", "fo", "gu", "la", "me", "ni", "po", "ru", "sa", "te", "vi", "zo")
    for number in count():
        at = number * 37 % 14**3  # 37 and 14 have no factor in common: each value once
        yield syllables[at % 14] + syllables[at // 14 % 14] + syllables[at // 196]


def _documents() -> dict[str, Document]:
    word = _words()
    head = ["# Delivery", " note", " 2026-0042", "\n\nTo", ": Müller", " & Söhne", ", Zürich", "\n\n"]
    # The tokenizer holds back a character's bytes until it is whole: a step without text.
    split = [b"Total \xe2", b"\x82\xac", b" 1,", b"234.50 \xf0\x9f", b"\x93", b"\x84"]
    prose = [("\n\n" if place % 50 == 0 else " ") + next(word) for place in range(1, 301)]
    rows = [(f"\n| {next(word)}", f" | {row} pcs", f" | {row * 1.25:.2f} |") for row in range(1, 43)]
    fields = [
        (f'\n "{next(word)}', f'": "{next(word)}', f" {next(word)}", f' {row}",') for row in range(1, 13)
    ]
    table = ["| Item", " | Quantity", " | Price |", "\n|---", "|---:", "|---:|", *chain(*rows)]
    pairs = ["{", *chain(*fields), '\n "end": true\n}']
    return {
        "text": Document("text", (*_encoded(head), *split, *_encoded(prose)), (0.85, 0.72, 0.6, 0.5), 25),
        "key-value": Document("key-value", _encoded(pairs), (0.55, 0.45, 0.35, 0.3), 23),
        "table": Document("table", _encoded(table), (0.97, 0.95, 0.92, 0.9), 19),
    }


def _encoded(tokens: Sequence[str]) -> tuple[bytes, ...]:
    return tuple(token.encode() for token in tokens)


DOCUMENTS = _documents()


def start(document: str) -> str:
    """Return the special token behind which the model begins a document."""
    return f"<|{document}|>"


SPECIAL = (END, UNKNOWN, PADDING, "[gMASK]", "<sop>", *ROLES, *IMAGE, *VIDEO, *map(start, DOCUMENTS))
# Only ever drafted, never written.
WRONG = tuple(f"<|wrong {number}|>" for number in range(16))


def _printable(token: bytes) -> str:
    """Write bytes as a byte-level tokenizer does: one printable character each (GPT-2's table)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return "".join(chr(byte if byte in plain else 256 + others.index(byte)) for byte in token)


def vocabulary() -> dict[str, int]:
    """Return every token, as the tokenizer writes it, with its number; unused ones make the size even."""
    written = [_printable(token) for document in DOCUMENTS.values() for token in document.tokens]
    tokens = [*SPECIAL, *WRONG, *written]
    tokens += [f"<|unused {number}|>" for number in range(-len(tokens) % 64)]
    numbers = {token: number for number, token in enumerate(tokens)}
    if len(numbers) != len(tokens):
        raise ValueError("a token is there twice, and has two successors")
    return numbers


class _Chain:
    """The successors and levels of all tokens, by number."""

    def __init__(self) -> None:
        self.numbers = vocabulary()
        self.wrong = [self.numbers[token] for token in WRONG]
        self.size = len(self.numbers)
        self.hidden = math.ceil((self.size + MARKERS + 1) / 64) * 64
        end = self.numbers[END]
        # Whatever else a prompt ends with: the text.
        first = self.numbers[_printable(DOCUMENTS["text"].tokens[0])]
        self.successors = dict.fromkeys(range(self.size), first)
        self.successors[end] = end
        self.levels: dict[int, int] = {}
        for document in DOCUMENTS.values():
            own = [self.numbers[_printable(token)] for token in document.tokens]
            self.successors |= zip([self.numbers[start(document.name)], *own], [*own, end], strict=True)
            self.levels |= zip(own, document.levels, strict=True)

    def embedding(self) -> Any:
        """Rows of a one for the token and one for marker 0."""
        rows = np.zeros((self.size, self.hidden), np.float32)
        rows[:, : self.size] = np.eye(self.size)
        rows[:, self.size] = 1
        return rows

    def head(self) -> Any:
        """The output head, for states of two equal numbers whose mean square is 1."""
        logits = np.zeros((self.size, self.hidden), np.float32)
        for token, successor in self.successors.items():
            logits[successor, token] = HEIGHT
        for token, level in self.levels.items():
            logits[self.wrong[token % len(self.wrong)], token] = HEIGHT - GAP * (level + 0.5)
        for marker in range(1, MARKERS + 1):
            logits[self.wrong, self.size + marker] = GAP * marker
        return logits / math.sqrt(self.hidden / 2)

    def draft(self) -> Any:
        """The MTP head's projection of [embedding, state before]: the token, and the next marker."""
        rows = np.zeros((self.hidden, 2 * self.hidden), np.float32)
        rows[range(self.size), range(self.size)] = 1
        for marker in range(MARKERS + 1):
            rows[self.size + min(marker + 1, MARKERS), self.hidden + self.size + marker] = 1
        return rows


def weights() -> Weights:
    """Return every tensor of the checkpoint by its name in it."""
    tokens, noise = _Chain(), np.random.default_rng(0)
    hidden = tokens.hidden

    def some(*shape: int) -> Any:
        return noise.normal(0, 0.02, shape).astype(np.float32)

    def none(*shape: int) -> Any:
        return np.zeros(shape, np.float32)

    def ones(*names: str, size: int = hidden) -> Weights:
        return {f"{name}.weight": np.ones(size, np.float32) for name in names}

    def layer(number: int) -> Weights:
        """A decoder layer that adds nothing."""
        here = f"model.language_model.layers.{number}."
        norms = (
            "input_layernorm",
            "post_attention_layernorm",
            "post_self_attn_layernorm",
            "post_mlp_layernorm",
        )
        return {
            **ones(*(here + norm for norm in norms)),
            f"{here}self_attn.q_proj.weight": some(HEADS * HEAD_SIZE, hidden),
            f"{here}self_attn.k_proj.weight": some(HEAD_SIZE, hidden),
            f"{here}self_attn.v_proj.weight": some(HEAD_SIZE, hidden),
            f"{here}self_attn.o_proj.weight": none(hidden, HEADS * HEAD_SIZE),
            f"{here}mlp.gate_up_proj.weight": some(2 * INNER, hidden),
            f"{here}mlp.down_proj.weight": none(hidden, INNER),
        }

    tensors: Weights = {
        "model.language_model.embed_tokens.weight": tokens.embedding(),
        "lm_head.weight": tokens.head(),
        **ones("model.language_model.norm"),
    }
    for number in range(LAYERS):
        tensors |= layer(number)
    mtp = f"model.language_model.layers.{LAYERS}."
    tensors |= layer(LAYERS) | ones(f"{mtp}enorm", f"{mtp}hnorm", f"{mtp}shared_head.norm")
    tensors |= {
        f"{mtp}embed_tokens.weight": tokens.embedding(),
        f"{mtp}eh_proj.weight": tokens.draft(),
        f"{mtp}shared_head.head.weight": tokens.head(),
    }
    see = "model.visual."
    block = f"{see}blocks.0."
    tensors |= ones(f"{block}norm1", f"{block}norm2", f"{see}post_layernorm", size=VISION)
    tensors |= ones(f"{block}attn.q_norm", f"{block}attn.k_norm", size=VISION // HEADS)
    tensors |= ones(f"{see}merger.post_projection_norm")
    for name, shape in {
        f"{see}patch_embed.proj": (VISION, 3, 2, PATCH, PATCH),
        f"{block}attn.qkv": (3 * VISION, VISION),
        f"{block}attn.proj": (VISION, VISION),
        f"{block}mlp.gate_proj": (INNER, VISION),
        f"{block}mlp.up_proj": (INNER, VISION),
        f"{block}mlp.down_proj": (VISION, INNER),
        f"{see}downsample": (hidden, VISION, MERGED, MERGED),
        f"{see}merger.proj": (hidden, hidden),
        f"{see}merger.gate_proj": (INNER, hidden),
        f"{see}merger.up_proj": (INNER, hidden),
        f"{see}merger.down_proj": (hidden, INNER),
    }.items():
        tensors[f"{name}.weight"] = some(*shape)
    for name, size in {
        f"{see}patch_embed.proj": VISION,
        f"{block}attn.qkv": 3 * VISION,
        f"{block}attn.proj": VISION,
        f"{block}mlp.gate_proj": INNER,
        f"{block}mlp.up_proj": INNER,
        f"{block}mlp.down_proj": VISION,
        f"{see}downsample": hidden,
        f"{see}merger.post_projection_norm": hidden,
    }.items():
        tensors[f"{name}.bias"] = none(size)
    return tensors


def _settings() -> dict[str, dict[str, Any]]:
    """The checkpoint's JSON files but the tokenizer's."""
    tokens = _Chain()
    number = tokens.numbers
    text = {
        "model_type": "glm_ocr_text",
        "vocab_size": tokens.size,
        "hidden_size": tokens.hidden,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "max_position_embeddings": 8192,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000,
            "partial_rotary_factor": 1.0,
            "mrope_section": [8, 12, 12],
        },
        "eos_token_id": [number[END]],
        "pad_token_id": number[PADDING],
        "dtype": "float32",
    }
    vision = {
        "model_type": "glm_ocr_vision",
        "depth": 1,
        "hidden_size": VISION,
        "intermediate_size": INNER,
        "num_heads": HEADS,
        "out_hidden_size": tokens.hidden,
        "in_channels": 3,
        "image_size": 336,
        "patch_size": PATCH,
        "spatial_merge_size": MERGED,
        "temporal_patch_size": 2,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
    }
    config = {
        "architectures": ["GlmOcrForConditionalGeneration"],
        "model_type": "glm_ocr",
        "dtype": "float32",
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": vision,
    }
    for kind, marks in (("image", IMAGE), ("video", VIDEO)):
        config |= zip(
            (f"{kind}_start_token_id", f"{kind}_token_id", f"{kind}_end_token_id"),
            (number[mark] for mark in marks),
            strict=True,
        )
    pictures = {
        "processor_class": "Glm46VProcessor",
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGED,
        "size": {"shortest_edge": 112**2, "longest_edge": 2 * 448**2},  # pixels; at most 256 image tokens
        "do_rescale": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    return {
        "config.json": config,
        "generation_config.json": {
            "eos_token_id": [number[END]],
            "pad_token_id": number[PADDING],
            "do_sample": False,
            "temperature": 0.0,  # vLLM's default for requests that name none
        },
        "preprocessor_config.json": {**pictures, "image_processor_type": "Glm46VImageProcessor"},
        "video_preprocessor_config.json": {**pictures, "video_processor_type": "Glm46VVideoProcessor"},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "processor_class": "Glm46VProcessor",
            "model_max_length": 8192,
            "clean_up_tokenization_spaces": False,
            "eos_token": END,
            "unk_token": UNKNOWN,
            "pad_token": PADDING,
            "image_token": IMAGE[1],
            "video_token": VIDEO[1],
            "extra_special_tokens": [token for token in SPECIAL if token not in (END, UNKNOWN, PADDING)],
        },
    }


def _tokenizer() -> dict[str, Any]:
    """One that writes what the model says, and reads little but special tokens."""
    numbers = vocabulary()
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": numbers[token], "content": token, **flags} for token in SPECIAL],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "WordLevel", "vocab": numbers, "unk_token": UNKNOWN},
    }


# It looks for the document in what is asked.
TEMPLATE = """[gMASK]<sop>
{%- set asked = namespace(document='text') %}
{%- macro say(text) %}
  {%- if 'table' in text | lower %}{% set asked.document = 'table' %}
  {%- elif 'value' in text | lower %}{% set asked.document = 'key-value' %}{% endif %}
  {{- text }}
{%- endmacro %}
{%- for message in messages %}
  {{- '<|' ~ message.role ~ '|>' }}
  {%- if message.content is string %}{{ say(message.content) }}
  {%- else %}
    {%- for part in message.content %}
      {%- if part.type in ('image', 'image_url') %}<|begin_of_image|><|image|><|end_of_image|>
      {%- elif part.type == 'text' %}{{ say(part.text) }}{% endif %}
    {%- endfor %}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|><|' ~ asked.document ~ '|>' }}{% endif %}"""


def safetensors(tensors: Mapping[str, Any]) -> bytes:
    """Write float32 tensors in the safetensors format: the header's size, the header as JSON, the data."""
    at, header, data = 0, {}, []
    for name, tensor in tensors.items():
        data.append(np.ascontiguousarray(tensor, "<f4").tobytes())
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": (at, at + len(data[-1]))}
        at += len(data[-1])
    told = json.dumps(header).encode()
    return b"".join((len(told).to_bytes(8, "little"), told, *data))


def write(folder: Path) -> None:
    """Write the checkpoint into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, settings in {**_settings(), "tokenizer.json": _tokenizer()}.items():
        (folder / name).write_text(json.dumps(settings, indent=1))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "model.safetensors").write_bytes(safetensors(weights()))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    for document in DOCUMENTS.values():
        print(f"{document.name}: {document.length} tokens; acceptance length, and what it tends to:")
        for depth in (1, 2, 3):
            print(f"  depth {depth}: {document.acceptance_length(depth):.4f}, {document.expected(depth):.4f}")
