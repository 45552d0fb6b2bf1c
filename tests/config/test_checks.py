import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from gateway.config import Config, load, parse, route_notes
from gateway.config.schema import Pool, Section
from gateway.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
GOOD = """
model: glm-ocr
pools:
  mtp3:
    speculative_config: {method: mtp, num_speculative_tokens: 3}
    engines: [http://vllm-mtp3:8000]
    api_key: ${ENGINE_KEY:-}
  plain:
    engines: [http://vllm-plain:8000, "dns+http://vllm:8000"]
routes:
  text:
    schedule: [[1, 63, 3], [64, 127, 0], [128, 4096, 3]]
  table:
    pools: [mtp3, plain]
    queue: {max_waiting: 512, max_wait_s: 30}
    timeouts: {connect_s: 2, first_event_s: 60, idle_s: 30, total_s: 600}
sorting: {default: table, prompts: {table: ["^list the rows"]}}
polling: {scrape_s: 1, stale_s: 5, resolve_s: 10}
breaker: {failures: 5, open_s: 10, probes: 2}
retry: {budget: 0.1, per_request: 1}
server: {drain_s: 60, linger_s: 5, admin_port: null}
limits: {body_bytes: 33554432, image_pixels: 100000000, images_per_request: 32}
auth: {keys_file: null, limits: {}}
remote_images: {allow_hosts: []}
documents: {max_pages: 100, prompts: {table: "Table Recognition:"}}
"""


def problems(text: str, folder: Path = Path()) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        parse(text, "f.yaml", folder, {})
    return refused.value.problems


def test_the_whole_contract_is_accepted() -> None:
    config = parse(GOOD, "f.yaml", Path(), {"ENGINE_KEY": "secret"})
    assert config.pools["mtp3"].api_key == "secret"
    assert config.routes["text"].schedule[1] == (64, 127, 0)
    assert config.pools_of("text") == ("mtp3", "plain")
    assert config.sorting.default == "table"


def test_the_shipped_configuration_is_valid() -> None:
    config = load(ROOT / "routes.yaml")
    assert list(config.routes) == ["text", "key-value", "table"]


def test_the_shipped_configurations_example_for_vllm_is_valid() -> None:
    _, _, example = (ROOT / "routes.yaml").read_text().partition("# The same file in front of vLLM.")
    lines = [line.removeprefix("#").removeprefix(" ") for line in example.splitlines()[2:]]
    config = parse("\n".join(lines), "example", Path(), {})
    assert list(config.pools) == ["mtp3", "plain"]


def test_the_default_route_is_the_first_unless_told() -> None:
    text = GOOD.replace("default: table, ", "")
    assert parse(text, "f.yaml", Path(), {}).sorting.default == "text"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "model: glm-ocr",
            "modell: glm-ocr",
            "f.yaml:2: modell: unknown key - did you mean 'model'?; allowed here:",
        ),
        ("model: glm-ocr", "model: ''", "f.yaml:2: model: must not be empty, found ''"),
        ("schedule:", "schedul:", "f.yaml:12: routes.text.schedul: unknown key - did you mean 'schedule'?"),
        (
            "max_waiting: 512",
            "max_waiting: lots",
            "f.yaml:15: routes.table.queue.max_waiting: must be a valid integer",
        ),
        ("scrape_s: 1,", "scrape_s: 0,", "f.yaml:18: polling.scrape_s: must be greater than 0, found 0"),
        (
            "[64, 127, 0]",
            "[64, 127, 1]",
            "f.yaml:12: routes.text.schedule[1]: no pool of this route runs at depth 1",
        ),
        (
            "pools: [mtp3, plain]",
            "pools: [mtp, plain]",
            "f.yaml:14: routes.table.pools[0]: unknown pool 'mtp'",
        ),
        ("default: table", "default: tables", "f.yaml:17: sorting.default: unknown route 'tables'"),
        (
            "{table: [",
            "{tabel: [",
            "f.yaml:17: sorting.prompts.tabel: unknown route 'tabel'; allowed: text, table - did",
        ),
        ("^list", "(list", "f.yaml:17: sorting.prompts.table[0]: is not a regular expression"),
        (
            '{table: "',
            '{tabel: "',
            "f.yaml:25: documents.prompts.tabel: unknown route 'tabel'; allowed: text, table - did",
        ),
        (
            "max_pages: 100",
            "max_pages: 0",
            "f.yaml:25: documents.max_pages: must be greater than or equal to 1",
        ),
        ('{table: "Table Recognition:"}', "{}", "f.yaml:25: documents.prompts: "),
        (
            "vllm-plain:8000",
            "vllm-mtp3:8000",
            "f.yaml:9: pools.plain.engines[0]: 'http://vllm-mtp3:8000' is listed twice",
        ),
        (
            "vllm-mtp3:8000]",
            "u:hunter2@vllm:1]",
            "f.yaml:6: pools.mtp3.engines[0]: must be http(s)://host:port",
        ),
        ("keys_file: null", "keys_file: keys.txt", "f.yaml:23: auth.keys_file: keys.txt cannot be read"),
        ("  table:\n", "  Tables!:\n", "f.yaml:13: routes.Tables!: a name is"),
        (
            "    queue:",
            "    profile: none.json\n    queue:",
            "f.yaml:15: routes.table.profile: none.json cannot be read",
        ),
        (
            "num_speculative_tokens: 3",
            "num_speculative_tokens: three",
            "f.yaml:5: pools.mtp3.speculative_config.num_speculative_tokens: must be an integer of at least "
            "1, found 'three'",
        ),
        (
            "num_speculative_tokens: 3",
            "num_draft_tokens: 3",
            "f.yaml:5: pools.mtp3.speculative_config: needs num_speculative_tokens: an integer of at least 1",
        ),
        (
            "method: mtp",
            "method: [mtp]",
            "f.yaml:5: pools.mtp3.speculative_config.method: must be such as mtp, eagle3, ngram, draft_model "
            "or suffix, found a list",
        ),
        (
            "num_speculative_tokens: 3}",
            "num_speculative_tokens: 3, num_speculative_tokens_per_batch_size: [[1, 16, 3], [17, x, 0]]}",
            "f.yaml:5: pools.mtp3.speculative_config.num_speculative_tokens_per_batch_size[1]: must be "
            "ranges [from, to, depth], such as [[1, 63, 3], [64, 4096, 0]], found a list",
        ),
        (
            "[64, 127, 0]",
            "[60, 127, 0]",
            "f.yaml:12: routes.text.schedule[1]: range [60, 127, 0] does not fit",
        ),
        (
            "allow_hosts: []",
            "allow_hosts: [images.example, https://images.example/]",
            "f.yaml:24: remote_images.allow_hosts[1]: must be a host or host:port, without scheme, path or "
            "wildcard, found 'https://images.example/'",
        ),
        (
            "  plain:\n    engines:",
            "  plain:\n    engine:",
            "f.yaml:8: pools.plain.engines: is required and missing",
        ),
    ],
)
def test_an_error_names_file_line_and_key_and_what_is_allowed(old: str, new: str, problem: str) -> None:
    assert old in GOOD
    found = problems(GOOD.replace(old, new))
    assert any(line.startswith(problem) for line in found), found


def test_every_problem_is_told_at_once() -> None:
    text = GOOD.replace("scrape_s: 1,", "scrape_s: 0,").replace("schedule:", "schedul:")
    assert len(problems(text)) == 2


def test_no_credential_stands_in_an_error() -> None:
    text = GOOD.replace("${ENGINE_KEY:-}", "[hunter2]").replace("vllm-mtp3:8000", "u:hunt/er2@vllm:1")
    assert "er2" not in "\n".join(problems(text))


@pytest.mark.parametrize(
    "wrong",
    [
        "pools: {p: {engines: [http://e], max_load: '${KEY}'}}",
        "pools: {p: {engines: [http://e], speculative_config: '${KEY}'}}",
        "pools: {p: {engines: ['http://u:${KEY}@e']}}",
        "retry: {budget: x${KEY}}",
    ],
)
def test_what_the_environment_says_is_not_shown(wrong: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(f"model: m\nroutes: {{a: {{}}}}\n{wrong}", "f.yaml", Path(), {"KEY": "planted"})
    assert "planted" not in str(refused.value)
    assert "er2" not in "\n".join(problems("pools: [{api_key: hunter2}]\nroutes: {a: [hunter2]}"))


def test_the_embedded_engine_is_one_and_does_not_speculate() -> None:
    text = GOOD.replace("[http://vllm-mtp3:8000]", "[embedded]").replace("http://vllm-plain:8000", "embedded")
    assert [line.split(": ")[1] for line in problems(text)] == [
        "pools.mtp3.speculative_config",
        "pools.plain.engines[0]",
    ]


def test_a_profile_is_read_and_checked(tmp_path: Path) -> None:
    text = GOOD.replace("    queue:", "    profile: table.json\n    queue:")
    profile = {"route": "table", "pools": {"mtp3": [[1, 100.5], [64, 900]]}, "meta": {"gpu": "H100"}}
    (tmp_path / "table.json").write_text(json.dumps(profile))
    assert parse(text, "f.yaml", tmp_path, {}).profiles["table"].pools["mtp3"] == ((1, 100.5), (64, 900))
    for change, message in (
        ({"route": "text"}, "measured for route 'text'"),
        ({"pools": {"mtp4": [[1, 2]]}}, "unknown pool 'mtp4'"),
        ({"pools": {"mtp3": [[1, -2]]}}, "pools.mtp3.0.1: must be greater than 0"),
        ({"pools": {"mtp3": [[1]]}}, "pools.mtp3.0"),
        (
            {"pools": {"mtp3": [[8, 100], [8, 120, 3]]}},
            "the loads of pool 'mtp3' must be at least 1, each once",
        ),
        ({"curve": 1}, "curve: unknown key; allowed here: route, pools, meta"),
    ):
        (tmp_path / "table.json").write_text(json.dumps({**profile, **change}))
        found = "\n".join(problems(text, tmp_path))
        assert found.count("routes.table.profile") == 1, found
        assert message in found
    (tmp_path / "table.json").write_text("{")
    assert "table.json" in problems(text, tmp_path)[0]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            load(path)


KEY = "a-long-enough-key"


def keyed(tmp_path: Path, auth: str, keys: str = f"team-a {KEY}\nteam-b {KEY}-too\n") -> str:
    """The configuration with an `auth` section beside a file of keys."""
    (tmp_path / "keys").write_text(keys)
    return GOOD.replace("auth: {keys_file: null, limits: {}}", f"auth: {auth}")


def test_keys_are_read_beside_the_configuration(tmp_path: Path) -> None:
    text = keyed(
        tmp_path,
        "{keys_file: keys, limits: {team-a: {concurrent: 1}, '*': {concurrent: 2}}, admins: [team-b]}",
    )
    config = parse(text, "f.yaml", tmp_path, {})
    assert config.keys.owner(KEY.encode()) == "team-a"
    assert config.keys.names == {"team-a", "team-b"}
    assert KEY not in repr(config)
    absolute = text.replace("keys_file: keys", f"keys_file: {tmp_path}/keys")
    assert len(parse(absolute, "f.yaml", Path("/nowhere"), {}).keys) == 2


@pytest.mark.parametrize(
    ("auth", "problem"),
    [
        (
            "{keys_file: keys, limits: {team_a: {concurrent: 1}}}",
            "f.yaml:23: auth.limits.team_a: keys has no key of that name - did you mean 'team-a'?",
        ),
        (
            "{keys_file: keys, admins: [team-a, ops]}",
            "f.yaml:23: auth.admins[1]: keys has no key of that name",
        ),
        ("{keys_file: keys, admins: ['*']}", "f.yaml:23: auth.admins[0]: keys has no key of that name"),
        ("{limits: {'*': {concurrent: 1}}}", "f.yaml:23: auth.limits.*: there is no auth.keys_file"),
        ("{admins: [team-a]}", "f.yaml:23: auth.admins[0]: there is no auth.keys_file"),
        ("{keys_file: nokeys}", "f.yaml:23: auth.keys_file: nokeys cannot be read: No such file"),
        ("{keys_file: .}", "f.yaml:23: auth.keys_file: . cannot be read: it is not a regular file"),
    ],
)
def test_names_that_no_key_has_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auth: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (found,) = problems(keyed(tmp_path, auth))
    assert found.startswith(problem)


def test_a_wrong_keys_file_is_told_by_its_own_lines_and_shows_no_key(tmp_path: Path) -> None:
    text = keyed(tmp_path, "{keys_file: keys, admins: [team-a]}", f"team-a {KEY}\n{KEY}\n")
    assert problems(text, tmp_path) == [f"{tmp_path}/keys:2: a line is `NAME KEY` or `NAME sha256:HEX`"]


def test_who_does_not_serve_needs_no_keys(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(
        GOOD.replace("{keys_file: null, limits: {}}", "{keys_file: none, limits: {a: {concurrent: 1}}}")
    )
    assert len(load(tmp_path / "f.yaml", {}, keys=False).keys) == 0
    with pytest.raises(ConfigError, match="none cannot be read"):
        load(tmp_path / "f.yaml", {})


def test_a_configuration_knows_the_files_it_was_read_from(tmp_path: Path) -> None:
    text = keyed(tmp_path, "{keys_file: keys}").replace("    queue:", "    profile: table.json\n    queue:")
    (tmp_path / "f.yaml").write_text(text)
    profile = json.dumps({"route": "table", "pools": {"mtp3": [[1, 100]]}, "meta": {}})
    (tmp_path / "table.json").write_text(profile)
    sources = load(tmp_path / "f.yaml", {}).sources
    assert sources == {
        path: hashlib.sha256(path.read_bytes()).digest()
        for path in (tmp_path / "f.yaml", tmp_path / "keys", tmp_path / "table.json")
    }


def test_a_configuration_may_come_by_a_pipe_but_once(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, GOOD.encode())
    os.close(writing)
    path = Path(f"/dev/fd/{reading}")
    assert load(path, {}).model == "glm-ocr"
    with pytest.raises(ConfigError, match="not a regular file"):
        load(path, {}, again=True)
    os.close(reading)


def shared(server: str, workers: int) -> list[str]:
    """What is wrong with a configuration that so many processes of one host serve."""
    text = GOOD.replace("server: {drain_s: 60, linger_s: 5, admin_port: null}", f"server: {server}")
    try:
        assert parse(text, "f.yaml", Path(), {}, workers=workers).workers == workers
    except ConfigError as error:
        return error.problems
    return []


@pytest.mark.parametrize(
    ("server", "workers", "told"),
    [
        ("{replicas: 4}", 4, ["f.yaml:21: server.admin_port: is required with 4 workers"]),
        ("{admin_port: 9090}", 4, ["f.yaml:21: server.replicas: counts every worker of every host: with 4"]),
        ("{admin_port: 65534, replicas: 9}", 3, ["f.yaml:21: server.admin_port: 3 workers have one each"]),
        ("{replicas: 1}", 2, ["f.yaml:21: server.admin_port", "f.yaml:21: server.replicas"]),
        ("{admin_port: 65534, replicas: 2}", 2, []),
        ("{replicas: 1}", 1, []),
    ],
)
def test_workers_need_ports_of_their_own_and_are_counted(server: str, workers: int, told: list[str]) -> None:
    found = shared(server, workers)
    assert [line.startswith(said) for line, said in zip(found, told, strict=True)] == [True] * len(told)


def test_a_file_is_read_for_so_many_workers(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(GOOD)
    assert load(path).workers == 1
    with pytest.raises(ConfigError) as refused:
        load(path, {}, workers=2)
    assert refused.value.problems[0].startswith(f"{path}:21: server.admin_port: is required with 2 workers")


# A value of each kind that YAML has, and how errors name it.
VALUES = {
    "odd text": "'odd text'",
    "-7": "-7",
    "0.25": "0.25",
    ".nan": ".nan",
    "-.inf": "-.inf",
    "true": "true",
    "null": "nothing",
    "2024-01-31": "the date 2024-01-31",
    "2024-01-31T12:00:00": "the date 2024-01-31T12:00:00",
    "!!binary eHl6": "binary data",
    "[[]]": "a list",
    "[]": "an empty list",
    "{odd: {}}": "a section",
    "{}": "an empty section",
}
SHOWN = re.compile(r"f\.yaml:\d+: (?P<location>\S+): .*, found (?P<found>.*)")


def keys_of(section: type[BaseModel], place: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every key of a section and of those below it; a section of names has `text`, a route, or `mtp3`."""
    for name, field in section.model_fields.items():
        yield (*place, name)
        kinds = [field.annotation, *get_args(field.annotation)]
        below = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)
        if below is not None:
            entry = () if below is field.annotation else ("mtp3" if below is Pool else "text",)
            yield from keys_of(below, (*place, name, *entry))


def shown_at(document: object, location: str) -> object:
    """What stands at a place of a document; a key that is not there has nothing."""
    for step in re.findall(r"[^.\[\]]+", location):
        document = document[int(step)] if isinstance(document, list) else document.get(step)  # type: ignore
    return document


@pytest.mark.parametrize("key", [*keys_of(Config, ())], ids=".".join)
def test_what_an_error_found_is_what_stands_there(key: tuple[str, ...]) -> None:
    names = {repr(yaml.safe_load(text)): name for text, name in VALUES.items()}
    refused = 0
    for text in VALUES:
        document = {"model": "m", "pools": {"mtp3": {"engines": ["http://e"]}}, "routes": {"text": {}}}
        section: Any = document
        for step in key[:-1]:
            section = section.setdefault(step, {})
        section[key[-1]] = yaml.safe_load(text)
        try:
            parse(yaml.safe_dump(document), "f.yaml", Path(), {})
        except ConfigError as error:
            refused += 1
            told = [problem for problem in error.problems if ", found " in problem]
        else:
            continue
        for problem in told:
            match = SHOWN.fullmatch(problem)
            assert match, problem
            stands = names[repr(shown_at(document, match["location"]))]
            assert match["found"] == ("a value (not shown)" if "api_key" in key else stands), problem
    assert refused


@pytest.mark.parametrize(
    ("routes", "sorting", "notes"),
    [
        ("{text: {}, key-value: {}, table: {}}", "{}", []),
        (
            "{text: {}, tabel: {}}",
            "{}",
            [
                "routes.tabel: only requests that name it reach it: it is none of text, key-value, table, "
                "and sorting.prompts has no prompts for it - did you mean 'table'?"
            ],
        ),
        (
            "{text: {}, invoices: {}}",
            "{prompts: {invoices: []}}",
            [
                "routes.invoices: only requests that name it reach it: it is none of text, key-value, table, "
                "and sorting.prompts has no prompts for it"
            ],
        ),
        ("{text: {}, invoices: {}}", '{prompts: {invoices: ["^invoice"]}}', []),
        ("{ocr: {}}", "{}", []),  # all requests reach it, by default
        (
            "{key_value: {}, text: {}}",
            "{}",
            [
                "routes.key_value: only the default leads to it: it is none of text, key-value, table "
                "- did you mean 'key-value'?"
            ],
        ),
    ],
)
def test_a_route_that_nothing_is_sorted_into_is_noted(routes: str, sorting: str, notes: list[str]) -> None:
    text = f"model: m\npools: {{p: {{engines: [http://e]}}}}\nroutes: {routes}\nsorting: {sorting}\n"
    config = parse(text, "f.yaml", Path(), {})
    assert list(route_notes(config, ("text", "key-value", "table"))) == notes
