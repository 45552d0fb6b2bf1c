from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.api_keys import MIN_KEY_LENGTH, Keys, parse_keys
from gateway.errors import ConfigError

GOOD = "a-key-of-29-characters-in-all"
HASHED = f"sha256:{hashlib.sha256(b'another-key-as-good').hexdigest()}"

NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._@-]{0,29}[A-Za-z0-9])?", fullmatch=True)
KEYS = st.text(
    st.characters(min_codepoint=33, max_codepoint=126), min_size=MIN_KEY_LENGTH, max_size=80
).filter(lambda key: not key.lower().startswith("sha256:"))


def problems(text: str | bytes) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        parse_keys(text if isinstance(text, bytes) else text.encode(), "keys")
    return refused.value.problems


def test_plain_and_hashed_keys_with_comments_and_several_of_one_name() -> None:
    text = f"# who\n\n  team-a {GOOD}\nteam-b\t{HASHED}\r\nteam-a {GOOD}-new\n"
    keys = parse_keys(b"\xef\xbb\xbf" + text.encode(), "keys")
    assert keys.owner(GOOD.encode()) == keys.owner(f"{GOOD}-new".encode()) == "team-a"
    assert keys.owner(b"another-key-as-good") == "team-b"
    assert (len(keys), keys.names) == (3, {"team-a", "team-b"})


@pytest.mark.parametrize("key", [b"", b"team-a", GOOD.upper().encode(), f"{GOOD} ".encode(), HASHED.encode()])
def test_no_other_key_is_anybodys(key: bytes) -> None:
    assert parse_keys(f"team-a {GOOD}\nteam-b {HASHED}".encode(), "keys").owner(key) is None
    assert Keys().owner(key) is None


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (GOOD, "a line is `NAME KEY` or `NAME sha256:HEX`"),
        (f"team a {GOOD}", "a line is `NAME KEY` or `NAME sha256:HEX`"),
        (f"-team {GOOD}", "a name is letters"),
        (f"team=a {GOOD}", "a name is letters"),
        (f"équipe {GOOD}", "a name is letters"),
        (f"{GOOD}-abc team-a-and-its-friends", "a name is letters"),
        ("team-a fifteen-letters", "a key needs at least 16 characters"),
        (f"team-a {GOOD}é", "a key is printable ASCII characters"),
        ("team-a sha256:abc", "a hashed key is sha256: and 64 hex digits"),
        (f"team-a {HASHED}0", "a hashed key is sha256: and 64 hex digits"),
        (f"team-a {HASHED.replace('sha256', 'SHA256')}", "a hashed key is sha256: and 64 hex digits"),
        (f"team-a sha256:{hashlib.sha256(b'').hexdigest()}", "the hash is that of an empty key"),
        ("team-b the-key-of-line-one", "the key of line 1 stands here again"),
        (f"team-b sha256:{hashlib.sha256(b'the-key-of-line-one').hexdigest()}", "the key of line 1 stands"),
    ],
)
def test_a_wrong_line_is_told_by_its_number_and_never_shown(line: str, problem: str) -> None:
    (found,) = problems(f"team-a the-key-of-line-one\n# a comment\n{line}\n")
    assert found.startswith(f"keys:3: {problem}")
    assert not any(word in found for word in line.split() if len(word) > 3)


def test_every_wrong_line_is_told() -> None:
    assert [line[:7] for line in problems("a b\nc d\n")] == ["keys:1:", "keys:2:"]


@pytest.mark.parametrize("text", ["", "\n\n", "# team-a the-key-of-nobody\n"])
def test_a_file_without_a_key_would_let_nobody_in(text: str) -> None:
    assert problems(text) == ["keys:1: holds no key, so that nobody could be let in"]


def test_after_many_wrong_lines_no_more_are_looked_for() -> None:
    assert len(problems("wrong\n" * 100_000)) == 101


def test_what_is_no_text_is_told_by_its_line() -> None:
    assert problems(b"# a\nteam-a \xff" + GOOD.encode()) == ["keys:2: is not UTF-8 text"]


def test_keys_show_how_many_they_are_and_no_more() -> None:
    keys = parse_keys(f"team-a {GOOD}\nteam-a {HASHED}".encode(), "keys")
    assert repr(keys) == "Keys(2 of 1 names)"


@settings(max_examples=30)
@given(st.dictionaries(KEYS, NAMES, min_size=1, max_size=8), st.data())
def test_every_key_of_a_file_is_its_owners_plain_or_hashed(
    owners: dict[str, str], data: st.DataObject
) -> None:
    lines = []
    for key, name in owners.items():
        hashed = f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"
        lines.append(f"{name} {data.draw(st.sampled_from([key, hashed]))}")
    keys = parse_keys("\n".join(data.draw(st.permutations(lines))).encode(), "keys")
    assert {key: keys.owner(key.encode()) for key in owners} == owners
    stranger = data.draw(KEYS.filter(lambda key: key not in owners))
    assert keys.owner(stranger.encode()) is None


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_content_gives_keys_or_problems_with_lines(content: bytes) -> None:
    try:
        found = len(parse_keys(content, "keys"))
    except ConfigError as error:
        found = sum(re.match(r"keys:\d+: ", problem) is not None for problem in error.problems)
    assert found >= 1
