"""The queue's REST API, and the documents at the URLs that messages name."""

import json
import socket
from contextlib import closing
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from referencing import Registry, Resource

from tests.amqp.watching import EXCHANGES, bind_all, collect_count, connect, url_of
from tests.e2e.serving import Api, serving, wait_until
from tests.unit.protocols.test_taskcluster_messages import REGISTRY, jsonschema

STORES = ("own", "postgresql")
pytestmark = pytest.mark.usefixtures("store_of_module")

WORKER = {"worker_group": "rack-1", "worker_id": "node-7"}
UPLOAD_BYTES_MAX = 12_000_000
NOBODY = "00000000-0000-7000-8000-000000000000"


@pytest.fixture(scope="module")
def served(tmp_path_factory, store_of_module):  # noqa: ARG001 - which is chosen first
    folder = tmp_path_factory.mktemp("served")
    arguments = ("--amqp", "127.0.0.1:0", "--payload-bytes-max", str(UPLOAD_BYTES_MAX))
    with serving(folder, *arguments) as server:
        yield server


@pytest.fixture
def http(served):
    with httpx.Client(base_url=f"{served.url}/0.2.0", timeout=120.0) as client:
        yield client


def a_definition(worker_type: str, **changes):
    now = datetime.now(UTC)
    definition = {
        "version": "0.2.0",
        "provisioner_id": "aws",
        "worker_type": worker_type,
        "routing": "sched.one",
        "retries": 2,
        "priority": 2.5,
        "created": now.isoformat(),
        "deadline": (now + timedelta(hours=1)).isoformat(),
        "payload": {"command": ["true"]},
        "metadata": {"name": "n", "owner": "a@example.org", "maintainer": "b@example.org"},
        "tags": {"kind": "test"},
    }
    return definition | changes


def valid(name: str, document) -> None:
    jsonschema.Draft202012Validator({"$ref": f"{name}.json"}, registry=REGISTRY).validate(document)


def new(http, worker_type: str, **changes) -> dict:
    answer = http.post("/task/new", json=a_definition(worker_type, **changes))
    assert answer.status_code == 200, answer.text
    status = answer.json()["status"]
    valid("task_status", status)
    return status


def claim(http, task: str, **more):
    return http.post(f"/task/{task}/claim", json=WORKER | more)


def test_a_task_is_made_claimed_reclaimed_and_completed(http):
    """T35."""
    task = new(http, "life")["task_id"]
    assert http.get(f"/task/{task}/status").json()["status"]["state"] == "pending"

    claimed = claim(http, task).json()
    assert claimed["run_id"] == 1
    assert claimed["status"]["state"] == "running"
    again = claim(http, task, run_id=1).json()
    assert again["status"]["taken_until"] >= claimed["status"]["taken_until"]
    done = http.post(f"/task/{task}/completed", json=WORKER | {"run_id": 1})
    assert done.json()["status"]["state"] == "completed"
    assert done.json()["status"]["runs"] == [WORKER | {"run_id": 1}]
    # The same report again is the same answer.
    assert http.post(f"/task/{task}/completed", json=WORKER | {"run_id": 1}).status_code == 200


def test_the_urls_of_messages_lead_to_documents(http, served):
    """T38."""
    with connect(url_of(served)) as connection, httpx.Client() as anywhere:
        channel = connection.channel()
        queue = bind_all(channel, key="*.*.*.*.aws.documents.#")
        task = new(http, "documents")["task_id"]
        claim(http, task)
        http.post(f"/task/{task}/completed", json=WORKER | {"run_id": 1})
        _, running, completed = (json.loads(b) for _, _, b in collect_count(channel, queue, 3))
        assert running["status"]["routing"] == "sched.one"
        assert running["status"]["priority"] == 2.5

        valid("logs", anywhere.get(running["logs"]).json())
        valid("result", anywhere.get(completed["result"]).json())
    resolution = http.get(f"/store/{task}/resolution.json").json()
    valid("resolution", resolution)
    assert resolution["result"] == completed["result"]
    definition = http.get(f"/store/{task}/task.json").json()
    valid("task", definition)
    assert definition["payload"] == {"command": ["true"]}


def test_schemas_are_served(http):
    """T5."""
    schema = http.get("/schemas/task_pending_v1.json").json()

    assert schema["$schema"].endswith("2020-12/schema")
    assert schema["$id"] == str(http.base_url.join("schemas/task_pending_v1.json"))
    assert http.get("/schemas/nothing.json").status_code == 404


def test_an_asyncapi_document_names_the_four_exchanges_and_their_schemas(http):
    """T5."""
    document = http.get("/asyncapi.json").json()

    assert tuple(document["channels"]) == EXCHANGES
    for exchange, message in document["components"]["messages"].items():
        assert message["payload"]["$ref"] == f"schemas/{exchange}.json"


def test_a_schema_that_was_fetched_alone_leads_to_those_that_it_refers_to(http):
    """T5."""

    def fetch(uri: str) -> Resource:
        fetched.append(uri)
        return Resource.from_contents(httpx.get(uri).json())

    fetched: list[str] = []
    schema = http.get("/schemas/task_pending_v1.json").json()
    validator = jsonschema.Draft202012Validator(schema, registry=Registry(retrieve=fetch))

    assert not validator.is_valid({"version": "0.2.0", "status": {}})
    assert fetched == [str(http.base_url.join("schemas/task_status.json"))]


def test_an_asyncapi_document_names_where_the_endpoint_listens(tmp_path):
    """T5."""
    with serving(tmp_path, "--amqp", "127.0.0.1:0", "--store", "memory") as served:
        with_endpoint = httpx.get(f"{served.url}/0.2.0/asyncapi.json").json()
    with serving(tmp_path, "--store", "memory") as without:
        without_endpoint = httpx.get(f"{without.url}/0.2.0/asyncapi.json").json()

    assert [(name, server["host"]) for name, server in with_endpoint["servers"].items()] == [
        ("amqp", served.addresses["amqp"])
    ]
    assert without_endpoint["servers"] == {}


def test_a_worker_gets_work_of_its_type_and_204_when_there_is_none(http):
    """T36."""
    path = "/claim-work/aws/pulled"
    empty = http.post(path, json=WORKER)
    assert empty.status_code == 204
    assert empty.headers["retry-after"] == "180"
    task = new(http, "pulled")["task_id"]
    assert http.post(path, json=WORKER).json()["status"]["task_id"] == task


def test_a_worker_can_wait_for_work(http):
    """T36."""
    import threading

    answers = []

    def wait() -> None:
        answers.append(http.post("/claim-work/aws/awaited?wait=20", json=WORKER))

    waiting = threading.Thread(target=wait)
    waiting.start()
    with httpx.Client(base_url=http.base_url) as other:
        task = new(other, "awaited")["task_id"]
    waiting.join()
    assert answers[0].json()["status"]["task_id"] == task


def test_trap_05_the_first_name_of_result_json_is_served_too(http):
    task = new(http, "named")["task_id"]
    claim(http, task)
    http.post(f"/task/{task}/completed", json=WORKER | {"run_id": 1})

    folder = f"/store/{task}/runs/1"
    assert http.get(f"{folder}/results.json").json() == http.get(f"{folder}/result.json").json()


def test_trap_14_a_get_may_have_a_body_or_parameters_and_204_has_none(http):
    path = "/claim-work/aws/odd"
    body = http.request("GET", path, json=WORKER)
    parameters = http.get(path, params=WORKER)

    assert (body.status_code, body.content) == (204, b"")
    assert (parameters.status_code, parameters.content) == (204, b"")


@pytest.mark.parametrize("query", ["", "?worker_group=rack-1"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_for_work_that_names_no_worker_is_refused_as_such(http, method, query):
    """T36."""
    answer = http.request(method, f"/claim-work/aws/nobody{query}")

    assert answer.status_code == 400
    assert "worker_group and worker_id" in answer.json()["message"]


def test_trap_15_only_the_worker_of_a_run_may_speak_for_it(http):
    """T35."""
    task = new(http, "owned")["task_id"]
    claim(http, task)
    stranger = WORKER | {"worker_id": "other", "run_id": 1}

    for action in ("claim", "completed", "failed"):
        assert http.post(f"/task/{task}/{action}", json=stranger).status_code == 410
        old = http.post(f"/task/{task}/{action}", json=WORKER | {"run_id": 2})
        assert old.status_code == 410
        assert old.json()["message"]
    assert claim(http, task).status_code == 410  # it is claimed


def test_a_worker_can_say_that_no_run_will_succeed(http):
    task = new(http, "hopeless")["task_id"]
    claim(http, task)
    failed = http.post(f"/task/{task}/failed", json=WORKER | {"run_id": 1}).json()["status"]

    assert (failed["state"], failed["reason"]) == ("failed", "failed")
    assert claim(http, task).status_code == 404


def test_a_canceled_task_has_failed(http):
    task = new(http, "unwanted")["task_id"]
    for _ in range(2):
        status = http.post(f"/task/{task}/cancel").json()["status"]
        assert (status["state"], status["reason"]) == ("failed", "canceled")


def test_pending_tasks_of_a_provisioner(http):
    """T37."""
    task = new(http, "listed", provisioner_id="counted")["task_id"]
    tasks = http.get("/pending-tasks/counted").json()["tasks"]

    assert [status["task_id"] for status in tasks] == [task]


def test_the_address_of_the_endpoint_is_told(http, served):
    """T37."""
    url = http.get("/settings/amqp-connection-string").json()["url"]
    assert url == url_of(served)


def test_tasks_and_jobs_of_other_protocols_are_one(http, served):
    """T40."""
    task = new(http, "shared")["task_id"]
    with closing(Api(served)) as api:
        [job] = api.results("claim", queue="aws/shared", worker="w")
        assert job["payload"] == {"command": ["true"]}
        made = api.results("submit", queue="aws/shared")
    assert job["id"] == task.replace("-", "")
    claimed = http.post("/claim-work/aws/shared", json=WORKER).json()
    assert claimed["status"]["task_id"].replace("-", "") == made["id"]


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "0.3.0"},
        {"provisioner_id": "with.dot"},
        {"worker_type": "_"},
        {"worker_type": "x" * 37},
        {"routing": "é"},
        {"routing": "x" * 65},
        {"retries": -1},
        {"retries": 1000},
        {"created": "yesterday"},
        {"deadline": "2014-01-01"},
        {"payload": "text"},
        {"metadata": {"name": "n"}},
        {"metadata": {"name": "n", "owner": "nobody", "maintainer": "b@example.org"}},
        {"tags": {"a": 1}},
        {"surprise": True},
    ],
)
def test_a_definition_that_is_wrong_is_refused_with_a_sentence(http, changes):
    """T39."""
    definition = a_definition("wrong") | changes
    answer = http.post("/task/new", json=definition)

    assert answer.status_code == 400, answer.text
    assert answer.json()["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", f"/task/{NOBODY}/status", None, 404),
        ("GET", "/task/nonsense/status", None, 404),
        ("POST", f"/task/{NOBODY}/claim", WORKER, 404),
        ("POST", f"/task/{NOBODY}/claim", {"worker_group": "a.b", "worker_id": "c"}, 400),
        ("POST", f"/task/{NOBODY}/completed", WORKER, 400),
        ("POST", f"/task/{NOBODY}/cancel", None, 404),
        ("POST", "/claim-work/a.b/c", WORKER, 400),
        ("POST", "/claim-work/a/c?wait=soon", WORKER, 400),
        ("GET", "/pending-tasks/a.b", None, 400),
        ("GET", f"/store/{NOBODY}/runs/1/result.json", None, 404),
    ],
)
def test_wrong_requests(http, method, path, body, status):
    answer = http.request(method, path, json=body)

    assert answer.status_code == status, answer.text
    assert answer.json()["message"]


def sleepers(served) -> float:
    lines = httpx.get(f"{served.url}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("manyhands_sleepers "))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("DELETE", "/task/new", 405), ("GET", "/task/x/claim", 405)],
)
def test_what_is_not_there_is_refused_in_the_same_form(http, method, path, status):
    answer = http.request(method, path)

    assert answer.status_code == status
    assert set(answer.json()) == {"message", "error"}
    assert ("allow" in answer.headers) is (status == 405)


def answer_to(served, request: bytes) -> bytes:
    """The head of the first answer to what was written to a fresh connection."""
    host, _, port = str(served.addresses["http"]).rpartition(":")
    with socket.create_connection((host, int(port)), 90.0) as peer:
        peer.sendall(request)
        gathered = b""
        while b"\r\n\r\n" not in gathered:
            piece = peer.recv(65536)
            assert piece, gathered
            gathered += piece
    return gathered.partition(b"\r\n\r\n")[0]


def test_a_definition_above_the_limit_is_refused_before_it_came(served):
    """T39."""
    head = answer_to(
        served,
        b"POST /0.2.0/task/new HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Type: application/json\r\nContent-Length: 10485761\r\n\r\n{",
    )
    assert head.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in head


def test_who_is_refused_before_its_upload_came_need_not_send_it(http, served):
    """T41."""
    task = new(http, "early")["task_id"]
    head = answer_to(
        served,
        f"PUT /0.2.0/store/{task}/runs/1/artifacts/a?key=x HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        "Content-Length: 1000000\r\n\r\nnot all of it".encode(),
    )
    assert head.startswith(b"HTTP/1.1 410")
    assert b"connection: close" in head


def test_work_that_cannot_be_delivered_goes_back(http, served):
    """T36."""
    body = json.dumps(WORKER)
    request = (
        "POST /0.2.0/claim-work/aws/dropped?wait=20 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )
    host, _, port = str(served.addresses["http"]).rpartition(":")
    with socket.create_connection((host, int(port))) as peer:
        peer.sendall(request.encode())
        wait_until(lambda: sleepers(served) == 1)
    wait_until(lambda: sleepers(served) == 0)
    task = new(http, "dropped")["task_id"]

    claimed = http.post("/claim-work/aws/dropped?wait=20", json=WORKER)
    assert claimed.json()["status"]["task_id"] == task


def test_documents_are_uploaded_while_the_run_lasts(http):
    """T38, T41."""
    task = new(http, "uploading")["task_id"]
    claimed = claim(http, task).json()
    result = {"version": "0.2.0", "artifacts": {}, "result": {"exit_code": 1}}
    logs = {"version": "0.2.0", "logs": {"stdout": "http://example.org/stdout"}}
    assert http.put(claimed["logs_url"], json=logs).status_code == 200
    assert http.get(f"/store/{task}/runs/1/logs.json").json() == logs
    assert http.put(claimed["result_url"], content=b"[1]").status_code == 400
    assert http.put(claimed["result_url"], content=b" " * 1_100_000).status_code == 413
    assert http.put(claimed["result_url"], json=result).status_code == 200
    http.post(f"/task/{task}/completed", json=WORKER | {"run_id": 1})

    assert http.get(f"/store/{task}/runs/1/result.json").json() == result
    assert http.put(claimed["result_url"], json=result).status_code == 410


PICKY = b'{"n": [1.10, 3.14159265358979323846, 1e400], "e": "\\u00e9"}'


def test_a_payload_comes_back_as_the_text_that_was_posted(http):
    """T39."""
    body = json.dumps(a_definition("exact", payload={"here": 1})).encode()
    body = body.replace(b'{"here": 1}', PICKY)
    answer = http.post("/task/new", content=body, headers={"Content-Type": "application/json"})
    task = answer.json()["status"]["task_id"]

    assert PICKY in http.get(f"/store/{task}/task.json").content


def test_a_job_of_another_protocol_has_a_definition(http, served):
    """T38."""
    with closing(Api(served)) as api:
        made = api.results("submit", queue="aws/foreign", payload="hello", encoding="text")
    claimed = http.post("/claim-work/aws/foreign", json=WORKER).json()
    assert claimed["status"]["task_id"].replace("-", "") == made["id"]

    definition = http.get(f"/store/{claimed['status']['task_id']}/task.json").json()
    valid("task", definition)
    assert definition["payload"] == {"value": "hello"}


def test_what_a_worker_uploads_is_the_result_for_everybody(http, served):
    """T41."""
    with closing(Api(served)) as api:
        made = api.results("submit", queue="aws/answered", payload="hello", encoding="text")
        claimed = http.post("/claim-work/aws/answered", json=WORKER).json()
        task = claimed["status"]["task_id"]
        early = {"version": "0.2.0", "result": {"value": "too early"}}
        document = {"version": "0.2.0", "result": {"value": "olleh"}}
        http.put(claimed["result_url"], json=early)
        http.put(claimed["result_url"], json=document)
        done = http.post(f"/task/{task}/completed", json=WORKER | {"run_id": 1})
        assert done.status_code == 200

        job = api.get(f"jobs/{made['id']}")
    assert (job["result"], job["result_encoding"]) == ("olleh", "text")
    assert http.get(f"/store/{task}/runs/1/result.json").json() == document


def test_a_result_of_a_run_that_came_to_nothing_does_not_count(http, served):
    """T41."""
    task = new(http, "superseded")["task_id"]
    first = claim(http, task).json()
    http.put(first["result_url"], json={"result": {"of": "the first run"}})
    with closing(Api(served)) as api:
        api.results("expire", id=task.replace("-", ""))
        assert claim(http, task).json()["run_id"] == 2
        http.post(f"/task/{task}/completed", json=WORKER | {"run_id": 2})

        assert api.get(f"jobs/{task}")["result"] is None


def test_a_worker_says_why_it_gives_up_and_the_resolution_repeats_it(http, served):
    """T35."""
    task = new(http, "broken")["task_id"]
    claim(http, task)
    report = WORKER | {"run_id": 1, "message": "no such image: größer"}
    assert http.post(f"/task/{task}/failed", json=report).status_code == 200

    resolution = http.get(f"/store/{task}/resolution.json").json()
    valid("resolution", resolution)
    assert resolution["failure"] == {"code": "failed", "message": "no such image: größer"}
    with closing(Api(served)) as api:
        assert api.get(f"jobs/{task}")["failure"]["message"] == "no such image: größer"


def artifact_urls(http, task: str, **artifacts):
    wanted = WORKER | {"run_id": 1, "artifacts": artifacts}
    return http.post(f"/task/{task}/artifact-urls", json=wanted)


def test_artifacts_are_uploaded_and_served_in_whole_and_in_part(http):
    """T41, T42."""
    task = new(http, "artifacts")["task_id"]
    claim(http, task)
    name = "deep/path/größe.bin"
    answer = artifact_urls(http, task, **{name: "application/x-thing"}).json()
    assert answer["expires"] == answer["status"]["taken_until"]
    content = bytes(range(256)) * 4_000
    assert http.put(answer["artifact_urls"][name], content=content).status_code == 200

    url = answer["artifact_urls"][name].partition("?")[0]
    whole = http.get(url)
    assert (whole.status_code, whole.content) == (200, content)
    assert whole.headers["content-type"] == "application/x-thing"
    assert whole.headers["content-security-policy"] == "sandbox"
    for asked, start, stop in (("0-99", 0, 100), ("1000-", 1000, None), ("-50", -50, None)):
        part = http.get(url, headers={"Range": f"bytes={asked}"})
        assert (part.status_code, part.content) == (206, content[start:stop])
    beyond = http.get(url, headers={"Range": "bytes=9999999-"})
    assert beyond.status_code == 416
    assert beyond.headers["content-range"] == f"bytes */{len(content)}"
    for digits in (19, 5_000):  # no such range can be meant; more digits are no number at all
        whole = http.get(url, headers={"Range": f"bytes={'9' * digits}-"})
        assert (whole.status_code, whole.content) == (200, content)
    assert http.get(f"/store/{task}/runs/1/artifacts/none").status_code == 404


def test_an_upload_that_is_not_the_workers_is_refused(http):
    """T41."""
    task = new(http, "forged")["task_id"]
    claimed = claim(http, task).json()
    urls = artifact_urls(http, task, one="text/plain").json()["artifact_urls"]

    assert http.put(claimed["logs_url"][:-1], json={}).status_code == 403
    assert http.put(urls["one"].replace("/one?", "/two?"), content=b"x").status_code == 403
    assert http.put(urls["one"].replace("text", "image"), content=b"x").status_code == 403
    assert http.put(urls["one"], content=bytes(UPLOAD_BYTES_MAX + 1)).status_code == 413
    assert http.get(urls["one"].partition("?")[0]).status_code == 404
    stranger = WORKER | {"worker_id": "other", "run_id": 1, "artifacts": {}}
    assert http.post(f"/task/{task}/artifact-urls", json=stranger).status_code == 410
    for name in ("", "a/../b", "a//b", "x" * 256, "new\nline"):
        assert artifact_urls(http, task, **{name: "text/plain"}).status_code == 400
    assert artifact_urls(http, task, one="no type").status_code == 400
