from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bench.overhead import bodies, cases, install, machine
from bench.overhead.__main__ import main, there
from bench.overhead.machine import Moment
from bench.overhead.peers import OURS, PEERS, Peer, filled, ours
from gateway.config import load
from gateway.model import Reason
from gateway.policy.sort.evidence import SortRules, sort
from gateway.wire.image.headers import inspect, parse_data_url
from gateway.wire.openai.request_body import parse_request

if TYPE_CHECKING:
    from pathlib import Path

CORES = ",".join(map(str, [*sorted(os.sched_getaffinity(0)) * 2][:2]))
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@needs_compiler
def test_a_quick_run_measures_names_what_is_missing_and_writes_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PEERS, "elsewhere", Peer("elsewhere", "", needs=("/not/there",)))
    out = tmp_path / "found.json"
    arguments = ["--quick", "--seconds", "0.1", "--cores", CORES, "--out", str(out)]
    main([*arguments, "--peers", "direct,elsewhere", "--cases", "1 kB x 32,stream x 32"])
    printed = capsys.readouterr().out
    assert "elsewhere is left out: /not/there is missing" in printed
    assert "| direct |" in printed
    found = json.loads(out.read_text())
    assert found["skipped"] == {"elsewhere": "/not/there"}
    whole, stream = found["runs"]
    assert whole["statuses"] == {"200": whole["answered"]}
    assert whole["answered"] >= 32
    assert whole["cpu_s_per_1000"] is None
    assert stream["events"] > 0
    assert stream["broken"] == whole["broken"] == 0


@needs_compiler
def test_our_gateway_is_measured_as_it_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--quick", "--seconds", "0.1", "--cores", CORES, "--peers", OURS]
    main([*arguments, "--cases", "200 kB stream x 32"])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "stream x 32  " in line)
    assert "FAILED" not in line
    assert "rss" in line


@needs_compiler
def test_a_gateway_that_does_not_start_is_reported_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = Peer("failing", "", (sys.executable, "-c", "raise SystemExit('no such option')"))
    monkeypatch.setitem(PEERS, "failing", failing)
    arguments = ["--quick", "--seconds", "0.05", "--cores", CORES, "--peers", "failing,direct"]
    main([*arguments, "--cases", "1 kB x 1"])
    printed = capsys.readouterr().out
    assert "failing ended: no such option" in printed
    assert "| direct |" in printed


def test_unknown_names_are_errors() -> None:
    with pytest.raises(SystemExit, match=r"unknown: apache; known are direct"):
        main(["--peers", "apache"])
    with pytest.raises(ValueError, match="no case has '3 MB'"):
        cases.chosen("200 kB,3 MB")


def test_without_a_compiler_nothing_is_measured(tmp_path: Path) -> None:
    code = (
        "import shutil; shutil.which = lambda *_, **__: None\n"
        "from bench.overhead.__main__ import main; main(['--quick', '--peers', 'direct'])"
    )
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("no C compiler")
    assert "Traceback" not in ended.stderr


def test_rivals_that_are_not_installed_are_left_out(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.touch()
    here = Peer("here", "", needs=(str(program), "sh"))
    gone = Peer("gone", "", needs=(str(program), f"{tmp_path}/gone"))
    assert there([here, gone]) == ([here], {"gone": f"{tmp_path}/gone"})


@pytest.mark.parametrize("size", ["1 kB", "200 kB"])
@pytest.mark.parametrize("stream", [False, True])
def test_requests_are_such_that_our_gateway_sorts_and_checks_them(size: str, stream: bool) -> None:
    body = bodies.body(size, stream=stream)
    assert abs(len(body) - bodies.SIZES[size]) < 0.15 * bodies.SIZES[size]
    request = parse_request(body, chat=True, max_images=1)
    for image in request.images:
        data = parse_data_url(image.url).data
        assert inspect(data, max_pixels=100_000_000).format == "JPEG"
    assert len(request.images) == (size != "1 kB")
    decision = sort(request.facts, SortRules(("text", "key-value", "table"), "table"))
    assert decision is not None
    assert (decision.route, decision.reason) == ("text", Reason.PROMPT)


def test_our_gateway_takes_the_configuration_it_gets(tmp_path: Path) -> None:
    ((name, text),) = ours().files.items()
    path = tmp_path / name
    path.write_text(filled(text, engine="9000"))
    config = load(path)
    assert config.model == bodies.MODEL
    assert [engine for pool in config.pools.values() for engine in pool.engines] == ["http://127.0.0.1:9000"]


@pytest.mark.parametrize("peer", PEERS.values(), ids=list(PEERS))
def test_nothing_of_how_one_is_started_is_left_open(peer: Peer) -> None:
    values = {name: name for name in ("port", "engine", "spare", "home", "run")}
    for text in (*peer.command, *peer.environment.values(), *peer.files.values(), *peer.needs):
        assert "$" not in filled(text, **values)
    assert peer.lacks or peer.name == OURS


def test_a_version_is_asked_for() -> None:
    peer = Peer("some", "", version=("echo", "nginx version: nginx/1.2 - of today"))
    assert peer.read_version() == "nginx/1.2"
    assert replace(peer, version=()).read_version() == ""
    assert PEERS[OURS].read_version()


def test_what_is_there_is_not_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[object]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: ran.append(command))
    monkeypatch.setattr(venv, "create", lambda folder, **_: ran.append([folder]))
    monkeypatch.setitem(PEERS, "there", Peer("there", ""))
    gone = Peer(
        "gone", "", needs=(f"{tmp_path}/gone",), requirements=("some==1",), venv="some", debian=("thing",)
    )
    monkeypatch.setitem(PEERS, "gone", gone)
    monkeypatch.setattr(install, "install", lambda peer: ran.append([peer.name]))
    install.main(["there", "gone"])
    assert ran == [["gone"]]
    assert f"gone is not there: {tmp_path}/gone" in capsys.readouterr().out
    monkeypatch.undo()
    with pytest.raises(SystemExit, match="unknown: nothing"):
        install.main(["nothing"])


def test_each_rival_gets_an_environment_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[object]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: ran.append(command))
    monkeypatch.setattr(venv, "create", lambda folder, **_: ran.append(["venv", folder]))
    install.install(
        Peer("one", "", requirements=("some==1", "other==2"), venv="some", debian=("thing",)), tmp_path
    )
    made, pip, fetched = ran
    assert made == ["venv", tmp_path / "venv/some"]
    assert pip[-2:] == ["some==1", "other==2"]
    assert fetched == ["apt-get", "download", "thing"]


def test_shares_of_the_cores_are_what_each_used_of_them() -> None:
    before = Moment(at=10.0, gateway=1.0, engine=2.0, cores=(100.0, 200.0))
    after = Moment(at=12.0, gateway=2.5, engine=2.4, cores=(101.7, 201.4))
    shares = machine.shares(before, after, client_cpu_s=0.6)
    assert shares == pytest.approx(
        {"gateway": 0.75, "harness": 0.5, "gateway_foreign": 0.1, "harness_foreign": 0.2}
    )


def test_processes_are_looked_at_with_their_children() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo started; wait"], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        parent, child = machine.tree(shell.pid)
        assert parent == shell.pid
        assert machine.peak_mib([parent, child]) > 0
        assert machine.cpu_seconds([parent, child]) >= 0
        for pid in (child, parent):
            os.kill(pid, 9)
    assert machine.cpu_seconds([parent]) == 0
    assert machine.resident_mib([parent]) == 0
    with pytest.raises(LookupError):
        machine.core_seconds(100_000)
