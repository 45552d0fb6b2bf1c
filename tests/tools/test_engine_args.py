import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway import cli
from gateway.config import Config, parse
from gateway.tools.engine_args import arguments, command, environment, kustomize, most_unfinished
from tests.tools.support import CONFIG, changed

MTP = {"method": "mtp", "num_speculative_tokens": 3}
RANGES = MTP | {"num_speculative_tokens_per_batch_size": [[1, 16, 3], [17, 64, 0]]}


def config(*engines: str, pool: dict[str, Any] | None = None, **sections: Any) -> Config:
    pools = {"deep": {"engines": list(engines) or ["http://10.0.0.7:8001"], **(pool or {})}}
    values = {"model": "glm-ocr", "model_path": "zai-org/GLM-OCR", "pools": pools, "routes": {"text": {}}}
    return parse(yaml.safe_dump({**values, **sections}), "f.yaml", Path(), {})


def options(config: Config, engine: str | None = None) -> dict[str, list[str]]:
    """The arguments behind the model, by option."""
    found: dict[str, list[str]] = {}
    for word in arguments(config, "deep", engine)[1:]:
        if word.startswith("--"):
            found[word] = []
        else:
            found[list(found)[-1]].append(word)
    return found


def pasted(text: str) -> list[list[str]]:
    """What a shell would run, each `vllm serve` with its arguments."""
    show = "vllm() { printf '%s\\0' VLLM \"$@\"; }\n"
    done = subprocess.run(["bash", "-euc", show + text], capture_output=True, text=True, check=True)
    words = done.stdout.rstrip("\0").split("\0")
    starts = [place for place, word in enumerate(words) if word == "VLLM"]
    return [words[one + 1 : two] for one, two in zip(starts, [*starts[1:], len(words)], strict=True)]


def test_what_the_configuration_says_is_what_the_engine_is_told() -> None:
    told = config(
        pool={"speculative_config": MTP, "max_load": 24},
        server={"drain_s": 12.5, "replicas": 3},
        limits={"images_per_request": 5},
    )
    assert arguments(told, "deep")[0] == "zai-org/GLM-OCR"
    assert options(told) == {
        "--served-model-name": ["glm-ocr"],
        "--host": ["10.0.0.7"],
        "--port": ["8001"],
        "--speculative-config": [json.dumps(MTP)],
        "--per-request-spec-decode-metrics": ["summary"],
        "--max-num-seqs": ["24"],
        "--max-num-queued-reqs": ["48"],
        "--shutdown-timeout": ["13"],
        "--enable-request-id-headers": [],
        "--limit-mm-per-prompt": ['{"image": 5, "video": 0}'],
        "--allowed-media-domains": ["none.invalid"],
        "--mm-processor-cache-gb": ["0"],
    }


def test_without_depth_nothing_is_said_of_speculation() -> None:
    assert not [option for option in options(config()) if "spec" in option]


@pytest.mark.parametrize("engine_config", [RANGES, {"method": "ngram", "num_speculative_tokens": 4}])
def test_the_pools_own_object_is_passed_on(engine_config: dict[str, Any]) -> None:
    (told,) = options(config(pool={"speculative_config": engine_config}))["--speculative-config"]
    assert json.loads(told) == engine_config


@pytest.mark.parametrize(
    ("engine", "host", "port"),
    [
        ("http://127.0.0.1:9000", "127.0.0.1", "9000"),
        ("http://localhost:9000", "localhost", "9000"),
        ("http://[::1]:9000", "::1", "9000"),
        ("http://vllm-deep:8000", "0.0.0.0", "8000"),
        ("http://vllm-deep", "0.0.0.0", "80"),
        ("https://vllm-deep.example.com", "0.0.0.0", "443"),
        ("dns+http://vllm-deep:8000", "0.0.0.0", "8000"),
    ],
)
def test_it_listens_where_the_gateway_looks_for_it(engine: str, host: str, port: str) -> None:
    told = options(config(engine))
    assert (told["--host"], told["--port"]) == ([host], [port])


def test_engines_fetch_nothing_whatever_the_gateway_may_fetch() -> None:
    told = config(remote_images={"allow_hosts": ["a.example.com", "b.example.com:8443"]})
    assert options(told)["--allowed-media-domains"] == ["none.invalid"]
    assert environment() == {"VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0"}
    assert command(told, "deep").count("VLLM_MEDIA_URL_ALLOW_REDIRECTS=0") == 1


@given(st.integers(1, 4096), st.integers(1, 50))
def test_the_bound_lets_every_gateway_keep_its_share(max_load: int, replicas: int) -> None:
    share = -(-max_load // replicas)
    assert most_unfinished(max_load, replicas) > max_load + (replicas - 1) * share
    assert most_unfinished(max_load, replicas) < 2 * max_load + replicas


@pytest.mark.parametrize(
    ("max_load", "depth", "batch"), [(256, 7, None), (256, 8, ["8192"]), (4096, 3, ["16384"])]
)
def test_a_step_has_room_for_all_requests_and_their_drafts(
    max_load: int, depth: int, batch: list[str] | None
) -> None:
    told = config(pool={"max_load": max_load, "speculative_config": MTP | {"num_speculative_tokens": depth}})
    assert options(told).get("--max-num-batched-tokens") == batch


def test_models_get_what_their_recipes_say() -> None:
    def added(model: str, **pool: Any) -> set[str]:
        return set(options(config(pool=pool, model_path=model))) - set(options(config(pool=pool)))

    assert added("tencent/HunyuanOCR") == {"--no-enable-prefix-caching"}
    paddle = {"--no-enable-prefix-caching", "--max-num-batched-tokens"}
    assert added("/models/PaddleOCR-VL-1.5") == paddle
    guarded = {"--no-enable-prefix-caching", "--logits-processors"}
    assert added("deepseek-ai/DeepSeek-OCR") == guarded
    ngram = {"method": "ngram", "num_speculative_tokens": 2}
    assert added("deepseek-ai/DeepSeek-OCR", speculative_config=ngram) == {"--no-enable-prefix-caching"}
    assert added("Qwen/Qwen3.5-4B") == set()


def test_without_a_path_the_models_name_is_loaded() -> None:
    told = config(model="tencent/HunyuanOCR", model_path=None)
    assert arguments(told, "deep")[0] == "tencent/HunyuanOCR"
    assert "--no-enable-prefix-caching" in arguments(told, "deep")
    assert "model_path is not set" in command(told, "deep")


@pytest.mark.parametrize(
    ("pool", "model", "note"),
    [
        ({"speculative_config": MTP}, "zai-org/GLM-OCR", "does not load in vLLM 0.26.0 to 0.27.1 and 0.29.0"),
        ({"speculative_config": RANGES}, "Qwen/Qwen3.5-4B", "vllm#49548"),
        ({"engines": ["https://vllm-deep"]}, "zai-org/GLM-OCR", "--ssl-keyfile"),
        ({}, "PaddlePaddle/PaddleOCR-VL", "--trust-request-mm-kwargs"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
            "deepseek-ai/DeepSeek-OCR",
            "NGramPerReqLogitsProcessor",
        ),
    ],
)
def test_what_an_operator_should_know_is_said(pool: dict[str, Any], model: str, note: str) -> None:
    assert note in command(config(pool=pool, model_path=model), "deep").replace("\n#  ", "")
    plain = command(config(model_path="Qwen/Qwen3.5-4B"), "deep")
    assert [line for line in plain.splitlines() if line.startswith("#")] == [
        "# Pool deep, depth 0: http://10.0.0.7:8001"
    ]


def test_the_key_is_never_printed() -> None:
    told = config(pool={"api_key": "sk-secret"})
    assert "secret" not in command(told, "deep") + str(arguments(told, "deep"))
    assert "VLLM_API_KEY" in command(told, "deep")
    assert "VLLM_API_KEY" not in command(config(), "deep")


def test_there_is_one_line_for_each_address_to_listen_on() -> None:
    engines = ("http://127.0.0.1:8001", "http://127.0.0.1:8002", "http://one:8000", "http://two:8000")
    told = config(*engines)
    lines = pasted(command(told, "deep"))
    assert lines == [["serve", *arguments(told, "deep", engine)] for engine in engines[:3]]
    assert "# http://one:8000, http://two:8000\n" in command(told, "deep")
    assert pasted(command(config(*engines[2:]), "deep")) == [["serve", *arguments(told, "deep", engines[2])]]


def test_the_embedded_engine_is_not_to_be_started() -> None:
    told = config("embedded")
    assert arguments(told, "deep") == []
    assert pasted(command(told, "deep") + "\nvllm none") == [["none"]]
    assert "started and stopped by `ocr-gateway serve`" in command(told, "deep")
    both = config("embedded", "http://one:8000")
    assert pasted(command(both, "deep")) == [["serve", *arguments(both, "deep")]]


def test_the_patch_holds_the_arguments_and_says_how_to_write_it_again() -> None:
    told = config(pool={"speculative_config": MTP, "api_key": "sk-secret"})
    text = kustomize(told, "deep", "routes.yaml")
    assert text.startswith("# `ocr-gateway engine-args --pool deep --kustomize` wrote this from routes.yaml")
    assert "secret" not in text
    patch = yaml.safe_load(text)
    assert (patch["kind"], patch["metadata"]) == ("StatefulSet", {"name": "vllm"})
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    variables = [{"name": "VLLM_MEDIA_URL_ALLOW_REDIRECTS", "value": "0"}]
    assert container == {"name": "vllm", "args": arguments(told, "deep"), "env": variables}


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=12)


@given(model=WORDS, path=WORDS, note=WORDS)
def test_what_is_pasted_is_what_was_meant(model: str, path: str, note: str) -> None:
    told = Config.model_validate(
        {
            "model": model,
            "model_path": f"{path} it's",
            "pools": {"deep": {"engines": ("http://one:1",), "speculative_config": MTP | {"note": note}}},
            "routes": {"text": {}},
        }
    )
    text = command(told, "deep").replace("\\\n", "")
    line = text.splitlines()[-1]
    assert shlex.split(line) == [
        *(f"{key}={value}" for key, value in environment().items()),
        "vllm",
        "serve",
        *arguments(told, "deep"),
    ]
    assert all(comment.startswith("#") for comment in text.splitlines()[:-1])
    (container,) = yaml.safe_load(kustomize(told, "deep", "f"))["spec"]["template"]["spec"]["containers"]
    assert container["args"] == arguments(told, "deep")


def test_engine_args_prints_every_pools_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(tmp_path, "  cpu:", "  gpu:\n    engines: ['http://one:8000']\n  cpu:")
    assert cli.main(["engine-args", "--config", str(path)]) == 0
    both = capsys.readouterr().out
    assert both.count("vllm serve glm-ocr") == 1
    assert cli.main(["engine-args", "--config", str(path), "--pool", "gpu"]) == 0
    gpu = capsys.readouterr().out
    assert both.startswith(gpu.rstrip("\n"))
    assert "# Pool cpu, depth 0: embedded" in both.removeprefix(gpu)
    assert cli.main(["engine-args", "--config", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["cpu"] == []
    assert told["gpu"][:3] == ["glm-ocr", "--served-model-name", "glm-ocr"]


def test_engine_args_of_an_unknown_pool_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["engine-args", "--config", CONFIG, "--pool", "mtp3"]) == 1
    assert "unknown pool 'mtp3'; there are: cpu" in capsys.readouterr().err


def test_engine_args_prints_a_pools_patch_and_says_of_which_it_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(tmp_path, "  cpu:", "  gpu:\n    engines: ['http://one:8000']\n  cpu:")
    told = ["engine-args", "--config", str(path), "--kustomize"]
    assert cli.main([*told, "--pool", "gpu"]) == 0
    assert f"wrote this from {path.name}" in capsys.readouterr().out
    assert cli.main(told) == 1
    assert "--kustomize is for one pool: --pool gpu or cpu" in capsys.readouterr().err
    assert cli.main([*told, "--pool", "cpu"]) == 1
    assert "pool cpu has no engine to start" in capsys.readouterr().err
