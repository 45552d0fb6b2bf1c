"""The gateways that are measured: how each is started, and what it does not do.

Those that `python -m bench.overhead.install` has not installed are left out and named.
"""

from __future__ import annotations

import os
import secrets
import shutil
import string
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.overhead.bodies import MODEL
from bench.overhead.native import CACHE, HERE
from bench.serving import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

HOME = Path(os.environ.get("OVERHEAD_HOME") or CACHE / "ocr-gateway-rivals")
OURS, QUIET, DIRECT = "ocr-gateway", "ocr-gateway-quiet", "direct"

# Generated, for a gateway that does not start without a key.
_KEY = f"sk-{secrets.token_hex(24)}"

_NGINX = """\
daemon off; $user worker_processes 1; pid $run/nginx.pid; error_log $run/nginx.err;
events { worker_connections 8192; }
http {
  access_log off; tcp_nodelay on; keepalive_requests 1000000;
  client_max_body_size 64m; client_body_buffer_size $buffer;
  client_body_temp_path $run/nginx-body; proxy_temp_path $run/nginx-proxy; fastcgi_temp_path $run/nginx-f;
  uwsgi_temp_path $run/nginx-u; scgi_temp_path $run/nginx-s;
  upstream engines { server 127.0.0.1:$engine; keepalive 512; keepalive_requests 1000000; }
  server {
    listen 127.0.0.1:$port backlog=4096;
    location / {
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "";
      $more
    }
  }
}
"""
# As root its workers would run as nobody, who may not write into the run's folder.
_NGINX_USER = "" if os.geteuid() else "user root;"
_HAPROXY = """\
global
  maxconn 8192
  nbthread 1
defaults
  mode http
  option http-keep-alive
  option http-no-delay
  http-reuse always
  timeout connect 5s
  timeout client 300s
  timeout server 300s
frontend gateway
  bind 127.0.0.1:$port
  default_backend engines
backend engines
  server one 127.0.0.1:$engine
"""
_LITELLM = f"""\
model_list:
  - model_name: {MODEL}
    litellm_params: {{model: openai/{MODEL}, api_base: "http://127.0.0.1:$engine/v1", api_key: none}}
litellm_settings: {{telemetry: false, num_retries: 0}}
"""
_OURS = f"""\
model: {MODEL}
pools:
  mtp3:
    speculative_config: {{method: mtp, num_speculative_tokens: 3}}
    engines: [http://127.0.0.1:$engine]
    max_load: 1024
routes:
  text: {{}}
  key-value: {{}}
  table: {{}}
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """A gateway.

    `command`, `environment` and `files` may have $port (its own), $engine (the engine's), $spare (a free
    one), $home (where `install` puts gateways) and $run (a folder for this run).

    Attributes:
        name: in tables and on the command line.
        lacks: what ours does and this does not.
        command: that starts it; empty: there is no gateway, the clients send to the engine.
        environment: variables beside the process's own.
        files: to write before, by name in the run's folder.
        needs: files without which it does not start; one without a slash may be in PATH, too.
        version: a command that prints its version.
        headers: of each request.
        requirements: what `install` puts into the virtual environment `venv`.
        venv: that environment's name.
        debian: packages that `install` unpacks.
        folder: where it is started.
        start_s: how long its start may take.
        primes: requests before it is measured, for what is loaded at first use.
    """

    name: str
    lacks: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    version: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    venv: str = ""
    debian: tuple[str, ...] = ()
    folder: Path = ROOT
    start_s: float = 60
    primes: int = 50

    def missing(self, home: Path | None = None) -> str:
        """Return the first file that it needs and that is missing, or ""."""
        paths = (filled(need, home=str(home or HOME)) for need in self.needs)
        return next((path for path in paths if shutil.which(path) is None and not Path(path).exists()), "")

    def read_version(self, home: Path | None = None) -> str:
        """Run its version command; return the version, or ""."""
        if not self.version:
            return ""
        command = [filled(word, home=str(home or HOME)) for word in self.version]
        environment = {key: filled(value, home=str(home or HOME)) for key, value in self.environment.items()}
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | environment,
            cwd=self.folder,
        )
        lines = (done.stdout or done.stderr).strip().splitlines()
        return lines[0].removeprefix("nginx version: ").partition(" - ")[0] if lines else ""


def filled(text: str, **values: str) -> str:
    """Replace the names that have values in a text; the others stay."""
    return string.Template(text).safe_substitute(values)


def _nginx(name: str, lacks: str, buffer: str, more: str = "") -> Peer:
    program = _debian_program("sbin/nginx")
    return Peer(
        name,
        lacks,
        (program, "-c", f"$run/{name}.conf"),
        files={f"{name}.conf": filled(_NGINX, buffer=buffer, more=more, user=_NGINX_USER)},
        environment=_DEBIAN_LIBRARIES,
        needs=(program,),
        version=(program, "-v"),
        debian=("nginx",),
    )


# Debian's libraries that the unpacked programs need beside them.
_DEBIAN_LIBRARIES = {"LD_LIBRARY_PATH": "$home/deb/usr/lib/x86_64-linux-gnu"}


def _debian_program(path: str) -> str:
    unpacked = HOME / "deb/usr" / path
    installed = shutil.which(Path(path).name)
    return installed if installed and not unpacked.exists() else f"$home/deb/usr/{path}"


def _python(name: str, application: str, lacks: str, *more: str) -> Peer:
    """Return a minimal gateway of `proxies.py`."""
    python = "$home/venv/py/bin/python"
    options = ("--host", "127.0.0.1", "--port", "$port", "--no-access-log", "--log-level", "warning")
    packages = ("uvicorn", *more)
    return Peer(
        name,
        lacks,
        (python, "-m", "uvicorn", *options, "--app-dir", str(HERE), f"proxies:{application}"),
        environment={"ENGINE": "http://127.0.0.1:$engine"},
        needs=(python,),
        version=(python, "-c", _versions(*packages)),
        requirements=_PY,
        venv="py",
    )


def _versions(*packages: str) -> str:
    return (
        "from importlib.metadata import version\n"
        f"print(', '.join(name + ' ' + version(name) for name in {packages!r}))"
    )


_PY = (
    "fastapi==0.165.0",
    "starlette==1.10.0",
    "uvicorn==0.54.0",
    "uvloop==0.23.0",
    "httptools==0.9.0",
    "httpx==0.28.1",
    "aiohttp==3.14.5",
    "msgspec==0.23.0",
)


def _router(name: str, venv: str, command: tuple[str, ...], package: str, *, level: str = "warn") -> Peer:
    """Return one of the Rust routers that descend from SGLang's; they take the same options."""
    options = (
        *("--worker-urls", "http://127.0.0.1:$engine", "--host", "127.0.0.1", "--port", "$port"),
        *("--policy", "round_robin", "--log-level", level),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", "$spare"),
    )
    distribution = package.partition("==")[0]
    return Peer(
        name,
        "sort, check images, count acceptance, bound the bytes it holds",
        (*command, *options),
        needs=(command[0],),
        version=(f"$home/venv/{venv}/bin/python", "-c", _versions(distribution)),
        requirements=(package,),
        venv=venv,
    )


def ours(name: str = OURS, checkout: Path = ROOT) -> Peer:
    """Return our gateway, of this checkout or of another."""
    return Peer(
        name,
        "",
        (
            *(sys.executable, "-m", "gateway.cli", "serve", "--config", f"$run/{name}.yaml"),
            *("--host", "127.0.0.1", "--port", "$port", "--log-format", "json"),
        ),
        environment={"PYTHONPATH": str(checkout)},
        files={f"{name}.yaml": _OURS},
        version=(sys.executable, "-c", "import gateway; print(gateway.__version__)"),
        folder=checkout,
    )


def _quiet() -> Peer:
    peer = ours(QUIET)
    lacks = "write a line of log for each request (`--log-level warning`), as the others below do not either"
    return replace(peer, lacks=lacks, command=(*peer.command, "--log-level", "warning"))


_PROXY_LACKS = "sort, check images, account, retry, bound, queue, watch engines' health"
_LITELLM_COMMAND = ("$home/venv/litellm/bin/litellm", "--config", "$run/litellm.yaml", "--host", "127.0.0.1")

PEERS = {
    peer.name: peer
    for peer in (
        Peer(DIRECT, "everything: no gateway"),
        ours(),
        _quiet(),
        _nginx(
            "nginx",
            "read the request: sort, check, choose by model or load, account; it keeps the body in memory",
            "16m",
        ),
        _nginx(
            "nginx-unbuffered",
            "the same; it passes the body on as it comes, so that nothing can be tried again",
            "64k",
            "proxy_request_buffering off; proxy_buffering off;",
        ),
        Peer(
            "haproxy",
            "read the request: sort, check, choose by model, account; it passes the body on as it comes",
            (_debian_program("sbin/haproxy"), "-db", "-f", "$run/haproxy.cfg"),
            environment=_DEBIAN_LIBRARIES,
            files={"haproxy.cfg": _HAPROXY},
            needs=(_debian_program("sbin/haproxy"),),
            version=(_debian_program("sbin/haproxy"), "-v"),
            debian=("haproxy", "liblua5.3-0", "libopentracing1", "libopentracing-c-wrapper0"),
        ),
        _router(
            "vllm-router",
            "vllm_router",
            ("$home/venv/vllm_router/bin/vllm-router",),
            "vllm-router==0.1.17",
            level="warning",
        ),
        _router(
            "sglang-router",
            "sglang",
            ("$home/venv/sglang/bin/python", "-m", "sglang_router.launch_router"),
            "sglang-router==0.3.2",
        ),
        replace(
            _router("smg", "smg", ("$home/venv/smg/bin/smg", "launch"), "smg==1.13.0"),
            lacks="sort, check images, count acceptance; it passes large bodies on as they come",
        ),
        _python("asgi-aiohttp", "asgi_aiohttp", _PROXY_LACKS, "aiohttp"),
        _python("fastapi-aiohttp", "fastapi_aiohttp", _PROXY_LACKS, "fastapi", "aiohttp"),
        _python("fastapi-httpx", "fastapi_httpx", _PROXY_LACKS, "fastapi", "httpx"),
        Peer(
            "litellm",
            "sort, check images, count acceptance, bound the bytes it holds",
            (*_LITELLM_COMMAND, "--port", "$port", "--num_workers", "1"),
            environment={
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "LITELLM_LOG": "ERROR",
                "LITELLM_MASTER_KEY": _KEY,
                "LITELLM_MODE": "PRODUCTION",
                "NO_DOCS": "True",
                "PYTHONWARNINGS": "ignore",
            },
            files={"litellm.yaml": _LITELLM},
            needs=(_LITELLM_COMMAND[0],),
            version=("$home/venv/litellm/bin/python", "-c", _versions("litellm")),
            headers=(f"Authorization: Bearer {_KEY}",),
            requirements=(
                "litellm[proxy]==1.108.7",
                "fastapi==0.165.0",
                "uvicorn==0.54.0",
                "aiohttp==3.14.5",
            ),
            venv="litellm",
            start_s=180,
            primes=100,
        ),
    )
}
