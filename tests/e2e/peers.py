"""Every protocol as a submitter and as a worker, alike to a test: what one sends and what another
is to see of it. A peer speaks bytes, JSON, or JSON objects only.
"""

import base64
import itertools
import json
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import msgspec
import pytest

from manyhands import App, Fail, JobFailed, Retry, current_job
from manyhands.protocols.dwork.codec import Kind
from manyhands.protocols.gearman import codec as shipped
from manyhands.protocols.gearman import draft_codec as draft
from manyhands.protocols.wmp.codec import Command
from tests.e2e import dwork_talk, wmp_talk
from tests.e2e.gearman_talk import DraftTalk, GearmanTalk
from tests.e2e.serving import Served

JSON = {"Content-Type": "application/json"}
WAIT_MS = 90_000
TASK_WORKER = {"worker_group": "rack-1", "worker_id": "node-7"}
_numbers = itertools.count()


class Sample(NamedTuple):
    """Something to carry, as a peer that speaks bytes sends it, and as one that speaks JSON."""

    name: str
    data: bytes
    text: bytes


# Numbers that no float keeps, a zero that means nothing, an escape that is not needed.
_PICKY = b'{"n": [1.10, 3.14159265358979323846, 1e400], "\\u00e9":"\\u00e9"}'
SAMPLES = (
    Sample("empty", b"", b'""'),
    Sample("ascii", b"plain words", b'"plain words"'),
    Sample("json", _PICKY, _PICKY),
    Sample("utf-8", "größe ∑ 😀".encode(), '"größe ∑ 😀"'.encode()),
    Sample("binary", b"\x00\xff\xfe\x80", b'{"base64":"AP/+gA=="}'),
)
# As workers write them: over several lines, and not in English only.
FAILURE_TEXT = "größte Not:\n  out of cheese" + 900 * "\n  at line ∑"
FAILURE_DATA = b"\x00\xff\xfe no text"


class Content(NamedTuple):
    """What a job carries: its bytes, and whether they were declared to be JSON."""

    data: bytes
    is_json: bool = False

    def as_json(self) -> bytes:
        if self.is_json:
            return self.data
        try:
            value: Any = self.data.decode()
        except UnicodeDecodeError:
            value = {"base64": base64.b64encode(self.data).decode()}
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def wrapped(text: bytes) -> bytes:
    """JSON text as an object."""
    return text if text.startswith(b"{") else b'{"value":%s}' % text


def raw_members(body: bytes, *path: str) -> bytes:
    """The JSON text of a member, as it came."""
    for name in path:
        body = bytes(msgspec.json.decode(body, type=dict[str, msgspec.Raw])[name])
    return body


class Peer:
    """One end of a pair, with its connections."""

    def __init__(self, served: Served, queue: str) -> None:
        self.served = served
        self.queue = queue
        self.stack = ExitStack()
        self.job = ""  # what the peer knows the job by
        self.attempt: int | None = None  # as the worker sees it; None: it does not
        self.open()

    def open(self) -> None:
        """Connect."""

    def close(self) -> None:
        self.stack.close()

    def sees(self, content: Content) -> bytes:
        """How this peer is to see what a job carries."""
        return content.data

    def sends(self, sample: Sample) -> Content:
        """What the sample is, sent by this peer as a payload."""
        return Content(sample.data)

    def answers(self, sample: Sample, payload: Content) -> Content:  # noqa: ARG002 - JSON only
        """What it is as the result of a job with this payload."""
        return self.sends(sample)

    # As a submitter.

    def submit(self, content: Content) -> None:
        raise NotImplementedError

    def result(self) -> bytes:
        """How the submitter sees the result, once the job has ended."""
        raise NotImplementedError

    def failure(self) -> str:
        """The reason that the submitter sees."""
        return self.failure_data().decode()

    def failure_data(self) -> bytes:
        """The bytes that a worker sent with a failure."""
        raise NotImplementedError

    # As a worker.

    def claim(self) -> bytes:
        """How the worker sees the payload."""
        raise NotImplementedError

    def complete(self, sample: Sample) -> None:
        raise NotImplementedError

    def fail(self, text: str) -> None:
        """For good."""
        raise NotImplementedError

    def fail_with(self, data: bytes) -> None:
        """For good, with bytes that are no text."""
        raise NotImplementedError

    def try_again(self) -> None:
        """The attempt comes to nothing, and another is to follow."""
        raise NotImplementedError


class Gearman(Peer):
    def open(self) -> None:
        self.talk = self.stack.enter_context(GearmanTalk(self.served))

    def submit(self, content: Content) -> None:
        assert self.talk.tell(shipped.OPTION_REQ, b"exceptions")[0] == shipped.OPTION_RES
        handle = self.talk.submit(self.queue.encode(), b"", content.data, shipped.SUBMIT_JOB)
        self.job = handle.decode()

    def result(self) -> bytes:
        kind, (handle, data) = self.talk.next()
        assert (kind, handle.decode()) == (shipped.WORK_COMPLETE, self.job)
        return data

    def failure_data(self) -> bytes:
        kind, (handle, data) = self.talk.next()
        assert (kind, handle.decode()) == (shipped.WORK_EXCEPTION, self.job)
        assert self.talk.is_alive()  # and there is no other ending
        return data

    def claim(self) -> bytes:
        handle, function, *_, data = self.talk.can_do(self.queue.encode()).grab()
        assert function.decode() == self.queue
        self.job = handle.decode()
        return data

    def complete(self, sample: Sample) -> None:
        self.talk.put(shipped.WORK_COMPLETE, self.job.encode(), sample.data)

    def fail(self, text: str) -> None:
        self.fail_with(text.encode())

    def fail_with(self, data: bytes) -> None:
        self.talk.put(shipped.WORK_EXCEPTION, self.job.encode(), data)

    def try_again(self) -> None:
        self.close()
        self.open()


class Draft(Peer):
    def open(self) -> None:
        self.talk = self.stack.enter_context(DraftTalk(self.served))

    def submit(self, content: Content) -> None:
        request = draft.JobCreateReq(self.queue.encode(), b"", draft.SYNC_WAIT, content.data)
        self.job = self.talk.tell(request).handle.decode()

    def result(self) -> bytes:
        ended = self.talk.next()
        assert (type(ended), ended.code) == (draft.JobCompleteRes, 0)
        return ended.data

    def failure_data(self) -> bytes:
        ended = self.talk.next()
        assert (type(ended), ended.code) == (draft.JobCompleteRes, 1)
        return ended.data

    def claim(self) -> bytes:
        self.talk.send(draft.encode(draft.WorkerConnect((self.queue.encode(),))))
        assigned = self.talk.tell(draft.JobAssignReq())
        assert assigned.name.decode() == self.queue
        return assigned.args

    def complete(self, sample: Sample) -> None:
        self.talk.send(draft.encode(draft.JobCompleteAnnounce(0, sample.data)))

    def fail(self, text: str) -> None:
        self.fail_with(text.encode())

    def fail_with(self, data: bytes) -> None:
        self.talk.send(draft.encode(draft.JobCompleteAnnounce(1, data)))

    def try_again(self) -> None:
        self.close()
        self.open()


class Dwork(Peer):
    """Its own queue only; results are looked up while the graph is being worked on."""

    def open(self) -> None:
        self.talk = self.stack.enter_context(dwork_talk.Talk(self.served))
        # A task that is never finished keeps the names of others known.
        if not self._tasks("keeper"):
            self.talk.create(dwork_talk.a_task("keeper"))
            assert self.talk.steal("keeper") == ["keeper"]
            self.talk.ask(Kind.OK)  # the claim is on disk, and its event was sent

    def submit(self, content: Content) -> None:
        self.job = f"task-{next(_numbers)}"
        self.talk.create(dwork_talk.a_task(self.job, payload=content.data))

    def _tasks(self, name: str):
        return self.talk.ask(Kind.LOOKUP, name=name).tasks

    def result(self) -> bytes:
        [task] = self._tasks(self.job)
        assert task.failure is None
        return task.result or b""

    def failure(self) -> str:
        [task] = self._tasks(self.job)
        return task.failure

    def failure_data(self) -> bytes:
        [task] = self._tasks(self.job)
        return task.result

    def claim(self) -> bytes:
        [task] = self.talk.ask(Kind.STEAL, location="w").tasks
        self.job, self.attempt = task.name, task.attempt
        return task.name.encode() if task.payload is None else task.payload

    def _end(self, **fields: Any) -> None:
        ended = dwork_talk.a_task(self.job, **fields)
        assert self.talk.ask(Kind.COMPLETE, ended, location="w").kind is Kind.OK

    def complete(self, sample: Sample) -> None:
        self._end(result=sample.data)

    def fail(self, text: str) -> None:
        self._end(failure=text)

    def try_again(self) -> None:
        self._end(failure="once more", retry=True)


class _Http(Peer):
    def open(self) -> None:
        self.http = self.stack.enter_context(
            closing(httpx.Client(base_url=self.served.url, timeout=120.0))
        )

    def sees(self, content: Content) -> bytes:
        return content.as_json()

    def post(self, path: str, body: bytes | dict[str, Any]) -> bytes:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.http.post(path, content=text, headers=JSON)
        assert answer.status_code == 200, answer.text
        assert b'"errors"' not in answer.content, answer.text
        return answer.content

    def get(self, path: str) -> bytes:
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.content


def shown_bytes(value: Any) -> bytes:
    """Bytes that a peer is shown as JSON."""
    return base64.b64decode(value["base64"], validate=True)


class Qless(_Http):
    def sends(self, sample: Sample) -> Content:
        return Content(sample.text, is_json=True)

    def answers(self, sample: Sample, payload: Content) -> Content:
        return read_back(sample.text, payload)

    def submit(self, content: Content) -> None:
        answer = self.post(f"/add/{self.queue}", b'{"data":[{"meta":%s}]}' % content.data)
        [self.job] = json.loads(answer)["results"]

    def result(self) -> bytes:
        return raw_members(self.get(f"/job/{self.job}"), "results", "result")

    def failure(self) -> str:
        return self._failure()["message"]

    def failure_data(self) -> bytes:
        return shown_bytes(self._failure()["data"])

    def _failure(self) -> Any:
        return json.loads(self.get(f"/job/{self.job}"))["results"]["failure"]

    def claim(self) -> bytes:
        answer = self.get(f"/get/{self.queue}?host=w")
        item = json.loads(answer)["results"]
        self.job, self.attempt = item["id"], item["attempt"]
        return raw_members(answer, "results", "meta")

    def _report(self, path: str, **fields: Any) -> None:
        item = {"id": self.job, **fields}
        answer = self.post(f"/{path}/{self.queue}", {"host": "w", "data": [item]})
        assert json.loads(answer)["results"] == [self.job]

    def complete(self, sample: Sample) -> None:
        item = b'{"id":"%s","meta":%s}' % (self.job.encode(), sample.text)
        self.post(f"/complete/{self.queue}", b'{"host":"w","data":[%s]}' % item)

    def fail(self, text: str) -> None:
        self._report("fail", group="broken", message=text)

    def try_again(self) -> None:
        self._report("retry", delay=0)


def read_back(text: bytes, payload: Content) -> Content:
    """What a worker that speaks JSON gives back for a job that may have been bytes."""
    if payload.is_json:
        return Content(text, is_json=True)
    sample = next(sample for sample in SAMPLES if sample.text == text)
    return Content(sample.data, is_json=sample.name == "json")


class Native(_Http):
    """It says what its bytes are: JSON for what is, bytes for everything else."""

    def sends(self, sample: Sample) -> Content:
        return Content(sample.data, is_json=sample.name == "json")

    def _members(self, name: str, content: Content) -> bytes:
        encoding = b"json" if content.is_json else b"binary"
        return b'"%s":%s,"encoding":"%s"' % (name.encode(), content.as_json(), encoding)

    def submit(self, content: Content) -> None:
        members = self._members("payload", content)
        answer = self.post("/api/submit", b'{"queue":"%s",%s}' % (self.queue.encode(), members))
        self.job = json.loads(answer)["results"]["id"]

    def result(self) -> bytes:
        return raw_members(self.get(f"/api/jobs/{self.job}"), "results", "result")

    def failure(self) -> str:
        return self._failure()["message"]

    def failure_data(self) -> bytes:
        return shown_bytes(self._failure()["payload"])

    def _failure(self) -> Any:
        return json.loads(self.get(f"/api/jobs/{self.job}"))["results"]["failure"]

    def claim(self) -> bytes:
        answer = self.post("/api/claim", {"queue": self.queue, "worker": "w"})
        [job] = json.loads(answer)["results"]
        self.job, self._token, self.attempt = job["id"], job["token"], job["lease_number"]
        [raw] = msgspec.json.decode(raw_members(answer, "results"), type=list[msgspec.Raw])
        return raw_members(bytes(raw), "payload")

    def complete(self, sample: Sample) -> None:
        proof = b'"id":"%s","token":"%s"' % (self.job.encode(), self._token.encode())
        result = self._members("result", self.sends(sample))
        self.post("/api/complete", b"{%s,%s}" % (proof, result))

    def _fail(self, **fields: Any) -> None:
        self.post("/api/fail", {"id": self.job, "token": self._token, **fields})

    def fail(self, text: str) -> None:
        self._fail(message=text, retry=False)

    def fail_with(self, data: bytes) -> None:
        value = json.loads(Content(data).as_json())
        self._fail(payload=value, encoding="binary", retry=False)

    def try_again(self) -> None:
        self._fail(message="once more", delay_ms=0)


class Taskcluster(_Http):
    def sees(self, content: Content) -> bytes:
        return wrapped(content.as_json())

    def sends(self, sample: Sample) -> Content:
        return Content(wrapped(sample.text), is_json=True)

    def answers(self, sample: Sample, payload: Content) -> Content:
        """An object for an object; where something was put around the payload, it is taken off
        the result.
        """
        if payload.is_json and payload.data.startswith(b"{"):
            return self.sends(sample)
        return read_back(sample.text, payload)

    def submit(self, content: Content) -> None:
        now = datetime.now(UTC)
        definition = {
            "version": "0.2.0",
            "provisioner_id": "default",
            "worker_type": self.queue,
            "routing": "",
            "retries": 5,
            "priority": 0,
            "created": now.isoformat(),
            "deadline": (now + timedelta(hours=1)).isoformat(),
            "payload": {},
            "metadata": {"name": "n", "owner": "a@example.org", "maintainer": "b@example.org"},
            "tags": {},
        }
        text = json.dumps(definition).encode()
        text = text.replace(b'"payload": {}', b'"payload": ' + content.data)
        self.job = json.loads(self.post("/0.2.0/task/new", text))["status"]["task_id"]

    def _resolution(self) -> Any:
        return json.loads(self.get(f"/0.2.0/store/{self.job}/resolution.json"))

    def result(self) -> bytes:
        return raw_members(self.get(self._resolution()["result"]), "result")

    def failure(self) -> str:
        return self._resolution()["failure"]["message"]

    def failure_data(self) -> bytes:
        return shown_bytes(self._resolution()["failure"]["data"])

    def claim(self) -> bytes:
        path = f"/0.2.0/claim-work/default/{quote(self.queue)}"
        claimed = json.loads(self.post(path, TASK_WORKER))
        self.job, self.attempt = claimed["status"]["task_id"], claimed["run_id"]
        self._result_url = claimed["result_url"]
        return raw_members(self.get(f"/0.2.0/store/{self.job}/task.json"), "payload")

    def _report(self, what: str, **fields: Any) -> None:
        body = {**TASK_WORKER, "run_id": self.attempt, **fields}
        self.post(f"/0.2.0/task/{self.job}/{what}", body)

    def complete(self, sample: Sample) -> None:
        document = b'{"version":"0.2.0","artifacts":{},"result":%s}' % wrapped(sample.text)
        assert self.http.put(self._result_url, content=document).status_code == 200
        self._report("completed")

    def fail(self, text: str) -> None:
        self._report("failed", message=text)

    def try_again(self) -> None:
        """It has no word for it: its claim runs out."""
        self.post("/api/expire", {"id": self.job.replace("-", "")})


class Wmp(Peer):
    def open(self) -> None:
        address = self.served.addresses["wmp"] or ""
        self.talk = self.stack.enter_context(wmp_talk.Talk(address))

    def submit(self, content: Content) -> None:
        self.job = self.talk.submit(self.queue, content.data)

    def result(self) -> bytes:
        reply = self.talk.fetch(self.job, wait=WAIT_MS)
        assert reply["state"] == b"completed"
        return reply.payload or b""

    def failure(self) -> str:
        """With a payload of its own, the whole of a long reason is in that: here, a traceback."""
        *_, text = self.failure_data().decode().partition("manyhands.client.errors.Fail: ")
        return text.removesuffix("\n") or super().failure()

    def failure_data(self) -> bytes:
        reply = self.talk.fetch(self.job, wait=WAIT_MS)
        assert reply["state"] == b"failed"
        return (reply["reason"] if reply.payload is None else reply.payload) or b""

    def claim(self) -> bytes:
        self._taken = self.talk.take(role=self.queue)
        self.attempt = int(self._taken["attempt"] or 0)
        return self._taken.payload or b""

    def _done(self, payload: bytes, **values: Any) -> None:
        self.talk.done(self._taken, payload, **values)
        assert self.talk.expect(Command.CANCEL)["reason"] == b"recorded"

    def complete(self, sample: Sample) -> None:
        self._done(sample.data)

    def fail(self, text: str) -> None:
        self.fail_with(text.encode())

    def fail_with(self, data: bytes) -> None:
        self._done(data, status="fail")

    def try_again(self) -> None:
        self._done(b"once more", status="error")


class Python(Peer):
    """The Python client, and a worker of it in a thread of this process (P69)."""

    def open(self) -> None:
        self.app = App(self.served.url)
        self.stack.callback(self.app.close)
        self._payloads: SimpleQueue[tuple[bytes, int]] = SimpleQueue()
        self._words: SimpleQueue[bytes | Exception] = SimpleQueue()
        self._is_working = False

        @self.app.task(name=self.queue, raw=True)
        def work(data: bytes) -> bytes:
            self._payloads.put((data, current_job().attempt))
            word = self._words.get()
            if isinstance(word, Exception):
                raise word
            return word

        self._task = work

    def submit(self, content: Content) -> None:
        self._handle = self._task.submit(content.data)

    def result(self) -> bytes:
        found = self._handle.result(WAIT_MS / 1000)
        return b"" if found is None else found

    def _failed(self) -> JobFailed:
        with pytest.raises(JobFailed) as found:
            self._handle.result(WAIT_MS / 1000)
        return found.value

    def failure(self) -> str:
        return self._failed().message

    def failure_data(self) -> bytes:
        """Details are shown as text; the API has their bytes."""
        assert self._failed().traceback == FAILURE_DATA.decode(errors="replace")
        job = self.app.client.request("GET", f"/api/jobs/{self._handle.id}")
        return shown_bytes(job["failure"]["payload"])

    def claim(self) -> bytes:
        if not self._is_working:
            self._is_working = True
            self.stack.enter_context(self.app.worker(concurrency=1))
        self._pause(False)
        payload, self.attempt = self._payloads.get(timeout=WAIT_MS / 1000)
        return payload

    def complete(self, sample: Sample) -> None:
        self._words.put(sample.data)

    def fail(self, text: str) -> None:
        self._words.put(Fail(text))

    def try_again(self) -> None:
        """It would take it again at once; a test looks at it first."""
        self._pause(True)
        self._words.put(Retry("once more", delay=0))

    def _pause(self, paused: bool) -> None:
        self.app.client.request("PUT", f"/api/queues/{quote(self.queue)}", {"paused": paused})


PEERS: dict[str, type[Peer]] = {
    "gearman": Gearman,
    "draft": Draft,
    "dwork": Dwork,
    "qless": Qless,
    "native": Native,
    "taskcluster": Taskcluster,
    "wmp": Wmp,
    "python": Python,
}
