import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.output import aligned, counted, duration, listed, printable


def test_what_nobody_reads_is_no_error() -> None:
    code = """
import sys
from gateway.tools.output import nobody_reads
sys.stdin.readline()
try:
    print("lost", flush=True)
except BrokenPipeError:
    nobody_reads(sys.stdout)
print("lost, too", flush=True)
print("told", file=sys.stderr)
"""
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stderr.read() == "told\n"
        assert process.wait(60) == 0


def test_names_are_printed_in_one_harmless_line() -> None:
    assert printable("a\x1b[2Jb\nc  d\udcff.pdf") == "a?[2Jb c d?.pdf"
    assert printable("long " * 100, 20) == "long long long long ..."


@given(st.text(alphabet=st.characters()))
def test_whatever_is_printed_is_one_line(text: str) -> None:
    line = printable(text)
    assert line.isprintable()
    assert len(line) <= 303
    line.encode()


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (5940, "99 min"), (11100, "3 h 05 min")]
)
def test_durations_are_rounded_to_what_matters(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_numbers_and_lists_read_like_words() -> None:
    assert [counted(number, "page") for number in (0, 1, 2000)] == ["0 pages", "1 page", "2,000 pages"]
    assert [listed(list("abc")[:number]) for number in range(4)] == ["", "a", "a and b", "a, b and c"]


def test_the_columns_of_a_table_stand_below_each_other() -> None:
    rows = [("load", "plain"), ("1", "70"), ("128", "")]
    assert list(aligned(rows)) == ["load  plain", "1     70", "128"]
    assert list(aligned(rows, right=True)) == ["load  plain", "   1     70", " 128"]
