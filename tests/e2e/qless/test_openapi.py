"""The OpenAPI document is there, readable, complete and true."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from manyhands.server.openapi import document
from tests.e2e.serving import environment

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,response_headers_conformance,unsupported_method"
)


def test_the_document_names_every_route_and_no_other(q):
    paths = {
        f"{method.upper()} {path}"
        for path, found in document()["paths"].items()
        for method in found
    }
    firsts = {(line.split()[0], line.split()[1].split("/")[1]) for line in paths}
    for line in q.get("/")["endpoints"]:
        method, path = line.split()
        first = path.split("/")[1]
        if first not in (
            "api",
            "healthz",
            "readyz",
            "metrics",
            "openapi.json",
            "docs",
            "",
            "hearbeat",
        ):
            assert (method, first) in firsts, line
    served = q.http.get("/openapi.json")
    assert served.json()["openapi"] == "3.1.0"
    assert set(served.json()["paths"]) == set(document()["paths"])


def test_the_page_is_readable_and_loads_nothing(q):
    page = q.http.get("/docs")

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "POST /add/{queue}" in page.text
    assert "GET /events" in page.text
    assert not re.search(r"(src|href)=\"(https?:)?//", page.text)
    assert "<script" not in page.text


@pytest.mark.timeout(240)
@pytest.mark.skipif(shutil.which(str(SCHEMATHESIS)) is None, reason="schemathesis is missing")
def test_the_document_is_true(served, tmp_path):
    ended = subprocess.run(
        [
            *(str(SCHEMATHESIS), "run", f"{served.url}/openapi.json"),
            *("--checks", CHECKS, "--exclude-path", "/events", "--no-color"),
            *("--max-examples", "15", "--phases", "examples,coverage,fuzzing"),
            *("--seed", "1", "--request-timeout", "20", "--suppress-health-check", "all"),
        ],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=230,
    )

    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
