import pytest
import yaml

from gateway.config.bounded_yaml import MAX_DEPTH, MAX_VALUES, CircularAlias, compose


def refused(text: str) -> str:
    with pytest.raises(yaml.MarkedYAMLError) as error:
        compose(text)
    assert error.value.problem_mark is not None
    return str(error.value.problem)


def nested(levels: int, each: int, form: str = "[%s]", first: str = "[a]") -> str:
    """Aliases of aliases: `each` to the power of `levels` values."""
    lines = [f"x0: &x0 {first}"]
    lines += [f"x{n}: &x{n} {form % ','.join([f'*x{n - 1}'] * each)}" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        nested(9, 10),
        nested(40, 2),
        nested(9, 10, "{<<: [%s]}", "{a: 1}"),
        f"a: &a {'x' * 400_000}\nb: [{', '.join(['*a'] * 20)}]",
        "[" + "a," * MAX_VALUES + "]",
        "\n".join(f"k{n}: v" for n in range(MAX_VALUES)),
    ],
    ids=["aliases", "doubling", "merged", "long", "list", "section"],
)
def test_what_would_be_too_much_written_out_is_refused(text: str) -> None:
    assert f"over {MAX_VALUES:,} values" in refused(text)


@pytest.mark.parametrize("piece", ["[", "- ", "{a: ", "? "])
def test_what_nests_too_deep_is_refused_before_it_is_read(piece: str) -> None:
    assert f"deeper than {MAX_DEPTH} levels" in refused(piece * 100_000)


def test_as_deep_as_is_allowed_is_read() -> None:
    assert compose("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None


def test_anchors_used_with_reason_are_read() -> None:
    pools = "\n".join(f"  p{n}: {{<<: *base, engines: [*one]}}" for n in range(30))
    node = compose(f"one: &one http://e\nbase: &base {{max_load: 64, limits: [1, 2]}}\npools:\n{pools}")
    assert isinstance(node, yaml.MappingNode)


def test_an_alias_of_what_it_stands_in_is_marked_and_not_followed() -> None:
    node = compose("a: &x [1, *x]")
    assert isinstance(node, yaml.MappingNode)
    assert isinstance(node.value[0][1].value[1], CircularAlias)


def test_no_text_is_no_node() -> None:
    assert compose("# nothing") is None
