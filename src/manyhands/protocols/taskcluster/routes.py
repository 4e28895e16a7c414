"""The Taskcluster queue's REST API on the HTTP listener, below /0.2.0."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib import resources
from typing import Annotated, Any, Final
from urllib.parse import parse_qs

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from manyhands.config import Config
from manyhands.dispatch.ask import ask
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.dispatch.lookup import find_job
from manyhands.model.commands import Cancel, Complete, Fail, Renew, Submit
from manyhands.model.filter import Filter, Order
from manyhands.model.job import FINISHED, Job, State
from manyhands.model.replies import (
    Changed,
    ChangedMany,
    Claimed,
    Refusal,
    Repeated,
    Reply,
    Submitted,
    SubmittedMany,
)
from manyhands.protocols.taskcluster import answers, rest
from manyhands.protocols.taskcluster.identifiers import place_of, run_id_of
from manyhands.protocols.taskcluster.log import base_url, reachable
from manyhands.protocols.taskcluster.messages import VERSION
from manyhands.protocols.taskcluster.rest import RestError, Worker
from manyhands.protocols.taskcluster.uploads import Uploads
from manyhands.web.envelope import Problem, encode
from manyhands.web.exchange import Exchange
from manyhands.web.handout import HandingOut
from manyhands.web.idempotency import ONCE, ONCE_ERRORS, read_once
from manyhands.web.openapi import ENVELOPED, Api, Errors
from manyhands.web.routes import Further, Parameter, Route, bind

_JSON: Final = [(b"content-type", b"application/json; charset=utf-8")]
_ENDPOINTS: Final = {
    "amqp": "The embedded endpoint; read-only.",
    "amqps": "The embedded endpoint over TLS; read-only.",
}
_FILES: Final = resources.files("manyhands.protocols.taskcluster")
_WAIT_SECONDS_MAX: Final = 20.0
_RUN_DIGITS_MAX: Final = 9
_RUN: Final = "/store/{task}/runs/{run}"
_FOLDERS_COUNT: Final = f"/{VERSION}{_RUN}/".count("/")  # before the name of a run's file
_SENT: Final = object()  # the handler has sent the answer itself
_NO_WORK: Final = [(b"retry-after", b"%d" % rest.SLEEP_SECONDS)]

Handler = Callable[[Exchange], Awaitable[object]]


class TaskclusterRoutes:
    """Each handler returns what to send as JSON, or None if there is no work."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        ids: Ids,
        config: Config,
        addresses: Mapping[str, str | None],
        handing_out: HandingOut,
    ) -> None:
        self._dispatcher = dispatcher
        self._ids = ids
        self._config = config
        self._addresses = addresses
        self._handing_out = handing_out
        self._uploads = Uploads(dispatcher, config, addresses)

    def routes(self) -> Iterable[Route]:
        """The routes to serve."""
        for route in bind(API.routes, self):
            yield replace(route, handler=_Endpoint(route.handler))

    # Tasks.

    async def _find(self, exchange: Exchange) -> Job:
        job = await find_job(self._dispatcher, _parameter(exchange, "task"))
        if isinstance(job, Refusal):
            raise rest.refused(job)
        if job is None:
            raise RestError(404, "there is no such task")
        return job

    async def new(self, exchange: Exchange) -> object:
        exchange.body_bytes_max = min(exchange.body_bytes_max, rest.BODY_BYTES_MAX)
        body = await exchange.body()
        job_id = self._ids.job_id(self._dispatcher.clock.now())
        once = read_once(exchange.headers, "taskcluster", exchange.raw_path, body)
        task = rest.read_task(body, job_id, exchange.address)
        reply = await self._ask(Submit((task,), once=once))
        if isinstance(reply, Repeated):
            known = await find_job(self._dispatcher, reply.receipt.items[0].job_id)
            if not isinstance(known, Job):
                raise RestError(410, "the task was made before, and is no longer on record")
            return answers.Shown(rest.job_status(known))
        assert isinstance(reply, SubmittedMany)
        item = reply.items[0]
        if isinstance(item, Refusal):
            raise rest.refused(item)
        assert isinstance(item, Submitted)
        return answers.Shown(rest.job_status(item.job))

    async def status(self, exchange: Exchange) -> object:
        return answers.Shown(rest.job_status(await self._find(exchange)))

    async def claim(self, exchange: Exchange) -> object:
        """Claims a task or, with a run, reclaims it."""
        worker = rest.read_worker(await exchange.body())
        job = await self._find(exchange)
        if worker.run_id is not None:
            lease = rest.held_by(job, worker)
            renew = Renew(job_id=job.job_id, proof=rest.proof_of(lease), term_ms=rest.CLAIM_MS)
            return self._claimed(await self._changed(renew), worker)
        if job.state in FINISHED:
            raise RestError(404, "the task is resolved")
        command = rest.claim_of(worker, self._ids.token(), job_id=job.job_id)
        reply = await self._ask(command)
        assert isinstance(reply, Claimed)
        if not reply.jobs:
            raise RestError(410, "the task cannot be claimed now")
        return await self._hand_out(exchange, reply.jobs[0], worker)

    async def claim_work(self, exchange: Exchange) -> object:
        queue = rest.queue_of(
            _parameter(exchange, "provisioner"), _parameter(exchange, "worker_type")
        )
        query = parse_qs(exchange.query_string.decode("latin-1"))
        if any(len(values) > 1 for values in query.values()):
            raise RestError(400, "a parameter is given twice")
        named = {name: query[name][0] for name in ("worker_group", "worker_id") if name in query}
        if named or not exchange.has_body():
            worker = rest.read_worker(encode(named))
        else:
            worker = rest.read_worker(await exchange.body())
        wait = _seconds(query.get("wait", ["0"])[0])
        command = rest.claim_of(worker, self._ids.token(), queue=queue)
        reply = await self._handing_out.claim_patiently(exchange.connection, command, wait)
        if isinstance(reply, Refusal):
            raise rest.refused(reply)
        assert isinstance(reply, Claimed)
        return await self._hand_out(exchange, reply.jobs[0], worker) if reply.jobs else None

    async def _hand_out(self, exchange: Exchange, job: Job, worker: Worker) -> object:
        """Sent here, because an undelivered job is given back."""
        await exchange.send_bytes(200, _JSON, encode(self._claimed(job, worker)))
        await self._handing_out.watch_delivery(exchange.connection, (job,))
        return _SENT

    def _claimed(self, job: Job, worker: Worker) -> object:
        lease = job.lease
        assert lease is not None
        status = rest.job_status(job)
        return answers.Claimed(
            status,
            run_id_of(lease.number),
            worker.worker_group,
            worker.worker_id,
            self._uploads.url(job, lease, rest.LOGS),
            self._uploads.url(job, lease, rest.RESULT),
        )

    async def completed(self, exchange: Exchange) -> object:
        worker = rest.read_worker(await exchange.body(), with_run=True)
        job = await self._find(exchange)
        if not rest.was_completed_by(job, worker):
            lease = rest.held_by(job, worker)
            document = await self._uploads.result(job, lease)
            command = Complete(job_id=job.job_id, proof=rest.proof_of(lease))
            if document is not None:
                result, encoding = rest.read_result(job, document)
                self._check_result(result)
                command = Complete(
                    job_id=job.job_id,
                    proof=rest.proof_of(lease),
                    result=result,
                    encoding=encoding,
                )
            job = await self._changed(command)
        return answers.Shown(rest.job_status(job))

    def _check_result(self, result: bytes) -> None:
        bytes_max = self._config.payload_bytes_max
        if len(result) > bytes_max:
            raise RestError(413, f"the result has {len(result)} bytes; {bytes_max} are allowed")

    async def failed(self, exchange: Exchange) -> object:
        """The worker reports that no run of the task can ever succeed."""
        worker, failure = rest.read_failed(await exchange.body())
        job = await self._find(exchange)
        lease = rest.held_by(job, worker)
        command = Fail(job_id=job.job_id, proof=rest.proof_of(lease), failure=failure)
        return answers.Shown(rest.job_status(await self._changed(command)))

    async def cancel(self, exchange: Exchange) -> object:
        job = await self._find(exchange)
        if job.state is State.CANCELLED:
            return answers.Shown(rest.job_status(job))
        if job.state in FINISHED:
            raise RestError(404, "the task is resolved")
        reply = await self._ask(Cancel(job_ids=(job.job_id,), only_unfinished=True))
        assert isinstance(reply, ChangedMany)
        return answers.Shown(rest.job_status(reply.jobs[0]))

    async def pending(self, exchange: Exchange) -> object:
        provisioner = _parameter(exchange, "provisioner")
        rest.check_identifiers(provisioner_id=provisioner)
        found: list[Job] = []
        store = self._dispatcher.store
        for queue in sorted(store.live.queues):
            room = rest.PENDING_COUNT_MAX - len(found)
            if place_of(queue).provisioner == provisioner and room:
                wanted = Filter(
                    states=(State.READY,), queue=queue, order=Order.OLDEST, count_max=room
                )
                found += (await asyncio.to_thread(store.search, wanted)).jobs
        return answers.Pending([rest.job_status(job) for job in found])

    # Documents.

    def _base_url(self) -> str:
        return base_url(self._config.server_name, self._addresses)

    async def amqp(self, _exchange: Exchange) -> object:
        name = self._config.server_name
        account = "guest:guest@" if self._config.amqp_users is None else ""
        for scheme in ("amqp", "amqps"):
            address = self._addresses[scheme]
            if address is not None:
                return answers.Broker(f"{scheme}://{account}{reachable(name, address)}/")
        raise RestError(404, "this server has no AMQP endpoint")

    async def schema(self, exchange: Exchange) -> object:
        name = _parameter(exchange, "name")
        known = {file.name: file for file in (_FILES / "schemas").iterdir()}
        if name not in known:
            raise RestError(404, "there is no such schema")
        schema = msgspec.json.decode(await asyncio.to_thread(known[name].read_bytes))
        # With an id, a schema fetched alone leads to those it refers to.
        return {"$id": f"{self._base_url()}/0.2.0/schemas/{name}", **schema}

    async def asyncapi(self, _exchange: Exchange) -> object:
        document = msgspec.json.decode(
            await asyncio.to_thread((_FILES / "asyncapi.json").read_bytes)
        )
        document["servers"] = {
            scheme: {
                "host": reachable(self._config.server_name, address),
                "protocol": scheme,
                "protocolVersion": "0.9.1",
                "description": description,
            }
            for scheme, description in _ENDPOINTS.items()
            if (address := self._addresses[scheme]) is not None
        }
        return document

    async def definition(self, exchange: Exchange) -> object:
        return msgspec.Raw(rest.definition_of(await self._find(exchange)))

    async def resolution(self, exchange: Exchange) -> object:
        return rest.resolution_of(await self._find(exchange), self._base_url())

    async def logs(self, exchange: Exchange) -> object:
        job, run_id = await self._find(exchange), _run(exchange)
        return await self._uploaded(exchange, job, rest.LOGS) or rest.logs_of(job, run_id)

    async def result(self, exchange: Exchange) -> object:
        job, run_id = await self._find(exchange), _run(exchange)
        return await self._uploaded(exchange, job, rest.RESULT) or rest.result_of(job, run_id)

    async def artifact(self, exchange: Exchange) -> object:
        name = f"artifacts/{_parameter(exchange, 'name')}"
        sent = await self._uploaded(exchange, await self._find(exchange), name)
        if sent is None:
            raise RestError(404, "there is no such artifact")
        return sent

    async def _uploaded(self, exchange: Exchange, job: Job, name: str) -> object:
        artifact = self._uploads.find(job, _run(exchange), name)
        if artifact is None:
            return None
        await self._uploads.send(exchange, artifact)
        return _SENT

    async def upload(self, exchange: Exchange) -> object:
        job = await self._find(exchange)
        *_, name = exchange.path.rstrip("/").split("/", maxsplit=_FOLDERS_COUNT)
        return await self._uploads.receive(exchange, job, _run(exchange), name)

    async def artifact_urls(self, exchange: Exchange) -> object:
        worker, wanted = rest.read_wanted(await exchange.body())
        job = await self._find(exchange)
        lease = rest.held_by(job, worker)
        status = rest.job_status(job)
        urls = {
            name: self._uploads.url(job, lease, f"artifacts/{name}", content_type)
            for name, content_type in wanted.items()
        }
        return answers.ArtifactUrls(status, run_id_of(lease.number), status.taken_until, urls)

    # Asking.

    async def _ask(self, command: Any) -> Reply:  # noqa: ANN401 - any command
        reply = await ask(self._dispatcher, command)
        if isinstance(reply, Refusal):
            raise rest.refused(reply)
        return reply

    async def _changed(self, command: Any) -> Job:  # noqa: ANN401 - one that changes a job
        reply = await self._ask(command)
        assert isinstance(reply, Changed)
        return reply.job


class _Endpoint:
    """Bare JSON instead of the envelope of other APIs."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, exchange: Exchange, *_named: str) -> None:
        try:
            answer = await self._handler(exchange)
        except RestError as error:
            problem = Problem(error.status, error.error, error.message)
            await exchange.fail(problem, more=error.headers)
        else:
            if answer is _SENT:
                return
            if answer is None:
                await exchange.send_bytes(204, _NO_WORK, b"")
            else:
                await exchange.send_bytes(200, _JSON, encode(answer))


def _parameter(exchange: Exchange, name: str) -> str:
    return exchange.params[name]


def _run(exchange: Exchange) -> int:
    text = _parameter(exchange, "run")
    if not (text.isascii() and text.isdigit() and len(text) <= _RUN_DIGITS_MAX):
        raise RestError(404, "there is no such run")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return max(0.0, min(float(text), _WAIT_SECONDS_MAX))
    except ValueError:
        raise RestError(400, "wait must be a number of seconds") from None


# The endpoints.

_Word = Annotated[str, Meta(min_length=1, max_length=36)]
_Name = Annotated[str, Meta(min_length=1)]
_Document = dict[str, Any]
_WAIT_FOR_WORK: Final = Parameter(
    "wait",
    Annotated[float, Meta(ge=0, le=_WAIT_SECONDS_MAX)],
    "Maximum seconds to wait for work.",
)
_WORKER: Final = (Parameter("worker_group", _Word), Parameter("worker_id", _Word))
_SIGNED: Final = (
    Parameter("key", str, "The signature."),
    Parameter("type", str, "The content type."),
)
_NOTHING_TO_DO: Final = {204: Further("There is no work; see Retry-After.")}
_PART: Final = {206: Further("The requested part.", bytes, "application/octet-stream")}


def _route(route: str, handler: Any, summary: str, answer: Any, **more: Any) -> Route:  # noqa: ANN401
    method, path = route.split()
    return Route(method, f"/{VERSION}{path}", handler, summary, "taskcluster", answer, **more)


_API = TaskclusterRoutes
_ROUTES: Final = (
    _route(
        "POST /task/new",
        _API.new,
        "Submit a task.",
        answers.Shown,
        body=rest.Definition,
        query=(ONCE,),
        errors=ONCE_ERRORS,
        work=True,
    ),
    _route("GET /task/{task}/status", _API.status, "The status of a task.", answers.Shown),
    _route(
        "POST /task/{task}/claim",
        _API.claim,
        "Claim a task or, with run_id, reclaim it.",
        answers.Claimed,
        body=rest.Worker,
        work=True,
    ),
    # Workers of that time send a body with GET; others use POST or parameters.
    _route(
        "GET /task/{task}/artifact-urls",
        _API.artifact_urls,
        "Where to upload artifacts; GET with a body, for old workers.",
        answers.ArtifactUrls,
    ),
    _route(
        "POST /task/{task}/artifact-urls",
        _API.artifact_urls,
        "Where to upload artifacts.",
        answers.ArtifactUrls,
        body=rest.ArtifactsWanted,
        work=True,
    ),
    _route(
        "POST /task/{task}/completed",
        _API.completed,
        "Report a completed run.",
        answers.Shown,
        body=rest.Worker,
        work=True,
    ),
    _route(
        "POST /task/{task}/failed",
        _API.failed,
        "Report that no run of a task can succeed.",
        answers.Shown,
        body=rest.FailedRun,
        work=True,
    ),
    _route("POST /task/{task}/cancel", _API.cancel, "Cancel a task.", answers.Shown),
    _route(
        "GET /claim-work/{provisioner}/{worker_type}",
        _API.claim_work,
        "Claim work.",
        answers.Claimed,
        query=(*_WORKER, _WAIT_FOR_WORK),
        further=_NOTHING_TO_DO,
        work=True,
    ),
    _route(
        "POST /claim-work/{provisioner}/{worker_type}",
        _API.claim_work,
        "Claim work; safer than GET.",
        answers.Claimed,
        body=rest.Worker,
        query=(_WAIT_FOR_WORK,),
        further=_NOTHING_TO_DO,
        work=True,
    ),
    _route("GET /pending-tasks/{provisioner}", _API.pending, "Pending tasks.", answers.Pending),
    _route("GET /settings/amqp-connection-string", _API.amqp, "Where events are.", answers.Broker),
    _route("GET /schemas/{name}", _API.schema, "A schema of messages or documents.", _Document),
    _route(
        "GET /asyncapi.json", _API.asyncapi, "The messages, as an AsyncAPI document.", _Document
    ),
    _route(
        "GET /store/{task}/task.json",
        _API.definition,
        "The definition as posted, or one made up for the job.",
        rest.Definition,
    ),
    _route(
        "GET /store/{task}/resolution.json", _API.resolution, "How it ended.", answers.Resolution
    ),
    _route(f"GET {_RUN}/logs.json", _API.logs, "Where the logs of a run are.", _Document),
    _route(f"GET {_RUN}/result.json", _API.result, "The result of a run.", _Document),
    _route(f"GET {_RUN}/results.json", _API.result, "The same, under its old name.", _Document),
    _route(
        f"GET {_RUN}/artifacts/{{name:path}}",
        _API.artifact,
        "An artifact, or a range of it.",
        bytes,
        media="application/octet-stream",
        further=_PART,
    ),
    *(
        _route(
            f"PUT {_RUN}/{name}",
            _API.upload,
            "Upload to a signed URL.",
            answers.Uploaded,
            query=_SIGNED,
            work=True,
        )
        for name in (
            *("logs.json", "result.json", "results.json"),
            *("artifacts/{name:path}", "{name:path}"),
        )
    ),
)
API: Final = Api(
    "The Taskcluster queue",
    "Task",
    _ROUTES,
    {"taskcluster": "Tasks"},
    {
        "task": _Name,
        "provisioner": _Word,
        "worker_type": _Word,
        "run": Annotated[int, Meta(ge=1, le=999)],
        "name": _Name,
    },
    Errors(
        "TaskError",
        answers.TaskError,
        {
            **ENVELOPED.sentences,
            403: "The URL was not issued to the worker of this run.",
            404: "There is no such task, or it is resolved.",
            410: "The run is over, or belongs to another worker.",
            416: "The range is beyond the end of the artifact.",
            507: "The disk is nearly full.",
        },
    ),
)
