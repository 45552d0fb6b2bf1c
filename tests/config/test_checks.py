import copy
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from gateway.config import Config, load, parse, route_notes
from gateway.config.schema import Pool, Section
from gateway.errors import ConfigError
from gateway.state.fleet import Fleet
from tests.hosts import certified

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


MINIMAL = "model: m\npools: {p: {engines: [http://e]}}\nroutes: {text: {}}\n"


def sections(count: int, section: str, each: str) -> str:
    """The minimal configuration with so many pools or routes instead."""
    names = "\n".join(f"  x{n}: {each}" for n in range(count))
    return re.sub(rf"{section}: .*", f"{section}:\n{names}".replace("\\", ""), MINIMAL)


BOMBS = {
    "aliases": MINIMAL
    + "x0: &x0 [a,a,a,a,a,a,a,a,a,a]\n"
    + "".join(f"x{n}: &x{n} [{','.join([f'*x{n - 1}'] * 10)}]\n" for n in range(1, 9)),
    "circles": MINIMAL + "x: &a {" + ", ".join(f"k{n}: &b{n} {{<<: *a}}" for n in range(40)) + "}",
    "unknown keys": MINIMAL + "".join(f"key_{n}: 1\n" for n in range(20_000)),
    "duplicates": MINIMAL + "server: 1\n" * 20_000,
    "empty pools": sections(10_000, "pools", "{engines: []}"),
    "pools": sections(12_000, "pools", "{engines: ['http://e']}"),
    "routes": sections(10_000, "routes", "{pools: [q]}"),
    "long key": MINIMAL + f"{'k' * 1000}: 1\n" * 500,
    "long value": MINIMAL + f"server: {{drain_s: '{'/' * 500_000}'}}",
    "hexadecimal": MINIMAL + f"limits: {{body_bytes: -0x{'f' * 90}}}",
    "long number": MINIMAL + f"limits: {{body_bytes: 0x{'f' * 100_000}}}",
    "sexagesimal": MINIMAL + f"limits: {{body_bytes: 1{':1' * 300_000}}}",
    "repetition": MINIMAL + "sorting: {prompts: {text: ['a{1,99999999999}']}}",
    "groups": MINIMAL + f"sorting: {{prompts: {{text: ['{'(' * 10_000}']}}}}",
    "depth": MINIMAL.replace(
        "e]", "e], speculative_config: {method: mtp, num_speculative_tokens: 999999999}"
    ),
    "ranges": MINIMAL.replace(
        "e]",
        "e], speculative_config: {method: mtp, num_speculative_tokens: 3, "
        "num_speculative_tokens_per_batch_size: [[1, 999999999, 3], [1000000000, 2000000000, 0]]}",
    ),
    "schedule": MINIMAL.replace("{}", "{schedule: [" + "[1, 2, 0]," * 9000 + "]}"),
    "engines": MINIMAL.replace("[http://e]", "[" + "http://e," * 10_000 + "]"),
    "date": MINIMAL.replace(
        "e]", "e], speculative_config: {method: mtp, num_speculative_tokens: 3, on: 2024-01-01}"
    ),
    "names": MINIMAL + "auth: {limits: {" + ", ".join(f"n{n}: {{}}" for n in range(15_000)) + "}}",
    "nul in a path": MINIMAL + 'auth: {keys_file: "a\\0b"}',
    "endless path": MINIMAL.replace("{}", f"{{profile: {'p/' * 5000}}}"),
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_whatever_a_file_holds_is_refused_soon_and_in_few_words(text: str) -> None:
    began = time.process_time()
    with pytest.raises(ConfigError) as refused:
        parse(text, "f.yaml", Path(), {})
    assert (
        time.process_time() - began < 20
    )  # within a second or two; without a bound for minutes, or for ever
    assert 0 < len(refused.value.problems) <= 101
    assert max(map(len, refused.value.problems)) < 1000
    assert all(problem.isprintable() for problem in refused.value.problems)


def test_the_largest_configuration_is_worked_out_soon() -> None:
    text = sections(32, "pools", "{engines: ['http://e'], max_load: 4096}")
    text = re.sub("'http://e'", lambda _: f"'http://e{time.perf_counter_ns()}'", text)
    routes = "\n".join(f"  r{n}: {{schedule: [[1, 4096, 0]]}}" for n in range(64))
    config = parse(text.replace("routes: {text: {}}", f"routes:\n{routes}"), "f.yaml", Path(), {})
    began = time.process_time()
    Fleet.of(config)
    assert time.process_time() - began < 40


WORDS = st.sampled_from(
    [
        *("model", "pools", "routes", "p", "text", "engines", "http://e", "schedule", "api_key", "limits"),
        *("a", "1", "-1", "1e999", "${KEY}", "${NONE}", "$$", "${x", "", "~", ".nan", "0x1f", "2024-01-01"),
        *("&x", "*x", "<<", "!!int", "!!binary", "|", ">", "'", '"', "\\0", "\\ud800", "- ", ": ", ", "),
        *("[", "]", "{", "}", "\n", "\n  ", "\t", "#", "%", "@", "`", "\x00", "\x85", "\ufeff", "\u2028"),
        *("sorting", "prompts", "(", "x" * 200, "speculative_config", "method", "num_speculative_tokens"),
    ]
)
TREES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.text(max_size=8), st.integers(), st.floats(), st.none(), st.booleans(), st.dates(), WORDS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(WORDS, st.text(max_size=5)), inner, max_size=4),
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.filterwarnings("ignore")  # of regular expressions with an odd set
@given(
    st.one_of(
        st.lists(WORDS, max_size=30).map("".join),
        st.lists(WORDS, max_size=10).map(lambda words: MINIMAL + "".join(words)),
        st.tuples(st.sampled_from(sorted(Config.model_fields)), TREES).map(
            lambda pair: yaml.safe_dump({**yaml.safe_load(MINIMAL), pair[0]: pair[1]}, allow_unicode=True)
        ),
        st.tuples(st.sampled_from(sorted(Pool.model_fields)), TREES).map(
            lambda pair: yaml.safe_dump(
                {**yaml.safe_load(MINIMAL), "pools": {"p": {"engines": ["http://e"], pair[0]: pair[1]}}}
            )
        ),
    )
)
def test_any_text_is_a_configuration_that_works_or_is_refused(text: str) -> None:
    config, found = None, list[str]()
    try:
        config = parse(text, "f.yaml", Path("/nowhere"), {"KEY": "planted"})
    except ConfigError as error:
        found = error.problems
    assert (config is None) == bool(found)
    assert len(found) <= 101
    assert all(re.match(r"f\.yaml:\d+: .", problem) for problem in found)
    if config:
        found += Fleet.of(config).notes
        json.dumps({name: pool.speculative_config for name, pool in config.pools.items()})
    assert all(len(line) < 1000 and line.isprintable() and "planted" not in line for line in found)


@given(st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f.yaml").write_bytes(content)
    with pytest.raises(ConfigError):
        load(tmp_path / "f.yaml", {})


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (GOOD.encode("utf-16"), "f.yaml:1: is not UTF-8 text: it is UTF-16"),
        (b"\x1f\x8b\x08\x00", "f.yaml:1: is not UTF-8 text: it is compressed"),
        (b"model: m\nx: \xff", "f.yaml:2: is not UTF-8 text"),
        (b"\0" * 100, "f.yaml:1: not valid YAML: it has a control character"),
        (b"model: m\n\tx: 1", "f.yaml:2: not valid YAML: found character '\\t' that cannot start any token"),
        (b"# \n" * 400_000, "f.yaml: is larger than 1,048,576 bytes"),
        (b"#" * (16 * 1024 * 1024 + 1), "f.yaml: cannot be read: it is larger than 16,777,216 bytes"),
        (b"", "f.yaml:1: model: is required and missing"),
    ],
)
def test_what_is_no_text_is_told_by_its_kind(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "f.yaml").write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        load(tmp_path / "f.yaml", {})
    assert refused.value.problems[0].startswith(f"{tmp_path}/{told}")


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_bytes(GOOD.lstrip().encode("utf-8-sig"))
    assert load(tmp_path / "f.yaml", {}).model == "glm-ocr"


def test_a_file_that_is_too_long_is_looked_at_again_once_it_has_changed(tmp_path: Path) -> None:
    """Its digest is what a look at it later finds: else it would be loaded again every second."""
    path = tmp_path / "f.yaml"
    path.write_bytes(b"#" * 2_000_000)
    with pytest.raises(ConfigError) as refused:
        load(path, {})
    assert refused.value.sources == {path: hashlib.sha256(path.read_bytes()).digest()}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{" + b" " * 1_100_000, "is larger than 1,048,576 bytes"),
        (b"[" * 100_000, "file: Invalid JSON"),
        (b'{"route": "text", "pools": {"p": [[1, 2]]}, "meta": {"n": ' + b"9" * 5000 + b"}}", "out of range"),
        (
            json.dumps(
                {"route": "text", "pools": {"p": [[n, 1] for n in range(1, 5000)]}, "meta": {}}
            ).encode(),
            "pools.p: has too many entries (at most 4096)",
        ),
        (json.dumps({"route": "text", "pools": {}, "meta": {}, "a key": 1}).encode(), "(a key that is not"),
    ],
)
def test_a_profile_is_bounded_too(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "p.json").write_bytes(content)
    found = "\n".join(problems(MINIMAL.replace("{}", "{profile: p.json}"), tmp_path))
    assert told in found
    assert len(found) < 500


PLACES = {
    "model": "m",
    "model_path": "m",
    "pools": {
        "p": {
            "speculative_config": {
                "method": "mtp",
                "num_speculative_tokens": 3,
                "num_speculative_tokens_per_batch_size": [[1, 16, 3], [17, 64, 0]],
                "more": {"x": "y"},
            },
            "engines": ["https://e"],
            "max_load": 8,
            "api_key": "k",
            "ca_file": "ca.pem",
        }
    },
    "routes": {
        "text": {
            "schedule": [[1, 16, 3]],
            "profile": "text.json",
            "pools": ["p"],
            "weight": 1,
            "queue": {"max_waiting": 1, "max_wait_s": 1},
            "timeouts": {"connect_s": 1},
        }
    },
    "sorting": {"default": "text", "prompts": {"text": ["^a"]}},
    "polling": {"scrape_s": 1},
    "breaker": {"failures": 1},
    "retry": {"budget": 0.1},
    "server": {"drain_s": 1, "linger_s": 1, "replicas": 2, "admin_port": 9090},
    "limits": {
        "body_bytes": 1,
        "header_bytes": 2048,
        "header_s": 1,
        "inflight_bytes": 1,
        "request_pixels": 1,
    },
    "auth": {"keys_file": "keys", "limits": {"team-a": {"concurrent": 1}}, "admins": ["team-a"]},
    "remote_images": {"allow_hosts": ["h"], "allow_networks": ["10.0.0.0/8"], "timeout_s": 1},
    "documents": {"max_pages": 1, "at_once": 1, "prompts": {"text": "t"}},
}
SECRET = "planted"  # stands in each of the values below
SECRETS = [
    "planted-Secret-4711",
    "4711planted",
    "https://planted:1/v1",
    "https://u:planted@planted:1?planted#planted",
    "(planted[",
    "(?P<planted>a)(?P<planted>b)",
    "planted\nplanted",
    "/etc/planted/none",
    "pla\0nted planted",
    "planted" * 1000,
    '{"planted": 1}',
    "team-planted",
]
# A number shows as it is, so that it must not occur in any message by itself.
NUMBERS = ["918273645", "0.918273645", "-918273645"]


def leaves(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, (*place, key))
    else:
        yield place


def with_leaf(place: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    document: Any = copy.deepcopy(PLACES)
    inner = document
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    return dict(document)


@pytest.fixture(scope="module")
def named_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the configuration above names."""
    folder = tmp_path_factory.mktemp("named")
    certified(folder, "e", "DNS:e").rename(folder / "ca.pem")
    (folder / "keys").write_text(f"team-a {KEY}\n")
    profile = {"route": "text", "pools": {"p": [[1, 10]]}, "meta": {"model": "other", "pools": {"p": {}}}}
    (folder / "text.json").write_text(json.dumps(profile))
    return folder


def told(document: dict[str, Any], folder: Path, workers: int, **environment: str) -> str:
    """All that is said of a configuration, valid or not."""
    try:
        config = parse(yaml.safe_dump(document), "f.yaml", folder, environment, workers=workers)
    except ConfigError as error:
        return str(error)
    return "\n".join(Fleet.of(config).notes)


def test_the_configuration_of_places_is_valid_and_has_all_keys(named_files: Path) -> None:
    assert "measured on model 'other'" in told(PLACES, named_files, 1)
    given = {tuple(step for step in place if isinstance(step, str)) for place in leaves(PLACES)}
    assert {place[0] for place in given} == set(Config.model_fields)
    assert {place[2] for place in given if place[0] == "pools"} == set(Pool.model_fields)


@pytest.mark.parametrize("place", [*leaves(PLACES)], ids=lambda place: ".".join(map(str, place)))
def test_no_value_of_a_variable_is_told_whatever_place_it_stands_in(
    named_files: Path, place: tuple[str | int, ...]
) -> None:
    workers = 3 if place[0] == "server" else 1
    documents = [with_leaf(place, form) for form in ("${S}", "x${S}/v1")]
    for secret in (*SECRETS, *NUMBERS):
        for document in (*documents, with_leaf(place, ["${S}"]), with_leaf(place, {"k": "${S}"})):
            shown = told(document, named_files, workers, S=secret)
            assert SECRET not in shown, shown
            assert secret.strip("-") not in shown, shown


def test_a_value_of_a_variable_is_not_told_beside_others_that_are_wrong(named_files: Path) -> None:
    for place in leaves(PLACES):
        document = with_leaf(place, "${S}")
        document["pools"]["q"] = {"engines": ["http://f/v1", "http://u@g"], "max_load": "x"}
        document["routes"]["table"] = {"pools": ["none"], "profile": "none.json"}
        assert SECRET not in told(document, named_files, 1, S=SECRETS[0])


@pytest.mark.parametrize(
    "wrong",
    [
        "pools: {p: {engines: [http://e], api_key s3cr3t}}",
        "pools: {p: {engines: [http://e], api_key=s3cr3t}}",
        "pools: {p: {engines: [http://e], api_key:s3cr3t}}",
        "pools: {p: {engines: [http://e], s3cr3t}}",
        "pools: {p: {engines: [http://e], 's3cr3t': x}}",
        "pools: {p: {engines: [http://e]}, api_key s3cr3t: {}}",
        "auth: {limits: {name: {}, api_key s3cr3t}}",
        "auth: {limits: {name: x, api_key s3cr3t}}",
        "routes: {text: {}, api_key s3cr3t: {}, b: {pools: [c]}}",
        "sorting: {default: x, prompts: {api_key s3cr3t: []}}",
        "api_key s3cr3t: 1",
        "s3cr3t",
        "documents: {prompts: {api_key s3cr3t: x}}",
        "pools: {p: {engines: ['http://u:s3cr3t@e', 'u:s3cr3t@e', 'http://e?key=s3cr3t']}}",
    ],
)
def test_what_may_be_a_secret_in_a_keys_place_is_not_told(wrong: str) -> None:
    rest = {"pools": "pools: {p: {engines: [http://e]}}", "routes": "routes: {text: {}}"}
    text = "\n".join(
        ["model: m", wrong, *(line for name, line in rest.items() if not wrong.startswith(name))]
    )
    assert "s3cr3t" not in "\n".join(problems(text))


def test_a_forgotten_colon_is_asked_about() -> None:
    (problem,) = problems(MINIMAL.replace("e]", "e], api_key s3cr3t"))
    assert problem == (
        "f.yaml:2: pools.p.(a key that is not shown): unknown key - is the colon behind 'api_key' missing?; "
        "allowed here: speculative_config, engines, max_load, api_key, ca_file"
    )


def test_authorities_are_read_and_checked(tmp_path: Path) -> None:
    text = MINIMAL.replace("http://e]", "https://e], ca_file: ca.pem")
    path = tmp_path / "ca.pem"
    assert problems(text, tmp_path) == [
        f"f.yaml:2: pools.p.ca_file: {path} cannot be read: No such file or directory"
    ]
    for wrong in (
        "",
        "no certificate",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "\x00",
    ):
        path.write_text(wrong)
        assert problems(text, tmp_path) == [
            f"f.yaml:2: pools.p.ca_file: {path} has no certificates in PEM (-----BEGIN CERTIFICATE-----)"
        ]
    certificate = certified(tmp_path, "e", "DNS:e").with_suffix(".crt").read_text()
    path.write_text(certificate)
    config = parse(text, "f.yaml", tmp_path, {})
    assert config.authorities == {"p": certificate}
    assert config.sources[path] == hashlib.sha256(path.read_bytes()).digest()
    path.unlink()  # where nobody talks to engines they need not be there
    assert parse(text, "f.yaml", tmp_path, {}, keys=False).authorities == {}
    with pytest.raises(ConfigError, match=r"ca_file: .* cannot be read"):
        parse(text, "f.yaml", tmp_path, {}, keys=False, authorities=True)


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
