"""Which documents are read, and where their results lie."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from gateway.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SUFFIXES = frozenset({".pdf", ".png", ".jpg", ".jpeg", ".webp", ".gif", ".tif", ".tiff", ".bmp"})
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"II*\0", b"MM\0*", b"BM")
# Readers of PDF accept that much before it.
_HEAD_BYTES = 1024


@dataclass(frozen=True, slots=True)
class InputDocument:
    """A document to read.

    Attributes:
        path: where it is.
        name: what it is called: its path in the folder that was given, or its file's name.
    """

    path: Path
    name: PurePosixPath


@dataclass(frozen=True, slots=True)
class Target:
    """Where a document's result lies.

    Attributes:
        whole: the result of all of its pages.
        partial: instead of it, that of those pages that could be read.
    """

    whole: Path
    partial: Path

    def is_done(self, document: InputDocument) -> bool:
        """Return whether the whole result is there, of the document as it is now."""
        try:
            return self.whole.stat().st_mtime >= document.path.stat().st_mtime
        except OSError:
            return False

    def write(self, data: bytes, *, whole: bool) -> Path:
        """Write a result atomically, in place of an earlier one.

        Raises:
            OSError: it cannot be written.
        """
        path, other = (self.whole, self.partial) if whole else (self.partial, self.whole)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            unfinished.write_bytes(data)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        other.unlink(missing_ok=True)
        return path


def find(paths: Iterable[Path], *, recursive: bool) -> list[InputDocument]:
    """Return the documents of files and folders, each folder's in order of their names.

    Args:
        paths: files, whatever their names, and folders, of which files count that are named like documents.
        recursive: the folders in them, too; hidden ones never.

    Raises:
        ConfigError: with everything that is wrong with them.
    """
    found: dict[Path, InputDocument] = {}
    problems: list[str] = []
    for path in paths:
        if path.is_dir():
            documents = list(_in_folder(path, recursive, problems))
            if not documents:
                problems.append(f"{path}: {_lacks(recursive)}")
        elif problem := _wrong(path):
            problems.append(f"{path}: {problem}")
            continue
        else:
            documents = [InputDocument(path, PurePosixPath(path.name))]
        for document in documents:
            found.setdefault(document.path.resolve(), document)
    if problems:
        raise ConfigError(problems)
    return list(found.values())


def targets(documents: Sequence[InputDocument], out: Path, suffix: str) -> list[Target]:
    """Return where each document's result lies under a folder.

    Raises:
        ConfigError: two results would lie at the same place.
    """
    found: dict[Path, InputDocument] = {}
    problems = []
    for document in documents:
        whole = out / document.name.with_name(document.name.name + suffix)
        if (other := found.setdefault(whole, document)) is not document:
            problems.append(f"{whole}: {other.path} and {document.path} would both be written there")
    if problems:
        raise ConfigError(problems)
    return [Target(whole, whole.with_suffix(f".partial{suffix}")) for whole in found]


def _in_folder(folder: Path, recursive: bool, problems: list[str]) -> Iterator[InputDocument]:
    def told(error: OSError) -> None:
        problems.append(f"{error.filename}: cannot be read: {error.strerror}")

    for parent, folders, names in os.walk(folder, onerror=told):
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if recursive else []
        for name in sorted(names):
            path = Path(parent, name)
            if path.suffix.lower() in SUFFIXES and not name.startswith(".") and path.is_file():
                yield InputDocument(path, PurePosixPath(path.relative_to(folder).as_posix()))


def _lacks(recursive: bool) -> str:
    there = "" if recursive else " directly in it; --recursive looks into its folders"
    return f"no PDF or image is{there or ' in it'}"


def _wrong(path: Path) -> str:
    """Why a file cannot be read; empty where it can."""
    if not path.exists():
        return "no such file or folder"
    if not path.is_file():
        return "neither a file nor a folder"
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not head:
        return "is empty (0 bytes)"
    is_webp = head[:4] == b"RIFF" and head[8:12] == b"WEBP"
    if b"%PDF-" in head or is_webp or head.startswith(_MAGIC):
        return ""
    return "neither a PDF nor an image that can be read (JPEG, PNG, WebP, GIF, TIFF, BMP)"
