"""The Taskcluster queue's REST API on the HTTP listener, below /0.2.0."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from importlib import resources
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

import msgspec
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from manyhands.model.commands import Cancel, Complete, Fail, Renew, Submit
from manyhands.model.job import FINISHED, Failure, Job, Lease, State
from manyhands.model.outcome import (
    Changed,
    ChangedMany,
    Claimed,
    Refusal,
    Reply,
    Submitted,
    SubmittedMany,
)
from manyhands.protocols.http_envelope import Problem, encode
from manyhands.protocols.taskcluster import rest
from manyhands.protocols.taskcluster.identifiers import place_of, run_id_of
from manyhands.protocols.taskcluster.messages import VERSION
from manyhands.protocols.taskcluster.rest import RestError, Worker
from manyhands.server.asking import ask
from manyhands.server.finding import find_job
from manyhands.server.handing_out import HandingOut
from manyhands.server.http_exchange import Exchange
from manyhands.server.messages import base_url, reachable
from manyhands.server.taskcluster_uploads import Uploads
from manyhands.store.store import Filter, Order

if TYPE_CHECKING:
    from manyhands.server.app import Server

_JSON: Final = [(b"content-type", b"application/json; charset=utf-8")]
_FILES: Final = resources.files("manyhands.protocols.taskcluster")
_WAIT_SECONDS_MAX: Final = 20.0
_RUN_DIGITS_MAX: Final = 9
_SENT: Final = object()  # the handler has answered itself
_NO_WORK: Final = [(b"retry-after", b"%d" % rest.SLEEP_SECONDS)]

Handler = Callable[[Exchange], Awaitable[object]]


class TaskclusterRoutes:
    """Each handler gives what is to be sent as JSON; None: there is no work."""

    def __init__(self, server: "Server", handing_out: HandingOut) -> None:
        self._server = server
        self._dispatcher = server.dispatcher
        self._handing_out = handing_out
        self._uploads = Uploads(server)

    def routes(self) -> Iterable[BaseRoute]:
        """What the listener serves for us."""
        table: tuple[tuple[str, str, Handler], ...] = (
            ("POST", "/task/new", self._new),
            ("GET", "/task/{task}/status", self._status),
            ("POST", "/task/{task}/claim", self._claim),
            ("GET", "/task/{task}/artifact-urls", self._artifact_urls),
            ("POST", "/task/{task}/artifact-urls", self._artifact_urls),
            ("POST", "/task/{task}/completed", self._completed),
            ("POST", "/task/{task}/failed", self._failed),
            ("POST", "/task/{task}/cancel", self._cancel),
            ("GET", "/pending-tasks/{provisioner}", self._pending),
            ("GET", "/settings/amqp-connection-string", self._amqp),
            ("GET", "/schemas/{name}", self._schema),
            ("GET", "/asyncapi.json", self._asyncapi),
            ("GET", "/store/{task}/task.json", self._definition),
            ("GET", "/store/{task}/resolution.json", self._resolution),
            ("GET", "/store/{task}/runs/{run}/logs.json", self._logs),
            ("GET", "/store/{task}/runs/{run}/result.json", self._result),
            # The layout's first name for it.
            ("GET", "/store/{task}/runs/{run}/results.json", self._result),
            ("GET", "/store/{task}/runs/{run}/artifacts/{name:path}", self._artifact),
            ("PUT", "/store/{task}/runs/{run}/{name:path}", self._upload),
        )
        for method, path, handler in table:
            yield Route(f"/{VERSION}{path}", _Endpoint(handler), methods=[method])
        # A body with GET is what workers of that time send; others use POST or parameters.
        path = f"/{VERSION}/claim-work/{{provisioner}}/{{worker_type}}"
        yield Route(path, _Endpoint(self._claim_work), methods=["GET", "POST"])

    # Tasks.

    async def _find(self, exchange: Exchange) -> Job:
        job = await find_job(self._server, _parameter(exchange, "task"))
        if isinstance(job, Refusal):
            raise rest.refused(job)
        if job is None:
            raise RestError(404, "there is no such task")
        return job

    async def _new(self, exchange: Exchange) -> object:
        exchange.body_bytes_max = min(exchange.body_bytes_max, rest.BODY_BYTES_MAX)
        body = await exchange.body()
        server = self._server
        job_id = server.ids.job_id(server.clock.now())
        reply = await self._ask(Submit((rest.read_task(body, job_id, exchange.address),)))
        assert isinstance(reply, SubmittedMany)
        item = reply.items[0]
        if isinstance(item, Refusal):
            raise rest.refused(item)
        assert isinstance(item, Submitted)
        return {"status": rest.job_status(item.job)}

    async def _status(self, exchange: Exchange) -> object:
        return {"status": rest.job_status(await self._find(exchange))}

    async def _claim(self, exchange: Exchange) -> object:
        """Also a reclaim: that one names its run."""
        worker = rest.read_worker(await exchange.body())
        job = await self._find(exchange)
        if worker.run_id is not None:
            lease = rest.held_by(job, worker)
            renew = Renew(job_id=job.job_id, proof=rest.proof_of(lease), term_ms=rest.CLAIM_MS)
            return self._claimed(await self._changed(renew), worker)
        if job.state in FINISHED:
            raise RestError(404, "the task is resolved")
        command = rest.claim_of(worker, self._server.ids.token(), job_id=job.job_id)
        reply = await self._ask(command)
        assert isinstance(reply, Claimed)
        if not reply.jobs:
            raise RestError(410, "the task cannot be claimed now")
        return await self._hand_out(exchange, reply.jobs[0], worker)

    async def _claim_work(self, exchange: Exchange) -> object:
        queue = rest.queue_of(
            _parameter(exchange, "provisioner"), _parameter(exchange, "worker_type")
        )
        query = parse_qs(exchange.scope["query_string"].decode("latin-1"))
        if "worker_id" in query:
            named = {
                name: query[name][0] for name in ("worker_group", "worker_id") if name in query
            }
            worker = rest.read_worker(encode(named))
        else:
            worker = rest.read_worker(await exchange.body())
        wait = _seconds(query.get("wait", ["0"])[0])
        command = rest.claim_of(worker, self._server.ids.token(), queue=queue)
        reply = await self._handing_out.claim_patiently(exchange.connection, command, wait)
        if isinstance(reply, Refusal):
            raise rest.refused(reply)
        assert isinstance(reply, Claimed)
        return await self._hand_out(exchange, reply.jobs[0], worker) if reply.jobs else None

    async def _hand_out(self, exchange: Exchange, job: Job, worker: Worker) -> object:
        """Sent here, because what does not arrive goes back."""
        await exchange.send_bytes(200, _JSON, encode(self._claimed(job, worker)))
        await self._handing_out.watch_delivery(exchange.connection, (job,))
        return _SENT

    def _claimed(self, job: Job, worker: Worker) -> object:
        lease = job.lease
        assert lease is not None
        status = rest.job_status(job)
        return {
            "status": status,
            "run_id": run_id_of(lease.number),
            "worker_group": worker.worker_group,
            "worker_id": worker.worker_id,
            "logs_url": self._uploads.url(job, lease, rest.LOGS),
            "result_url": self._uploads.url(job, lease, rest.RESULT),
        }

    async def _held(self, exchange: Exchange) -> tuple[Job, Lease | None, Worker]:
        worker = rest.read_worker(await exchange.body(), with_run=True)
        job = await self._find(exchange)
        if rest.was_completed_by(job, worker):
            return job, None, worker
        return job, rest.held_by(job, worker), worker

    async def _completed(self, exchange: Exchange) -> object:
        job, lease, _ = await self._held(exchange)
        if lease is not None:
            job = await self._changed(Complete(job_id=job.job_id, proof=rest.proof_of(lease)))
        return {"status": rest.job_status(job)}

    async def _failed(self, exchange: Exchange) -> object:
        """No run of it can ever succeed, its worker says."""
        job, lease, _ = await self._held(exchange)
        if lease is None:
            raise RestError(404, "the task is resolved")
        failure = Failure("failed", "its worker reported that it cannot succeed")
        command = Fail(job_id=job.job_id, proof=rest.proof_of(lease), failure=failure)
        return {"status": rest.job_status(await self._changed(command))}

    async def _cancel(self, exchange: Exchange) -> object:
        job = await self._find(exchange)
        if job.state is State.CANCELLED:
            return {"status": rest.job_status(job)}
        if job.state in FINISHED:
            raise RestError(404, "the task is resolved")
        reply = await self._ask(Cancel(job_ids=(job.job_id,), only_unfinished=True))
        assert isinstance(reply, ChangedMany)
        return {"status": rest.job_status(reply.jobs[0])}

    async def _pending(self, exchange: Exchange) -> object:
        provisioner = _parameter(exchange, "provisioner")
        rest.check_identifiers(provisioner_id=provisioner)
        found: list[Job] = []
        store = self._server.store
        for queue in sorted(store.index.queues):
            room = rest.PENDING_COUNT_MAX - len(found)
            if place_of(queue).provisioner == provisioner and room:
                wanted = Filter(
                    states=(State.READY,), queue=queue, order=Order.OLDEST, count_max=room
                )
                found += (await asyncio.to_thread(store.search, wanted)).jobs
        return {"tasks": [rest.job_status(job) for job in found]}

    # Documents.

    async def _amqp(self, _exchange: Exchange) -> object:
        server = self._server
        account = "guest:guest@" if server.config.amqp_users is None else ""
        for scheme in ("amqp", "amqps"):
            address = server.addresses[scheme]
            if address is not None:
                return {"url": f"{scheme}://{account}{reachable(server, address)}/"}
        raise RestError(404, "this server has no AMQP endpoint")

    async def _schema(self, exchange: Exchange) -> object:
        name = _parameter(exchange, "name")
        known = {file.name: file for file in (_FILES / "schemas").iterdir()}
        if name not in known:
            raise RestError(404, "there is no such schema")
        return msgspec.Raw(await asyncio.to_thread(known[name].read_bytes))

    async def _asyncapi(self, _exchange: Exchange) -> object:
        return msgspec.Raw(await asyncio.to_thread((_FILES / "asyncapi.json").read_bytes))

    async def _definition(self, exchange: Exchange) -> object:
        return msgspec.Raw(rest.definition_of(await self._find(exchange)))

    async def _resolution(self, exchange: Exchange) -> object:
        return rest.resolution_of(await self._find(exchange), base_url(self._server))

    async def _logs(self, exchange: Exchange) -> object:
        job, run_id = await self._find(exchange), _run(exchange)
        return await self._uploaded(exchange, job, rest.LOGS) or rest.logs_of(job, run_id)

    async def _result(self, exchange: Exchange) -> object:
        job, run_id = await self._find(exchange), _run(exchange)
        return await self._uploaded(exchange, job, rest.RESULT) or rest.result_of(job, run_id)

    async def _artifact(self, exchange: Exchange) -> object:
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

    async def _upload(self, exchange: Exchange) -> object:
        job = await self._find(exchange)
        name = _parameter(exchange, "name")
        return await self._uploads.receive(exchange, job, _run(exchange), name)

    async def _artifact_urls(self, exchange: Exchange) -> object:
        worker, wanted = rest.read_wanted(await exchange.body())
        job = await self._find(exchange)
        lease = rest.held_by(job, worker)
        status = rest.job_status(job)
        urls = {
            name: self._uploads.url(job, lease, f"artifacts/{name}", content_type)
            for name, content_type in wanted.items()
        }
        return {
            "status": status,
            "run_id": run_id_of(lease.number),
            "expires": status.taken_until,
            "artifact_urls": urls,
        }

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

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        exchange: Exchange = scope["state"]["exchange"]
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
    return str(exchange.scope["path_params"][name])


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
