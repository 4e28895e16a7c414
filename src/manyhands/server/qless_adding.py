"""Adding work over the qless API, once however often it is asked for with the same key."""

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from manyhands.model.commands import NewJob, Submit
from manyhands.model.job import Origin, State
from manyhands.model.outcome import Refusal, Reply, Submitted, SubmittedMany
from manyhands.protocols.http_envelope import Problem
from manyhands.protocols.qless import items
from manyhands.protocols.qless.identifiers import Rules, WrongItemError, shown_id
from manyhands.protocols.qless.reading import BadItem
from manyhands.protocols.qless.refusals import entry, item_error
from manyhands.server.http_short_way import Request
from manyhands.server.qless_answer import Answering
from manyhands.server.qless_batch import read_batch, refuse_whole, see
from manyhands.server.qless_moves import OwnMoves

if TYPE_CHECKING:
    from manyhands.server.app import Server
    from manyhands.server.workers import WorkerBook

# Items of one request that are decided before others get their turn.
_SLICE: Final = 500
_KEY_BYTES_MAX: Final = 255


class QlessAdding:
    """``POST /add/<queue>``."""

    def __init__(
        self,
        server: "Server",
        rules: Rules,
        answering: Answering,
        book: "WorkerBook",
        own_moves: OwnMoves,
    ) -> None:
        config = server.config
        self._server = server
        self._index = server.store.index
        self._answering = answering
        self._book = book
        self._own_moves = own_moves
        self._batch_max = config.qless_batch_max
        self._rules = rules
        self._dedup = config.qless_dedup_completed == "same_queue"
        self.serve: Callable[[Request], None] = answering.guarded(self._add)

    def _add(self, request: Request) -> None:
        queue, found, host = read_batch(request, items.ADD, self._batch_max)
        now = self._server.clock.now()
        name, address = see(self._book, host, request, now)
        origin = Origin(items.REALM, name or "", address)
        key = _idempotency_key(request)
        make_id = self._server.ids.job_id
        adding = _Adding(len(found))
        for index, item in enumerate(found):
            if isinstance(item, BadItem):
                adding.errors.append(entry(index, item.id, item.code, item.message))
                continue
            try:
                job = item.new_job(queue, make_id(now), origin, now, self._rules)
            except WrongItemError as error:
                adding.errors.append(entry(index, item.id, error.code, str(error)))
                continue
            if key is not None:
                job = _keyed(job, key, index)
            if not (job.id_chosen and self._settles(adding, index, job)):
                if item.move:
                    self._own_moves.expect(self._index.jobs.get(job.job_id), name, address)
                adding.new.append(job)
                adding.places.append(index)
        commands = adding.commands()

        def finish(replies: list[Reply]) -> None:
            adding.take(commands, replies)
            self._answering.many(request, adding.results, adding.errors)

        self._answering.ask(request, commands, finish)

    def _settles(self, adding: "_Adding", index: int, job: NewJob) -> bool:
        """Whether what is known of the job answers the item already."""
        if (job.name or job.job_id) in self._index.schedules:
            sentence = "a recurring job has this id"
            adding.errors.append(entry(index, job.name or job.job_id, "duplicate", sentence))
            return True
        looked_up = bool(job.metadata) or self._dedup
        known = self._index.job(job.job_id) if looked_up else None
        if known is None:
            return False
        if job.metadata and known.metadata == job.metadata:
            adding.results[index] = job.name or job.job_id  # the same request with the same key
            return True
        if self._dedup and known.state is State.COMPLETED and known.queue == job.queue:
            sentence = "the job was completed in this queue before"
            adding.errors.append(entry(index, job.name or job.job_id, "already_complete", sentence))
            return True
        return False


class _Adding:
    """One request: what is to be submitted, and what its items are answered."""

    def __init__(self, count: int) -> None:
        self.results: list[str | bool] = [False] * count
        self.errors: list[dict[str, Any]] = []
        self.new: list[NewJob] = []
        self.places: list[int] = []

    def commands(self) -> list[Submit]:
        """In slices, so that a large batch does not keep everybody else waiting."""
        new = self.new
        return [Submit(tuple(new[start : start + _SLICE])) for start in range(0, len(new), _SLICE)]

    def take(self, commands: list[Submit], replies: list[Reply]) -> None:
        """The replies, each to its item."""
        told: list[Submitted | Refusal] = []
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, Refusal):
                told += [reply] * len(command.items)
            else:
                assert isinstance(reply, SubmittedMany)
                told += reply.items
        for index, job, one in zip(self.places, self.new, told, strict=True):
            if isinstance(one, Submitted):
                self.results[index] = shown_id(one.job)
            else:
                refuse_whole(one)
                chosen = job.name or job.job_id if job.id_chosen else None
                self.errors.append(item_error(index, chosen, one))
        if self.errors:
            self.errors.sort(key=lambda error: error["index"])


def _idempotency_key(request: Request) -> bytes | None:
    key = request.head.headers.get(b"idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= _KEY_BYTES_MAX or not key.isascii():
        sentence = f"an idempotency key has 1 to {_KEY_BYTES_MAX} bytes of ASCII"
        raise Problem(400, "invalid_idempotency_key", sentence)
    return key


def _keyed(job: NewJob, key: bytes, index: int) -> NewJob:
    """The job as that key made it: its id follows from the key unless the sender chose one, and
    the key stays with the job, so that the same request is recognised for as long as the job is.
    """
    place = b"%s/%d/%s" % (key, index, job.queue.encode())
    digest = hashlib.blake2b(place, digest_size=16).hexdigest()
    return replace(
        job,
        job_id=job.job_id if job.id_chosen else digest,
        id_chosen=True,
        metadata=b'{"idempotency":"%s"}' % digest.encode(),
    )
