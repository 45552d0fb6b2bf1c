import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.output import printable


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
