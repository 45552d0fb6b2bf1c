import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.config import small_files
from gateway.config.small_files import digest, digest_of, read_file


def test_a_file_is_read_also_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_file(tmp_path / "link") == b"content"


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match="it is not a regular file"):
            read_file(path)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none")


def test_a_pipe_is_waited_for_where_it_may_be_one(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with ThreadPoolExecutor(1) as writer:
        content = b"x" * 200_000  # more than it holds at once
        written = writer.submit(lambda: (os.write(writing, content), os.close(writing)))
        assert read_file(Path(f"/dev/fd/{reading}"), or_pipe=True) == content
        written.result()
    os.close(reading)
    with pytest.raises(OSError, match="it is not a regular file"):
        read_file(Path("/dev/zero"), or_pipe=True)


def test_a_file_is_read_up_to_the_limit_and_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_files, "MAX_BYTES", 8)
    (tmp_path / "file").write_bytes(b"x" * 8)
    assert len(read_file(tmp_path / "file")) == 8
    (tmp_path / "file").write_bytes(b"x" * 9)
    with pytest.raises(OSError, match="it is larger than 8 bytes"):
        read_file(tmp_path / "file")


def test_a_digest_tells_contents_apart_and_is_empty_where_there_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert digest_of(path) == b""
    path.write_bytes(b"")
    empty = digest_of(path)
    path.write_bytes(b"x")
    assert len({b"", empty, digest_of(path)}) == 3
    assert digest_of(path) == digest(b"x")
