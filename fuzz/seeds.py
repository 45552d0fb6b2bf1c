"""`python -m fuzz.seeds`: write the inputs that fuzzing starts from: messages of clients and engines."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from fuzz import target
from gateway.engines.vllm_json import speculative_object
from gateway.engines.vllm_page import EngineCounts, metrics_page
from gateway.model import Speculation
from gateway.wire.vllm.engine import Simulated
from tests.fuzz.seeds import CHAT, OCR, RESPONSES, images, seeds
from tests.support import CONFIG, USAGE, chunk, completion, response, response_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CORPUS = Path(__file__).parent / "corpus"


def inputs() -> Iterator[tuple[str, bytes]]:
    """Yield names and inputs: valid messages for each parser."""
    pictures = images()
    figures = {"metrics": {"speculative_decoding": speculative_object([2, 1, 1], 8)}}
    events = [chunk(), chunk("hello", "stop"), {**chunk(), "choices": [], "usage": USAGE, **figures}]
    failed = {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}}
    stream = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in [*events, failed])
    counts = EngineCounts(
        running=2, waiting=1, awake=True, kv_usage=0.5, speculation=Speculation(4, 3, 8, (2, 1))
    )
    page = metrics_page(counts, "glm-ocr", simulated=Simulated("some fit", 3.0, 1.0)).encode()
    for seed in seeds():
        body = json.dumps(seed.body, ensure_ascii=False, separators=(",", ":")).encode()
        parsers = {CHAT: target._chat, OCR: target._document, RESPONSES: target._response}
        parser = parsers.get(seed.path, target._text)
        yield seed.name, _input(parser, body)
    for number, newline in enumerate((b"\n", b"\r\n", b"\r")):
        yield f"stream-{number}", _input(target._events, b"\x50" + stream.replace(b"\n", newline))
    for number, event in enumerate([*events, failed, completion("hello"), {**completion(""), **figures}]):
        yield f"answer-{number}", _input(target._answer, json.dumps(event).encode())
    for number, event in enumerate([*response_events("hello"), {"type": "error", "code": "no"}, response()]):
        yield f"response-answer-{number}", _input(target._response_answer, json.dumps(event).encode())
    yield "metrics", _input(target._metrics, page)
    yield "speculation", _input(target._speculation, json.dumps(figures["metrics"]).encode())
    yield "version", _input(target._speculation, b'{"version": "0.31.0"}')
    for name, url in pictures.items():
        yield f"image-{name}", _input(target._image, base64.b64decode(url.partition(",")[2]))
        yield f"structure-{name}", _input(target._structure, base64.b64decode(url.partition(",")[2]))
    yield "structure-texts", _input(target._structure, _with_texts(pictures["png"]))
    for number, url in enumerate(
        (pictures["png"], "data:image/jpeg;charset=utf-8;base64, _-8\n", "data:base64,%2B8=")
    ):
        yield f"url-{number}", _input(target._data_url, url.encode())
    for number, disposition in enumerate((b'form-data; name="file"; filename="a"', b"form-data; name=pages")):
        part = b"--x\r\nContent-Disposition: %s\r\nContent-Type: text/plain\r\n\r\n0-2\r\n--x--" % disposition
        yield f"form-{number}", _input(target._form, part)
    yield "tables", _input(target._tables, b"a|b\n-|-\n1|2\n<table><tr><td rowspan=2>x</td></tr></table>")
    yield "bench", _input(target._bench, json.dumps(_BENCH).encode())
    yield "bench-two", _input(target._bench, b"\n".join([json.dumps(_BENCH).encode()] * 2))
    yield "config", _input(target._config, _CONFIG.encode())
    yield "config-odd", _input(target._config, _ODD.encode())
    yield "config-aliases", _input(target._config, _ALIASES.encode())
    yield "config-variables", _input(target._config, _VARIABLES.encode())
    yield "keys", _input(target._keys, b"# ours\nteam 0123456789abcdef\nteam sha256:" + b"0a" * 32 + b"\n")
    yield (
        "head",
        _input(target._head, b"POST 1.1\nhost:a\ncontent-length:5\nconnection:x, upgrade\nupgrade:h2c"),
    )
    yield "remote", _input(target._url, b"https://Images.example:8443/a/b.png?x=1#f")
    yield "remote-ip", _input(target._url, b"http://[::ffff:127.0.0.1]/")
    yield "trace", _input(target._trace, b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01\nvendor=1,other=2")


def _with_texts(url: str) -> bytes:
    data = base64.b64decode(url.partition(",")[2])
    text = b"zTXtkey\0\0packed"
    chunk = (len(text) - 4).to_bytes(4, "big") + text + zlib.crc32(text).to_bytes(4, "big")
    return data[:33] + chunk + data[33:]  # behind the header


def _input(parser: Callable[[bytes], None], data: bytes) -> bytes:
    return bytes([target.PARSERS.index(parser)]) + data


_CONFIG = CONFIG.replace("ENGINE", "'http://a:1'").replace("OTHER", "'http://b:1'")
_ODD = """model: ${NO:-m}
pools: {x: &x {engines: [embedded]}, y: {<<: *x, max_load: 1}}
routes: {a: {}}
"""
_ALIASES = "model: m\nx0: &x0 [a,a,a,a]\n" + "".join(
    f"x{n}: &x{n} {{<<: *x, l: [{','.join([f'*x{n - 1}'] * 9)}]}}\n" for n in range(1, 7)
)
_VARIABLES = """model: ${KEY}$$
pools: {p: {engines: ["http://${KEY}/v1", "https://e/prefix"], api_key $KEY, max_load: "${KEY}"}}
routes: {text: {schedule: [[1, "${KEY}", 0]], profile: "${KEY}"}}
sorting: {default: "${KEY}", prompts: {text: ["(${KEY}", "${KEY:?x}"]}}
auth: {keys_file: "${KEY}", limits: {"${KEY}": {}}}
"""
_BENCH = {
    **{"date": "20260131-235959", "model_id": "glm-ocr", "num_prompts": 8, "duration": 2.5, "completed": 8},
    **{
        "total_input_tokens": 800,
        "request_throughput": 3.2,
        "output_throughput": 320.0,
        "max_concurrency": 4,
    },
    **{"failed": 0, "request_rate": "inf", "route": "table", "pool": "mtp3", "spec_decode_num_drafts": 4},
    **{"spec_decode_draft_tokens": 8, "spec_decode_accepted_tokens": 3},
    **{"spec_decode_per_position_acceptance_rates": [0.5, 0.25], "mean_ttft_ms": 1.0, "median_ttft_ms": 1.0},
    **{"p95_ttft_ms": 2.0, "p99_ttft_ms": 3.0},
}

if __name__ == "__main__":
    CORPUS.mkdir(exist_ok=True)
    for name, data in inputs():
        (CORPUS / name).write_bytes(data)
