"""The OpenAPI document is there, readable, complete and true."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from manyhands.site.document import document
from tests.e2e.qless.talk import Qless
from tests.e2e.serving import environment

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,response_headers_conformance,unsupported_method"
)

PATHS = {
    # A stream has no end.
    "qless": ("--exclude-path-regex", "^/(api|0.2.0|events)"),
    "native": ("--include-path-regex", "^/api"),
    "taskcluster": ("--include-path-regex", "^/0.2.0"),
}


def without_names(path: str) -> str:
    return re.sub(r"{\w+}", "{}", path)


def test_the_document_names_every_route_and_no_other(q):
    """Whatever the index names is in the document, in all APIs, and the other way round."""
    served = q.http.get("/openapi.json").json()
    told = {
        f"{method.upper()} {without_names(path)}"
        for path, found in served["paths"].items()
        for method in found
    }

    assert {without_names(line) for line in q.get("/")["endpoints"]} == told
    assert served["openapi"] == "3.1.0"
    assert served == json.loads(json.dumps(document()))


def test_every_shape_that_is_referred_to_is_there():
    whole = document()
    found = re.findall(r'"#/components/(\w+)/(\w+)"', json.dumps(whole))

    assert found
    assert [name for kind, name in found if name not in whole["components"][kind]] == []


def test_the_page_is_readable_and_loads_nothing(q):
    page = q.http.get("/docs")

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "POST /add/{queue}" in page.text
    assert "GET /events" in page.text
    assert "POST /api/submit" in page.text
    assert "POST /0.2.0/task/new" in page.text
    assert not re.search(r"(src|href)=\"(https?:)?//", page.text)
    assert "<script" not in page.text


def check_answer(q: Qless, path: str, query: str = "") -> dict:
    """The answer to a GET, which is as the document says."""
    template = re.sub("/api/bulk/.+", "/api/bulk/{id}", path)
    template = re.sub("/queues/.+", "/queues/{queue}", template)
    answer = q.http.get(path + query).json()
    whole = document()
    told = whole["paths"][template]["get"]["responses"]["200"]["content"]["application/json"]
    shape = {**told["schema"], "components": whole["components"]}
    jsonschema.validate(answer, shape, cls=jsonschema.Draft202012Validator)
    return answer


def test_what_operators_are_shown_is_described_to_the_last_key(q, one, queue, fresh):
    """Shapes that an answer must not go beyond, on answers that are not empty."""
    one.set(queue, retries=3, backoff={"first": 1}, rate={"count": 5, "per": 1}, keep=10**7)
    [job_id, _] = one.add(queue, 1, 2, tags=["a"])
    one.take(queue)
    one.results(f"/fail/{queue}", [{"id": job_id, "group": "broken", "message": "so"}])
    one.results(f"/recurring/{queue}", [{"id": fresh(), "meta": 1, "interval": 60, "offset": 60}])
    bulk = {"action": "priority", "priority": 3, "filter": {"queue": queue, "state": ["ready"]}}
    begun = q.http.post("/api/bulk", json=bulk).json()["results"]

    assert check_answer(q, f"/queues/{queue}")["results"]["settings"]["keep"] == 10**7
    assert check_answer(q, "/recurring")["results"]
    assert check_answer(q, f"/api/bulk/{begun['id']}")["results"]["filter"]["queue"] == queue
    assert check_answer(q, "/api/bulk")["results"]
    [group] = check_answer(q, "/api/failures", f"?queue={queue}")["results"]
    assert (group["code"], group["count"]) == ("broken", 1)
    assert check_answer(q, "/api/history", f"?queue={queue}")["total"]["submitted"] == 2
    assert check_answer(q, "/api/audit")["results"]
    assert check_answer(q, "/api/protocols")["results"]


def test_every_condition_of_a_search_is_described():
    told = [found["name"] for found in document()["paths"]["/api/jobs"]["get"]["parameters"]]

    conditions = "state queue tag worker realm unique_key name task age_min age_max failure"
    assert told == [*conditions.split(), "failure_code", "text", "order", "after", "count"]


@pytest.mark.parametrize(("policy", "fits"), [("hexadecimal", False), ("any", True)])
def test_the_document_has_ids_as_the_server_takes_them(policy, fits):
    shape = document(policy)["components"]["schemas"]["Id"]

    assert jsonschema.Draft202012Validator(shape).is_valid("my job/7") is fits
    assert jsonschema.Draft202012Validator(shape).is_valid("deadbeef1")
    assert not jsonschema.Draft202012Validator(shape).is_valid("")


# What is allowed and only makes the run longer, or means another path: a name with a slash in it.
WAIT = {"type": "number", "minimum": 0, "maximum": 0.02}
WORD = {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_-]{0,35}$"}


def hurried(schema: object) -> object:
    """The same document, for a tester that is in a hurry."""
    if isinstance(schema, list):
        return [hurried(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: WAIT if key == "wait" and "maximum" in one else hurried(one)
        for key, one in schema.items()
    }
    if schema.get("name") == "wait":
        found["schema"] = WAIT
    elif schema.get("in") == "path" and schema["schema"].get("type") == "string":
        found["schema"] = WORD
    return found


@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which(str(SCHEMATHESIS)) is None, reason="schemathesis is missing")
@pytest.mark.parametrize("api", ["qless", "native", "taskcluster"])
def test_the_document_is_true(served, tmp_path, api):
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(hurried(document())))
    ended = subprocess.run(
        [
            *(str(SCHEMATHESIS), "run", str(file), "--url", served.url, "--checks", CHECKS),
            *PATHS[api],
            *("--max-examples", "15", "--phases", "examples,coverage,fuzzing", "--no-color"),
            *("--seed", "1", "--request-timeout", "120", "--suppress-health-check", "all"),
        ],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=1700,
    )

    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
