from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway import cli
from gateway.tools.ocr import ocr_client
from tests.support import until
from tests.tools.ocr.stub import Stub, document, hang, refuse, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def stub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stub]:
    monkeypatch.setattr(ocr_client, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.delenv("OCR_GATEWAY_KEY", raising=False)
    async with serving() as running:
        yield running


async def ocr(stub: Stub, *arguments: Any) -> int:
    """Run the command beside the stub; return its exit status."""
    return await asyncio.to_thread(cli.main, ["ocr", f"--url={stub.url}", *map(str, arguments)])


def written(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()
    }


async def test_one_document_is_printed(stub: Stub, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = document(tmp_path, "a.pdf", "pages=2")
    assert await ocr(stub, path) == 0
    told = capfd.readouterr()
    assert told.out == "# Page 0\n\n**bold** text\n\n# Page 1\n\n**bold** text\n"
    assert told.err.startswith("a.pdf: 2 pages\n1 document read; 2 pages in ")
    assert await ocr(stub, path, "--format", "text", "--pages", "1", "--route", "table") == 0
    assert capfd.readouterr().out == "Page 1\n\nbold text\n"
    assert stub.asked[-1]["headers"]["x-ocr-route"] == "table"
    assert await ocr(stub, path, "--format", "json") == 0
    whole = json.loads(capfd.readouterr().out)
    assert [page["index"] for page in whole["pages"]] == [0, 1]
    assert whole.keys() == {"pages", "model", "document_annotation", "usage_info"}


async def test_a_folder_is_read_into_another_of_its_structure(stub: Stub, tmp_path: Path) -> None:
    for name in ("a.pdf", "deep/b.pdf", "deep/er/c.png"):
        document(tmp_path / "in", name, "pages=2")
    out = tmp_path / "out"
    assert await ocr(stub, tmp_path / "in", "--recursive", "--out", out, "--concurrency", 2) == 0
    assert written(out).keys() == {"a.pdf.md", "deep/b.pdf.md", "deep/er/c.png.md"}
    assert stub.most <= 2


async def test_what_is_done_is_skipped_and_what_failed_is_done_anew(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document(tmp_path / "in", "a.pdf")
    document(tmp_path / "in", "b.pdf", "pages=3 broken=1")
    out, command = tmp_path / "out", (tmp_path / "in", "--out", tmp_path / "out", "--format", "text")
    assert await ocr(stub, *command) == 1
    assert written(out).keys() == {"a.pdf.txt", "b.pdf.partial.txt"}
    assert "page 1 could not be read" in written(out)["b.pdf.partial.txt"]
    told = capsys.readouterr().err
    assert "1 document read, 1 failed, all or in part; 3 pages" in told
    assert "failed: b.pdf, page 1: the page cannot be rendered (bad_page)" in told
    document(tmp_path / "in", "b.pdf", "pages=3")
    stub.asked.clear()
    assert await ocr(stub, *command) == 0
    assert len(stub.asked) == 1
    assert written(out).keys() == {"a.pdf.txt", "b.pdf.txt"}
    assert "1 skipped" in capsys.readouterr().err


async def test_where_all_is_done_no_server_is_needed(stub: Stub, tmp_path: Path) -> None:
    path = document(tmp_path, "a.pdf")
    assert await ocr(stub, path, "--out", tmp_path / "out") == 0
    stub.url = "http://127.0.0.1:9"
    assert await ocr(stub, path, "--out", tmp_path / "out") == 0


async def test_what_is_refused_is_named_and_the_rest_goes_on(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.pdf", "b.pdf", "c.pdf"):
        document(tmp_path, name)
    stub.script.append(refuse(400, "the document is encrypted", "encrypted"))
    assert await ocr(stub, tmp_path, "--out", tmp_path / "out", "--concurrency", 1) == 1
    assert written(tmp_path / "out").keys() == {"b.pdf.md", "c.pdf.md"}
    assert "failed: a.pdf: HTTP 400: the document is encrypted (encrypted)" in capsys.readouterr().err


async def test_what_stops_everything_says_how_to_go_on(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.pdf", "b.pdf", "c.pdf"):
        document(tmp_path, name)
    stub.script += [refuse(400), refuse(401, "the API key is wrong")]
    assert await ocr(stub, tmp_path, "--out", tmp_path / "out", "--concurrency", 1) == 1
    told = capsys.readouterr().err
    assert "stopped: HTTP 401: the API key is wrong" in told
    assert "2 not read; the same command goes on from there" in told
    assert len(stub.asked) == 2


async def test_nobody_there_is_all_that_is_told(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.url = "http://127.0.0.1:9"
    assert await ocr(stub, document(tmp_path, "a.pdf")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "ocr-gateway serve" in line


async def test_a_full_disk_stops_everything(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "out/a.pdf.md")

    monkeypatch.setattr(Path, "replace", full)
    assert await ocr(stub, document(tmp_path, "a.pdf"), "--out", tmp_path / "out") == 1
    assert "out/a.pdf.md: No space left on device" in capsys.readouterr().err
    assert written(tmp_path / "out") == {}


async def test_values_are_read_by_a_schema(
    stub: Stub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, schema = document(tmp_path, "a.pdf"), tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    assert await ocr(stub, path, "--schema", schema) == 0
    assert json.loads(json.loads(capfd.readouterr().out)["document_annotation"]) == {"total": 3}


async def test_a_key_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = document(tmp_path, "a.pdf")
    monkeypatch.setenv("TEAM_KEY", "secret\n")
    async with serving("secret") as stub:
        assert await ocr(stub, path, "--key", "TEAM_KEY") == 0
        monkeypatch.setenv("OCR_GATEWAY_KEY", "secret")
        assert await ocr(stub, path) == 0
        monkeypatch.setenv("OCR_GATEWAY_KEY", "wrong")
        assert await ocr(stub, path) == 1
        for name, value, words in (("NO_KEY", "", "is not set"), ("ODD_KEY", "ä", "printable ASCII")):
            monkeypatch.setenv(name, value)
            assert await ocr(stub, path, "--key", name) == 1
            assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"), [("[1]", "is an object"), ("{", "not JSON"), (None, "No such file")]
)
async def test_what_is_no_schema_is_refused(
    stub: Stub, tmp_path: Path, content: str | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, schema = document(tmp_path, "a.pdf"), tmp_path / "schema.json"
    if content is not None:
        schema.write_text(content)
    assert await ocr(stub, path, "--schema", schema) == 1
    assert f"{schema}: " in capsys.readouterr().err
    assert stub.asked == []


async def test_options_that_do_not_go_together_are_refused(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = document(tmp_path, "a.pdf"), document(tmp_path, "b.pdf")
    assert await ocr(stub, one, two) == 1
    assert "--out: 2 documents need a folder" in capsys.readouterr().err
    assert await ocr(stub, one, "--schema", two, "--format", "text") == 1
    assert "--schema: the values are in the server's answer" in capsys.readouterr().err
    assert await ocr(stub, tmp_path / "none.pdf", tmp_path / "neither.pdf") == 1
    assert capsys.readouterr().err.count("no such file or folder") == 2


async def process(stub: Stub, *arguments: Any) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli", "ocr", f"--url={stub.url}", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TERM": "dumb"},
    )


async def test_ctrl_c_leaves_whole_results_only_and_says_how_to_go_on(stub: Stub, tmp_path: Path) -> None:
    documents = [document(tmp_path / "in", name, name) for name in ("a.pdf", "b.pdf", "c.pdf")]
    out = tmp_path / "out"
    stub.script.append(hang)
    running = await process(stub, tmp_path / "in", "--out", out, "--concurrency", 2)
    await until(lambda: len(list(out.glob("*.md"))) == 2 and stub.open == 1, within_s=60)
    running.send_signal(signal.SIGINT)
    _, told = await running.communicate()
    assert running.returncode == 130
    assert f"interrupted: 2 of 3 results are whole in {out}; the same command goes on" in told.decode()
    # Two are sent at once: either may be the first to arrive, which gets no answer.
    answered = {f"{path.name}.md" for path in documents if path.read_bytes() != stub.asked[0]["file"]}
    assert set(written(out)) == answered
    assert len(answered) == 2
    await until(lambda: stub.open == 0)


async def test_ctrl_c_before_anything_is_printed(stub: Stub, tmp_path: Path) -> None:
    stub.script.append(hang)
    running = await process(stub, document(tmp_path, "a.pdf"))
    await until(lambda: stub.open == 1, within_s=60)
    running.send_signal(signal.SIGINT)
    out, told = await running.communicate()
    assert (running.returncode, out) == (130, b"")
    assert told.decode().endswith("interrupted: nothing was written\n")


async def test_a_reader_that_leaves_is_no_error(stub: Stub, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli", "ocr", f"--url={stub.url}", document(tmp_path, "a.pdf")),
        stdout=write_end,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(write_end)
    _, told = await running.communicate()
    assert running.returncode == 0
    assert "Traceback" not in told.decode()
