"""`python -m bench.sorting`: how well and fast the layout alone sorts test images it was not trained on."""

from __future__ import annotations

import csv
import math
import platform
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import PIL

from bench.serving import ROOT, SHARED
from gateway.images.worker import layout_model
from gateway.policy.sort.layout import THUMBNAIL_SIDE, LayoutModel, guess
from gateway.wire.image.pixels import thumbnail

OUT = Path(__file__).with_name("out")
# Parts of the names of images whose label is arguable by the labelling rules.
ARGUABLE = ("packing", "enrichments", "amazonwebservices", "wired_table.png", "tablestructurere__test.jpg")
REPEATS = 5


@dataclass(frozen=True)
class Outcome:
    """One image's label, the guessed route with its confidence, and the CPU time: all, and of decoding."""

    file: str
    source: str
    label: str
    route: str
    confidence: float
    milliseconds: float
    decoding: float

    @property
    def right(self) -> bool:
        """Whether the guess is the label."""
        return self.label == self.route

    @property
    def arguable(self) -> bool:
        """Whether the label is arguable."""
        return any(part in self.file.lower() for part in ARGUABLE)


def sorted_images(folder: Path) -> tuple[LayoutModel, list[Outcome]]:
    """Sort every image REPEATS times; return the model and the outcomes, with median times."""
    model = layout_model()
    with (folder / "manifest.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return model, [_outcome(folder, row, model) for row in rows]


def _outcome(folder: Path, row: dict[str, str], model: LayoutModel) -> Outcome:
    data = (folder / row["file"]).read_bytes()
    whole, decoding = [], []
    for _ in range(REPEATS):
        start = time.process_time()
        grey = thumbnail(data, THUMBNAIL_SIDE)
        decoded = time.process_time()
        found = guess(grey, model)
        whole.append((time.process_time() - start) * 1e3)
        decoding.append((decoded - start) * 1e3)
    cost, part = float(np.median(whole)), float(np.median(decoding))
    return Outcome(row["file"], row["repo"], row["label"], found.route, found.confidence, cost, part)


def accuracy(outcomes: list[Outcome]) -> str:
    """Return the share of right guesses with its standard error, as text."""
    count = len(outcomes)
    share = sum(outcome.right for outcome in outcomes) / count
    error = math.sqrt(share * (1 - share) / count)
    return f"{share:.3f} ± {error:.3f} ({round(share * count)} of {count})"


def confusion(outcomes: list[Outcome], routes: tuple[str, ...]) -> np.ndarray:
    """Return counts: a row for each label, a column for each guess."""
    counts = np.zeros((len(routes), len(routes)), dtype=int)
    for outcome in outcomes:
        counts[routes.index(outcome.label), routes.index(outcome.route)] += 1
    return counts


def draw(counts: np.ndarray, routes: tuple[str, ...], title: str, path: Path) -> None:
    """Save the confusion matrix as a picture."""
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(4.6, 4.2), layout="constrained")
    axes.imshow(counts / counts.sum(axis=1, keepdims=True), cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(routes)), routes)
    axes.set_yticks(range(len(routes)), routes)
    axes.set_xlabel("route guessed from the layout")
    axes.set_ylabel("label")
    axes.set_title(title, fontsize=10)
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            colour = "white" if count > row.sum() / 2 else "black"
            axes.text(j, i, str(count), ha="center", va="center", color=colour)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def report(outcomes: list[Outcome], routes: tuple[str, ...]) -> None:
    """Print the figures."""
    clear = [outcome for outcome in outcomes if not outcome.arguable]
    print(f"accuracy                  {accuracy(outcomes)}")
    print(f"  without arguable cases  {accuracy(clear)}")
    print(f"  arguable cases alone    {accuracy([outcome for outcome in outcomes if outcome.arguable])}")
    for low, high in ((0.0, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1.01)):
        band = [outcome for outcome in outcomes if low <= outcome.confidence < high]
        if band:
            print(f"  confidence {low:.1f} to {min(high, 1):.1f}   {accuracy(band)}")
    by_source = defaultdict(list)
    for outcome in outcomes:
        by_source[outcome.source].append(outcome)
    shares = [sum(outcome.right for outcome in group) / len(group) for group in by_source.values()]
    print(f"mean over {len(shares)} sources      {np.mean(shares):.3f}")
    for source, group in sorted(by_source.items()):
        print(f"  {sum(outcome.right for outcome in group):2} of {len(group):2}  {source}")
    print("confusion (rows: labels, columns: guesses)")
    print(" " * 12 + "".join(f"{route:>11}" for route in routes))
    for route, row in zip(routes, confusion(outcomes, routes), strict=True):
        print(f"  {route:<10}" + "".join(f"{count:11}" for count in row))
    print("wrong")
    for outcome in outcomes:
        if not outcome.right:
            mark = ", arguable" if outcome.arguable else ""
            print(f"  {outcome.file}: {outcome.route} ({outcome.confidence:.2f}{mark})")
    for name, costs in (
        ("decode, measure, decide", [outcome.milliseconds for outcome in outcomes]),
        ("of that, decoding", [outcome.decoding for outcome in outcomes]),
    ):
        print(f"CPU ms, {name:<24} median {np.median(costs):.1f}, p95 {np.percentile(costs, 95):.1f}")


def main() -> None:
    """Sort the shared test images and print how it went."""
    folder = SHARED / "images"
    if not folder.is_dir():
        print("the shared test images are not here: nothing to sort")
        return
    model, outcomes = sorted_images(folder)
    print(f"{platform.machine()} {platform.system()}, Python {platform.python_version()}", end=", ")
    print(f"numpy {np.__version__}, Pillow {PIL.__version__}; {len(outcomes)} images, {REPEATS} passes")
    report(outcomes, model.routes)
    path = OUT / "sorting.png"
    draw(confusion(outcomes, model.routes), model.routes, f"accuracy {accuracy(outcomes)}", path)
    print(f"picture: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
