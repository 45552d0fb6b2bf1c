"""Draws the synthetic set, trains the trees and writes gateway/images/layout.npz; all of it is repeatable."""

from __future__ import annotations

import argparse
import io
import os
import zlib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightgbm
import numpy as np

from gateway.policy.sort.layout import LayoutModel, features
from training.layout import fonts
from training.layout.corpus import ROUTES, SETS, TAKES, samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

TARGET = Path(__file__).resolve().parents[2] / "gateway" / "images" / "layout.npz"
BATCH = 120
PARAMETERS = {
    "objective": "multiclass",
    "num_class": len(ROUTES),
    "learning_rate": 0.2,
    "extra_trees": True,
    "num_leaves": 15,
    "min_data_in_leaf": 30,
    "feature_fraction": 0.3,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 5,
    "seed": 1,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}


def measured(batch: tuple[int, int]) -> tuple[NDArray[np.float32], list[int]]:
    """Features and route numbers of one batch of documents: the set's number, and where it starts."""
    seed, recipes, count = SETS[batch[0]]
    rows, routes = [], []
    for grey, route in samples(seed, recipes, batch[1], min(count, batch[1] + BATCH)):
        rows.append(features(grey))
        routes.append(route)
    return np.stack(rows), routes


def measure_all(workers: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Features and route numbers of all sets, in order."""
    batches = [(k, start) for k, (_, _, count) in enumerate(SETS) for start in range(0, count, BATCH)]
    with ProcessPoolExecutor(workers) as pool:
        parts = list(pool.map(measured, batches))
    return np.concatenate([rows for rows, _ in parts]), np.array(
        [route for _, found in parts for route in found]
    )


def trained(
    rows: NDArray[np.float32], routes: NDArray[np.int64], rounds: int
) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
    """The model's arrays, and which rows were held out from training: every tenth document."""
    held = np.arange(len(rows)) // TAKES % 10 == 9
    booster = lightgbm.train(PARAMETERS, lightgbm.Dataset(rows[~held], routes[~held]), rounds)
    arrays = flattened(booster)
    scores = np.asarray(booster.predict(rows[held], raw_score=True))
    return arrays | {"temperature": np.array(temperature(scores, routes[held]))}, held


def flattened(booster: lightgbm.Booster) -> dict[str, NDArray[Any]]:
    """The trees as the arrays of LayoutModel; a leaf is a node that leads to itself."""
    columns: dict[str, list[Any]] = {name: [] for name in ("feature", "threshold", "left", "right", "value")}
    depths: list[int] = []

    def add(node: dict[str, Any], depth: int) -> int:
        here = len(columns["feature"])
        for name, empty in (
            ("feature", 0),
            ("threshold", np.inf),
            ("left", here),
            ("right", here),
            ("value", 0.0),
        ):
            columns[name].append(empty)
        if "leaf_value" in node:
            columns["value"][here] = node["leaf_value"]
            depths.append(depth)
            return here
        columns["feature"][here] = node["split_feature"]
        columns["threshold"][here] = _rounded_down(node["threshold"])
        columns["left"][here] = add(node["left_child"], depth + 1)
        columns["right"][here] = add(node["right_child"], depth + 1)
        return here

    roots = [add(tree["tree_structure"], 0) for tree in booster.dump_model()["tree_info"]]
    return {
        "feature": np.array(columns["feature"], dtype=np.int16),
        "threshold": np.array(columns["threshold"], dtype=np.float32),
        "left": np.array(columns["left"], dtype=np.uint16),
        "right": np.array(columns["right"], dtype=np.uint16),
        "value": np.array(columns["value"], dtype=np.float32),
        "roots": np.array(roots, dtype=np.uint16),
        "depth": np.array(max(depths)),
        "routes": np.array(ROUTES),
    }


def _rounded_down(threshold: float) -> np.float32:
    """To single precision, so that no feature value changes sides."""
    single = np.float32(threshold)
    return np.nextafter(single, np.float32(-np.inf)) if single > threshold else single


def temperature(scores: NDArray[np.float64], truth: NDArray[np.int64]) -> float:
    """The divisor of the scores that makes the held-out documents' probabilities most truthful."""

    def loss(divisor: float) -> float:
        scaled = scores / divisor
        top = scaled.max(axis=1, keepdims=True)
        norm = top[:, 0] + np.log(np.exp(scaled - top).sum(axis=1))
        return float((norm - scaled[np.arange(len(truth)), truth]).mean())

    return float(min(np.arange(0.5, 3.0, 0.02), key=loss))


def main() -> None:
    """Train and write the model, and print how it does on held-out synthetic documents."""
    parser = argparse.ArgumentParser(prog="training.layout", description=__doc__)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=TARGET)
    options = parser.parse_args()
    if fonts.missing():
        parser.error(f"missing fonts, see training/layout/README.md: {', '.join(fonts.missing())}")
    rows, routes = measure_all(options.workers)
    arrays, held = trained(rows, routes, options.rounds)
    write(arrays, options.out)
    describe(options.out, rows[held], routes[held])


def write(arrays: dict[str, NDArray[Any]], path: Path) -> None:
    """Save the model; the same arrays give the same bytes."""
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    path.write_bytes(out.getvalue())


def describe(path: Path, rows: NDArray[np.float32], routes: NDArray[np.int64]) -> None:
    """Print the model's size and how it does on held-out documents."""
    data = path.read_bytes()
    model = LayoutModel.from_bytes(data)
    guessed = np.array([model.probabilities(row).argmax() for row in rows])
    print(f"{len(model.feature)} nodes, {len(data)} bytes, crc32 {zlib.crc32(data):08x}")
    print(f"{rows.shape[1]} features, temperature {model.temperature:.2f}")
    print(f"accuracy on {len(rows)} held-out synthetic pictures {float((guessed == routes).mean()):.4f}")


if __name__ == "__main__":
    main()
