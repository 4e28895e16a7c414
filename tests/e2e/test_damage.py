"""Damage inside of values: noticed by checksums, named, and never shown as if it were whole."""

import json
import os
import random

import apsw
import httpx
import pytest

from manyhands.model.commands import ByToken, Complete, SendPartial, SetQueue
from manyhands.model.filter import Filter
from manyhands.model.policy import QueuePolicy
from manyhands.store.contract import StoreError
from manyhands.store.sqlite import schema
from manyhands.store.sqlite.checksums import RecordDamagedError
from manyhands.store.sqlite.store import SqliteStore
from tests.conformance.stores.opened import Opened, ids
from tests.e2e.serving import Api, run, serving


def payload(size: int) -> bytes:
    """A random payload whose first byte is not zero, so that zeroing it is damage."""
    return b"p" + os.urandom(size - 1)


class Damaged:
    """A store that was stopped in order, with jobs in several states."""

    def __init__(self, directory):
        self.data = directory
        opened = Opened("sqlite", directory)
        opened.ask(SetQueue(queue="q", policy=QueuePolicy(attempts_max=3)))
        self.ready = [opened.submit(payload=payload(40)).job_id for _ in range(5)]
        self.large = opened.submit(payload=payload(20_000)).job_id
        opened.submit("other")
        (self.finished,) = ids(opened.claim("other"))
        lease = opened.job(self.finished).lease
        opened.ask(
            SendPartial(job_id=self.finished, proof=ByToken(lease.token), payload=b"a piece")
        )
        opened.ask(Complete(job_id=self.finished, proof=ByToken(lease.token), result=b"a result"))
        opened.commit()
        self.last_seq = opened.store.last_seq()
        opened.close()

    def change(self, statement, *values):
        """As damage does it: whatever is worked out from the value stays as it was."""
        connection = apsw.Connection(str(self.data / schema.FILE_NAME))
        connection.execute(statement, values)
        connection.close()

    def refused(self) -> str:
        with pytest.raises(StoreError) as caught:
            SqliteStore(self.data)
        return str(caught.value)


@pytest.fixture
def damaged(tmp_path):
    return Damaged(tmp_path / "data")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("payload = CAST(x'00' || substr(payload, 2) AS BLOB)", "payload"),
        ("record = replace(record, 'ready', 'reedy')", "record"),
        ("submitter = 'somebody else'", "payload"),
        ("unique_key = x'01'", "payload"),
        ("finished_at = 5", "record"),
    ],
)
def test_an_unfinished_job_that_is_damaged_is_named_at_the_start(damaged, change, what):
    job_id = damaged.ready[2]
    damaged.change(f"UPDATE jobs SET {change} WHERE job_id = ?", job_id)

    sentence = damaged.refused()

    assert f"the {what} of job {job_id} does not match its checksum" in sentence
    assert "`manyhands check`" in sentence
    assert "`manyhands export`" in sentence


def test_a_large_payload_that_is_damaged_is_named_at_the_start(damaged):
    damaged.change("UPDATE payloads SET payload = CAST(x'00' || substr(payload, 2) AS BLOB)")

    assert f"the payload of job {damaged.large} does not match" in damaged.refused()


@pytest.fixture
def on_disk_only(damaged):
    """A job whose payload is so large that it is read only when it is needed."""
    opened = Opened("sqlite", damaged.data)
    job_id = opened.submit(payload=payload(100_000)).job_id
    opened.commit()
    opened.close()
    return job_id


def damage_payload(damaged, job_id):
    damaged.change(
        "UPDATE payloads SET payload = CAST(x'00' || substr(payload, 2) AS BLOB)"
        " WHERE serial = (SELECT serial FROM jobs WHERE job_id = ?)",
        job_id,
    )


def test_a_payload_on_disk_only_that_is_damaged_is_named_at_the_start(damaged, on_disk_only):
    damage_payload(damaged, on_disk_only)

    assert f"the payload of job {on_disk_only} does not match" in damaged.refused()


def test_a_payload_that_is_damaged_while_the_store_is_open_is_not_handed_out(damaged, on_disk_only):
    store = SqliteStore(damaged.data)
    job = store.live.job(on_disk_only)
    assert (job.payload, job.stored_bytes) == (b"", 100_000)
    damage_payload(damaged, on_disk_only)

    with pytest.raises(RecordDamagedError, match=on_disk_only):
        store.whole(job)

    store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE queues SET record = replace(record, '3', '2') WHERE name = 'q'",
        "UPDATE terms SET record = record || ' '",
        "UPDATE facts SET value = replace(value, '7', '6') WHERE key = 'counters'",
    ],
)
def test_settings_that_are_damaged_are_named_at_the_start(damaged, statement):
    damaged.change(statement)

    assert "does not match its checksum" in damaged.refused()


@pytest.mark.parametrize(
    ("change", "what"),
    [("result = x'00'", "result"), ("result = NULL", "result"), ("realm = 'x'", "payload")],
)
def test_a_finished_job_that_is_damaged_is_an_error_for_whoever_reads_it(damaged, change, what):
    damaged.change(f"UPDATE jobs SET {change} WHERE job_id = ?", damaged.finished)
    store = SqliteStore(damaged.data)

    with pytest.raises(RecordDamagedError, match=f"the {what} of job {damaged.finished} does not"):
        store.find(damaged.finished)

    assert ids(store.search(Filter()).jobs) == [damaged.large, *reversed(damaged.ready)]
    store.close()


def test_pieces_of_a_result_that_are_damaged_are_an_error(damaged):
    damaged.change("UPDATE partials SET payload = x'00'")
    store = SqliteStore(damaged.data)

    with pytest.raises(RecordDamagedError, match=f"of the result of job {damaged.finished}"):
        store.partials(damaged.finished)
    store.close()


def test_events_that_are_damaged_are_left_out_and_watchers_go_on(damaged):
    damaged.change("UPDATE events SET bodies = CAST(x'00' || substr(bodies, 2) AS BLOB)")
    opened = Opened("sqlite", damaged.data)
    opened.submit()
    opened.settle()

    found = opened.store.events_after(0, 100)

    assert [event.seq for event in found] == [damaged.last_seq + 1]
    opened.close()


def test_over_http_a_damaged_record_is_a_sentence_and_listings_go_on(tmp_path):
    damaged = Damaged(tmp_path / "data")
    damaged.change("UPDATE jobs SET result = x'00' WHERE job_id = ?", damaged.finished)

    with serving(tmp_path) as served:
        api = Api(served)
        answer = api.http.get(f"/api/jobs/{damaged.finished}")
        listed = api.get("jobs?count=100")
        page = httpx.get(f"{served.url}/ui/job/{damaged.finished}")
        api.close()

    sentence = f"the result of job {damaged.finished} does not match its checksum"
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "damaged"
    assert answer.json()["error"]["message"] == sentence
    assert {damaged.large, *damaged.ready} <= {job["id"] for job in listed}
    assert page.status_code == 500
    assert sentence[1:] in page.text  # a sentence on a page begins with a capital letter
    assert sentence in served.log()


def test_an_export_leaves_out_what_is_damaged_and_says_so(damaged, tmp_path):
    damaged.change("UPDATE jobs SET payload = x'00' WHERE job_id = ?", damaged.ready[1])
    damaged.change("UPDATE jobs SET queue = CAST(x'ff' AS TEXT) WHERE job_id = ?", damaged.ready[3])
    target = tmp_path / "jobs.jsonl"

    ended = run("export", "--data", str(damaged.data), str(target))

    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert f"left out: the payload of job {damaged.ready[1]} does not match" in ended.stderr
    assert "left out: the job with serial 4 cannot be read" in ended.stderr
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    found = {line["job"]["job_id"] for line in lines if line["kind"] == "job"}
    assert found == {damaged.large, damaged.finished, *damaged.ready} - {
        damaged.ready[1],
        damaged.ready[3],
    }


@pytest.mark.parametrize("seed", range(40))
def test_a_byte_that_changed_anywhere_is_never_shown_as_if_it_had_been_written(damaged, seed):
    store = SqliteStore(damaged.data)
    before = {job.job_id: job for job in store.search(Filter(count_max=100)).jobs}
    store.close()
    file = damaged.data / schema.FILE_NAME
    content = bytearray(file.read_bytes())
    place = random.Random(seed).randrange(100, len(content))
    content[place] ^= 1 << seed % 8
    file.write_bytes(content)

    try:
        store = SqliteStore(damaged.data)
    except StoreError:
        return
    after = {job.job_id: job for job in store.search(Filter(count_max=100)).jobs}
    store.close()

    assert after.items() <= before.items()
