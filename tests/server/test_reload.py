from __future__ import annotations

import asyncio
import json
import os
import socket
from typing import TYPE_CHECKING

import pytest

from gateway.config import Config, load
from gateway.errors import ConfigError
from gateway.server import reload
from gateway.server.background import background
from gateway.server.reload import Reloader
from tests.hosts import certified
from tests.support import until

if TYPE_CHECKING:
    from pathlib import Path

TEXT = "model: m\npools: {p: {engines: [http://e]}}\nroutes: {text: {profile: text.json}}\n"


class Watched:
    """A configuration mounted as Kubernetes does it, and what a reloader makes of its changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "routes.yaml"
        self.versions = 0
        self.swap(TEXT)
        for name in ("routes.yaml", "text.json"):
            (folder / name).symlink_to(folder / "..data" / name)
        self.applied: list[Config] = []
        self.told: list[bool] = []
        self.reloader = Reloader(self.path, load(self.path), self.apply, self.told.append)

    async def apply(self, config: Config) -> None:
        self.applied.append(config)

    def swap(self, text: str, rate: float = 100) -> None:
        """Write the next version to a folder of its own and point the link at it."""
        self.versions += 1
        version = self.folder / f"..{self.versions}"
        version.mkdir()
        (version / "routes.yaml").write_text(text)
        (version / "text.json").write_text(
            json.dumps({"route": "text", "pools": {"p": [[1, rate]]}, "meta": {}})
        )
        link = self.folder / "..next"
        link.symlink_to(version)
        link.replace(self.folder / "..data")


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(reload, "_LOOK_S", 0.01)
    return Watched(tmp_path)


async def test_a_swapped_file_is_taken_over(watched: Watched) -> None:
    async with background(watched.reloader.run()):
        watched.swap(TEXT.replace("model: m", "model: n"))
        await until(lambda: watched.told == [True])
    assert watched.applied[0].model == "n"


async def test_a_changed_profile_is_a_changed_configuration(watched: Watched) -> None:
    async with background(watched.reloader.run()):
        watched.swap(TEXT, rate=120)
        await until(lambda: watched.told == [True])
    assert watched.applied[0].profiles["text"].pools["p"] == ((1, 120),)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("model: [", "not valid YAML"),
        (TEXT.replace("routes:", "rotues:"), "unknown key"),
        (TEXT + "auth: {keys_file: keys}", "auth.keys_file: "),
    ],
)
async def test_an_invalid_one_changes_nothing_and_says_so(
    watched: Watched, caplog: pytest.LogCaptureFixture, text: str, told: str
) -> None:
    async with background(watched.reloader.run()):
        watched.swap(text)
        await until(lambda: watched.told == [False])
        assert told in caplog.text
        watched.swap(TEXT.replace("model: m", "model: n"))
        await until(lambda: watched.told == [False, True])
    assert [config.model for config in watched.applied] == ["n"]


# Each would take minutes, or all memory, if it were read without a bound.
BOMBS = {
    "aliases": TEXT
    + "x0: &x0 [a,a,a,a,a,a,a,a,a,a]\n"
    + "".join(f"x{n}: &x{n} [{','.join([f'*x{n - 1}'] * 10)}]\n" for n in range(1, 9)),
    "circles": TEXT + "x: &a {" + ", ".join(f"k{n}: &b{n} {{<<: *a}}" for n in range(40)) + "}",
    "depth": TEXT + "[" * 500_000,
    "problems": TEXT + "".join(f"key_{n}: 1\n" for n in range(40_000)),
    "sexagesimal": TEXT + "limits: {body_bytes: 1" + ":1" * 300_000 + "}",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
async def test_a_bad_file_neither_delays_the_next_good_one_nor_the_event_loop(
    watched: Watched, bomb: str
) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    async with background(watched.reloader.run(), turn()):
        watched.swap(bomb)
        before = turns
        await until(lambda: watched.told == [False])
        assert turns > before
        watched.swap(TEXT.replace("model: m", "model: n"))
        await until(lambda: watched.told == [False, True])
    assert [config.model for config in watched.applied] == ["n"]


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "socket", "too long"])
async def test_what_is_no_file_is_not_waited_for_and_told_once(
    watched: Watched, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = watched.folder / "other"
    with socket.socket(socket.AF_UNIX) as listener:
        match kind:
            case "pipe":
                os.mkfifo(other)
            case "folder":
                other.mkdir()
            case "device":
                other.symlink_to("/dev/zero")
            case "socket":
                listener.bind(str(other))
            case "too long":
                other.write_bytes(b"#" * 2_000_000)
        async with background(watched.reloader.run()):
            watched.path.unlink()
            other.rename(watched.path)
            await until(lambda: watched.told == [False])
            for _ in range(50):
                await asyncio.sleep(0)
            assert watched.told == [False]
            (watched.folder / "next").symlink_to(watched.folder / "..data" / "routes.yaml")
            if kind == "folder":
                watched.path.rmdir()
            (watched.folder / "next").rename(watched.path)
            watched.swap(TEXT.replace("model: m", "model: n"))
            await until(lambda: True in watched.told)
    assert watched.applied[-1].model == "n"


async def test_what_cannot_be_applied_counts_as_invalid(watched: Watched) -> None:
    failures = [ConfigError(["no room"]), RuntimeError("a fault of ours")]

    async def refuse(_: Config) -> None:
        raise failures.pop(0)

    told: list[bool] = []
    reloader = Reloader(watched.path, load(watched.path), refuse, told.append)
    async with background(reloader.run()):
        reloader.ask()
        await until(lambda: told == [False])
        reloader.ask()
        await until(lambda: told == [False, False])


async def test_a_profile_that_is_added_is_one_change(watched: Watched) -> None:
    watched.swap(TEXT.replace("{profile: text.json}", "{}"))
    watched.reloader = Reloader(watched.path, load(watched.path), watched.apply, watched.told.append)
    async with background(watched.reloader.run()):
        watched.swap(TEXT)
        await until(lambda: watched.told == [True])
        watched.reloader.ask()
        await until(lambda: len(watched.told) == 2)
    assert len(watched.applied) == 2


async def test_the_same_file_is_loaded_again_only_when_asked(watched: Watched) -> None:
    async with background(watched.reloader.run()):
        watched.swap(TEXT)
        for _ in range(50):
            await asyncio.sleep(0)
        assert watched.told == []
        watched.reloader.ask()
        await until(lambda: watched.told == [True])


async def test_a_file_that_vanishes_changes_nothing(watched: Watched) -> None:
    async with background(watched.reloader.run()):
        watched.path.unlink()
        await until(lambda: watched.told == [False])
    assert watched.applied == []


KEYED = TEXT + "auth: {keys_file: keys/keys, limits: {'*': {concurrent: 1}}}\n"
KEY = "a-secret-that-no-line-shows"


class Keyed(Watched):
    """The same with keys from a Secret, which is mounted in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.mount = folder / "keys"
        self.mount.mkdir()
        (self.mount / "keys").symlink_to("..data/keys")
        self.give(f"team-a {KEY}\n")
        super().__init__(folder)
        self.swap(KEYED)
        self.reloader = Reloader(self.path, load(self.path), self.apply, self.told.append)

    def give(self, text: str) -> None:
        """Write the next version of the Secret and point the link at it."""
        version = self.mount / f"..{len(list(self.mount.iterdir()))}"
        version.mkdir()
        (version / "keys").write_text(text)
        (self.mount / "..next").symlink_to(version.name)
        (self.mount / "..next").replace(self.mount / "..data")


@pytest.fixture
def keyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keyed:
    monkeypatch.setattr(reload, "_LOOK_S", 0.01)
    return Keyed(tmp_path)


async def test_changed_keys_are_a_changed_configuration(keyed: Keyed) -> None:
    async with background(keyed.reloader.run()):
        keyed.give(f"team-a {KEY}\nteam-b {KEY}-too\n")
        await until(lambda: keyed.told == [True])
    assert keyed.applied[0].keys.owner(f"{KEY}-too".encode()) == "team-b"


async def test_what_a_variable_holds_is_not_logged(
    watched: Watched, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "SECRET", "planted-4711")
    caplog.set_level("DEBUG")
    wrong = (
        "sorting: {default: '${SECRET}'}\nauth: {keys_file: '${SECRET}'}\nretry: {budget: '${SECRET}'}",
        "sorting: {default: '${SECRET}'}\nauth: {keys_file: '${SECRET}'}\n",
    )
    async with background(watched.reloader.run()):
        for number, text in enumerate(wrong, start=1):
            watched.swap(TEXT + text)
            await until(lambda: len(watched.told) == number)  # noqa: B023 - awaited at once
    assert "sorting.default: no route has this name; allowed: text" in caplog.text
    assert "planted" not in caplog.text


async def test_changed_authorities_are_a_changed_configuration(watched: Watched) -> None:
    first, second = (
        certified(watched.folder, name, f"DNS:{name}").with_suffix(".crt").read_text() for name in "ab"
    )
    path = watched.folder / "ca.pem"
    path.write_text(first)
    watched.swap(TEXT.replace("http://e]", "https://e], ca_file: ca.pem"))
    reloader = Reloader(watched.path, load(watched.path), watched.apply, watched.told.append)
    async with background(reloader.run()):
        mended(path, second.encode())
        await until(lambda: watched.told == [True])
        assert watched.applied[0].authorities == {"p": second}
        mended(path, b"half a file")
        await until(lambda: watched.told == [True, False])
    assert len(watched.applied) == 1


@pytest.mark.parametrize(
    "text", [f"team-a {KEY}\n{KEY}-too\n", f"team-a {KEY}\nteam-b {KEY}", "", "team-a sha256:0"]
)
async def test_wrong_keys_change_nothing_and_are_not_shown(
    keyed: Keyed, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    async with background(keyed.reloader.run()):
        keyed.give(text)
        await until(lambda: keyed.told == [False])
        assert keyed.applied == []
        keyed.give(f"team-a {KEY}-new\n")
        await until(lambda: keyed.told == [False, True])
    assert keyed.applied[0].keys.owner(f"{KEY}-new".encode()) == "team-a"
    assert f"{keyed.mount}/keys:" in caplog.text
    assert KEY not in caplog.text


def mended(path: Path, content: bytes) -> None:
    """Write a file at once."""
    path.with_suffix(".next").write_bytes(content)
    path.with_suffix(".next").replace(path)


PROFILE = b'{"route": "text", "pools": {"p": [[1, 150]]}, "meta": {}}'
NEW = {
    "a profile": (TEXT.replace("text.json", "new.json"), "new.json", PROFILE),
    "keys": (TEXT + "auth: {keys_file: new}\n", "new", f"team-a {KEY}\n".encode()),
}


@pytest.mark.parametrize("before", [None, b"{", b""], ids=["missing", "broken", "empty"])
@pytest.mark.parametrize("kind", NEW)
async def test_a_file_that_the_configuration_names_may_come_or_be_mended_after_it(
    watched: Watched, kind: str, before: bytes | None
) -> None:
    text, name, content = NEW[kind]
    if before is not None:
        (watched.folder / name).write_bytes(before)
    async with background(watched.reloader.run()):
        watched.swap(text)
        await until(lambda: watched.told == [False])
        mended(watched.folder / name, content)
        await until(lambda: watched.told == [False, True])
        (watched.folder / name).unlink()
        await until(lambda: watched.told == [False, True, False])
        mended(watched.folder / name, content)
        await until(lambda: watched.told == [False, True, False, True])
    assert len(watched.applied) == 2
    if kind == "keys":
        assert watched.applied[1].keys.owner(KEY.encode()) == "team-a"
    else:
        assert watched.applied[1].profiles["text"].pools["p"] == ((1, 150),)


async def test_what_an_invalid_file_names_no_more_is_not_watched(watched: Watched) -> None:
    async with background(watched.reloader.run()):
        watched.swap("model: [")
        await until(lambda: watched.told == [False])
        (watched.folder / "text.json").unlink()
        for _ in range(50):
            await asyncio.sleep(0)
        assert watched.told == [False]


async def test_what_was_written_while_a_change_was_taken_over_is_taken_over_too(keyed: Keyed) -> None:
    applied: list[Config] = []

    async def apply(config: Config) -> None:
        if not applied:  # the rest of the file comes after the file was read
            keyed.give(f"team-a {KEY}\nteam-b {KEY}-too\nteam-c {KEY}-3\n")
        applied.append(config)

    reloader = Reloader(keyed.path, load(keyed.path), apply, keyed.told.append)
    async with background(reloader.run()):
        keyed.give(f"team-a {KEY}\nteam-b {KEY}-too\n")
        await until(lambda: keyed.told == [True, True])
    assert [len(config.keys) for config in applied] == [2, 3]


async def test_a_pipe_in_the_place_of_the_keys_is_not_waited_for(keyed: Keyed) -> None:
    async with background(keyed.reloader.run()):
        (keyed.mount / "keys").unlink()
        os.mkfifo(keyed.mount / "keys")
        await until(lambda: keyed.told == [False])
    assert keyed.applied == []


async def test_what_several_workers_cannot_share_is_not_taken_over(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    shared = TEXT + "server: {admin_port: 9090, replicas: 2}\n"
    watched.swap(shared)
    reloader = Reloader(watched.path, load(watched.path, workers=2), watched.apply, watched.told.append)
    async with background(reloader.run()):
        watched.swap(TEXT)
        await until(lambda: watched.told)
        assert (watched.told, watched.applied) == ([False], [])
        assert "server.admin_port: is required with 2 workers" in caplog.text
        watched.swap(shared + "retry: {budget: 0.5}\n")
        await until(lambda: watched.applied)
        assert watched.applied[0].workers == 2
