"""Accuracy over HTTP of text, table and key-value answers to 20 labelled images, beside plain rapidocr.

`python -m bench.accuracy [BASE_URL]` asks the engine or gateway at BASE_URL, or an embedded engine that it
starts itself. The images (SROIE receipts, PubTabNet tables) are looked for in `shared/images` beside the
repository; they are not part of it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import html
import json
import os
import re
import subprocess
import sys
import time
import unicodedata
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import openai

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

IMAGES = Path(__file__).resolve().parents[2] / "shared" / "images"
PORT = 8791
_CELL = re.compile(r"<t[dh][^>]*>(.*?)</t[dh]>", re.DOTALL)


class Labelled(NamedTuple):
    """An image and what stands on it: its words, its table's cells, or the entities of a receipt."""

    name: str
    data: bytes
    text: str
    cells: list[str]
    entities: dict[str, str]


def f1(found: Iterable[Hashable], truth: Iterable[Hashable]) -> float:
    """F1 of two multisets, 0 to 1; two empty ones agree."""
    found, truth = Counter(found), Counter(truth)
    size = found.total() + truth.total()
    return 2 * (found & truth).total() / size if size else 1.0


def words(text: str) -> list[str]:
    """A text's words, compatibility forms and case folded."""
    return unicodedata.normalize("NFKC", text).casefold().split()


def cells_of(table: str) -> list[str]:
    """The texts of an HTML table's cells, white space, case and inner tags aside; empty ones left out."""
    texts = (html.unescape(re.sub(r"<[^>]+>", "", cell)) for cell in _CELL.findall(table))
    return [text for text in ("".join(words(cell)) for cell in texts) if text]


def labelled_images() -> list[Labelled]:
    """Read the images that have ground truth."""
    found = []
    for label in sorted((IMAGES / "ground_truth").iterdir()):
        (image,) = (p for p in IMAGES.glob(f"*/{label.stem}.*") if p.parent.name != "ground_truth")
        content = label.read_text()
        if label.suffix == ".json":
            truth = json.loads(content)
            text = "\n".join(line["text"] for line in truth["lines"])
            found.append(Labelled(label.stem, image.read_bytes(), text, [], truth.get("entities", {})))
        else:
            text = "\n".join(html.unescape(re.sub(r"<[^>]+>", "", cell)) for cell in _CELL.findall(content))
            found.append(Labelled(label.stem, image.read_bytes(), text, cells_of(content), {}))
    return found


async def served_text(base_url: str, image: bytes, prompt: str = "Text Recognition:") -> str:
    """Ask the server at `base_url` (without /v1) to read an image; return the answer's text."""
    url = "data:image/png;base64," + base64.b64encode(image).decode()
    content: list[Any] = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": prompt},
    ]
    async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none", timeout=600) as client:
        answer = await client.chat.completions.create(
            model="glm-ocr", messages=[{"role": "user", "content": content}]
        )
    return answer.choices[0].message.content or ""


def plain_rapidocr(images: list[Labelled]) -> tuple[dict[str, float], float]:
    """Read with rapidocr as it comes. Returns the word F1 of each image, and CPU seconds per image."""
    from rapidocr import RapidOCR

    ocr = RapidOCR(params={"Global.log_level": "error"})
    scores = {}
    started = time.process_time()
    for image in images:
        read = ocr(image.data)
        scores[image.name] = f1(words("\n".join(read.txts or ())), words(image.text))
        print(f"  rapidocr by itself  {image.name:34} {scores[image.name]:.3f}", flush=True)
    return scores, (time.process_time() - started) / len(images)


@contextlib.contextmanager
def embedded_engine() -> Iterator[tuple[str, int]]:
    """Start the embedded engine; yields its base URL and process id."""
    command = [sys.executable, "-m", "gateway.engines.embedded", "--port", str(PORT), "--exit-with-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        try:
            url = f"http://127.0.0.1:{PORT}"
            while child.poll() is None:
                with contextlib.suppress(httpx.HTTPError):
                    if httpx.get(f"{url}/health").status_code == 200:
                        break
                time.sleep(0.1)
            yield url, child.pid
        finally:
            child.terminate()


def cpu_seconds(pid: int) -> float:
    """CPU time a process has used so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(base_url: str | None = None) -> None:
    """Print every score; start the embedded engine where no server is named."""
    images = labelled_images()
    print(f"rapidocr {version('rapidocr')}, onnxruntime {version('onnxruntime')}, {len(images)} images")
    plain, plain_cpu = plain_rapidocr(images)
    with contextlib.ExitStack() as stack:
        pid = None
        if base_url is None:
            base_url, pid = stack.enter_context(embedded_engine())
        before = cpu_seconds(pid) if pid else 0.0
        served = asyncio.run(_texts(base_url, images))
        served_cpu = (cpu_seconds(pid) - before) / len(images) if pid else None
        tables = asyncio.run(_tables(base_url, images))
        found, wanted = asyncio.run(_entities(base_url, images))
    mean, plain_mean = sum(served.values()) / len(served), sum(plain.values()) / len(plain)
    cost = "not measured" if served_cpu is None else f"{served_cpu:.2f}"
    print(f"word F1, rapidocr by itself   {plain_mean:.4f}   {plain_cpu:.2f} CPU s per image")
    print(f"word F1, served               {mean:.4f}   {cost} CPU s per image")
    print(f"ratio served / by itself      {mean / plain_mean:.4f}")
    print(f"cell F1, table prompts        {sum(tables) / len(tables):.4f}   ({len(tables)} tables)")
    print(f"entities, key-value prompts   {found} of {wanted} ({found / wanted:.2f})")


async def _texts(base_url: str, images: list[Labelled]) -> dict[str, float]:
    scores = {}
    for image in images:
        scores[image.name] = f1(words(await served_text(base_url, image.data)), words(image.text))
        print(f"  served text         {image.name:34} {scores[image.name]:.3f}", flush=True)
    return scores


async def _tables(base_url: str, images: list[Labelled]) -> list[float]:
    scores = []
    for image in images:
        if image.cells:
            answer = await served_text(base_url, image.data, "Table Recognition:")
            scores.append(f1(cells_of(answer), image.cells))
            print(f"  served table        {image.name:34} {scores[-1]:.3f}", flush=True)
    return scores


async def _entities(base_url: str, images: list[Labelled]) -> tuple[int, int]:
    found = wanted = 0
    for image in images:
        if not image.entities:
            continue
        fields = json.dumps(dict.fromkeys(image.entities, ""))
        prompt = f"请按下列JSON格式输出图中信息:\n{fields}"
        answer = json.loads(await served_text(base_url, image.data, prompt))
        right = [key for key, value in image.entities.items() if _same(answer.get(key), value)]
        found, wanted = found + len(right), wanted + len(image.entities)
        print(f"  served key-value    {image.name:34} {' '.join(right)}", flush=True)
    return found, wanted


def _same(found: object, truth: str) -> bool:
    """Whether two values have the same letters and digits, a currency's name aside."""
    plain = [re.sub(r"^rm|\W|_", "", "".join(words(str(value)))) for value in (found, truth)]
    return plain[0] == plain[1]


if __name__ == "__main__":
    main(*sys.argv[1:2])
