"""A client that somebody else's program wrote from the OpenAPI document works."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.serving import environment

GENERATOR = Path(sys.executable).with_name("openapi-python-client")
NAME = "generated_manyhands_client"


@pytest.fixture(scope="module")
def folder(served, tmp_path_factory):
    """The client, written without a single warning."""
    folder = tmp_path_factory.mktemp("generated")
    config = folder / "config.yml"
    config.write_text("post_hooks: []\n")  # it need not be beautiful
    ended = subprocess.run(
        [
            *(str(GENERATOR), "generate", "--url", f"{served.url}/openapi.json"),
            *("--output-path", str(folder / NAME), "--config", str(config)),
            *("--meta", "none", "--fail-on-warning"),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


@pytest.fixture
def generated(folder, monkeypatch):
    """Imports from it."""
    monkeypatch.syspath_prepend(folder)
    yield lambda name: importlib.import_module(f"{NAME}.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


@pytest.fixture
def client(served, generated):
    with generated("client").Client(base_url=served.url, timeout=120.0) as made:
        yield made


def test_there_is_a_function_for_every_endpoint(api, folder):
    functions = [
        file for file in (folder / NAME / "api").glob("*/*.py") if file.name != "__init__.py"
    ]

    assert len(functions) == len(api.http.get("/").json()["results"]["endpoints"])


def test_a_job_is_submitted_found_listed_claimed_and_completed(generated, client, queue):
    models = generated("models")
    submit, claim, complete = (
        generated(f"api.api_work.post_api_{name}") for name in ("submit", "claim", "complete")
    )
    get, search = generated("api.api_look.get_api_jobs_id"), generated("api.api_look.get_api_jobs")

    item = models.NativeNewItem(queue=queue, payload={"n": 1}, tags=["a"])
    made = submit.sync(client=client, body=item).results
    assert (made.state, made.created) == (models.NativeState.READY, True)

    shown = get.sync(made.id, client=client).results
    assert (shown.id, shown.payload, shown.tags) == (made.id, {"n": 1}, ["a"])
    assert shown.waits[0].what is models.NativeObstacle.NO_WORKERS

    found = search.sync(client=client, queue=queue, state=models.NativeState.READY)
    assert [job.id for job in found.results] == [made.id]
    assert (found.next_, found.complete) == (None, True)

    body = models.NativeClaimBody(queue=queue, worker="w")
    [taken] = claim.sync(client=client, body=body).results
    assert (taken.id, taken.payload) == (made.id, {"n": 1})

    item = models.NativeCompleteItem(id=taken.id, token=taken.token, result=[2])
    done = complete.sync(client=client, body=item).results
    assert done.state is models.NativeState.COMPLETED
    shown = get.sync(made.id, client=client).results
    assert (shown.result, shown.attempts[0].reason) == ([2], models.NativeEndReason.COMPLETED)


def test_items_of_a_batch_are_refused_one_by_one(generated, client, queue):
    models = generated("models")
    submit = generated("api.api_work.post_api_submit")
    items = [models.NativeNewItem(queue=queue), models.NativeNewItem(queue="")]

    answer = submit.sync(client=client, body=models.NativeSubmitBatch(items=items))

    assert [result is None for result in answer.results] == [False, True]
    assert [(error.index, error.code) for error in answer.errors] == [(1, "bad_queue_name")]


def test_a_job_that_is_not_there_is_an_error(generated, client):
    get = generated("api.api_look.get_api_jobs_id")

    answer = get.sync_detailed("0" * 32, client=client)

    assert answer.status_code == 404
    assert isinstance(answer.parsed, generated("models").Failed)
    assert answer.parsed.error.code == "unknown_job"
