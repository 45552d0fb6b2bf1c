"""Every overlay is clean, alone and with components; every mistake of mistakes.yaml is found."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.checks import schemas
from deploy.checks.objects import Rendering, name_of
from deploy.checks.run import policy, problems
from deploy.checks.series import names, of_scalers
from tests.deploy.renderings import COMBINATIONS, FETCHING, FULL, HPA, KUBERNETES, NAMED, NGINX, rendered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deploy.checks.objects import Document
    from tests.deploy.renderings import Combination

POD = ["spec", "template", "spec"]
SHORT = {"pod": POD, "container": [*POD, "containers", "0"]}
ROUTES = "ConfigMap/ocr-gateway-routes"


@pytest.mark.parametrize("one", COMBINATIONS, ids=str)
def test_it_renders_and_nothing_is_wrong(one: Combination) -> None:
    assert list(map(str, problems(rendered(one)))) == []


class Gone:
    """Nothing: the key, the entry of a list or the object is left out."""


@dataclass(frozen=True)
class Add:
    more: Any

    def __call__(self, old: Any) -> Any:
        if isinstance(old, dict):
            return {key: value for key, value in (old | self.more).items() if not isinstance(value, Gone)}
        return old + self.more


@dataclass(frozen=True)
class Sub:
    patterns: dict[str, str]

    def __call__(self, text: str) -> str:
        for pattern, new in self.patterns.items():
            text, count = re.subn(pattern, new, text)
            assert count, pattern
        return text


class Loader(yaml.SafeLoader):
    """Reads mistakes.yaml."""


def node(loader: Loader, found: yaml.Node) -> Any:
    if isinstance(found, yaml.ScalarNode):
        return loader.construct_scalar(found)
    deep = loader.construct_mapping if isinstance(found, yaml.MappingNode) else loader.construct_sequence
    return deep(found, deep=True)  # type: ignore[operator]


Loader.add_constructor("!gone", lambda *_: Gone())
Loader.add_constructor("!add", lambda loader, found: Add(node(loader, found)))
Loader.add_constructor("!sub", lambda loader, found: Sub(node(loader, found)))


@dataclass(frozen=True)
class Mistake:
    """One edit of a rendering, and the problem that is to be found; mistakes.yaml explains the rest."""

    of: Combination
    name: str
    title: str
    path: str
    value: Any
    text: str = ""
    named: str = ""


MISTAKES = [
    Mistake(NAMED[combination], name, *row)
    for combination, objects in yaml.load(
        (Path(__file__).with_name("mistakes.yaml")).read_text(), Loader
    ).items()
    for name, rows in objects.items()
    for row in rows
] + [Mistake(FULL, ROUTES, "a map too large", "data notes", "x" * 2**18, "takes objects of up to 262144")]


def step(found: Any, key: str) -> Any:
    """The key itself, or the number of an entry of a list."""
    if isinstance(found, list):
        named = [
            index for index, entry in enumerate(found) if isinstance(entry, dict) and entry.get("name") == key
        ]
        return named[0] if named else int(key)
    return key


def edited(mistake: Mistake) -> tuple[list[Document], list[Document]]:
    """The rendering with the mistake in it, and of this the objects that are not as they were."""
    documents = list(rendered(mistake.of))
    if not mistake.path:
        if isinstance(mistake.value, Gone):
            return [one for one in documents if name_of(one) != mistake.name], []
        return [*documents, mistake.value], [mistake.value]
    (index,) = (i for i, document in enumerate(documents) if name_of(document) == mistake.name)
    documents[index] = found = copy.deepcopy(documents[index])
    first, *rest = mistake.path.split()
    *path, last = [*SHORT.get(first, [first]), *rest]
    for key in path:
        found = found[step(found, key)]
    last = step(found, last)
    if isinstance(mistake.value, Gone):
        del found[last]
    else:
        found[last] = mistake.value(found[last]) if callable(mistake.value) else mistake.value
    return documents, [documents[index]]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.title)
def test_a_mistake_is_found_and_its_object_named(mistake: Mistake) -> None:
    documents, changed = edited(mistake)
    found = list(schemas.check(changed)) or policy(documents)
    assert any(
        problem.name == (mistake.named or mistake.name) and mistake.text in problem.text for problem in found
    ), "\n".join(map(str, found)) or "nothing was found"


def test_no_mistake_was_lost_on_the_way() -> None:
    titles = [mistake.title for mistake in MISTAKES]
    assert len(titles) == len(set(titles)) >= 207


def test_an_engine_may_have_arguments_beyond_the_configurations_and_the_gpus_for_them() -> None:
    def larger(container: dict[str, Any]) -> dict[str, Any]:
        more = ["--tensor-parallel-size=8", "--revision", "0123abc", "--gpu-memory-utilization", "0.95"]
        half = {"cpu": 4, "memory": "24Gi"}
        gpus = {"requests": half, "limits": {**half, "nvidia.com/gpu": "8"}}
        return container | {"args": [*container["args"], *more], "resources": gpus}

    documents, _ = edited(Mistake(FULL, "StatefulSet/vllm-mtp3", "", "container", larger))
    assert list(map(str, problems(documents))) == []


def test_an_image_by_digest_may_be_any() -> None:
    image = f"registry.example/ocr@sha256:{'0' * 64}"
    mistake = Mistake(NAMED["cpu-demo"], "Deployment/ocr-gateway", "", "container image", image)
    assert problems(edited(mistake)[0]) == []


def fetching(edit: Callable[[dict[str, Any]], object]) -> list[str]:
    documents = list(rendered(FETCHING))
    for index, document in enumerate(documents):
        if name_of(document) in (ROUTES, "NetworkPolicy/ocr-gateway-images"):
            documents[index] = document = copy.deepcopy(document)
            if name_of(document) == ROUTES:
                document["data"]["routes.yaml"] += "\nremote_images: {allow_hosts: [images.example]}\n"
            else:
                edit(document["spec"]["egress"][0]["to"][0]["ipBlock"])
    return [str(one) for one in policy(documents) if one.name.startswith("NetworkPolicy")]


def test_gateways_that_fetch_images_reach_the_internet_and_no_clouds_metadata() -> None:
    assert fetching(lambda block: None) == []
    assert fetching(lambda block: block["except"].remove("10.0.0.0/8")) == []
    (problem,) = fetching(lambda block: block["except"].remove("169.254.0.0/16"))
    assert "must except 169.254.0.0/16" in problem


def test_a_key_in_the_open_is_not_printed() -> None:
    documents, _ = edited(
        Mistake(FULL, ROUTES, "", "data routes.yaml", Sub({r"\$\{ENGINE_KEY:-\}": "sk-1234"}))
    )
    printed = "".join(map(str, problems(documents)))
    assert "api_key" in printed
    assert "sk-1234" not in printed


def paths(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Every path of keys and numbers in a document."""
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(entry, dict | list):
            yield from paths(entry, *path, key)


@settings(max_examples=40)
@given(st.data())
def test_whatever_is_wrong_the_checks_come_to_an_end(data: st.DataObject) -> None:
    documents = list(rendered(data.draw(st.sampled_from([FULL, HPA, NGINX]))))
    index = data.draw(
        st.sampled_from([i for i, one in enumerate(documents) if one["kind"] != "PrometheusRule"])
    )
    documents[index] = found = copy.deepcopy(documents[index])
    *path, last = data.draw(st.sampled_from(list(paths(found))))
    for key in path:
        found = found[key]
    value = data.draw(st.sampled_from([Gone, None, {}, [], "x", 0, -1, True]))
    if value is Gone:
        del found[last]
    else:
        found[last] = value
    assert isinstance(list(schemas.check([documents[index]])) or policy(documents), list)


def test_the_adapters_names_are_those_that_the_plain_autoscalers_ask_for() -> None:
    values = yaml.safe_load((KUBERNETES / "components/hpa/prometheus-adapter.yaml").read_text())
    served = {
        rule["name"]["as"]: names(rule["seriesQuery"]).series.keys() for rule in values["rules"]["external"]
    }
    assert all({name} == {one.replace(":", "_") for one in series} for name, series in served.items())
    asked = {name for one in of_scalers(Rendering(rendered(HPA))) for name in names(one.expr).series}
    assert asked == served.keys()
