"""Backup, export and import: a store on disk, with a server that runs or does not."""

import contextlib
import json
import os

import httpx
import pytest

from manyhands.model import limits
from manyhands.model.commands import ByToken, Cancel, Complete, Fail
from manyhands.model.job import Failure
from manyhands.model.policy import TERMS, OnDependencyFailure, Terms
from tests.conformance.stores.opened import Opened
from tests.e2e.serving import Api, run, serving, special_file, wait_until


@pytest.fixture
def worked(tmp_path):
    """A running server with a job in most states, and what it shows of them."""
    folder = tmp_path / "first"
    folder.mkdir()
    with serving(folder) as served:
        api = Api(served)
        api.http.put("/api/queues/work", json={"policy": {"attempts_max": 3}}).raise_for_status()
        api.http.put("/api/limits/db", json={"concurrency_max": 2}).raise_for_status()
        api.http.put(
            "/api/schedules/nightly", json={"queue": "work", "cron": "0 3 * * *"}
        ).raise_for_status()
        api.results("submit", items=[{"queue": "work", "payload": {"n": n}} for n in range(4)])
        binary = {"payload": {"base64": "/wA="}, "encoding": "binary"}
        api.results("submit", queue="other", tags=["a"], unique_key="k", **binary)
        api.results("submit", queue="work", delay_ms=3_600_000, limits=["db"])
        done, failed, held = api.results("claim", queue="work", count=3, term_ms=0)
        api.results("complete", id=done["id"], token=done["token"], result="grüße")
        api.results("fail", id=failed["id"], token=failed["token"], retry=False, message="no")
        api.results("submit", queue="work", depends_on=[held["id"]])
        yield served, api
        api.close()


@pytest.fixture
def stopped(tmp_path):
    """The data directory of a server that has stopped, with a few jobs."""
    opened = Opened("sqlite", tmp_path / "stopped")
    for number in range(3):
        opened.submit(payload=b"payload %d" % number)
    opened.commit()
    opened.close()
    return opened.directory


def shown(api: Api) -> list:
    rows = api.get("jobs?count=1000&order=oldest")
    return [api.get(f"jobs/{row['id']}") for row in rows]


def test_a_backup_of_a_running_server_can_take_its_place(worked, tmp_path):
    served, api = worked
    target = tmp_path / "copy.db"

    ended = run("backup", "--data", str(served.data), "--json", str(target))

    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["bytes"] == target.stat().st_size
    assert target.stat().st_mode & 0o077 == 0
    second = tmp_path / "second"
    (second / "data").mkdir(parents=True)
    target.rename(second / "data" / "manyhands.db")
    with serving(second) as restored:
        again = Api(restored)
        assert [job["id"] for job in shown(again)] == [job["id"] for job in shown(api)]
        again.close()


def test_a_backup_never_writes_over_a_file(worked, tmp_path):
    served, _ = worked
    target = tmp_path / "copy.db"
    target.write_text("precious")

    ended = run("backup", "--data", str(served.data), str(target))

    assert ended.returncode == 1
    assert "exists already" in ended.stderr
    assert target.read_text() == "precious"


@pytest.mark.parametrize("kind", ["device", "directory", "pipe", "link"])
@pytest.mark.parametrize(
    ("command", "words"), [("backup", "exists already"), ("export", "is not a regular file")]
)
def test_copies_are_written_to_regular_files_only(stopped, tmp_path, command, kind, words):
    place = special_file(tmp_path / "place", kind)
    before = place.lstat()

    ended = run(command, "--data", str(stopped), str(place))

    assert ended.returncode == 1
    assert f"{place} {words}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert os.path.samestat(place.lstat(), before)


def test_an_export_goes_into_a_new_store_unchanged(worked, tmp_path):
    served, api = worked
    file = tmp_path / "jobs.jsonl"

    ended = run("export", "--data", str(served.data), str(file))
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert (lines[0]["kind"], lines[0]["format"]) == ("header", 1)
    assert "7 jobs" in ended.stderr
    assert [line["payload"] for line in lines if line["kind"] == "job"][:1] == [{"text": '{"n":0}'}]

    second = tmp_path / "second"
    second.mkdir()
    taken = run("import", "--data", str(second / "data"), "--json", str(file))
    assert taken.returncode == 0, taken.stderr
    assert json.loads(taken.stdout) == {
        "queues": 2,
        "limits": 1,
        "schedules": 1,
        "jobs": 7,
        "skipped": 0,
    }
    with serving(second) as restored:
        again = Api(restored)
        assert shown(again) == shown(api)
        assert again.get("limits") == api.get("limits")
        assert again.get("schedules") == api.get("schedules")
        assert [(row["name"], row["counts"], row["policy"]) for row in again.get("queues")] == [
            (row["name"], row["counts"], row["policy"]) for row in api.get("queues")
        ]
        [job] = again.results("claim", queue="work")
        assert job["payload"] == {"n": 3}
        again.close()


@pytest.fixture
def half_told(tmp_path, monkeypatch):
    """A store that was left while dependants of two jobs heard of their ends: one has completed,
    the other was cancelled together with them. Another one was submitted after that.
    """
    monkeypatch.setattr(limits, "DEPENDANTS_NOTIFIED_MAX", 2)
    run_anyway = Terms(on_dependency_failure=OnDependencyFailure.RUN)
    hold = Terms(on_dependency_failure=OnDependencyFailure.HOLD)
    opened = Opened("sqlite", tmp_path / "first" / "data")
    done, lost = opened.submit("work"), opened.submit("lost")
    for number in range(5):
        opened.submit("freed", depends_on=(done.job_id,))
        terms = hold if number % 2 else run_anyway
        opened.submit("doomed", depends_on=(lost.job_id,), terms=terms)
    [claimed] = opened.claim("work")
    opened.ask(Complete(job_id=done.job_id, proof=ByToken(claimed.lease.token)))
    opened.ask(Cancel(job_ids=(lost.job_id,), detail="enough"))
    opened.submit("late", depends_on=(lost.job_id,), terms=hold)
    assert sorted(opened.store.live.unnotified) == sorted((done.job_id, lost.job_id))
    opened.commit()
    opened.close()
    return opened.directory


def test_who_has_not_heard_of_an_end_in_an_export_hears_of_it_after_the_import(half_told, tmp_path):
    file = tmp_path / "jobs.jsonl"
    exported = run("export", "--data", str(half_told), "--json", str(file))
    assert json.loads(exported.stdout) == {"queue": 5, "job": 13}
    second = tmp_path / "second"
    second.mkdir()

    taken = run("import", "--data", str(second / "data"), str(file))

    assert taken.returncode == 0, taken.stderr
    with serving(second) as restored, contextlib.closing(Api(restored)) as api:

        def counts(queue: str) -> dict:
            found = {row["name"]: row["counts"] for row in api.get("queues")}[queue]
            return {state: count for state, count in found.items() if count}

        wait_until(lambda: counts("freed") == {"ready": 5})
        wait_until(lambda: counts("doomed") == {"cancelled": 5})
        assert counts("late") == {"blocked": 1}
        wait_until(lambda: len(api.get("jobs?queue=doomed&state=cancelled")) == 5)
        reasons = {row["reason"] for row in api.get("jobs?queue=doomed&state=cancelled")}
        assert reasons == {"enough"}


def test_names_of_a_graph_that_is_worked_on_mean_the_same_after_an_import(tmp_path):
    opened = Opened("sqlite", tmp_path / "first")
    dwork = {"namespace": "n", "terms": TERMS["dwork"]}
    before = opened.submit(name="before", **dwork)
    opened.ask(Complete(job_id=before.job_id, proof=ByToken("anybody")))  # and its graph ends
    lost = opened.submit(name="lost", **dwork)
    held = opened.submit(name="held", depends_on=("lost",), **dwork)
    [claimed] = opened.claim()
    proof = ByToken(claimed.lease.token)
    opened.ask(Fail(job_id=lost.job_id, proof=proof, failure=Failure("x"), retry=False))
    opened.commit()
    opened.close()
    file = tmp_path / "jobs.jsonl"

    for words in (("export", "--data", "first"), ("import", "--data", "second")):
        ended = run(*words[:2], str(tmp_path / words[2]), str(file))
        assert ended.returncode == 0, ended.stderr

    with contextlib.closing(Opened("sqlite", tmp_path / "second")) as again:
        assert again.store.live.named("n", "before") is None
        assert again.store.live.named("n", "lost") == lost.job_id
        heir = again.submit(name="lost", **dwork)
        assert again.job(held.job_id).waits_for == (heir.job_id,)


def test_an_export_to_standard_output_is_nothing_but_lines(worked):
    served, _ = worked

    ended = run("export", "--data", str(served.data))

    assert all(json.loads(line)["kind"] for line in ended.stdout.splitlines())


def test_an_import_refuses_what_is_there_unless_told_to_skip_it(worked, tmp_path):
    served, api = worked
    file = tmp_path / "jobs.jsonl"
    run("export", "--data", str(served.data), str(file))

    running = run("import", "--data", str(served.data), str(file))
    assert (running.returncode, "in use by the server" in running.stderr) == (1, True)
    new_id = api.results("submit", queue="late")["id"]
    assert served.stop() == 0

    refused = run("import", "--data", str(served.data), str(file))
    assert refused.returncode == 1
    assert "already exists. Nothing was imported" in refused.stderr
    skipped = run("import", "--data", str(served.data), "--skip-existing", "--json", str(file))
    assert json.loads(skipped.stdout)["skipped"] == 7
    with serving(served.folder) as again:
        assert httpx.get(f"{again.url}/api/jobs/{new_id}").status_code == 200


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("", "is empty"),
        ("nonsense\n", "line 1 cannot be read"),
        ('{"kind": "job", "job": {}}\n', "line 1 cannot be read"),
        ('{"kind": "limit", "limit": {"name": "a", "concurrency_max": 1}}\n', "header is missing"),
        ('{"kind": "header", "format": 9, "version": "9.9", "exported_at": 0}\n', "format 9"),
    ],
)
def test_a_file_that_is_no_export_is_refused_with_a_sentence(tmp_path, content, words):
    file = tmp_path / "jobs.jsonl"
    if content is not None:
        file.write_text(content)

    ended = run("import", "--data", str(tmp_path / "data"), str(file))

    assert ended.returncode == 1
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("words", [("backup", "copy.db"), ("export", "-")])
def test_a_directory_without_a_store_is_named(tmp_path, words):
    ended = run(*words, "--data", str(tmp_path), cwd=tmp_path)

    assert ended.returncode == 1
    assert f"there is no store in {tmp_path}" in ended.stderr
