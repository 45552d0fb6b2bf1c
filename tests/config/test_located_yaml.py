import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.located_yaml import MAX_PROBLEMS, FromEnvironment, LocatedYaml


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


@pytest.mark.parametrize(
    "value",
    [
        "${NAME-x}",
        "${NAME:?x}",
        "${NAME:+x}",
        "${NAME:=x}",
        "${NAME=x}",
        "${NAME:-${OTHER}}",
        "${NAME:-$OTHER}",
        "${NAME:-{x}}",
        "${NAME",
        "${NAME:-x",
        "${}",
        "${ NAME }",
        "${1}",
        "${NAME[0]}",
        "${#NAME}",
        "a ${KEY} and ${NAME:?x}",
        "$$${NAME:?x}",
        "${" + "N" * 300 + "}",
    ],
)
def test_what_looks_like_a_variable_and_is_none_is_a_problem_that_shows_nothing_of_it(value: str) -> None:
    _, problems = read(f"a: 1\nb: '{value}'", KEY="k", NAME="planted", OTHER="planted")
    (problem,) = problems
    assert problem.startswith("f.yaml:2: b: holds a ${ that begins no variable: write ${NAME} or ${NAME:-de")
    assert "planted" not in problem
    assert "?x" not in problem


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("$$", "$"),
        ("$$NAME", "$NAME"),
        ("$${KEY}", "${KEY}"),
        ("$$$$", "$$"),
        ("$$${KEY}", "$k"),
        ("^total$", "^total$"),
        ("$5 and $", "$5 and $"),
        ("${NONE:-$$5}", "$5"),
        ("${KEY}${KEY}", "kk"),
        ("${KEY:-x}", "k"),
        ("${SHELL_LIKE}", "${KEY} $$"),  # a variable's own value is not looked into
    ],
)
def test_two_dollars_are_one_and_one_alone_is_text(value: str, text: str) -> None:
    document = LocatedYaml("f.yaml", {"KEY": "k", "SHELL_LIKE": "${KEY} $$"})
    assert document.read(f"a: '{value}'") == {"a": text}
    assert (document.problems, document.notes) == ([], [])


@pytest.mark.parametrize("value", ["$ENGINE_KEY", "$(ENGINE_KEY)"])
def test_a_value_that_is_only_a_name_behind_a_dollar_is_noted_and_not_shown(value: str) -> None:
    document = LocatedYaml("f.yaml", {})
    assert document.read(f"a:\n  b: [x, {value}]") == {"a": {"b": ("x", value)}}
    assert document.notes == [
        "a.b[1] (line 2): is taken as it stands: a variable is ${NAME}, with braces; $$ is a dollar"
    ]


def test_a_variable_in_a_key_is_a_problem() -> None:
    assert read("a:\n  ${KEY}: 1", KEY="planted")[1] == [
        "f.yaml:2: a.${KEY}: a key cannot hold a variable, only a value can"
    ]


def test_a_variable_without_its_quotes_is_told_how_to_be_written() -> None:
    (problem,) = read("a: {key: ${KEY}}", KEY="planted")[1]
    assert problem.startswith("f.yaml:1: not valid YAML: ")
    assert problem.endswith('inside {...} and [...] a variable stands in quotes: "${NAME}"')


def test_it_knows_where_the_environment_had_a_say() -> None:
    document = LocatedYaml("f.yaml", {"KEY": "planted"})
    values = document.read("a: [{b: '${KEY}', c: $$}]\nd: ${NONE:-x}\ne: 1")
    assert document.from_environment == {(), ("a",), ("a", 0), ("a", 0, "b"), ("d",)}
    assert values == {"a": ({"b": "planted", "c": "$"},), "d": "x", "e": 1}
    assert isinstance(values, dict)
    assert isinstance(values["d"], FromEnvironment)
    assert document.shown("planted", ("a", 0, "b")) == "a value (not shown)"
    assert document.shown(("planted",), ("a",)) == "a list"
    assert document.shown("plain", ("a", 0, "c")) == "'plain'"
    assert document.shown("plain", ("x", "api_key", 0)) == "a value (not shown)"


def test_a_variable_that_is_no_text_is_a_problem() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")  # as the environment has what is not UTF-8
    assert read("a: ${KEY}", KEY=name)[1] == [
        "f.yaml:1: a: holds half of a surrogate pair, which is no character"
    ]


def test_what_variables_come_to_is_bounded() -> None:
    text = "a: [" + ", ".join(["'" + "${KEY}" * 400 + "'"] * 100) + "]"
    document = LocatedYaml("f.yaml", {"KEY": "x" * 100_000})
    document.read(text)
    assert "variables come to over 1,048,576 characters by here" in document.problems[0]


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
        ("a: 1\nb: \x07", "f.yaml:2: not valid YAML: it has a control character, such as NUL"),
        ('a: "\\U00110000"', "f.yaml:1: not valid YAML: it has a number that is too large"),
        ("%YAML 1." + "1" * 5000 + "\n---\na: 1", "f.yaml:1: not valid YAML"),
        ('a: "\\ud800"', "f.yaml:1: a: holds half of a surrogate pair, which is no character"),
        ("a: " + "9" * 101, "f.yaml:1: a: is too long: quote it if it is text"),
        ("a: 0x" + "f" * 20_000, "f.yaml:1: a: is too long"),
        ("a: 1" + ":1" * 100_000, "f.yaml:1: a: is too long"),
        ("a: &x {<<: *x}", "f.yaml:1: a.<<: cannot be merged"),
        ("&x {*x : 1}", "f.yaml:1: file: a key must be a word"),
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


def test_sections_that_refer_to_what_they_stand_in_are_not_multiplied() -> None:
    """Each of them, merged into all others, would make as many problems as there are orders of them."""
    text = "x: &a {" + ", ".join(f"k{n}: &b{n} {{<<: *a}}" for n in range(30)) + "}"
    assert len(read(text)[1]) == 30


def test_after_many_problems_no_more_are_told() -> None:
    looked_for = 0

    def problems() -> Iterator[tuple[tuple[str, ...], str]]:
        nonlocal looked_for
        for number in range(10_000):
            looked_for = number
            yield ("a",), "x"

    document = LocatedYaml("f.yaml", {})
    document.report(problems())
    document.report(problems())
    assert len(document.problems) == MAX_PROBLEMS + 1
    assert document.problems[-1] == "f.yaml:1: file: there are more problems than these"
    assert looked_for <= MAX_PROBLEMS


def test_a_key_may_be_hidden_and_an_odd_one_always_is() -> None:
    document = LocatedYaml("f.yaml", {})
    document.read("a: {b c: 1, d: }")
    document.hide_key(("a", "d"))
    document.report([(("a", "b c"), "x"), (("a", "d"), "y")])
    assert document.problems == [f"f.yaml:1: a.(a key that is not shown): {word}" for word in "xy"]
    assert document.lacks_value(("a", "d"))
    assert not document.lacks_value(("a", "b c"))


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
