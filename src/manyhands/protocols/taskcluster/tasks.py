"""Tasks: submitted, claimed, reported on and cancelled."""

import asyncio
from typing import Any, Final
from urllib.parse import parse_qs

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
from manyhands.protocols.taskcluster.endpoint import JSON_HEADERS, SENT, find_run, find_task
from manyhands.protocols.taskcluster.identifiers import place_of, run_id_of
from manyhands.protocols.taskcluster.rest import RestError, Worker
from manyhands.protocols.taskcluster.uploads import Uploads
from manyhands.web.envelope import encode
from manyhands.web.exchange import Exchange
from manyhands.web.handout import HandingOut
from manyhands.web.idempotency import read_once

WAIT_SECONDS_MAX: Final = 20.0


class Tasks:
    """What clients and workers do with tasks."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        ids: Ids,
        config: Config,
        handing_out: HandingOut,
        uploads: Uploads,
    ) -> None:
        self._dispatcher = dispatcher
        self._ids = ids
        self._config = config
        self._handing_out = handing_out
        self._uploads = uploads

    async def new(self, exchange: Exchange) -> object:
        exchange.body_bytes_max = min(exchange.body_bytes_max, rest.BODY_BYTES_MAX)
        body = await exchange.body()
        job_id = self._ids.job_id(self._dispatcher.clock.now())
        once = read_once(exchange.headers, "taskcluster", exchange.raw_path, body, exchange.caller)
        task = rest.read_task(body, job_id, exchange.address)
        reply = await self._ask(Submit((task,), once=once, lone=True))
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
        return answers.Shown(rest.job_status(await find_task(self._dispatcher, exchange)))

    async def claim(self, exchange: Exchange) -> object:
        """Claims a task or, with a run, reclaims it."""
        worker = rest.read_worker(await exchange.body())
        job = await find_run(self._dispatcher, exchange)
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
        queue = rest.queue_of(exchange.params["provisioner"], exchange.params["worker_type"])
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
        await exchange.send_bytes(200, JSON_HEADERS, encode(self._claimed(job, worker)))
        await self._handing_out.watch_delivery(exchange.connection, (job,))
        return SENT

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
        job = await find_run(self._dispatcher, exchange)
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
        job = await find_run(self._dispatcher, exchange)
        lease = rest.held_by(job, worker)
        command = Fail(job_id=job.job_id, proof=rest.proof_of(lease), failure=failure)
        return answers.Shown(rest.job_status(await self._changed(command)))

    async def cancel(self, exchange: Exchange) -> object:
        job = await find_task(self._dispatcher, exchange)
        if job.state is State.CANCELLED:
            return answers.Shown(rest.job_status(job))
        if job.state in FINISHED:
            raise RestError(404, "the task is resolved")
        reply = await self._ask(Cancel(job_ids=(job.job_id,), only_unfinished=True))
        assert isinstance(reply, ChangedMany)
        return answers.Shown(rest.job_status(reply.jobs[0]))

    async def pending(self, exchange: Exchange) -> object:
        provisioner = exchange.params["provisioner"]
        rest.check_identifiers(provisioner_id=provisioner)
        found: list[Job] = []
        store = self._dispatcher.store
        for queue in sorted(filter(exchange.caller.may_use, store.live.queues)):
            room = rest.PENDING_COUNT_MAX - len(found)
            if place_of(queue).provisioner == provisioner and room:
                wanted = Filter(
                    states=(State.READY,), queue=queue, order=Order.OLDEST, count_max=room
                )
                found += (await asyncio.to_thread(store.search, wanted)).jobs
        return answers.Pending([rest.job_status(job) for job in found])

    async def artifact_urls(self, exchange: Exchange) -> object:
        worker, wanted = rest.read_wanted(await exchange.body())
        job = await find_run(self._dispatcher, exchange)
        lease = rest.held_by(job, worker)
        status = rest.job_status(job)
        urls = {
            name: self._uploads.url(job, lease, f"artifacts/{name}", content_type)
            for name, content_type in wanted.items()
        }
        return answers.ArtifactUrls(status, run_id_of(lease.number), status.taken_until, urls)

    async def _ask(self, command: Any) -> Reply:  # noqa: ANN401 - any command
        reply = await ask(self._dispatcher, command)
        if isinstance(reply, Refusal):
            raise rest.refused(reply)
        return reply

    async def _changed(self, command: Any) -> Job:  # noqa: ANN401 - one that changes a job
        reply = await self._ask(command)
        assert isinstance(reply, Changed)
        return reply.job


def _seconds(text: str) -> float:
    try:
        return max(0.0, min(float(text), WAIT_SECONDS_MAX))
    except ValueError:
        raise RestError(400, "wait must be a number of seconds") from None
