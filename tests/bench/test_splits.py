from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.choice import splits
from bench.choice.fleet import ROUTES, Fleet, Pool

FIT = "h100-9b"
PAIR = Fleet("pair", (Pool("deep", 3), Pool("plain", 0)))
THREE = Fleet("three", (Pool("plain", 0), Pool("shallow", 1), Pool("deep", 3)))


@pytest.mark.parametrize("counts", [(4, 3, 5), (40, 0, 3), (30, 2, 30)])
def test_the_best_split_of_a_mix_is_found(counts: tuple[int, int, int]) -> None:
    pools = list(PAIR.engines.values())
    every = (
        (deep, tuple(count - part for count, part in zip(counts, deep, strict=True)))
        for deep in itertools.product(*(range(count + 1) for count in counts))
    )
    most = max(splits.rate(FIT, pools, split) for split in every)
    (found,) = splits.best(FIT, PAIR, dict(zip(ROUTES, counts, strict=True)))
    assert splits.rate(FIT, pools, found) >= 0.998 * most


def test_alternatives_differ_come_in_order_and_lose_no_client() -> None:
    clients = {"text": 20, "key-value": 20, "table": 20}
    found = splits.best(FIT, THREE, clients, keep=3)
    rates = [splits.rate(FIT, list(THREE.engines.values()), split) for split in found]
    assert len(set(found)) == len(found)
    assert rates == sorted(rates, reverse=True)
    for split in found:
        assert [sum(column) for column in zip(*split, strict=True)] == [20, 20, 20]
        assert splits.named(THREE, split)["deep-0"]["table"] == split[2][2]


def test_what_is_not_allowed_is_not_found() -> None:
    def few_on_deep(split: splits.Split) -> bool:
        return sum(split[0]) <= 5

    for clients in ({"table": 40}, {"text": 20, "key-value": 10, "table": 10}):
        (found,) = splits.best(FIT, PAIR, clients, allowed=few_on_deep)
        assert sum(found[0]) <= 5


@given(st.lists(st.integers(0, 200), min_size=3, max_size=3).filter(any), st.integers(1, 3), st.data())
def test_every_engine_gets_the_mix(counts: list[int], engines: int, data: st.DataObject) -> None:
    ways = list(itertools.islice(splits.ways(sum(counts), engines), 200))
    assert all(sum(way) == sum(counts) and len(way) == engines for way in ways)
    loads = data.draw(st.sampled_from(ways))
    split = splits.mixed_alike(dict(zip(ROUTES, counts, strict=True)), loads)
    assert [sum(column) for column in zip(*split, strict=True)] == counts
    for row, load in zip(split, loads, strict=True):
        for part, count in zip(row, counts, strict=True):
            assert part == pytest.approx(load * count / sum(counts), abs=1)
