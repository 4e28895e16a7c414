"""Every protocol submits to every protocol, and so does the Python client (P69): payload, result,
watchers of both kinds see the same story.
"""

import itertools
import json
from contextlib import ExitStack, closing

import httpx
import pytest

from tests.amqp.watching import bind_all, collect, connect, url_of
from tests.e2e.peers import FAILURE_DATA, FAILURE_TEXT, PEERS, SAMPLES, Peer
from tests.e2e.serving import Api, serving

PENDING, RUNNING = "task_pending_v1", "task_running_v1"

STORES = ("memory", "postgresql")
ENDINGS = ("task_completed_v1", "task_failed_v1")
PAIRS = [pytest.param(*two, id="-to-".join(two)) for two in itertools.product(PEERS, repeat=2)]
# In the words of the other stream; a lease that may still be renewed waits like any other.
WORDS = {
    "waiting": PENDING,
    "stalled": PENDING,
    "pending": RUNNING,
    "complete": "task_completed_v1",
    "failed": "task_failed_v1",
}
# Those whose workers can say with bytes what went wrong.
PAIRS_WITH_BYTES = [
    two for two in PAIRS if PEERS[str(two.values[1])].fail_with is not Peer.fail_with
]
every_pair = pytest.mark.parametrize(("submitter", "worker"), PAIRS)


@pytest.fixture(scope="module")
def served(tmp_path_factory, store_of_module):
    folder = tmp_path_factory.mktemp("served")
    listeners = ("gearman", "dwork", "wmp", "amqp")
    arguments = [word for name in listeners for word in (f"--{name}", "127.0.0.1:0")]
    with serving(folder, "--store", store_of_module, *arguments) as server:
        yield server


@pytest.fixture(scope="module")
def connection(served):
    with connect(url_of(served)) as found:
        yield found


class Watch:
    """Both streams of events, from before the job was submitted."""

    def __init__(self, served, connection, stack: ExitStack) -> None:
        self._channel = stack.enter_context(closing(connection.channel()))
        self._queue = bind_all(self._channel)
        self._messages: list[tuple[str, dict]] = []
        client = stack.enter_context(httpx.Client(base_url=served.url, timeout=120.0))
        stream = stack.enter_context(client.stream("GET", "/events"))
        assert stream.status_code == 200
        self._lines = stream.iter_lines()

    def _collect(self, is_enough) -> list[str]:
        def enough(found: list[tuple]) -> bool:
            exchanges = [exchange for exchange, _ in self._messages]
            return is_enough(exchanges + [method.exchange for method, _, _ in found])

        for method, _, body in collect(self._channel, self._queue, enough):
            self._messages.append((method.exchange, json.loads(body)["status"]))
        return [exchange for exchange, _ in self._messages]

    def until_pending_again(self) -> None:
        self._collect(lambda exchanges: exchanges.count(PENDING) == 2)

    def until_ended(self) -> tuple[str, ...]:
        """All messages, in order; the other stream has the same."""
        story = self._collect(lambda exchanges: exchanges[-1] in ENDINGS)
        assert len({status["task_id"] for _, status in self._messages}) == 1
        assert self._streamed(len(story)) == story
        return tuple(story)

    @property
    def status(self) -> dict:
        """Of the last message."""
        return self._messages[-1][1]

    @property
    def job_id(self) -> str:
        return self.status["task_id"].replace("-", "")

    def _streamed(self, count: int) -> list[str]:
        found: list[str] = []
        name = ""
        for line in self._lines:
            word, _, text = line.partition(": ")
            if word == "event":
                name = text
            elif word == "data" and name in WORDS and json.loads(text)["id"] == self.job_id:
                found.append(WORDS[name])
                if len(found) == count:
                    break
        return found


class Pair:
    """A submitter and a worker who share a queue."""

    def __init__(self, served, connection, submitter: str, worker: str, stack: ExitStack) -> None:
        queue = "dwork" if "dwork" in (submitter, worker) else f"{submitter}-{worker}"
        self.api = stack.enter_context(closing(Api(served)))
        # Nobody waits longer than needed for another attempt.
        soon = {"first_ms": 1, "factor": 1.0, "ms_max": 1, "jitter": 0.0}
        answer = self.api.http.put(f"/api/queues/{queue}", json={"policy": {"backoff": soon}})
        assert answer.status_code == 200, answer.text
        self.submitter: Peer = stack.enter_context(closing(PEERS[submitter](served, queue)))
        self.worker: Peer = stack.enter_context(closing(PEERS[worker](served, queue)))
        self._watched = (served, connection, stack)

    def submit(self, sample):
        """Gives what was submitted, and the streams of what becomes of it."""
        content = self.submitter.sends(sample)
        watch = Watch(*self._watched)
        self.submitter.submit(content)
        return content, watch


@pytest.fixture
def pair(served, connection, submitter, worker):
    with ExitStack() as stack:
        yield Pair(served, connection, submitter, worker, stack)


@every_pair
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_payload_and_result_are_carried_exactly(pair, sample):
    payload, watch = pair.submit(sample)

    seen = pair.worker.claim()
    pair.worker.complete(sample)
    story = watch.until_ended()

    assert seen == pair.worker.sees(payload)
    answer = pair.worker.answers(sample, payload)
    assert pair.submitter.result() == pair.submitter.sees(answer)
    assert story == (PENDING, RUNNING, "task_completed_v1")


@every_pair
def test_the_text_of_a_failure_reaches_the_submitter(pair):
    _, watch = pair.submit(SAMPLES[1])

    pair.worker.claim()
    pair.worker.fail(FAILURE_TEXT)
    story = watch.until_ended()

    assert pair.submitter.failure() == FAILURE_TEXT
    assert story == (PENDING, RUNNING, "task_failed_v1")
    assert watch.status["reason"] == "failed"


@pytest.mark.parametrize(("submitter", "worker"), PAIRS_WITH_BYTES)
def test_the_bytes_of_a_failure_reach_the_submitter(pair):
    _, watch = pair.submit(SAMPLES[1])

    pair.worker.claim()
    pair.worker.fail_with(FAILURE_DATA)
    watch.until_ended()

    assert pair.submitter.failure_data() == FAILURE_DATA


@every_pair
def test_a_second_attempt_gets_the_same_payload_and_completes(pair):
    sample = SAMPLES[-1]
    payload, watch = pair.submit(sample)

    pair.worker.claim()
    pair.worker.try_again()
    watch.until_pending_again()
    seen = pair.worker.claim()
    pair.worker.complete(sample)
    story = watch.until_ended()

    assert seen == pair.worker.sees(payload)
    assert pair.worker.attempt in (None, 2)
    answer = pair.worker.answers(sample, payload)
    assert pair.submitter.result() == pair.submitter.sees(answer)
    assert story == (PENDING, RUNNING, PENDING, RUNNING, "task_completed_v1")
    assert [run["run_id"] for run in watch.status["runs"]] == [1, 2]
    job = pair.api.get(f"jobs/{watch.job_id}")
    assert job["attempts_used"] == 1
    assert job["attempts"][-1]["reason"] == "completed"
    assert len(job["attempts"]) == 2
