"""Every example of the API's page works, in the order in which it stands there."""

import json
import re
import subprocess
from pathlib import Path

from manyhands.model.replies import Why
from tests.e2e.serving import environment

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "api.md").read_text(encoding="utf-8")
QLESS = (DOCS / "protocols" / "qless.md").read_text(encoding="utf-8")
TASKCLUSTER = (DOCS / "protocols" / "taskcluster.md").read_text(encoding="utf-8")
OPERATING = (DOCS / "operating.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
# Examples share a shell, as they would on a reader's screen.
PRELUDE = 'set -euo pipefail\ncurl() { command curl --silent --show-error --fail "$@"; echo; }\n'
MARK = "-- next --"


def test_every_example_of_the_page_works(served):
    script = PRELUDE + f"echo '{MARK}'\n".join(EXAMPLES)
    script = script.replace("http://127.0.0.1:7700", served.url)

    ended = subprocess.run(
        ["bash", "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )

    assert ended.returncode == 0, ended.stdout[-500:] + ended.stderr
    outputs = ended.stdout.split(MARK)
    assert len(outputs) == len(EXAMPLES)
    for example, output in zip(EXAMPLES, outputs, strict=True):
        lines = [line for line in output.splitlines() if line]
        assert lines, example
        for line in lines:
            envelope = json.loads(line)
            assert envelope["results"] is not None, example
            assert "errors" not in envelope, example


def test_every_endpoint_stands_on_the_page(api):
    endpoints = api.http.get("/").json()["results"]["endpoints"]

    for endpoint in endpoints:
        path = endpoint.split(" ")[1]
        if path.startswith("/api"):
            stem, *rest = re.split(r"{\w+}", path)
            assert stem in PAGE, endpoint
            assert all(part in PAGE for part in rest), endpoint
        else:
            first = "/" + path.split("/")[1]
            short_form = path == "/{queue}/{count}"
            words = "/<queue>/<count>" if short_form else first
            assert words in PAGE + QLESS + TASKCLUSTER, endpoint


def test_every_code_of_a_refusal_stands_on_the_page():
    for why in Why:
        word = why.value
        assert f"`{word}`" in PAGE or f"`{word.removeprefix('bad_')}`" in PAGE, word


def test_every_metric_stands_on_the_operators_page(api):
    names = re.findall(r"^# TYPE (\w+)", api.http.get("/metrics").text, re.MULTILINE)

    assert len(names) > 20
    for name in names:
        assert f"`{name}`" in OPERATING, name
