"""`python -m deploy.prometheus.operator`: the rules and alerts as the Prometheus operator takes them.

Writes deploy/kubernetes/components/monitoring/prometheusrule.yaml, which a test keeps up to date.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [ROOT / "deploy/prometheus" / name for name in ("rules.yaml", "alerts.yaml")]
FILE = ROOT / "deploy/kubernetes/components/monitoring/prometheusrule.yaml"
_HEAD = """\
# Made by `python -m deploy.prometheus.operator` of deploy/prometheus/{rules,alerts}.yaml: change those.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: ocr-gateway
  labels:
    app.kubernetes.io/name: ocr-gateway
    app.kubernetes.io/part-of: ocr-gateway
    release: kube-prometheus-stack    # see kustomization.yaml
spec:
  groups:
"""


def build() -> str:
    """Return the PrometheusRule as YAML text, comments included."""
    groups = [path.read_text().partition("\ngroups:\n")[2] for path in SOURCES]
    return _HEAD + "\n".join(textwrap.indent(text, "  ") for text in groups)


if __name__ == "__main__":
    FILE.write_text(build())
