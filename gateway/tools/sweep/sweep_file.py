"""sweep.jsonl: the setting, then a line a window, each on the disk before the next is measured."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

import msgspec

from gateway.errors import ConfigError
from gateway.tools.sweep.sweep_values import Results, Setting, Window

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO, Self

NAME = "sweep.jsonl"
_BEGINNING = b'{"setting":{'
_HINT = "use another --out, or the options of then"


class _Line(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    setting: Setting | None = None
    window: Window | None = None


_LINE = msgspec.json.Decoder(_Line)


class SweepFile:
    """The file in a folder, held by one sweep at a time; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            with contextlib.suppress(OSError):  # what could not be written was told
                self._file.close()

    def open(self, setting: Setting) -> Results:
        """Begin a sweep, or go on with the one that is there.

        Args:
            setting: what is to be measured. What was measured before must have been made with it, where both
                have it; pools, routes and loads may have come.

        Returns:
            What there is by now; its setting covers both.

        Raises:
            ConfigError: another sweep holds the file, it is no sweep's, or was made with another setting.
            OSError: it cannot be read or written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self._file = self.path.open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError([f"{self.path}: another sweep is writing to it"]) from error
        results = self.preview(setting)
        before = _read(self.path)
        # Only now that it is known to be a sweep's.
        file.truncate(self.path.read_bytes().rfind(b"\n") + 1)
        if before is None or results.setting != before.setting:
            self._append(_Line(setting=results.setting))
        return results

    def preview(self, setting: Setting) -> Results:
        """Return what `open` would, and leave the disk as it is.

        Raises:
            ConfigError: as `open` does.
        """
        before = _read(self.path) if self.path.exists() else None
        if before is None:
            return Results(setting, ())
        return Results(merge(before.setting, setting, self.path), before.windows)

    def add(self, window: Window) -> None:
        """Write a window to the disk; `open` comes before.

        Raises:
            ConfigError: the disk does not take it.
        """
        self._append(_Line(window=window))

    def _append(self, line: _Line) -> None:
        assert self._file  # noqa: S101 - tells mypy what `add` asks for
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ConfigError([f"{self.path}: {error.strerror}"]) from error


def read(folder: Path) -> Results:
    """Read the sweep in a folder; an incomplete last line is skipped.

    Raises:
        ConfigError: there is no sweep, or what is there is none.
    """
    path = folder / NAME
    try:
        results = _read(path)
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror or error}"]) from error
    if results is None:
        raise ConfigError([f"{path}: there is nothing in it"])
    return results


def merge(before: Setting, now: Setting, path: Path) -> Setting:
    """Return the setting of a resumed sweep: the pools, routes and loads of both runs.

    Raises:
        ConfigError: what was measured so far cannot stand beside what would come.
    """
    differences = list(_differences(before, now))
    if differences:
        raise ConfigError([f"{path}: {difference}; {_HINT}" for difference in differences])
    engines = {
        name: msgspec.structs.replace(pool, engines=max(pool.engines, now.pools[name].engines))
        for name, pool in before.pools.items()
        if name in now.pools
    }
    return msgspec.structs.replace(
        before,
        gpu=before.gpu or now.gpu,
        pools={**before.pools, **now.pools, **engines},
        routes={**before.routes, **now.routes},
        loads=tuple(sorted({*before.loads, *now.loads})),
    )


def _differences(before: Setting, now: Setting) -> Iterator[str]:
    for name in ("model", "simulated", "window_s"):
        yield from _changed(name, getattr(before, name), getattr(now, name))
    if before.gpu and now.gpu:
        yield from _changed("gpu", before.gpu, now.gpu)
    for name in before.pools.keys() & now.pools.keys():
        for field in ("depth", "speculative_config", "max_load", "version"):
            old, new = getattr(before.pools[name], field), getattr(now.pools[name], field)
            yield from _changed(f"{field} of pool {name}", old, new)
    for name in before.routes.keys() & now.routes.keys():
        for field in ("prompt", "images", "images_digest", "rendered", "max_tokens", "streamed"):
            old, new = getattr(before.routes[name], field), getattr(now.routes[name], field)
            yield from _changed(f"{field} of route {name}", old, new)


def _changed(what: str, old: object, new: object) -> Iterator[str]:
    if old != new:
        yield f"measured with {what} {old!r}, now it is {new!r}"


def _read(path: Path) -> Results | None:
    """What a file holds, its last setting with all its windows; None where it is empty."""
    setting: Setting | None = None
    windows: list[Window] = []
    *lines, torn = path.read_bytes().split(b"\n")
    if not lines and not torn.startswith(_BEGINNING[: len(torn)]):
        raise ConfigError([f"{path}:1: not a line of a sweep"])
    for number, text in enumerate(lines, 1):
        try:
            line = _LINE.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError([f"{path}:{number}: not a line of a sweep: {error}"]) from error
        setting = line.setting or setting
        if line.window:
            windows.append(line.window)
    if windows and setting is None:
        raise ConfigError([f"{path}:1: the sweep's setting is missing"])
    return Results(setting, tuple(windows)) if setting else None
