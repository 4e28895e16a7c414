"""Jobs cross over: what comes in here is worked over Gearman, and the other way round."""

import shutil
import subprocess
import threading

import pytest

from tests.e2e.qless.talk import Qless, wait_until
from tests.e2e.serving import serving

pytestmark = pytest.mark.skipif(shutil.which("gearman") is None, reason="gearman is not installed")


@pytest.fixture
def both(tmp_path):
    arguments = ("--store", "memory", "--gearman", "127.0.0.1:0")
    with serving(tmp_path, *arguments) as server:
        client = Qless(server, "w")
        port = server.addresses["gearman"].split(":")[1]
        yield client, ["gearman", "-h", "127.0.0.1", "-p", port]
        client.close()


def test_a_job_added_here_is_worked_by_a_gearman_worker(both):
    client, gearman = both
    ids = client.add("rev", "abc", {"a": [1.10]})

    worker = subprocess.Popen([*gearman, "-w", "-f", "rev", "-c", "2", "--", "cat"])
    try:
        wait_until(lambda: client.job(ids[1])["state"] == "complete")
    finally:
        worker.terminate()
        worker.wait()

    # It got the JSON text and gave it back.
    assert client.job(ids[0])["result"] == '"abc"'
    assert client.job(ids[1])["result"] == '{"a":[1.1]}'
    assert client.job(ids[0])["host"] is None


@pytest.mark.parametrize(
    ("sent", "meta", "answer", "received"),
    [
        (b"hello", "hello", "olleh", b"olleh"),
        (b"\xff\x00", {"base64": "/wA="}, {"base64": "AP8="}, b"\x00\xff"),
        (b"{}", "{}", {"n": 1}, b'{"n":1}'),
    ],
)
def test_a_gearman_job_is_worked_here(both, sent, meta, answer, received):
    client, gearman = both
    told: list[bytes] = []

    def submit() -> None:
        ended = subprocess.run(
            [*gearman, "-f", "job"], input=sent, capture_output=True, check=True, timeout=120
        )
        told.append(ended.stdout)

    submitter = threading.Thread(target=submit)
    submitter.start()
    item = client.take("job", wait=60)
    assert item["meta"] == meta
    assert client.complete("job", item["id"], meta=answer) == [item["id"]]
    submitter.join()

    assert told == [received]
    assert client.job(item["id"])["protocol"] == "gearman"
