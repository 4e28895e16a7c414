"""What a client asks of the server, from any thread: submits, ends of jobs, looks, cancellations.

Everything but the constructor and the methods marked so runs in the home loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeVar

from msgspec import Raw

from manyhands.client import home, notes
from manyhands.client.address import Place
from manyhands.client.errors import (
    AGAIN_SECONDS,
    AGAIN_SECONDS_MAX,
    PASSING,
    Refused,
    Unavailable,
    refusal,
)
from manyhands.client.home import Settle
from manyhands.client.notes import Ended, Greeting, Heard, Held, Item, Note, Submitted, View
from manyhands.client.stream import Pending, Stream
from manyhands.client.watches import Reader, Watches
from manyhands.protocols.native import stream_codec as wire

T = TypeVar("T")
SLICE_COUNT: Final = 500
SLICE_BYTES: Final = 4 * 1024 * 1024
UNANSWERED_COUNT_MAX: Final = 10_000
UNANSWERED_BYTES_MAX: Final = 64 * 1024 * 1024
_ITEM_BYTES: Final = 100  # what an item takes besides its payload


class Submission:
    """Jobs that one caller submits, and that caller."""

    __slots__ = (
        "alone",
        "deadline",
        "items",
        "pending",
        "problem",
        "settle",
        "size",
        "together",
        "was_refused",
    )

    def __init__(self, items: Sequence[Item], settle: Settle, *, together: bool = False) -> None:
        self.items = items
        self.settle = settle
        self.together = together
        self.alone = together  # in a note of its own
        self.size = sum(len(item[2]) for item in items) + _ITEM_BYTES * len(items)
        self.deadline = 0.0
        self.pending: Pending | None = None  # the note it was sent in
        self.was_refused = False
        self.problem = ""

    @property
    def may_be_accepted(self) -> bool:
        """Whether the server may have it."""
        return self.pending is not None and self.pending.was_sent and not self.was_refused


class Courier:
    """One stream, opened at first use, for everything that this process asks of a server."""

    def __init__(self, places: Sequence[Place], *, token: str | None, timeout: float) -> None:
        """In any thread."""
        self._places = places
        self._token = token
        self._timeout = timeout
        home.register(self)
        self._reset()

    def _reset(self) -> None:
        self._stream: Stream | None = None
        self._is_closed = False
        self._idle: asyncio.Event | None = None  # set when all submits are answered
        self._waiting: deque[Submission] = deque()  # not sent yet
        self._sent: dict[Submission, None] = {}
        self._sent_count = 0
        self._sent_bytes = 0
        self._is_sending_due = False
        self._sweep: asyncio.TimerHandle | None = None
        self._retry_seconds = AGAIN_SECONDS
        self._is_resting = False  # until the server may have room again
        self._watches = Watches(self._open, lambda: self._timeout)

    def after_fork(self) -> None:
        """P33: in the child. The parent's connection stays the parent's."""
        if self._stream is not None:
            self._stream.abandon()
        self._reset()

    # In any thread.

    @property
    def server_name(self) -> str:
        """What messages call the server."""
        return ", ".join(place.name for place in self._places)

    @property
    def places(self) -> Sequence[Place]:
        """Where the server is."""
        return self._places

    @property
    def token(self) -> str | None:
        """What proves who is asking."""
        return self._token

    @property
    def timeout(self) -> float:
        """Seconds after which a server that does not answer is given up."""
        return self._timeout

    def submit(self, items: Sequence[Item], settle: Settle, *, together: bool = False) -> None:
        """Submits jobs. The result is a list of ``Submitted``: the refused and the joined ones.

        Refusals that pass with time are tried again until the timeout.
        """
        home.home().call(self._take, Submission(items, settle, together=together))

    def submit_at_turn_end(self, item: Item, settle: Settle) -> None:
        """P16: in a coroutine; together with the other submits of this turn of its loop."""
        home.call_at_turn_end(self._take, Submission((item,), settle))

    def await_end(self, job_id: str, settle: Settle) -> None:
        """Waits for a job's end: the result is its ``View``."""
        home.home().call(self._watches.await_end, job_id, settle)

    def forget_end(self, job_id: str, settle: Settle) -> None:
        """Waits no longer."""
        home.home().call(self._watches.forget_end, job_id, settle)

    def listen(self, job_id: str, reader: Reader) -> None:
        """News of a job, until its end."""
        home.home().call(self._watches.listen, job_id, reader)

    def stop_listening(self, job_id: str, reader: Reader) -> None:
        """No more news."""
        home.home().call(self._watches.stop_listening, job_id, reader)

    # The stream.

    def _open(self) -> Stream:
        if self._is_closed:
            raise Refused("closed", "this client is closed; make another one")
        if self._stream is None:
            self._stream = Stream(self._places, self, token=self._token)
        return self._stream

    async def close(self) -> None:
        """Closes the stream, when what was asked has been answered."""
        if self._waiting or self._sent:
            self._idle = asyncio.Event()
            await self._idle.wait()
        await self.abort()

    async def abort(self) -> None:
        """Closes the stream, whatever is unanswered."""
        self._is_closed = True
        self._fail_all(Refused("closed", "this client was closed"))
        if self._stream is not None:
            await self._stream.close()

    def held(self) -> list[Held]:
        """A client holds no leases."""
        return []

    def greeted(self, greeting: Greeting) -> None:
        """P35: watches are renewed."""
        del greeting
        self._watches.renew()

    def resumed(self) -> None:
        """Unanswered notes were sent again."""

    def lost(self, why: str) -> None:
        """Waiting callers wait for the next connection, but not for ever."""
        del why
        self._watches.expect_server()

    def refused(self, error: Exception) -> None:
        """No connection will do: everybody gets the reason."""
        if self._stream is not None:
            self._stream.fail_pending(error)
        self._fail_all(error)

    def is_busy(self) -> bool:
        """Whether anybody waits for the end of a job."""
        return bool(self._waiting or self._sent) or self._watches.is_busy()

    def receive(self, note: Note) -> None:
        """News and ends of jobs."""
        match note:
            case Ended():
                self._watches.ended(note.view)
            case Heard():
                self._watches.heard(note)
            case _:
                pass

    def _fail_all(self, error: Exception) -> None:
        for submission in (*self._sent, *self._waiting):
            submission.settle(None, error)
        self._sent.clear()
        self._waiting.clear()
        self._sent_count = self._sent_bytes = 0
        self._rest_if_idle()
        self._watches.fail_all(lambda _: error)

    # Submits.

    def _take(self, submission: Submission) -> None:
        loop = asyncio.get_running_loop()
        if self._is_closed:
            submission.settle(None, Refused("closed", "this client is closed; make another one"))
            return
        submission.deadline = loop.time() + self._timeout
        self._waiting.append(submission)
        if self._sweep is None:
            self._sweep = loop.call_at(submission.deadline, self._give_up_late_ones)
        self._send_soon()

    def _send_soon(self) -> None:
        """P16: submits of one turn leave in one message."""
        if not (self._is_sending_due or self._is_resting):
            self._is_sending_due = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._is_sending_due = False
        if self._is_resting or self._is_closed:
            return
        while self._waiting:
            group = self._next_group()
            if not group:
                return
            for submission in group:
                self._sent[submission] = None
                self._sent_count += len(submission.items)
                self._sent_bytes += submission.size
            self._send_group(group)

    def _next_group(self) -> list[Submission]:
        """The submissions of the next note, within its bounds and those of the client (P17)."""
        group: list[Submission] = []
        count, size = 0, 0
        while self._waiting:
            submission = self._waiting[0]
            count += len(submission.items)
            size += submission.size
            is_first = not self._sent and not group
            is_over = (
                self._sent_count + count > UNANSWERED_COUNT_MAX
                or self._sent_bytes + size > UNANSWERED_BYTES_MAX
            )
            if is_over and not is_first:
                break
            if group and (
                submission.alone or group[0].alone or count > SLICE_COUNT or size > SLICE_BYTES
            ):
                break
            group.append(self._waiting.popleft())
        return group

    def _send_group(self, group: list[Submission]) -> None:
        items = [item for submission in group for item in submission.items]
        together = group[0].together
        try:
            pending = self._open().ask(wire.SUBMIT, items, together)
        except (TypeError, ValueError, OverflowError) as error:
            self._cannot_be_sent(group, error)
            return
        for submission in group:
            submission.pending = pending
            submission.was_refused = False
        pending.future.add_done_callback(lambda future: self._submitted(group, future))

    def _cannot_be_sent(self, group: list[Submission], error: Exception) -> None:
        """Something in it has no place in a note, such as half a character in a header."""
        for submission in group:
            self._settle_sent(submission)
        if len(group) == 1:
            group[0].settle(None, ValueError(f"the job cannot be sent: {error}"))
        else:
            for submission in reversed(group):
                submission.alone = True
                self._waiting.appendleft(submission)
        self._rest_if_idle()

    def _submitted(self, group: list[Submission], future: "asyncio.Future[Raw]") -> None:
        alive = [submission for submission in group if submission in self._sent]
        for submission in alive:
            self._settle_sent(submission)
        if not alive or future.cancelled():
            return
        error = future.exception()
        if isinstance(error, Refused) and error.code in PASSING:
            for submission in alive:
                submission.was_refused = True
            self._again(alive, error)
        elif error is not None and len(group) > 1:
            # One of them is to blame; each gets an answer of its own.
            for submission in reversed(alive):
                submission.alone = True
                self._waiting.appendleft(submission)
        elif error is not None:
            for submission in alive:
                submission.settle(None, error)
        else:
            try:
                exceptions = notes.read_submitted(future.result())
            except Refused as malformed:
                for submission in alive:
                    submission.settle(None, malformed)
            else:
                self._share_out(group, exceptions)
        self._send_soon()
        self._rest_if_idle()

    def _settle_sent(self, submission: Submission) -> None:
        del self._sent[submission]
        self._sent_count -= len(submission.items)
        self._sent_bytes -= submission.size

    def _rest_if_idle(self) -> None:
        if not (self._waiting or self._sent):
            if self._sweep is not None:
                self._sweep.cancel()
                self._sweep = None
            if self._idle is not None:
                self._idle.set()

    def _share_out(self, group: list[Submission], exceptions: list[Submitted]) -> None:
        """Each caller gets the exceptions among its own items, counted from its first."""
        if not exceptions:
            self._retry_seconds = AGAIN_SECONDS
            for submission in group:
                submission.settle([], None)
            return
        by_index = {each.index: each for each in exceptions}
        start = 0
        for submission in group:
            stop = start + len(submission.items)
            own = [
                Submitted(index - start, each.code, each.sentence, each.id, each.state)
                for index, each in by_index.items()
                if start <= index < stop
            ]
            start = stop
            passing = next((each for each in own if each.code in PASSING), None)
            if passing is not None:
                # Sent again as a whole: the accepted ones are known by their ids.
                self._again([submission], refusal(passing.code or "", passing.sentence or ""))
            else:
                submission.settle(own, None)

    def _again(self, submissions: list[Submission], error: Refused) -> None:
        """P17: the server is full, or stops: the same jobs are sent again a little later."""
        for submission in reversed(submissions):
            submission.problem = str(error)
            self._waiting.appendleft(submission)
        if not self._is_resting:
            self._is_resting = True
            loop = asyncio.get_running_loop()
            loop.call_later(self._retry_seconds, self._rested)
            self._retry_seconds = min(self._retry_seconds * 2, AGAIN_SECONDS_MAX)

    def _rested(self) -> None:
        self._is_resting = False
        self._send_soon()

    def _give_up_late_ones(self) -> None:
        """P17: what the server has not answered in time is given up."""
        self._sweep = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        late = [each for each in (*self._sent, *self._waiting) if each.deadline <= now]
        for submission in late:
            if submission in self._sent:
                self._settle_sent(submission)
        if late:
            needed = {submission.pending for submission in self._sent}
            for submission in late:
                if submission.pending is not None and submission.pending not in needed:
                    submission.pending.future.cancel()  # it is not sent again
            self._waiting = deque(each for each in self._waiting if each.deadline > now)
            for submission in late:
                submission.settle(None, self._unavailable(submission))
            self._send_soon()
        rest = [each.deadline for each in (*self._sent, *self._waiting)]
        if rest:
            self._sweep = loop.call_at(min(rest), self._give_up_late_ones)
        self._rest_if_idle()

    def _unavailable(self, submission: Submission) -> Unavailable:
        ids = tuple(item[0] for item in submission.items)
        what = f"job {ids[0]}" if len(ids) == 1 else f"{len(ids)} jobs, the first of them {ids[0]},"
        verb = (
            "may have been"
            if submission.may_be_accepted
            else "was not"
            if len(ids) == 1
            else "were not"
        )
        advice = "a submit under the same id makes no second job"
        problem = (
            f"{self.server_name} took nothing new for {self._timeout:g} s: {submission.problem}"
            if submission.problem and self._stream is not None and self._stream.is_open
            else f"no answer within {self._timeout:g} s from {self._problem()}"
        )
        sentence = f"{problem}; {what} {verb} accepted; {advice}"
        return Unavailable(sentence, ids=ids, maybe_accepted=submission.may_be_accepted)

    def _problem(self) -> str:
        if self._stream is None or self._stream.is_open:
            return self.server_name
        return self._stream.problem

    # Questions.

    async def ask(self, kind: int, fields: tuple[Any, ...], read: Callable[[Raw], T]) -> T:
        """Sends a note and reads its answer, within the timeout."""
        return await self._answer(self._open().ask(kind, *fields), read)

    async def _answer(self, pending: Pending, read: Callable[[Raw], T]) -> T:
        try:
            async with asyncio.timeout(self._timeout):
                return read(await pending.future)
        except TimeoutError:
            sentence = f"no answer within {self._timeout:g} s from {self._problem()}"
            raise Unavailable(sentence, maybe_accepted=pending.was_sent) from None

    async def look(self, ids: Sequence[str]) -> list[View]:
        """Jobs as they are now, however many."""
        views: list[View] = []
        while len(views) < len(ids):
            some = list(ids[len(views) : len(views) + SLICE_COUNT])
            found = await self.ask(wire.LOOK, (some,), notes.read_views)
            views += found
            if not found:  # the records cannot be read now
                await asyncio.sleep(AGAIN_SECONDS)
        return views

    async def cancel(self, job_id: str, reason: str) -> Literal[True]:
        """Cancels a job and its dependants; raises ``Refused`` if it had finished."""
        with_dependants = True
        pending = self._open().ask(wire.CANCEL, [job_id], with_dependants, reason)
        try:
            await self._answer(pending, notes.read_states)
        except Refused as error:
            # Said again after a lost answer: it was cancelled by the first time.
            if not (pending.was_repeated and error.code == "already_cancelled"):
                raise
        return True
