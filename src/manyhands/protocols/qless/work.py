"""The qless API for workers: take, heartbeat, complete, fail, retry. These routes are so frequent
that they run on dispatcher callbacks, not as coroutines.
"""

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from manyhands.access.gate import guarded_by
from manyhands.config import Config
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.engine.retry import attempts_max
from manyhands.model.commands import Claim, Command, Proof
from manyhands.model.job import Holder, Job
from manyhands.model.payload import Encoding
from manyhands.model.policy import NO_POLICY
from manyhands.model.replies import (
    Changed,
    Claimed,
    Refusal,
    Reply,
)
from manyhands.net.http_short_way import Request
from manyhands.protocols.qless import builders, items
from manyhands.protocols.qless.batch import Batch, json_body, read_batch, see
from manyhands.protocols.qless.decoder import BadItem, check_host, read_value
from manyhands.protocols.qless.envelope import Answering
from manyhands.protocols.qless.identifiers import Rules, WrongItemError, shown_id
from manyhands.protocols.qless.paths import RESERVED, check_queue, count_of, queue_name, segments
from manyhands.protocols.qless.refusals import problem, was_revoked
from manyhands.web.envelope import Problem
from manyhands.web.exchange import HungUpError
from manyhands.web.handout import HandingOut
from manyhands.web.query import Query

if TYPE_CHECKING:
    from manyhands.observe.workers import WorkerBook

# Workers use the same few paths again and again, each of some kilobytes at most.
_WAYS_KEPT: Final = 256
_DEPRECATED: Final = ((b"deprecation", b"true"), (b"link", b'</heartbeat>; rel="alternate"'))

Make = Callable[[Any, str, Proof, Encoding, Rules], Command]


class QlessWork:
    """Requests of workers and submitters."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        ids: Ids,
        config: Config,
        rules: Rules,
        answering: Answering,
        handing_out: HandingOut,
        book: "WorkerBook",
    ) -> None:
        self._ids = ids
        self._now = dispatcher.clock.now
        self._dispatcher = dispatcher
        self._live = dispatcher.store.live
        self._answering = answering
        self._handing_out = handing_out
        self._book = book
        self._take_max = config.qless_take_max
        self._batch_max = config.qless_batch_max
        self._rules = rules
        self._many_from = 1 if config.qless_count_one == "array" else 2
        self._nothing: object = {} if config.qless_empty == "object" else None
        self._tasks: set[asyncio.Task[None]] = set()

    # Taking work.

    def get(self, request: Request) -> None:
        head = request.head
        queue, count = _queue_and_count(head.path, self._take_max)
        many = count is not None and count >= self._many_from
        host, wait, array = None, 0.0, False
        if head.method == "POST":
            data, host = read_value(json_body(request), items.TAKE)
            wait, array = data.wait, data.array
            if not 0.0 <= wait <= items.WAIT_SECONDS_MAX:
                raise Problem(
                    400, "invalid_body", f"wait is 0 to {items.WAIT_SECONDS_MAX:g} seconds"
                )
        elif head.query:
            host, wait, array = _wishes(head.query)
        self._take(request, queue, (count or 1, array or many), host, wait)

    def get_short(self, request: Request) -> None:
        """``GET /<queue>/<count>``: only where the first segment is not reserved."""
        parts = segments(request.head.path)
        assert len(parts) == 2
        assert parts[0].decode("latin-1") not in RESERVED
        host, wait, array = _wishes(request.head.query)
        count = count_of(parts[1], self._take_max)
        many = array or count >= self._many_from
        self._take(request, queue_name(parts[0]), (count, many), host, wait)

    def _take(
        self, request: Request, queue: str, wanted: tuple[int, bool], host: str | None, wait: float
    ) -> None:
        name, address = see(self._book, host, request, self._now())
        count, array = wanted
        token = self._ids.token
        if not wait:
            # Decided at once, so more tokens than ready jobs would be useless.
            count = min(count, self._dispatcher.ready_count(queue))
        command = Claim(
            queues=(queue,),
            holder=Holder(items.REALM, name, address),
            tokens=tuple([token() for _ in range(count)]),
            term_ms=items.TERM_MS,
            term_of_job=True,
        )
        if wait:
            with guarded_by(request.head.guard):
                self._start(self._take_patiently(request, command, wait, array=array))
        else:
            self._answering.ask(
                request, (command,), lambda replies: self._hand_over(request, replies[0], array)
            )

    async def _take_patiently(
        self, request: Request, command: Claim, wait: float, *, array: bool
    ) -> None:
        try:
            connection = request.connection
            reply = await self._handing_out.claim_patiently(connection, command, wait)
        except HungUpError:
            return
        self._hand_over(request, reply, array)

    def _hand_over(self, request: Request, reply: Reply, array: bool) -> None:  # noqa: FBT001
        if isinstance(reply, Refusal):
            self._answering.fail(request, problem(reply))
            return
        assert isinstance(reply, Claimed)
        connection = request.connection
        if connection.is_gone:
            self._handing_out.take_back(reply.jobs)
            return
        jobs = self._handing_out.fit(reply.jobs)
        shown = [builders.taken(job, self._attempts_max(job)) for job in jobs]
        results: object = shown if array else (shown[0] if shown else self._nothing)
        self._answering.answer(request, results)
        if not jobs:
            return
        if connection.unsent_bytes():
            self._start(self._handing_out.watch_delivery(connection, jobs))
        else:
            connection.expect_receipt(functools.partial(self._handing_out.take_back, jobs))

    def _attempts_max(self, job: Job) -> int:
        known = self._live.queue(job.queue)
        return attempts_max(job, known.policy if known is not None else NO_POLICY)

    def _start(self, work: Any) -> None:  # noqa: ANN401 - a coroutine
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Working on what was taken.

    def heartbeat(self, request: Request) -> None:
        queue, found, host = read_batch(request, items.HEARTBEAT, self._batch_max)
        name, address = see(self._book, host, request, self._now())
        batch = Batch()
        reports: dict[int, Command] = {}
        for index, item in enumerate(found):
            if isinstance(item, BadItem):
                batch.refuse(index, item)
                continue
            if isinstance(item, str):
                item = items.HeartbeatItem(item)  # noqa: PLW2901 - the short form of the same
            try:
                proof = items.proof_of(item.lease, name, address)
                like = self._encoding_of(item.id)
                batch.ask(index, item.id, item.renew(queue, proof, like, self._rules))
                report = item.report(proof, self._rules)
                if report is not None:
                    reports[index] = report
            except WrongItemError as error:
                batch.refuse(index, items.bad(error, item.id))
        self._answering.ask(
            request,
            batch.commands,
            lambda replies: self._renewed(request, len(found), batch, replies, reports),
        )

    def heartbeat_misspelt(self, request: Request) -> None:
        request.notes = _DEPRECATED
        self.heartbeat(request)

    def _renewed(
        self,
        request: Request,
        count: int,
        batch: Batch,
        replies: list[Reply],
        reports: dict[int, Command],
    ) -> None:
        results: list[int | bool] = [False] * count
        further: list[Command] = []
        for index, job_id, reply in batch.answered(replies):
            if isinstance(reply, Changed):
                results[index] = builders.renewed(reply.job)
                if index in reports:
                    further.append(reports[index])
            else:
                batch.refuse_by(index, job_id, reply)
        self._answering.ask(
            request,
            further,
            lambda _: self._answering.many(request, results, batch.errors),
        )

    def complete(self, request: Request) -> None:
        queue, found, host = read_batch(request, items.COMPLETE, self._batch_max)
        self._turn_in(request, queue, found, host, _completion)

    def fail(self, request: Request) -> None:
        queue, found, host = read_batch(request, items.FAIL, self._batch_max)
        self._turn_in(request, queue, found, host, items.FailItem.fail)

    def retry(self, request: Request) -> None:
        queue, found, host = read_batch(request, items.RETRY, self._batch_max)
        self._turn_in(request, queue, found, host, items.RetryItem.fail)

    def _turn_in(
        self, request: Request, queue: str, found: Sequence[Any], host: str | None, make: Make
    ) -> None:
        """Complete, fail and retry: answers with the ids that succeeded."""
        name, address = see(self._book, host, request, self._now())
        by_name = items.proof_of(None, name, address)
        batch = Batch()
        for index, item in enumerate(found):
            if isinstance(item, BadItem):
                batch.refuse(index, item)
                continue
            try:
                lease = item.lease
                proof = by_name if lease is None else items.proof_of(lease, name, address)
                like = self._encoding_of(item.id)
                batch.ask(index, item.id, make(item, queue, proof, like, self._rules))
            except WrongItemError as error:
                batch.refuse(index, items.bad(error, item.id))
            except Problem as error:
                batch.refuse(index, BadItem(error.code, error.message, item.id))
        self._answering.ask(
            request,
            batch.commands,
            lambda replies: self._turned_in(request, batch, replies),
        )

    def _turned_in(self, request: Request, batch: Batch, replies: list[Reply]) -> None:
        results: list[str] = []
        for index, job_id, reply in batch.answered(replies):
            if isinstance(reply, Changed):
                results.append(shown_id(reply.job))
                continue
            command: Any = batch.command(index)
            batch.refuse_by(index, job_id, reply)
            job = reply.job if isinstance(reply, Refusal) else None
            if job is not None:
                error = batch.errors[-1]
                if error["code"] == "complete":
                    error["code"] = "already_complete"
                elif job.lease is None and was_revoked(job, command.proof):
                    error["code"] = "lock_lost"
        self._answering.many(request, results, batch.errors)

    def _encoding_of(self, job_id: str) -> Encoding:
        """How the job's meta is stored: a peer that sends bytes gets bytes back."""
        find = self._live.live_job
        job = find(job_id) or find(self._rules.read_id(job_id))
        return Encoding.JSON if job is None else job.encoding


def _completion(
    item: items.CompleteItem, queue: str, proof: Proof, like: Encoding, rules: Rules
) -> Command:
    if item.next is not None:
        check_queue(item.next)
    return item.complete(queue, proof, like, rules)


@functools.lru_cache(maxsize=_WAYS_KEPT)
def _queue_and_count(path: bytes, count_max: int) -> tuple[str, int | None]:
    """What the path of a take says; without a count it is one item, answered without an array."""
    parts = segments(path)
    if not 2 <= len(parts) <= 3:
        raise Problem(404, "not_found", "the path is /get/<queue> or /get/<queue>/<count>")
    count = count_of(parts[2], count_max) if len(parts) == 3 else None
    return queue_name(parts[1]), count


@functools.lru_cache(maxsize=_WAYS_KEPT)
def _wishes(query_string: bytes) -> tuple[str | None, float, bool]:
    """What the query of a take says: the host, how long to wait, whether to return an array."""
    query = Query(query_string)
    host = query.text("host")
    wait = query.seconds("wait", items.WAIT_SECONDS_MAX) or 0.0
    array = query.text("array") == "1"
    return None if host is None else check_host(host), wait, array
