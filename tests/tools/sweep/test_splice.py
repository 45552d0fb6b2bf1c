from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ConfigError
from gateway.tools.sweep.splice import RouteChange, updated

if TYPE_CHECKING:
    from collections.abc import Iterator

NEW = RouteChange(((1, 40, 3), (41, 4096, 0)), "profiles/text.json")
SCHEDULE = "schedule: [[1, 40, 3], [41, 4096, 0]]"
PROFILE = "profile: profiles/text.json"


def put(text: str, change: RouteChange = NEW, route: str = "text") -> str:
    return updated(text, "routes.yaml", {route: change}, {})


def refusal(file: str, *routes: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        updated(file, "routes.yaml", dict.fromkeys(routes or ("text",), NEW), {})
    return refused.value.problems


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (  # a value of one line, whose comment stays
            "routes:\n  text:\n    schedule: [[1, 63, 3]]  # by hand\n    profile: old.json # old\n",
            f"routes:\n  text:\n    {SCHEDULE}  # by hand\n    {PROFILE} # old\n",
        ),
        (  # nothing of it yet: first in the section, above the comments of what follows
            "routes:\n  text:  # prose\n    # both\n    pools: [a, b]\n",
            f"routes:\n  text:  # prose\n    {SCHEDULE}\n    {PROFILE}\n    # both\n    pools: [a, b]\n",
        ),
        (  # a profile goes behind its schedule
            "routes:\n  text:\n    pools: [a]\n    schedule: [[1, 63, 3]]  # by hand\n    # later\n",
            f"routes:\n  text:\n    pools: [a]\n    {SCHEDULE}  # by hand\n    {PROFILE}\n    # later\n",
        ),
        (  # a block of lines; comments inside it move above
            "routes:\n  text:\n    schedule:  # by hand\n      - [1, 63, 3]  # deep\n      # plain\n"
            "      - - 64\n        - 4096\n        - 0  # last\n    # on pools\n    profile: x\n",
            f"routes:\n  text:\n    # deep\n    # plain\n    {SCHEDULE}  # by hand  # last\n"
            f"    # on pools\n    {PROFILE}\n",
        ),
        (  # a list over many lines
            "routes:\n  text:\n    schedule: [\n      [1, 63, 3],  # deep\n    ]  # end\n    profile: null\n",
            f"routes:\n  text:\n    # deep\n    {SCHEDULE}  # end\n    {PROFILE}\n",
        ),
        ("routes:\n  text: {}  # none\n", f"routes:\n  text: {{{SCHEDULE}, {PROFILE}}}  # none\n"),
        ("routes:\n  text: ~  # none\n", f"routes:\n  text: {{{SCHEDULE}, {PROFILE}}}  # none\n"),
        (
            "routes:\n    text:  # none\n    table:\n",
            f"routes:\n    text:  # none\n        {SCHEDULE}\n        {PROFILE}\n    table:\n",
        ),
        (  # also what is no schedule
            "routes:\n  text:\n    schedule:  # soon\n    profile:\n      path: x  # new\n      of: y\n",
            f"routes:\n  text:\n    {SCHEDULE}  # soon\n    # new\n    {PROFILE}\n",
        ),
        ("routes:\n  text:", f"routes:\n  text:\n    {SCHEDULE}\n    {PROFILE}"),
        ("routes:\r\n text:\r\n", f"routes:\r\n text:\r\n  {SCHEDULE}\r\n  {PROFILE}\r\n"),
        ("routes: {text: , table: {}}\n", f"routes: {{text: {{{SCHEDULE}, {PROFILE}}} , table: {{}}}}\n"),
        (
            "routes: {text: {pools: [a]}, table: {pools: [a]}}\n",
            f"routes: {{text: {{{SCHEDULE}, {PROFILE}, pools: [a]}}, table: {{pools: [a]}}}}\n",
        ),
        (
            "routes: {text: {schedule: [], pools: [a]}}\n",
            f"routes: {{text: {{{SCHEDULE}, {PROFILE}, pools: [a]}}}}\n",
        ),
        (  # JSON stays JSON
            '{"routes": {"text": {"pools": ["a"]}}}\n',
            '{"routes": {"text": {"schedule": [[1, 40, 3], [41, 4096, 0]], '
            '"profile": "profiles/text.json", "pools": ["a"]}}}\n',
        ),
        (
            '\ufeff{"routes": {"text": {"profile": "x", "schedule": [ # c\n]}}}',
            '\ufeff# c\n{"routes": {"text": {"profile": "profiles/text.json", '
            '"schedule": [[1, 40, 3], [41, 4096, 0]]}}}',
        ),
        (  # an alias gives way to the value
            "x: &x [[1, 63, 3]]\nroutes:\n  text:\n    schedule: *x  # as x\n    profile: ${P:-p}\n",
            f"x: &x [[1, 63, 3]]\nroutes:\n  text:\n    {SCHEDULE}  # as x\n    {PROFILE}\n",
        ),
        (  # what is merged in is overruled
            "x: &x {schedule: [[1, 63, 3]]}\nroutes:\n  text:\n    <<: *x\n",
            "x: &x {schedule: [[1, 63, 3]]}\nroutes:\n  text:\n"
            f"    {SCHEDULE}\n    {PROFILE}\n    <<: *x\n",
        ),
    ],
)
def test_the_new_values_stand_where_one_would_write_them(before: str, after: str) -> None:
    assert put(before) == after
    assert put(after) == after


def test_only_what_is_wanted_changes() -> None:
    text = "routes:\n  text:\n    profile: old.json\n    schedule: [[1, 9, 3]]\n"
    assert put(text, RouteChange(schedule=((1, 8, 3),))) == text.replace("9", "8")
    assert put(text, RouteChange(profile="new.json")) == text.replace("old", "new")
    assert put(text, RouteChange()) == text
    assert updated(text, "f", {}, {}) == text


def test_a_path_that_yaml_would_misread_is_quoted() -> None:
    path = "profiles/a: b #1.json"
    changed = put("routes: {text: {}}", RouteChange(profile=path))
    assert yaml.safe_load(changed)["routes"]["text"]["profile"] == path


def test_routes_that_share_a_value_may_change_together() -> None:
    text = "routes:\n  text: {schedule: &s [[1, 63, 3]]}\n  table: {schedule: *s}\n"
    changed = updated(text, "f", {"text": RouteChange(((1, 5, 3),)), "table": RouteChange(((1, 7, 3),))}, {})
    assert changed == "routes:\n  text: {schedule: [[1, 5, 3]]}\n  table: {schedule: [[1, 7, 3]]}\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("routes:\n  text: &t\n    schedule: [[1, 9, 3]]\n  table: *t\n", 2),
        ("routes:\n  text: &t {schedule: [[1, 9, 3]]}\n  table: {<<: *t}\n", 2),
        ("routes:\n  text: {schedule: &s [[1, 9, 3]]}\n  table: {schedule: *s}\n", 2),
        ("routes:\n  table: &t {}\n  text: *t\n", 3),
        ("x: &x {text: {}}\nroutes: *x\n", 2),
        ("x: &x {text: {}}\nroutes:\n  <<: *x\n", 2),
        ("x: &x {routes: {text: {}}}\n<<: *x\n", 1),
        ("routes:\n  text: words\n", 2),
        ("routes:\n  text:\n    ? schedule\n    : - [1, 9, 3]\n", 2),
        ("routes: {text}\n", 1),
    ],
)
def test_what_cannot_be_changed_at_one_place_is_left_to_the_operator(text: str, line: int) -> None:
    (told,) = refusal(text)
    assert told.startswith(f"routes.yaml:{line}: routes.text: cannot be updated in place: ")
    assert told.endswith(f'; write there: {SCHEDULE}, profile: "profiles/text.json"')


def test_each_route_that_cannot_be_changed_is_told_and_no_other() -> None:
    text = "routes:\n  text: {}\n  table: &t {}\n  form: *t\n"
    told = refusal(text, "text", "table", "form")
    assert [re.findall(r"routes\.(\w+)", line)[-1] for line in told] == ["table", "form"]


def test_where_changes_get_in_each_others_way_all_of_them_are_told() -> None:
    text = "routes: {text: {profile: x, schedule: [ # a\n]}, table: {profile: x, schedule: [ # b\n]}}\n"
    assert [line.partition(": cannot")[0] for line in refusal(text, "text", "table")] == [
        "routes.yaml:1: routes.text",
        "routes.yaml:2: routes.table",
    ]


def test_a_route_that_is_not_there_is_told_with_those_that_are() -> None:
    assert refusal("routes: {texts: {}, table: {}}") == [
        "routes.yaml: routes: there is no 'text', but texts, table"
    ]
    assert refusal("model: m\n") == ["routes.yaml: routes: there is no 'text', but none"]
    assert refusal("[]") == ["routes.yaml: routes: there is no 'text', but none"]


def test_a_file_that_is_no_yaml_is_refused_as_check_does() -> None:
    assert "routes.yaml:2: not valid YAML" in refusal("routes:\n\t- {")[0]
    assert "stands here twice" in refusal("routes: {text: {}, text: {}}")[0]


# Files in every style: a renderer that makes its choices from what hypothesis draws.

styles = st.fixed_dictionaries(
    {
        "newline": st.sampled_from(["\n", "\r\n", "\r"]),
        "bom": st.booleans(),
        "final": st.booleans(),
        "indent": st.integers(1, 5),
        "quote": st.sampled_from(["", "'", '"']),
        "comments": st.lists(st.integers(0, 2), min_size=8, max_size=8),
    }
)
ranges = st.sampled_from([[], [[1, 63, 3]], [[1, 63, 3], [64, 127, 0], [128, 4096, 3]]])
sections = st.fixed_dictionaries(
    {
        "style": st.sampled_from(["block", "flow", "long flow", "empty", "null"]),
        "keys": st.lists(st.sampled_from(["schedule", "profile", "pools", "queue"]), unique=True),
        "list": st.sampled_from(["one line", "lines", "block", "deep block"]),
        "ranges": ranges,
    }
)
files = st.dictionaries(st.sampled_from(["text", "key-value", "a.b_c", "1"]), sections, min_size=1)


class Renderer:
    """Writes routes.yaml; `kept` are the lines that no change may touch."""

    def __init__(self, style: dict[str, Any]) -> None:
        self.style = style
        self.lines: list[str] = []
        self.kept: list[str] = []
        self.numbers = itertools.count()
        self.comments = itertools.cycle(style["comments"])

    def line(self, depth: int, text: str, *, kept: bool = False) -> None:
        pad = " " * (depth * self.style["indent"])
        comment = next(self.comments)
        if comment == 2:
            self.lines.append(f"{pad}# c{next(self.numbers)} above")
        self.lines.append(f"{pad}{text}" + (f"  # c{next(self.numbers)} behind" if comment else ""))
        if kept:
            self.kept.append(self.lines[-1])

    def key(self, name: str) -> str:
        return f"{self.style['quote']}{name}{self.style['quote']}:"

    def render(self, routes: dict[str, dict[str, Any]]) -> str:
        self.line(0, "model: glm-ocr", kept=True)
        self.line(0, "routes:", kept=True)
        for name, section in routes.items():
            self.section(name, section)
        self.line(0, "sorting: {}", kept=True)
        text = self.style["newline"].join(self.lines) + self.style["newline"] * self.style["final"]
        return f"\ufeff{text}" if self.style["bom"] else text

    def section(self, name: str, section: dict[str, Any]) -> None:
        style, keys = section["style"], section["keys"]
        if style == "empty":
            self.line(1, f"{self.key(name)}")
        elif style == "null":
            self.line(1, f"{self.key(name)} null")
        elif style == "block" and keys:
            self.line(1, self.key(name), kept=True)
            for key in keys:
                self.entry(key, section)
        else:
            entries = [f"{self.key(key)} {self.value(key, section)}" for key in keys]
            if style == "long flow":
                self.line(1, f"{self.key(name)} {{")
                for entry in entries:
                    self.line(2, f"{entry},")
                self.line(2, "}")
            else:
                self.line(1, f"{self.key(name)} {{{', '.join(entries)}}}")

    def value(self, key: str, section: dict[str, Any]) -> str:
        if key == "schedule":
            return str(section["ranges"])
        values = {"profile": '"${WHERE:-old}.json"', "pools": "[a, b]", "queue": "{max_waiting: 3}"}
        return values[key]

    def entry(self, key: str, section: dict[str, Any]) -> None:
        found, style = section["ranges"], section["list"]
        if key != "schedule" or style == "one line" or not found:
            self.line(2, f"{self.key(key)} {self.value(key, section)}", kept=key in ("pools", "queue"))
        elif style == "lines":
            self.line(2, f"{self.key(key)} [")
            for entry in found:
                self.line(3, f"{entry},")
            self.line(3, "]")
        else:
            self.line(2, self.key(key))
            for entry in found:
                self.item(entry, deep=style == "deep block")

    def item(self, entry: list[int], *, deep: bool) -> None:
        if not deep:
            self.line(3, f"- {entry}")
            return
        self.line(3, "-")
        for number in entry:
            self.line(4, f"- {number}")


def in_order(lines: list[str], text: str) -> bool:
    left: Iterator[str] = iter(re.split("\r\n|[\r\n]", text.removeprefix("\ufeff")))
    return all(line in left for line in lines)


@given(styles, files, st.data())
def test_whatever_the_style_only_the_values_change(
    style: dict[str, Any], routes: dict[str, dict[str, Any]], data: st.DataObject
) -> None:
    renderer = Renderer(style)
    text = renderer.render(routes)
    names = data.draw(st.lists(st.sampled_from(sorted(routes)), unique=True, min_size=1))
    changes = {name: RouteChange(((1, 8, 2), (9, 99, 0)), f"profiles/{name}.json") for name in names}
    changed = updated(text, "f", changes, {})
    expected = yaml.safe_load(text)
    for name in names:
        key = int(name) if name.isdigit() and not style["quote"] else name
        expected["routes"][key] = {
            **(expected["routes"][key] or {}),
            "schedule": [[1, 8, 2], [9, 99, 0]],
            "profile": f"profiles/{name}.json",
        }
    assert yaml.safe_load(changed) == expected
    comment = re.compile(r"# c\d+ \w+")
    assert sorted(comment.findall(changed)) == sorted(comment.findall(text))
    assert in_order(renderer.kept, changed)
    assert changed.startswith("\ufeff") == style["bom"]
    assert set(re.findall("\r\n|[\r\n]", changed)) <= {style["newline"]}
    assert changed.endswith(style["newline"]) == text.endswith(style["newline"])
    assert updated(changed, "f", changes, {}) == changed
