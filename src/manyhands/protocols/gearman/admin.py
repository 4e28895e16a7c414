"""Gearman's admin text, and what all Gearman connections of a server share."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from manyhands.model.commands import Cancel, ForgetQueue, LookByKey, SetQueue
from manyhands.model.identity import uid_of
from manyhands.model.job import Job, State
from manyhands.model.outcome import Refusal, Reply, Why
from manyhands.protocols.replies import Replies
from manyhands.protocols.session import Peer
from manyhands.wire import gearman as wire

# Lines of a listing of jobs; with more, an operator wants the search of the HTTP API.
_JOBS_COUNT_MAX: Final = 100_000
# Functions that are listed although no worker names them any more.
_FUNCTIONS_COUNT_MAX: Final = 10_000
# More than any queue holds; a bound of this size is none, and every store can write it down.
_NO_BOUND: Final = 10**12
_COLON: Final = ord(":")
_UNIQUE_BYTES_MAX: Final = 64
# The key of a job that was joined by its data: a dash and 64 bytes of a digest, see ``unique_key``.
_DIGEST_BYTES: Final = 65
# Asks for nothing; its answer comes when everything asked before is on disk.
_BARRIER: Final = LookByKey(b"", "")

# Every refusal in Gearman's words, in packets and in text: an upper-case code, then the sentence.
ERROR_CODES: Final[dict[Why, bytes]] = {
    Why.BAD_QUEUE_NAME: b"INVALID_FUNCTION_NAME",
    Why.BAD_JOB_ID: b"JOB_NOT_FOUND",
    Why.BAD_NAME: b"INVALID_ARGUMENT",
    Why.BAD_UNIQUE_KEY: b"ARGUMENT_TOO_LARGE",
    Why.BAD_TAG: b"INVALID_ARGUMENT",
    Why.BAD_LIMIT: b"INVALID_ARGUMENT",
    Why.BAD_PRIORITY: b"INVALID_ARGUMENT",
    Why.BAD_TIME: b"INVALID_ARGUMENT",
    Why.BAD_POLICY: b"INVALID_ARGUMENT",
    Why.BAD_SCHEDULE: b"INVALID_ARGUMENT",
    Why.BAD_COUNT: b"INVALID_ARGUMENT",
    Why.PAYLOAD_TOO_LARGE: b"ARGUMENT_TOO_LARGE",
    Why.METADATA_TOO_LARGE: b"ARGUMENT_TOO_LARGE",
    Why.EMPTY_BATCH: b"INVALID_ARGUMENT",
    Why.BATCH_TOO_LARGE: b"ARGUMENT_TOO_LARGE",
    Why.OTHER_ITEM_REFUSED: b"INVALID_ARGUMENT",
    Why.UNKNOWN_JOB: b"JOB_NOT_FOUND",
    Why.UNKNOWN_QUEUE: b"UNKNOWN_FUNCTION",
    Why.UNKNOWN_SCHEDULE: b"INVALID_ARGUMENT",
    Why.UNKNOWN_WORKER: b"INVALID_ARGUMENT",
    Why.UNKNOWN_DEPENDENCY: b"INVALID_ARGUMENT",
    Why.DUPLICATE_JOB: b"JOB_EXISTS",
    Why.IN_OTHER_QUEUE: b"JOB_EXISTS",
    Why.DUPLICATE_KEY: b"JOB_EXISTS",
    Why.DUPLICATE_NAME: b"JOB_EXISTS",
    Why.NOT_YOUR_LEASE: b"JOB_NOT_FOUND",
    Why.NOT_LEASED: b"JOB_NOT_FOUND",
    Why.NOT_CLAIMABLE: b"JOB_NOT_FOUND",
    Why.WRONG_QUEUE: b"JOB_NOT_FOUND",
    Why.ALREADY_COMPLETED: b"JOB_NOT_FOUND",
    Why.ALREADY_FAILED: b"JOB_NOT_FOUND",
    Why.ALREADY_CANCELLED: b"JOB_NOT_FOUND",
    Why.NOT_FINISHED: b"INVALID_ARGUMENT",
    Why.CYCLE: b"INVALID_ARGUMENT",
    Why.TOO_MANY_DEPENDENCIES: b"INVALID_ARGUMENT",
    Why.HAS_DEPENDANTS: b"INVALID_ARGUMENT",
    Why.QUEUE_IN_USE: b"FUNCTION_IN_USE",
    Why.QUEUE_FULL: b"QUEUE_ERROR",
    Why.TOO_MANY_QUEUES: b"QUEUE_ERROR",
    Why.TOO_MANY_SCHEDULES: b"QUEUE_ERROR",
    Why.STORE_FULL: b"QUEUE_ERROR",
    Why.SHUTTING_DOWN: b"SHUTTING_DOWN",
    Why.INTERNAL: b"INTERNAL_ERROR",
}


class Guest(Protocol):
    """A connection, as the list of workers shows it."""

    @property
    def peer(self) -> Peer: ...

    @property
    def client_id(self) -> bytes: ...

    @property
    def abilities(self) -> Mapping[str, int | None]: ...


class Hall:
    """Who is connected, and how jobs are called."""

    def __init__(self, server_name: str, version: str, pid: int, log_level: str) -> None:
        self.version = version
        self.pid = pid
        self.log_level = log_level
        self.sessions: dict[Guest, None] = {}
        self.functions: dict[str, None] = {}  # that some worker named, until they are dropped
        self.faults_count = 0
        self._prefix = f"H:{server_name}:".encode()
        # JOB_CREATED up to the id, which has always as many digits.
        self._created = wire.encode_job_created(self._prefix + bytes(32))[:-32]

    def enter(self, session: Guest) -> None:
        """A connection began."""
        self.sessions[session] = None

    def leave(self, session: Guest) -> None:
        """A connection ended."""
        self.sessions.pop(session, None)

    def learn(self, function: str) -> None:
        """Some worker can do it: from now on it is listed, also when that worker is gone."""
        if len(self.functions) < _FUNCTIONS_COUNT_MAX:
            self.functions[function] = None

    def handle_of(self, job: Job) -> bytes:
        """The handle: the same in both dialects, valid as long as the job is on record."""
        job_id = job.job_id
        return self._prefix + (job_id if len(job_id) == 32 else uid_of(job_id)).encode()

    def job_created(self, job: Job) -> bytes:
        """JOB_CREATED with the handle."""
        job_id = job.job_id
        return self._created + (job_id if len(job_id) == 32 else uid_of(job_id)).encode()

    def job_id_of(self, handle: bytes) -> str | None:
        """The id (or uid) in a handle. The server's name in it is not compared."""
        if len(handle) < 35 or handle[-33] != _COLON or not handle.isascii():
            return None
        return handle[-32:].decode().lower()

    def workers_by_function(self) -> dict[str, int]:
        """How many connections can do each function that was ever named."""
        counts = dict.fromkeys(self.functions, 0)
        for session in self.sessions:
            for function in session.abilities:
                counts[function] = counts.get(function, 0) + 1
        return counts


class Admin:
    """One line of text, one answer."""

    def __init__(self, peer: Peer, hall: Hall, replies: Replies) -> None:
        self._peer = peer
        self._hall = hall
        self._replies = replies

    def answer(self, line: bytes) -> None:
        """Commands are case-insensitive; function names are not."""
        words = line.split()
        if not words:
            self._unknown(b"")
            return
        command = words[0].lower()
        action = _COMMANDS.get(command)
        if action is None:
            self._unknown(words[0])
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
        lines.extend(f"{function}\t0\t0\t{count}" for function, count in workers.items())
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
        lines.extend(f"{function}\t0\t0\t0\t{count}" for function, count in workers.items())
        self._list(lines)

    def on_workers(self, words: list[bytes]) -> None:
        lines = []
        for session in self._hall.sessions:
            name = _one_word(session.client_id) or "-"
            functions = " ".join(session.abilities)
            peer = session.peer
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
            self._tell(wire.encode_listing(key for key in keys if _is_line(key)))
        else:
            self._replies.say(
                wire.encode_refusal(b"UNKNOWN_SHOW_ARGUMENTS", b"show jobs, or show unique jobs")
            )

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
        jobs_max: tuple[int | None, int | None, int | None]
        if len(bounds) == 1:
            jobs_max = (bounds[0], None, None)
        else:
            # No bound for one priority must not fall back on that of another.
            high, normal, low = (number or _NO_BOUND for number in bounds)
            jobs_max = (normal, high, low)
        name = words[0].decode("utf-8", "replace")
        known = {queue.name for queue in self._peer.queues()}
        if name not in known and name not in self._hall.workers_by_function():
            self._replies.say(wire.OK_LINE)
            return
        self._ask(SetQueue(queue=name, jobs_max=jobs_max))

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
        self._ask(SetQueue(queue=words[1].decode("utf-8", "replace")))

    def on_drop(self, words: list[bytes]) -> None:
        if len(words) != 2 or words[0].lower() != b"function":
            self._incomplete(b"drop function FUNCTION")
            return
        name = words[1].decode("utf-8", "replace")
        hall = self._hall
        if hall.workers_by_function().get(name):
            sentence = b"there are workers for this function"
            self._replies.say(wire.encode_refusal(b"FUNCTION_IN_USE", sentence))
            return
        was_named = name in hall.functions
        hall.functions.pop(name, None)
        self._ask(ForgetQueue(name), missing=wire.OK_LINE if was_named else None)

    def _ask(
        self,
        command: SetQueue | Cancel | ForgetQueue,
        unknown: bytes | None = None,
        missing: bytes | None = None,
    ) -> None:
        """``unknown`` is said where there is no such job, ``missing`` where no such queue."""
        slot = self._replies.reserve()

        def settle(reply: Reply) -> None:
            if not isinstance(reply, Refusal):
                self._replies.fill(slot, wire.OK_LINE)
            elif unknown is not None and reply.why in _NO_SUCH_JOB:
                self._replies.fill(slot, unknown)
            elif missing is not None and reply.why is Why.UNKNOWN_QUEUE:
                self._replies.fill(slot, missing)
            else:
                sentence = reply.sentence.encode("utf-8", "replace")
                refusal = wire.encode_refusal(ERROR_CODES[reply.why], sentence)
                self._replies.fill(slot, refusal)

        self._peer.operate(command, settle)

    def _list(self, lines: Iterable[str]) -> None:
        self._tell(wire.encode_listing(line.encode("utf-8", "replace") for line in lines))

    def _tell(self, listing: bytes) -> None:
        """What was seen leaves with the commit of what was seen."""
        slot = self._replies.reserve()
        self._peer.ask(_BARRIER, lambda _: self._replies.fill(slot, listing))


_NO_SUCH_JOB: Final = frozenset(
    {Why.UNKNOWN_JOB, Why.ALREADY_COMPLETED, Why.ALREADY_FAILED, Why.ALREADY_CANCELLED}
)


def shown_unique(job: Job) -> bytes:
    """The unique as peers are shown it: none where it cannot be written, a dash where the data
    itself was the unique.
    """
    key = job.unique_key
    if key is None:
        return b""
    if len(key) <= _UNIQUE_BYTES_MAX:
        return key if 0 not in key else b""
    return b"-" if len(key) == _DIGEST_BYTES and key.startswith(b"-") else b""


def is_listing(line: bytes) -> bool:
    """Whether these few words may have an answer without end."""
    words = line.split(None, 1)
    return bool(words) and words[0].lower() in _LISTINGS


def _is_line(text: bytes) -> bool:
    """Whether it can stand in a listing; a full stop would end it."""
    return bool(text) and text != b"." and not (b"\n" in text or b"\r" in text)


def _one_word(text: bytes) -> str:
    """A space or a line end in an id would break the table that every monitor parses."""
    shown = text.decode("utf-8", "replace")
    return "".join("_" if char.isspace() or not char.isprintable() else char for char in shown)


_COMMANDS: Final[dict[bytes, Callable[[Admin, list[bytes]], None]]] = {
    b"status": Admin.on_status,
    b"prioritystatus": Admin.on_priority_status,
    b"workers": Admin.on_workers,
    b"show": Admin.on_show,
    b"version": Admin.on_version,
    b"getpid": Admin.on_getpid,
    b"verbose": Admin.on_verbose,
    b"maxqueue": Admin.on_maxqueue,
    b"cancel": Admin.on_cancel,
    b"create": Admin.on_create,
    b"drop": Admin.on_drop,
}
_LISTINGS: Final = frozenset({b"status", b"prioritystatus", b"workers", b"show"})
