import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.located_yaml import LocatedYaml


def read(text: str, **environment: str) -> tuple[object, list[str]]:
    document = LocatedYaml("f.yaml", environment)
    return document.read(text), document.problems


def test_variables_are_filled_in_as_text() -> None:
    values, problems = read('a: ${KEY}\nb: ${NONE:-x}\nc: "v${KEY}"\nd: ${NONE:-}\ne: 5', KEY="0123")
    assert values == {"a": "0123", "b": "x", "c": "v0123", "d": "", "e": 5}
    assert problems == []


def test_a_variable_that_is_not_set_is_a_problem_at_its_line() -> None:
    _, problems = read("a: 1\nb:\n  c: ${NONE}")
    assert problems == ["f.yaml:3: b.c: the environment variable NONE is not set, and has no :-default"]


def test_problems_know_their_lines() -> None:
    document = LocatedYaml("f.yaml", {})
    assert document.read("a:\n  - 1\n  - b: 2\n") == {"a": (1, {"b": 2})}
    document.report([(("a", 1, "b"), "x"), (("a", 1, "new", "deep"), "y"), ((), "z")])
    assert document.problems == ["f.yaml:3: a[1].b: x", "f.yaml:3: a[1].new.deep: y", "f.yaml:1: file: z"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\na: 2", "f.yaml:2: a: this key stands here twice"),
        ("a: &x [*x]", "f.yaml:1: a[0]: an alias refers to what it stands in"),
        ("a: {<<: 5, b: 1}", "f.yaml:1: a.<<: cannot be merged"),
        ("a: 2024-13-45", "f.yaml:1: a: is not a value of its YAML type"),
        ("a: =", "f.yaml:1: a: is not a value of its YAML type"),
        ("a: 0x_", "f.yaml:1: a: is not a value of its YAML type"),
        ("a: !!int abc", "f.yaml:1: a: is not a value of its YAML type"),
        ("a: !!int", "f.yaml:1: a: is not a value of its YAML type"),
        ("a: !!timestamp x", "f.yaml:1: a: is not a value of its YAML type"),
        ("a: !!bool x", "f.yaml:1: a: is not a value of its YAML type"),
        ("a: !foo x", "f.yaml:1: a: is not a value of its YAML type"),
        ("=", "f.yaml:1: file: is not a value of its YAML type"),
        ("? [a]\n: b", "f.yaml:1: file: a key must be a word"),
        ("[" * 5000 + "]" * 5000, "f.yaml:1: not valid YAML"),
        ("a: [", "f.yaml:1: not valid YAML"),
        ("a: \x00", "f.yaml:1: not valid YAML"),
        ("- - a: {", "f.yaml:1: not valid YAML"),
        ("a: 1\n--- \nb: 2", "f.yaml:2: not valid YAML"),
    ],
)
def test_faults_of_the_text_are_named(text: str, problem: str) -> None:
    assert [found[: len(problem)] for found in read(text)[1]] == [problem]


@pytest.mark.parametrize(
    "text",
    [
        *("a: *SECRET", "a: !SECRET x", "a: !!SECRET x", "a: !SECRET!x y", "a: &SECRET 1\nb: &SECRET 2"),
        *(
            "a: !!int SECRET",
            "a: !!float SECRET",
            "a: !!bool SECRET",
            "a: !!timestamp SECRET",
        ),
        *('a: "SECRET', 'a: "SECRET\\q"', "a: SECRET: b: c", "%SECRET\n", "a: @SECRET", "a: `SECRET"),
    ],
)
def test_a_secret_that_is_taken_for_yamls_own_is_not_told(text: str) -> None:
    secret = "planted-Secret-4711"
    found = read(text.replace("SECRET", secret))[1]
    assert found or "&" in text
    assert secret.lower() not in "".join(found).lower()


def test_merge_keys_work() -> None:
    values, problems = read("base: &b {x: 1, y: 1}\nother:\n  <<: *b\n  y: 2\n")
    assert values == {"base": {"x": 1, "y": 1}, "other": {"x": 1, "y": 2}}
    assert problems == []


def test_an_empty_text_is_an_empty_section() -> None:
    assert read("# nothing\n") == ({}, [])


@given(st.text(max_size=60))
def test_any_text_is_read_or_reported(text: str) -> None:
    read(text)


PIECES = [
    "a: ",
    "b",
    "\n",
    "  ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    "&x ",
    "*x",
    "<<: ",
    "!!int ",
    "${K}",
    "${N:-d}",
    "'",
    "|",
    "# ",
]


@given(st.lists(st.sampled_from(PIECES), max_size=20).map("".join))
def test_any_yaml_is_read_or_reported_by_line(text: str) -> None:
    _, problems = read(text, K="k")
    for problem in problems:
        assert re.match(r"f\.yaml:\d+: .", problem)
