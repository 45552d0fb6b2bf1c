import os
from pathlib import Path

import pytest

from gateway.errors import ConfigError
from gateway.tools.ocr.input_files import InputDocument, find, targets
from tests.support import in_every_format, picture
from tests.tools.ocr.stub import document


def names(paths: list[Path], *, recursive: bool = False) -> list[str]:
    return [str(found.name) for found in find(paths, recursive=recursive)]


def problems(paths: list[Path], *, recursive: bool = False) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        find(paths, recursive=recursive)
    return refused.value.problems


def test_a_folders_documents_are_found_in_order(tmp_path: Path) -> None:
    for name in ("b.PDF", "a.jpg", "notes.txt", ".hidden.pdf", "deep/c.tiff", ".git/d.pdf", "deep/er/e.png"):
        document(tmp_path, name)
    assert names([tmp_path]) == ["a.jpg", "b.PDF"]
    assert names([tmp_path], recursive=True) == ["a.jpg", "b.PDF", "deep/c.tiff", "deep/er/e.png"]
    assert names([tmp_path / "deep", tmp_path / "a.jpg"]) == ["c.tiff", "a.jpg"]


def test_each_document_is_read_once(tmp_path: Path) -> None:
    path = document(tmp_path, "a.pdf")
    assert names([path, tmp_path, tmp_path / "." / "a.pdf"]) == ["a.pdf"]


def test_a_file_counts_by_what_it_is_not_by_its_name(tmp_path: Path) -> None:
    for number, data in enumerate([*in_every_format(picture("hello")), b"\n%PDF-1.4 rest"]):
        path = tmp_path / f"scan{number}"
        path.write_bytes(data)
        assert names([path]) == [path.name]


def test_everything_that_is_wrong_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.pdf").write_text("no PDF")
    (tmp_path / "empty.pdf").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    wrong = [tmp_path / name for name in ("none.pdf", "notes.pdf", "empty.pdf", "folder", "pipe")]
    told = problems(wrong)
    assert [problem.partition(": ")[0] for problem in told] == list(map(str, wrong))
    for problem, words in zip(
        told,
        ("no such file", "neither a PDF nor an image", "is empty", "--recursive looks", "neither a file"),
        strict=True,
    ):
        assert words in problem
    assert "--recursive" not in problems([tmp_path / "folder"], recursive=True)[0]


def test_what_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = document(tmp_path, "a.pdf")

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", forbidden)
    assert problems([path]) == [f"{path}: cannot be read: Permission denied"]


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: Path, onerror: object) -> list[None]:
        assert callable(onerror)
        onerror(PermissionError(13, "Permission denied", str(path)))
        return []

    monkeypatch.setattr("os.walk", forbidden)
    assert problems([tmp_path])[0] == f"{tmp_path}: cannot be read: Permission denied"


def test_results_lie_in_the_folders_structure(tmp_path: Path) -> None:
    for name in ("a.pdf", "a.png", "deep/a.pdf"):
        document(tmp_path, name)
    found = targets(find([tmp_path], recursive=True), tmp_path / "out", ".md")
    assert [str(target.whole.relative_to(tmp_path / "out")) for target in found] == [
        "a.pdf.md",
        "a.png.md",
        "deep/a.pdf.md",
    ]
    assert found[0].partial.name == "a.pdf.partial.md"


def test_two_results_at_the_same_place_are_refused(tmp_path: Path) -> None:
    one, two = document(tmp_path, "one/a.pdf"), document(tmp_path, "two/a.pdf")
    with pytest.raises(ConfigError, match=r"one/a\.pdf and .*two/a\.pdf would both be written there"):
        targets(find([one, two], recursive=False), tmp_path / "out", ".md")


class TestTarget:
    """What lies where a result belongs."""

    def setup_method(self) -> None:
        self.old, self.new = 1_000_000_000, 1_000_000_100

    def made(self, folder: Path) -> tuple[InputDocument, Path]:
        path = document(folder, "a.pdf")
        os.utime(path, (self.old, self.old))
        return find([path], recursive=False)[0], folder / "out"

    def test_a_whole_result_is_done_until_the_document_changes(self, tmp_path: Path) -> None:
        source, out = self.made(tmp_path)
        (target,) = targets([source], out, ".md")
        assert not target.is_done(source)
        assert target.write(b"text", whole=True) == out / "a.pdf.md"
        assert target.is_done(source)
        os.utime(target.whole, (self.old - 1, self.old - 1))
        assert not target.is_done(source)

    def test_one_in_part_is_not_and_gives_way(self, tmp_path: Path) -> None:
        source, out = self.made(tmp_path)
        (target,) = targets([source], out, ".md")
        assert target.write(b"text", whole=False) == out / "a.pdf.partial.md"
        assert not target.is_done(source)
        target.write(b"all of it", whole=True)
        assert [path.name for path in out.iterdir()] == ["a.pdf.md"]
        target.write(b"text", whole=False)
        assert [path.name for path in out.iterdir()] == ["a.pdf.partial.md"]

    def test_a_result_that_cannot_be_written_leaves_the_earlier_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, out = self.made(tmp_path)
        (target,) = targets([source], out, ".md")
        target.write(b"before", whole=True)

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space"):
            target.write(b"after", whole=True)
        assert target.whole.read_bytes() == b"before"
        assert len(list(out.iterdir())) == 1
