"""The way from an app to the engine of a test: no thread, no socket, answers at once."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from manyhands.client.errors import Refused, refusal
from manyhands.client.handle import Server
from manyhands.client.home import Settle
from manyhands.client.notes import Heard, Item, Submitted, View
from manyhands.client.options import TASK_HEADER
from manyhands.client.watches import Reader
from manyhands.dispatch.obstacles import why_waiting
from manyhands.model.commands import Cancel, NewJob, Submit
from manyhands.model.job import FINISHED, Job, Origin
from manyhands.model.reasons import as_detail, in_words
from manyhands.model.replies import ChangedMany, Refusal, SubmittedMany
from manyhands.protocols.native import builders
from manyhands.protocols.native import stream_codec as wire
from manyhands.protocols.native.bodies import REALM, JobOptions
from manyhands.protocols.native.stream_refusals import NoteRefusedError, checked_encoding
from manyhands.testing.engine import Engine

_PAYLOAD_BYTES_MAX: Final = 16 * 1024 * 1024
_read_options: Final = msgspec.msgpack.Decoder(JobOptions).decode
_ORIGIN: Final = Origin(REALM, "", "")


class NotFinished(RuntimeError):  # noqa: N818 - it reads as what it is
    """The result of a job was asked for that has not finished: nothing runs by itself in a test."""


class SubmittedJob(NamedTuple):
    """P80: a job as it was submitted."""

    id: str
    task: str
    queue: str
    arguments: Any  # by name; bytes for raw tasks
    options: dict[str, Any]  # as they are sent
    headers: dict[str, str]


class EngineCourier:
    """What an app uses in place of a stream."""

    server_name = "the engine of this test"
    places: tuple[()] = ()
    token = None
    timeout = 60.0

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.submitted: list[SubmittedJob] = []
        self.after_submit: Callable[[], None] | None = None  # if jobs run eagerly

    # Submits.

    def submit(self, items: Sequence[Item], settle: Settle, *, together: bool = False) -> None:
        """Submits jobs."""
        try:
            new = tuple(_new_job(index, item) for index, item in enumerate(items))
        except NoteRefusedError as error:
            settle(None, refusal(error.code, str(error)))
            return
        reply = self._engine.ask(Submit(new, together))
        if isinstance(reply, Refusal):
            settle(None, refusal(reply.why.value, reply.sentence))
            return
        assert isinstance(reply, SubmittedMany)
        others: list[Submitted] = []
        for index, found in enumerate(reply.items):
            if isinstance(found, Refusal):
                others.append(Submitted(index, found.why.value, found.sentence))
                continue
            self.submitted.append(_as_submitted(items[index], found.job))
            if not found.created:
                job = found.job
                others.append(Submitted(index, None, None, job.job_id, job.state.value))
        if self.after_submit is not None:
            self.after_submit()
        settle(others, None)

    def submit_at_turn_end(self, item: Item, settle: Settle) -> None:
        """The same for one job, in a coroutine."""
        self.submit((item,), settle)

    # Ends and news.

    def await_end(self, job_id: str, settle: Settle) -> None:
        """The end of a job that has finished. Nobody can wait for another one: it would not."""
        job = self._engine.find(job_id)
        if job is None or job.state in FINISHED:
            settle(_view(job_id, job), None)
            return
        sentence = f"job {job_id} is {job.state}: nothing runs by itself in a test; call drain()"
        if job.state.value == "delayed":
            sentence += ", and travel() before it"
        settle(None, NotFinished(sentence))

    def forget_end(self, job_id: str, settle: Settle) -> None:
        """Nobody waits."""

    def listen(self, job_id: str, reader: Reader) -> None:
        """P38: the news so far, and the end."""
        job = self._engine.find(job_id)
        for piece in self._engine.store.partials(job_id):
            if not piece.is_log:
                reader.hear(Heard(wire.HEARD, job_id, None, piece.payload, piece.warning))
        progress = None if job is None else job.progress
        if progress is not None:
            shown: list[int | None] = [
                progress.numerator,
                progress.denominator,
                progress.seconds_left,
            ]
            reader.hear(Heard(wire.HEARD, job_id, shown))
        if job is None or job.state in FINISHED:
            reader.hear(_view(job_id, job))
        else:
            reader.hear(Refused("not_finished", f"job {job_id} is {job.state}; call drain()"))

    def stop_listening(self, job_id: str, reader: Reader) -> None:
        """Nobody listens."""

    # Questions. Coroutines that never wait.

    async def look(self, ids: Sequence[str]) -> list[View]:
        """Jobs as they are now."""
        return [self.view(job_id) for job_id in ids]

    def view(self, job_id: str) -> View:
        """A job as it is now."""
        return _view(job_id, self._engine.find(job_id))

    async def cancel(self, job_id: str, reason: str) -> Literal[True]:
        """Cancels a job and its dependants."""
        command = Cancel(job_ids=(job_id,), with_dependants=True, detail=as_detail(reason))
        reply = self._engine.ask(command)
        if isinstance(reply, Refusal):
            raise refusal(reply.why.value, reply.sentence)
        assert isinstance(reply, ChangedMany)
        return True

    async def close(self) -> None:
        """Nothing is open."""


class EngineServer(Server):
    """What handles ask besides."""

    def __init__(self, courier: EngineCourier, engine: Engine) -> None:
        self.courier = courier  # type: ignore[assignment]
        self.requests = _NoRequests()  # type: ignore[assignment]
        self._engine = engine

    async def job(self, job_id: str) -> dict[str, Any]:
        """Everything about a job."""
        job = self._engine.find(job_id)
        if job is None:
            raise refusal("unknown_job", f"there is no job {job_id}")
        shown = builders.whole(job, why_waiting(self._engine.dispatcher, job))
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(shown))
        return found


class _NoRequests:
    """Plain requests have no server to go to."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - never returns
        raise RuntimeError(
            "there is no HTTP in this test: it has an engine and no server; use the fixture"
            " manyhands_server"
        )


class InlineHome:
    """What the client's thread does, at once and in the thread of the caller."""

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Calls it."""
        function(*args)

    def start(self, coroutine: Coroutine[Any, Any, Any], settle: Settle) -> None:
        """Runs a coroutine that never waits."""
        try:
            coroutine.send(None)
        except StopIteration as done:
            settle(done.value, None)
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            settle(None, error)
        else:
            coroutine.close()
            settle(None, RuntimeError("this needs a server; use the fixture manyhands_server"))

    def is_here(self) -> bool:
        """There is no such thread."""
        return False


def _new_job(index: int, item: Item) -> NewJob:
    job_id, queue, payload, name, given, headers = item
    try:
        encoding = checked_encoding(payload, name, _PAYLOAD_BYTES_MAX)
        options = _read_options(_encoded(given))
    except NoteRefusedError as refused:
        raise NoteRefusedError(refused.code, f"item {index}: {refused}") from None
    except msgspec.MsgspecError as error:
        raise NoteRefusedError("invalid_note", f"item {index}: {error}") from None
    job = options.job(job_id.lower(), queue, (payload, encoding), _ORIGIN, id_chosen=True)
    if headers:
        job = replace(job, headers={**(options.headers or {}), **headers})
    return job


def _encoded(options: Any) -> bytes:  # noqa: ANN401 - a map, perhaps encoded already
    return bytes(options) if isinstance(options, Raw) else msgspec.msgpack.encode(options or {})


def _as_submitted(item: Item, job: Job) -> SubmittedJob:
    _, queue, payload, encoding, options, headers = item
    headers = headers or {}
    return SubmittedJob(
        id=job.job_id,
        task=headers.get(TASK_HEADER, queue),
        queue=queue,
        arguments=msgspec.json.decode(payload) if encoding == "json" else payload,
        options=msgspec.msgpack.decode(_encoded(options)),
        headers=headers,
    )


def _view(job_id: str, job: Job | None) -> View:
    if job is None:
        return View(job_id, "unknown")
    failure = job.failure
    return View(
        job_id,
        job.state.value,
        job.result if job.state in FINISHED else None,
        job.result_encoding.value,
        None if failure is None else (failure.code, failure.message, failure.payload),
        in_words(job.reason, job.detail) or None,
    )
