"""Gearman's admin text, and what all Gearman connections of a server share."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from msgspec.structs import replace

from manyhands.dispatch.session import Peer
from manyhands.model.commands import Cancel, ForgetQueue, LookByKey, SetQueue
from manyhands.model.identity import uid_of
from manyhands.model.job import Job, State
from manyhands.model.plain import PlainReady
from manyhands.model.policy import DEFAULTS, QueuePolicy, terms_of
from manyhands.model.replies import Refusal, Reply, Why
from manyhands.protocols.gearman import codec as wire
from manyhands.protocols.gearman.names import as_word, queue_of, unescaped
from manyhands.protocols.gearman.words import ERROR_CODES
from manyhands.protocols.replies import Replies

# Lines in a listing of jobs; for more, operators have the search of the HTTP API.
UNKNOWN_TOKEN: Final = b"this token is unknown, or expired"
_JOBS_COUNT_MAX: Final = 100_000
# Functions that are listed although no worker offers them any more.
_FUNCTIONS_COUNT_MAX: Final = 10_000
# More than any queue holds, so it means no bound, and every store can represent it.
_NO_BOUND: Final = 10**12
_COLON: Final = ord(":")
_UNIQUE_BYTES_MAX: Final = 64
# The key of a job that was joined by its data: a dash and a digest of 64 bytes, see ``unique_key``.
_DIGEST_BYTES: Final = 65
# The bounds on unfinished jobs, which are set together.
_JOBS_MAX: Final = ("jobs_max", "jobs_max_high", "jobs_max_low")
# Asks for nothing; its answer comes when everything asked before is on disk.
_BARRIER: Final = LookByKey(b"", "")


class Guest(Protocol):
    """A connection, as the list of workers shows it."""

    @property
    def peer(self) -> Peer: ...

    @property
    def client_id(self) -> bytes: ...

    @property
    def abilities(self) -> Mapping[str, int | None]: ...


class Hall:
    """The connections, and the handles of jobs."""

    def __init__(
        self,
        server_name: str,
        version: str,
        pid: int,
        log_level: str,
        *,
        attempts_max: int = DEFAULTS["gearman"].attempts_max,
        exceptions: bool = False,
    ) -> None:
        self.version = version
        self.pid = pid
        self.log_level = log_level
        self.terms = terms_of("gearman", attempts_max)
        self.draft_terms = terms_of("draft", attempts_max)
        self.draft_unkept_terms = replace(self.draft_terms, result_ms=0)
        self.exceptions = exceptions  # sent to all clients
        self.sessions: dict[Guest, None] = {}
        self.functions: dict[str, None] = {}  # offered by some worker, until dropped
        self.faults_count = 0
        # Called with every ERROR sent to a peer: its code and sentence.
        self.on_error: Callable[[Peer, bytes, bytes], None] | None = None
        self._prefix = f"H:{server_name}:".encode()
        # JOB_CREATED up to the id, which has a constant number of digits.
        self._created = wire.encode_job_created(self._prefix + bytes(32))[:-32]

    def enter(self, session: Guest) -> None:
        """A connection was opened."""
        self.sessions[session] = None

    def leave(self, session: Guest) -> None:
        """A connection was closed."""
        self.sessions.pop(session, None)

    def learn(self, function: str) -> None:
        """A worker offers the function: it is listed from now on, even after that worker is
        gone.
        """
        if len(self.functions) < _FUNCTIONS_COUNT_MAX:
            self.functions[function] = None

    def is_offered(self, function: str) -> bool:
        """Whether a connected worker offers the function."""
        return any(function in session.abilities for session in self.sessions)

    def complain(self, peer: Peer, code: bytes, sentence: bytes) -> None:
        """Notes an error sent to a peer."""
        if self.on_error is not None:
            self.on_error(peer, code, sentence)

    def handle_of(self, job: Job | PlainReady) -> bytes:
        """The handle: the same in both dialects, valid as long as the job is stored."""
        job_id = job.job_id
        return self._prefix + (job_id if len(job_id) == 32 else uid_of(job_id)).encode()

    def job_created(self, job_id: str) -> bytes:
        """JOB_CREATED with the handle."""
        return self._created + (job_id if len(job_id) == 32 else uid_of(job_id)).encode()

    def job_id_of(self, handle: bytes) -> str | None:
        """The id (or uid) in a handle. The server's name in it is ignored."""
        if len(handle) < 35 or handle[-33] != _COLON or not handle.isascii():
            return None
        return handle[-32:].decode().lower()

    def workers_by_function(self) -> dict[str, int]:
        """How many connections offer each function that was ever named."""
        counts = dict.fromkeys(self.functions, 0)
        for session in self.sessions:
            for function in session.abilities:
                counts[function] = counts.get(function, 0) + 1
        return counts


class Admin:
    """Answers admin text, one line at a time."""

    def __init__(self, peer: Peer, hall: Hall, replies: Replies) -> None:
        self._peer = peer
        self._hall = hall
        self._replies = replies
        self._line = b""

    def answer(self, line: bytes) -> None:
        """Commands are case-insensitive; function names are not."""
        self._line = line
        words = line.split()
        if not words:
            self._unknown(b"")
            return
        command = words[0].lower()
        action = _COMMANDS.get(command)
        refusal = self._peer.refusal_to_look() if command not in _OPEN else None
        if action is None:
            self._unknown(words[0])
        elif refusal is not None:
            self._replies.say(_refused(refusal, refusal.sentence.encode("utf-8", "replace")))
        else:
            action(self, words[1:])

    def _unknown(self, word: bytes) -> None:
        self._replies.say(
            wire.encode_refusal(b"UNKNOWN_COMMAND", b"Unknown server command: " + word)
        )

    def _incomplete(self, sentence: bytes) -> None:
        self._replies.say(wire.encode_refusal(b"INVALID_ARGUMENTS", sentence))

    def on_status(self, words: list[bytes]) -> None:
        workers = self._hall.workers_by_function()
        lines = []
        for queue in self._peer.queues():
            total, leased = queue.unfinished_count, queue.counts[State.LEASED]
            count = workers.pop(queue.name, 0)
            lines.append(f"{queue.name}\t{total}\t{leased}\t{count}")
        lines.extend(
            f"{function}\t0\t0\t{count}"
            for function, count in workers.items()
            if self._peer.may_use(function)
        )
        self._list(lines)

    def on_priority_status(self, words: list[bytes]) -> None:
        workers = self._hall.workers_by_function()
        lines = []
        for queue in self._peer.queues():
            high = normal = low = 0
            for priority, count in queue.ready_by_priority.items():
                if priority > 0:
                    high += count
                elif priority < 0:
                    low += count
                else:
                    normal += count
            lines.append(f"{queue.name}\t{high}\t{normal}\t{low}\t{workers.pop(queue.name, 0)}")
        lines.extend(
            f"{function}\t0\t0\t0\t{count}"
            for function, count in workers.items()
            if self._peer.may_use(function)
        )
        self._list(lines)

    def on_workers(self, words: list[bytes]) -> None:
        """Callers with patterns of queues see workers of these, and their own connection."""
        lines = []
        sees_all = self._peer.caller is None or not self._peer.caller.queues
        for session in self._hall.sessions:
            name = _one_word(session.client_id) or "-"
            functions = " ".join(map(as_word, filter(self._peer.may_use, session.abilities)))
            peer = session.peer
            if functions or sees_all or peer is self._peer:
                lines.append(f"{peer.number} {peer.address or '-'} {name} : {functions}".rstrip())
        self._list(lines)

    def on_show(self, words: list[bytes]) -> None:
        what = [word.lower() for word in words]
        if what == [b"jobs"]:
            jobs = self._peer.unfinished_jobs(_JOBS_COUNT_MAX)
            self._list(
                f"{self._hall.handle_of(job).decode()}\t{job.attempts_used}\t0\t"
                f"{int(job.durable_interest)}"
                for job in jobs
            )
        elif what == [b"unique", b"jobs"]:
            jobs = self._peer.unfinished_jobs(_JOBS_COUNT_MAX)
            keys = (shown_unique(job) for job in jobs)
            self._send_listing(wire.encode_listing(key for key in keys if _is_line(key)))
        else:
            self._replies.say(
                wire.encode_refusal(b"UNKNOWN_SHOW_ARGUMENTS", b"show jobs, or show unique jobs")
            )

    def on_auth(self, words: list[bytes]) -> None:
        if len(words) != 1:
            self._incomplete(b"auth TOKEN")
            return
        slot = self._replies.reserve()

        def then(is_known: bool) -> None:  # noqa: FBT001 - a callback
            refusal = wire.encode_refusal(b"NOT_ALLOWED", UNKNOWN_TOKEN)
            self._replies.fill(slot, wire.OK_LINE if is_known else refusal)

        self._peer.log_in(words[0].decode("utf-8", "surrogateescape"), then)

    def on_version(self, words: list[bytes]) -> None:
        self._replies.say(wire.encode_value(self._hall.version.encode()))

    def on_getpid(self, words: list[bytes]) -> None:
        self._replies.say(wire.encode_value(b"%d" % self._hall.pid))

    def on_verbose(self, words: list[bytes]) -> None:
        self._replies.say(wire.encode_value(self._hall.log_level.upper().encode()))

    def on_maxqueue(self, words: list[bytes]) -> None:
        try:
            numbers = [min(int(word), _NO_BOUND) for word in words[1:]]
        except ValueError:
            numbers = [0, 0]
        if not words or len(numbers) not in (0, 1, 3):
            self._incomplete(b"maxqueue FUNCTION [ALL | HIGH NORMAL LOW]")
            return
        bounds = [number if number > 0 else None for number in numbers or [0]]
        if len(bounds) == 1:
            policy = QueuePolicy(jobs_max=bounds[0])
        else:
            # No bound for one priority must not fall back to that of another.
            high, normal, low = (number or _NO_BOUND for number in bounds)
            policy = QueuePolicy(jobs_max=normal, jobs_max_high=high, jobs_max_low=low)
        name = _named(words[0])
        command = SetQueue(
            queue=name,
            policy=policy,
            fields=_JOBS_MAX,
            only_known=name not in self._hall.workers_by_function(),
        )
        self._ask(command, missing=wire.OK_LINE)

    def on_cancel(self, words: list[bytes]) -> None:
        if len(words) != 2 or words[0].lower() != b"job":
            self._incomplete(b"cancel job HANDLE")
            return
        job_id = self._hall.job_id_of(words[1])
        unknown = wire.encode_refusal(b"UNKNOWN_JOB")
        if job_id is None:
            self._replies.say(unknown)
        else:
            self._ask(Cancel(job_ids=(job_id,), only_unfinished=True), unknown)

    def on_create(self, words: list[bytes]) -> None:
        if len(words) != 2 or words[0].lower() != b"function":
            self._incomplete(b"create function FUNCTION")
            return
        self._ask(SetQueue(queue=_named(words[1])))

    def on_drop(self, words: list[bytes]) -> None:
        if len(words) < 2 or words[0].lower() != b"function":
            self._incomplete(b"drop function FUNCTION")
            return
        name = _named(self._line.split(None, 2)[2].rstrip())  # may contain spaces
        hall = self._hall
        command = ForgetQueue(name, offered=hall.is_offered(name))
        # Listings that are asked for before the answer leaves do not show it either.
        was_named = name in hall.functions
        hall.functions.pop(name, None)
        slot = self._replies.reserve()

        def settle(reply: Reply) -> None:
            answer = _answer(reply)
            if isinstance(reply, Refusal) and was_named:
                if reply.why is Why.UNKNOWN_QUEUE:
                    answer = wire.OK_LINE
                else:
                    hall.learn(name)
            if isinstance(reply, Refusal) and command.offered:
                answer = _refused(reply, b"there are workers for this function")
            self._replies.fill(slot, answer)

        self._peer.operate(command, settle)

    def _ask(
        self,
        command: SetQueue | Cancel,
        unknown: bytes | None = None,
        missing: bytes | None = None,
    ) -> None:
        """``unknown`` is the answer for an unknown job, ``missing`` that for an unknown queue."""
        slot = self._replies.reserve()

        def settle(reply: Reply) -> None:
            why = reply.why if isinstance(reply, Refusal) else None
            if unknown is not None and why in _NO_SUCH_JOB:
                self._replies.fill(slot, unknown)
            elif missing is not None and why is Why.UNKNOWN_QUEUE:
                self._replies.fill(slot, missing)
            else:
                self._replies.fill(slot, _answer(reply))

        self._peer.operate(command, settle)

    def _list(self, lines: Iterable[str]) -> None:
        self._send_listing(wire.encode_listing(line.encode("utf-8", "replace") for line in lines))

    def _send_listing(self, listing: bytes) -> None:
        """Sends a listing once everything in it is on disk."""
        slot = self._replies.reserve()
        self._peer.ask(_BARRIER, lambda _: self._replies.fill(slot, listing))


# Commands that show no queue, and those that the gate judges.
_OPEN: Final = frozenset(
    {b"auth", b"version", b"getpid", b"verbose", b"maxqueue", b"cancel", b"create", b"drop"}
)
_NO_SUCH_JOB: Final = frozenset(
    {Why.UNKNOWN_JOB, Why.ALREADY_COMPLETED, Why.ALREADY_FAILED, Why.ALREADY_CANCELLED}
)


def _answer(reply: Reply) -> bytes:
    if not isinstance(reply, Refusal):
        return wire.OK_LINE
    return _refused(reply, reply.sentence.encode("utf-8", "replace"))


def _refused(refusal: Refusal, sentence: bytes) -> bytes:
    return wire.encode_refusal(ERROR_CODES[refusal.why], sentence)


def shown_unique(job: Job | PlainReady) -> bytes:
    """The unique as peers see it: empty if it cannot be written, a dash if the data itself was the
    unique.
    """
    key = job.unique_key
    if key is None:
        return b""
    if len(key) <= _UNIQUE_BYTES_MAX:
        return key if 0 not in key else b""
    return b"-" if len(key) == _DIGEST_BYTES and key.startswith(b"-") else b""


def _named(name: bytes) -> str:
    """The queue of a function, as an operator copies it from a listing. A name that is too long
    stays as it is and is refused as a queue.
    """
    return queue_of(unescaped(name)) or name.decode("utf-8", "replace")


def is_listing(line: bytes) -> bool:
    """Whether the answer to this line may be very long."""
    words = line.split(None, 1)
    return bool(words) and words[0].lower() in _LISTINGS


def _is_line(text: bytes) -> bool:
    """Whether it can stand in a listing; a full stop would end it."""
    return bool(text) and text != b"." and not (b"\n" in text or b"\r" in text)


def _one_word(text: bytes) -> str:
    """A space or a line end in an id would break the table that monitors parse."""
    shown = text.decode("utf-8", "replace")
    return "".join("_" if char.isspace() or not char.isprintable() else char for char in shown)


_COMMANDS: Final[dict[bytes, Callable[[Admin, list[bytes]], None]]] = {
    b"status": Admin.on_status,
    b"prioritystatus": Admin.on_priority_status,
    b"workers": Admin.on_workers,
    b"show": Admin.on_show,
    b"auth": Admin.on_auth,
    b"version": Admin.on_version,
    b"getpid": Admin.on_getpid,
    b"verbose": Admin.on_verbose,
    b"maxqueue": Admin.on_maxqueue,
    b"cancel": Admin.on_cancel,
    b"create": Admin.on_create,
    b"drop": Admin.on_drop,
}
_LISTINGS: Final = frozenset({b"status", b"prioritystatus", b"workers", b"show"})
