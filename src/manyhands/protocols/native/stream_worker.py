"""The worker's side of a stream: queues, credit, jobs handed out, and lost leases.

Numbers in comments (ST…) are those of ``docs/protocols/stream.md``.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from manyhands.dispatch.session import Peer
from manyhands.model import limits
from manyhands.model.commands import ByToken, Claim, ClaimOrder, Command, Release
from manyhands.model.job import Holder, Job, State
from manyhands.model.replies import Claimed, Reply
from manyhands.protocols.native import stream_codec as wire
from manyhands.protocols.native.bodies import REALM
from manyhands.protocols.native.stream_hub import Hub, Socket
from manyhands.protocols.native.stream_refusals import NoteRefusedError, error_of

CREDIT_MAX: Final = 10_000
CLAIM_COUNT_MAX: Final = 500
TERM_MS: Final = 30_000  # ST10


class WorkerSide:
    """Claims as much as the credit allows at once, and sleeps for the rest."""

    def __init__(
        self,
        peer: Peer,
        socket: Socket,
        hub: Hub,
        say: Callable[[bytes], None],
        address: str,
        on_dismissed: Callable[[str], None],
    ) -> None:
        self.held: dict[str, int] = {}
        self._name: str | None = None
        self._address = address
        self._peer = peer
        self._caller = peer.caller
        self.owner = "" if peer.caller is None else peer.caller.name
        self._socket = socket
        self._hub = hub
        self._say = say
        self._on_dismissed = on_dismissed
        self.queues: tuple[str, ...] = ()
        self._order = ClaimOrder.PRIORITY_IN_TURNS
        self._term_ms: int | None = None
        self._slots = 0
        self._ahead = 0
        self._turn = 0
        self._is_claiming = False
        self._asked = (0, 0)  # slots and ahead of the pending claim
        self._asked_queues: tuple[str, ...] = ()
        self._was_called = False  # woken while a claim was pending
        self._is_lost = False

    def want(self, note: wire.Want) -> None:
        """ST10: sets the queues to take work from. Credit starts anew."""
        if len(note.queues) > limits.CLAIM_QUEUES_MAX:
            sentence = f"a want names at most {limits.CLAIM_QUEUES_MAX} queues"
            raise NoteRefusedError("bad_count", sentence)
        try:
            order = ClaimOrder(note.order)
        except ValueError as error:
            raise NoteRefusedError("invalid_note", str(error)) from None
        if note.term_ms is not None and not 0 <= note.term_ms <= limits.TIME_MS_MAX:
            sentence = "term_ms must be between 0 and a hundred years; 0 is no expiry"
            raise NoteRefusedError("bad_time", sentence)
        for queue in note.queues:
            refusal = self._peer.refusal_to_work(queue)
            if refusal is not None:
                raise NoteRefusedError(*error_of(refusal))
        self.queues = tuple(dict.fromkeys(note.queues))
        self._order = order
        self._term_ms = note.term_ms
        self._slots = self._ahead = 0
        self._asked = (0, 0)
        self._rest()

    def give(self, slots: int, ahead: int) -> None:
        """ST11: adds credit for this many jobs."""
        self._slots = min(self._slots + slots, CREDIT_MAX)
        self._ahead = min(self._ahead + ahead, CREDIT_MAX)
        self.take()

    def take(self) -> None:
        """Claims what the credit allows, and sleeps for the rest."""
        if self._is_claiming:
            self._was_called = True
            return
        self._rest()
        if self._is_lost or self._socket.is_behind:
            return
        queues, count = self._allowed()
        count = min(count, CLAIM_COUNT_MAX, self._hub.ready_count(queues))
        if count:
            self._claim(queues, count)
        self._sleep()

    def _claim(self, queues: tuple[str, ...], count: int) -> None:
        idle = min(count, self._slots)
        ahead = count - idle
        # Deducted now: slots about to get work are not idle, so they hold up no other worker.
        self._slots -= idle
        self._ahead -= ahead
        self._asked = (idle, ahead)
        self._asked_queues = queues
        self._is_claiming = True
        self._turn += 1
        token = self._peer.token
        self._peer.ask(
            Claim(
                queues=queues,
                holder=Holder(REALM, self._name, self._address),
                tokens=tuple(token() for _ in range(count)),
                order=self._order,
                turn=self._turn % len(queues),
                term_ms=TERM_MS if self._term_ms is None else self._term_ms,
                term_of_job=self._term_ms is None,
            ),
            self._claimed,
        )

    def _sleep(self) -> None:
        """Sleeps for work or, without idle slots, waits for work that no sleeper wants."""
        if self._slots:
            holder = Holder(REALM, self._name, self._address)
            self._peer.sleep(self.queues, self._called, holder, self._slots)
        elif self._ahead:
            self._hub.await_surplus(self, self.queues)

    def _rest(self) -> None:
        self._peer.stay_awake()
        self._hub.await_surplus(self, ())

    def _allowed(self) -> tuple[tuple[str, ...], int]:
        """ST11: jobs fetched ahead may not come from queues where others have idle slots."""
        queues, wanted = self.queues, self._hub.is_wanted
        if self._slots:
            if self._ahead and not any(map(wanted, queues)):
                return queues, self._slots + self._ahead
            return queues, self._slots
        if self._ahead:
            return tuple(queue for queue in queues if not wanted(queue)), self._ahead
        return (), 0

    def _called(self) -> None:
        """There is work."""
        if not self._is_claiming and (not self._slots or self._socket.is_behind):
            self._hub.pass_on(self.queues)
        else:
            self.take()

    def _claimed(self, reply: Reply) -> None:
        self._is_claiming = False
        was_called, self._was_called = self._was_called, False
        jobs = reply.jobs if isinstance(reply, Claimed) else ()
        if self._is_lost:
            self._give_back(jobs)
            return
        idle, ahead = self._asked
        is_short = len(jobs) < idle + ahead
        if is_short:
            used = min(len(jobs), idle)
            self._slots += idle - used
            self._ahead += max(0, ahead - (len(jobs) - used))
        if jobs:
            self._hand_out(jobs)
        if was_called and not self._slots:
            self._hub.pass_on(self.queues)
        if isinstance(reply, Claimed) and (
            not is_short or was_called or self._peer.has_work(self._asked_queues)
        ):
            self.take()  # there may be more, or credit was added meanwhile
        else:
            self._rest()
            self._sleep()

    def _give_back(self, jobs: Sequence[Job]) -> None:
        """Rule 8: undelivered jobs were never handed out."""
        for job in jobs:
            assert job.lease is not None
            self._peer.ask(Release(job_id=job.job_id, proof=ByToken(job.lease.token)))

    def _hand_out(self, jobs: Sequence[Job]) -> None:
        now = self._peer.now()
        self._say(wire.jobs([_row(job, now) for job in jobs]))
        for job in jobs:
            lease = job.lease
            assert lease is not None
            if not self._takes_hold(job.job_id, lease.token):  # lost since the claim
                self._say(wire.notice(job.job_id, lease.number, "cancelled"))

    # Leases.

    def _takes_hold(self, job_id: str, token: str) -> bool:
        number = self._hub.hold(self, job_id, token)
        if number is None:
            return False
        self.held[job_id] = number
        return True

    def resume(
        self, name: str | None, named: Sequence[wire.Held], finish: Callable[[list[str]], None]
    ) -> None:
        """ST15: a worker connects and names what it has. What was lost on its way to it goes back;
        then ``finish`` gets the ids that the worker no longer holds.
        """
        self._name = name
        if name is not None:
            # The stream before may not be known to be dead: what it is handed from now on would be
            # lost on the way, and be kept from others for as long as somebody vouches for the name.
            self._hub.take_name(self, name)
        gone = [job_id for job_id, token in named if not self._takes_hold(job_id, token)]
        leased = [] if name is None else self._hub.held_by(name)
        releases = [
            Release(job_id=job.job_id, proof=ByToken(job.lease.token))
            for job in leased
            if job.lease is not None and job.job_id not in self.held
        ]
        ask_all(self._peer, releases, lambda _: finish(gone))

    def lose(self, job: Job) -> None:
        """The lease is gone."""
        number = self.held[job.job_id]
        self.let_go(job.job_id)
        self._say(wire.notice(job.job_id, number, _why_lost(job, number)))

    def let_go(self, job_id: str) -> None:
        """The worker has reported on the job."""
        if self.held.pop(job_id, None) is not None:
            self._hub.let_go(self, job_id)

    def depart(self, name: str) -> None:
        """ST16: a worker leaves, this one or another. A connection may be broken without the server
        having noticed: whatever it was still handed would stay with the dead.
        """
        if name == self._name:
            self._slots = self._ahead = 0
            self._asked = (0, 0)
            self._rest()
        else:
            assert self._caller is not None
            self._hub.dismiss(name, self._caller)

    def give_way(self, sentence: str) -> None:
        """ST15, ST16: another stream has taken over the name, or the worker is dead."""
        self._peer.stay_awake()
        self.lost()
        self._on_dismissed(sentence)

    def lost(self) -> None:
        """The connection is gone. ST13: leases are not bound to it."""
        self._is_lost = True
        self._hub.await_surplus(self, ())
        if self._name is not None:
            self._hub.leave_name(self, self._name)
        for job_id in tuple(self.held):
            self.let_go(job_id)


def ask_all(peer: Peer, asked: Sequence[Command], finish: Callable[[list[Reply]], None]) -> None:
    """One reply for each command, in order, all together when the last one may leave."""
    replies: list[Reply] = []
    if not asked:
        finish(replies)

    def settle(reply: Reply) -> None:
        replies.append(reply)  # replies arrive in the order of their commands
        if len(replies) == len(asked):
            finish(replies)

    for command in asked:
        peer.ask(command, settle)


def _why_lost(job: Job, lease_number: int) -> str:
    for attempt in reversed(job.attempts):
        if attempt.number == lease_number:
            return attempt.reason.value
    return "cancelled" if job.state is State.CANCELLED else "expired"


def _row(job: Job, now: int) -> tuple[Any, ...]:
    lease = job.lease
    assert lease is not None
    return (
        job.job_id,
        job.queue,
        lease.token,
        lease.number,
        job.attempts_used,
        job.payload,
        job.encoding,
        lease.term_ms,
        job.headers,
        _extras(job, now),
    )


def _extras(job: Job, now: int) -> dict[str, Any] | None:
    """Fields that few jobs have. Times are durations, since clocks are never compared."""
    lease = job.lease
    assert lease is not None
    found: dict[str, Any] = {}
    if job.deadline_at is not None:
        found["deadline_ms"] = max(0, job.deadline_at - now)
    if lease.cutoff_at is not None:
        found["cutoff_ms"] = max(0, lease.cutoff_at - now)
    if job.priority:
        found["priority"] = job.priority
    if job.tags:
        found["tags"] = job.tags
    if job.name is not None:
        found["name"] = job.name
    if job.failure is not None:
        found["failure"] = job.failure.code
    return found or None
