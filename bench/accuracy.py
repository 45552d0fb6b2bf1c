"""How well the gateway on its embedded engine reads 20 labelled images, beside rapidocr by itself.

The images (SROIE receipts, PubTabNet tables) are the shared test images, which lie beside the repository.
"""

from __future__ import annotations

import asyncio
import base64
import html
import json
import os
import platform
import re
import time
import unicodedata
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib as mpl
import openai

from bench.serving import SHARED, serve

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

IMAGES = SHARED / "images"
OUT = Path(__file__).with_name("out")
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


def cpu_seconds(pid: int) -> float:
    """CPU time a process has used so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Serve the shipped configuration, ask it, and print and draw every score."""
    if not (IMAGES / "ground_truth").is_dir():
        print("the shared test images are not here: nothing to read")
        return
    images = labelled_images()
    print(f"{platform.machine()} {platform.system()}, Python {platform.python_version()}", end=", ")
    print(f"rapidocr {version('rapidocr')}, onnxruntime {version('onnxruntime')}; {len(images)} images")
    plain, plain_cpu = plain_rapidocr(images)
    with serve() as gateway:
        engine = gateway.engine_pid()
        before = cpu_seconds(engine)
        served = asyncio.run(_texts(gateway.url, images))
        served_cpu = (cpu_seconds(engine) - before) / len(images)
        tables = asyncio.run(_tables(gateway.url, images))
        found, wanted = asyncio.run(_entities(gateway.url, images))
    mean, plain_mean = sum(served.values()) / len(served), sum(plain.values()) / len(plain)
    print(f"word F1, rapidocr by itself   {plain_mean:.4f}   {plain_cpu:.2f} CPU s per image")
    print(f"word F1, through the gateway  {mean:.4f}   {served_cpu:.2f} CPU s per image")
    print(f"ratio                         {mean / plain_mean:.4f}")
    print(f"cell F1, table prompts        {sum(tables) / len(tables):.4f}   ({len(tables)} tables)")
    print(f"entities, key-value prompts   {found} of {wanted} ({found / wanted:.2f})")
    draw(plain, served, OUT / "accuracy.png")
    print("picture: bench/out/accuracy.png")


def draw(plain: dict[str, float], served: dict[str, float], path: Path) -> None:
    """Save a picture of each image's two scores."""
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 5), layout="constrained")
    places = range(len(plain))
    axes.barh([place + 0.2 for place in places], list(plain.values()), 0.4, label="rapidocr by itself")
    axes.barh([place - 0.2 for place in places], [served[name] for name in plain], 0.4, label="gateway")
    axes.set_yticks(places, list(plain), fontsize=7)
    axes.set_xlabel("word F1")
    axes.legend(loc="lower left")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


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
    main()
