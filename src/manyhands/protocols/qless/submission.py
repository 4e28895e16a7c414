"""Adding work over the qless API, once per key however often it is requested."""

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.model.commands import NewJob, Submit
from manyhands.model.identity import digits_of
from manyhands.model.job import Origin
from manyhands.model.receipts import Once, Receipt
from manyhands.model.replies import (
    Refusal,
    Repeated,
    Reply,
    Submitted,
    SubmittedMany,
    Why,
)
from manyhands.net.http_short_way import Request
from manyhands.protocols.qless import items
from manyhands.protocols.qless.answers import ItemError
from manyhands.protocols.qless.batch import read_batch, refuse_whole, see
from manyhands.protocols.qless.decoder import BadItem
from manyhands.protocols.qless.envelope import Answering
from manyhands.protocols.qless.identifiers import Rules, WrongItemError, shown_id
from manyhands.protocols.qless.moves import OwnMoves
from manyhands.protocols.qless.refusals import entry, item_error, problem
from manyhands.web.idempotency import REPLAYED, read_once, refusal_of

if TYPE_CHECKING:
    from manyhands.observe.workers import WorkerBook

# Items of one request that are decided before other peers get their turn.
_SLICE: Final = 500


class QlessAdding:
    """``POST /add/<queue>``."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        ids: Ids,
        batch_max: int,
        rules: Rules,
        answering: Answering,
        book: "WorkerBook",
        own_moves: OwnMoves,
    ) -> None:
        self._dispatcher = dispatcher
        self._ids = ids
        self._live = dispatcher.store.live
        self._answering = answering
        self._book = book
        self._own_moves = own_moves
        self._batch_max = batch_max
        self._rules = rules

    def add(self, request: Request) -> None:
        """Adds jobs to a queue."""
        queue, found, host = read_batch(request, items.ADD, self._batch_max)
        now = self._dispatcher.clock.now()
        name, address = see(self._book, host, request, now)
        origin = Origin(items.REALM, name or "", address)
        head = request.head
        once = read_once(head.headers, items.REALM, head.path, request.body, head.caller)
        make_id = self._ids.job_id
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
            if item.move:
                self._own_moves.expect(self._live.live_job(job.job_id), name, address)
            adding.new.append(job)
            adding.places.append(index)
        commands = adding.commands() if once is None else [adding.command(once)]

        def finish(replies: list[Reply]) -> None:
            first = replies[0] if replies else None
            if isinstance(first, Repeated):
                adding.take_again(first.receipt)
                request.notes = (*request.notes, REPLAYED)
            else:
                adding.take(commands, replies)
            self._answering.many(request, adding.results, adding.errors)

        self._answering.ask(request, commands, finish)


class _Adding:
    """One request: what it submits, and what its items are answered."""

    def __init__(self, count: int) -> None:
        self.results: list[str | bool] = [False] * count
        self.errors: list[ItemError] = []
        self.new: list[NewJob] = []
        self.places: list[int] = []

    def commands(self) -> list[Submit]:
        """In slices, so that a large batch does not keep other peers waiting."""
        new = self.new
        return [
            Submit(tuple(new[start : start + _SLICE]), lone=True)
            for start in range(0, len(new), _SLICE)
        ]

    def command(self, once: Once) -> Submit:
        """All items in one command, so that a repetition is recognised. Items answered without the
        engine are stored with their answers, which might differ later.
        """
        note = _encode_note(_Note(self.places, self.errors)).decode()
        return Submit(tuple(self.new), once=replace(once, note=note), lone=True)

    def take(self, commands: list[Submit], replies: list[Reply]) -> None:
        """Assigns the replies to their items."""
        outcomes: list[Submitted | Refusal] = []
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, Refusal):
                if reply.why is Why.KEY_REUSED:
                    raise problem(reply)
                outcomes += [reply] * len(command.items)
            else:
                assert isinstance(reply, SubmittedMany)
                outcomes += reply.items
        for index, job, one in zip(self.places, self.new, outcomes, strict=True):
            if isinstance(one, Submitted):
                self.results[index] = shown_id(one.job)
            else:
                self._refuse(index, job, one)

    def _refuse(self, index: int, job: NewJob | None, refusal: Refusal) -> None:
        refuse_whole(refusal)
        chosen = job.name or job.job_id if job is not None and job.id_chosen else None
        error = item_error(index, chosen, refusal)
        if refusal.why is Why.ALREADY_COMPLETED:
            error["code"] = "already_complete"
        self.errors.append(error)

    def take_again(self, receipt: Receipt) -> None:
        """Repeats the answers to an earlier, identical request."""
        note = _decode_note(receipt.note)
        jobs = dict(zip(self.places, self.new, strict=True))
        self.errors = note.errors
        for index, item in zip(note.places, receipt.items, strict=True):
            refusal = refusal_of(item)
            if refusal is None:
                named = item.name != "" and digits_of(item.name) == item.job_id
                self.results[index] = item.name if named else item.job_id
            else:
                self._refuse(index, jobs.get(index), refusal)


class _Note(Struct, array_like=True):
    """Which items were submitted, and the answers to the others."""

    places: list[int]
    errors: list[ItemError]


_encode_note: Final = msgspec.json.Encoder().encode
_decode_note: Final = msgspec.json.Decoder(_Note).decode
