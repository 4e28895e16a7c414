"""A room for Gearman sessions: a real dispatcher over the store in memory, and virtual time.

Nothing is committed until ``run``, so a test can look at what must not be told before.
"""

import heapq
from collections import deque
from itertools import count

from manyhands.dispatch.clock import Clock
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.ids import Ids
from manyhands.dispatch.session import QueueSummary
from manyhands.dispatch.sleepers import Sleeper
from manyhands.model.job import Job
from manyhands.model.roles import ANYBODY, Caller
from manyhands.protocols.gearman import codec as wire
from manyhands.protocols.gearman import draft_codec as draft_wire
from manyhands.protocols.gearman.admin import Hall
from manyhands.protocols.gearman.draft import DraftSession
from manyhands.protocols.gearman.shipped import GearmanSession
from manyhands.store.memory import MemoryStore

START_AT = 1_800_000_000_000


class VirtualClock(Clock):
    def __init__(self) -> None:
        self.at = START_AT

    def now(self) -> int:
        return self.at

    def monotonic_ms(self) -> float:
        return float(self.at)


class Timer:
    def __init__(self, callback) -> None:
        self.callback = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """Runs when it is told to."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._soon = deque()
        self._later = []
        self._order = count()

    def call_soon(self, callback) -> None:
        self._soon.append(callback)

    def call_later(self, delay: float, callback) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._later, (self._clock.at + delay * 1000, next(self._order), timer))
        return timer

    def run(self) -> None:
        """Everything that is due now."""
        while self._soon or (self._later and self._later[0][0] <= self._clock.at):
            if self._soon:
                self._soon.popleft()()
                continue
            _, _, timer = heapq.heappop(self._later)
            if timer.callback is not None:
                timer.callback()

    def run_for(self, milliseconds: int) -> None:
        end = self._clock.at + milliseconds
        self.run()
        while self._later and self._later[0][0] <= end:
            self._clock.at = max(self._clock.at, int(-(-self._later[0][0] // 1)))
            self.run()
        self._clock.at = end
        self.run()


class Line:
    """The other end of a session, as the session sees it and as a test uses it."""

    def __init__(self, room: "Room", address: str, caller: Caller = ANYBODY) -> None:
        self.room = room
        self.connection = room.ids.connection()
        self.number = int(self.connection.rpartition("/")[2])
        self.address = address
        self.caller = caller
        self.ask = self.operate = room.dispatcher.ask
        self.shortcut = room.dispatcher
        self.token = room.ids.token
        self.closed = False
        self.session = None
        self._said = bytearray()
        self._sleeper = None
        self._undone = False

    # What a session needs.

    def send(self, data: bytes) -> None:
        assert not self.closed, "said after the close"
        self._said += data
        self._go_on_soon()

    def close(self) -> None:
        self.closed = True

    def come_back(self) -> None:
        self._undone = True
        self._go_on_soon()

    @property
    def owed_bytes(self) -> int:
        return self.room.dispatcher.owed_bytes

    def _go_on_soon(self) -> None:
        if self._undone:
            self.room.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._undone and not self.session.is_overwhelmed():
            self._undone = False
            self.session.receive(b"")

    def now(self) -> int:
        return self.room.clock.now()

    def job_id(self) -> str:
        return self.room.ids.job_id(self.room.clock.now())

    def has_work(self, queues) -> bool:
        return self.room.dispatcher.has_work(queues)

    def sleep(self, queues, wake, holder, hands=1) -> None:
        self.stay_awake()
        self._sleeper = Sleeper(queues, lambda _queue: wake(), holder, hands)
        self.room.dispatcher.sleepers.sleep(self._sleeper)

    def stay_awake(self) -> None:
        if self._sleeper is not None:
            self.room.dispatcher.sleepers.leave(self._sleeper)

    def is_asleep(self) -> bool:
        return self._sleeper is not None and self._sleeper.asleep

    def queues(self):
        return [
            QueueSummary(name, found.counts, found.ready.count_by_priority(), found.queue.paused)
            for name, found in sorted(self.room.dispatcher.store.live.queues.items())
        ]

    def unfinished_jobs(self, count_max: int):
        jobs = self.room.dispatcher.store.live.live_jobs()
        return [job for job in jobs if job.finished_at is None][:count_max]

    def may_use(self, queue) -> bool:  # noqa: ARG002
        return True

    def sees(self, job) -> bool:  # noqa: ARG002
        return True

    def refusal_to_work(self, queue) -> None:  # noqa: ARG002
        return None

    def refusal_to_look(self) -> None:
        return None

    def log_in(self, token, then) -> None:
        then(token == "token-of-ada")

    # What a test needs.

    def give(self, data: bytes) -> None:
        """Bytes arrive; nothing is committed yet."""
        self.session.receive(data)

    def take(self) -> bytes:
        """What was said since the last time."""
        said = bytes(self._said)
        self._said.clear()
        return said

    def hang_up(self, *, blameless: bool = False) -> None:
        """The connection breaks."""
        self.stay_awake()
        self.room.dispatcher.on_signal.pop(self.connection, None)
        self.session.lost(blameless=blameless)
        self.room.run()


class Gearman(Line):
    """Somebody who speaks the shipped protocol."""

    def tell(self, kind: int, *args: bytes) -> list:
        """Send a packet, let everything happen, give what came back."""
        self.give(wire.encode_request(kind, *args))
        self.room.run()
        return self.heard()

    def heard(self) -> list:
        """Packets that came since the last time, as kind and arguments."""
        return wire.Decoder(responses=True).feed(self.take())

    def text(self, line: bytes) -> bytes:
        """An admin line and its answer, as bytes."""
        self.give(line + b"\n")
        self.room.run()
        return self.take()

    def submit(self, function=b"f", unique=b"", data=b"", kind=wire.SUBMIT_JOB_BG) -> bytes:
        """Submit; gives the handle."""
        ((answer, args),) = self.tell(kind, function, unique, data)
        assert answer == wire.JOB_CREATED, args
        return args[0]

    def can_do(self, *functions: bytes) -> "Gearman":
        for function in functions:
            assert self.tell(wire.CAN_DO, function) == []
        return self

    def grab(self, kind: int = wire.GRAB_JOB) -> list:
        """Grab; gives the arguments of the assignment, none for NO_JOB."""
        ((answer, args),) = self.tell(kind)
        assert answer in (wire.NO_JOB, wire.JOB_ASSIGN, wire.JOB_ASSIGN_UNIQ, wire.JOB_ASSIGN_ALL)
        return args


class Draft(Line):
    """Somebody who speaks the first draft."""

    def tell(self, *packets) -> list:
        """Send packets, let everything happen, give what came back."""
        self.give(b"".join(draft_wire.encode(packet) for packet in packets))
        self.room.run()
        return self.heard()

    def heard(self) -> list:
        return draft_wire.Decoder(responses=True).feed(self.take())

    def create(self, name=b"f", dupkey=b"", job_type=draft_wire.ASYNC_HANDLE, args=b"") -> bytes:
        """Create; gives the handle."""
        (answer,) = self.tell(draft_wire.JobCreateReq(name, dupkey, job_type, args))
        assert isinstance(answer, draft_wire.JobCreateRes), answer
        return answer.handle

    def connect(self, *names: bytes) -> "Draft":
        assert self.tell(draft_wire.WorkerConnect(names)) == []
        return self

    def assign(self):
        (answer,) = self.tell(draft_wire.JobAssignReq())
        assert isinstance(answer, draft_wire.JobAssignRes)
        return answer

    def finish(self, code: int = 0, data: bytes = b"") -> None:
        assert self.tell(draft_wire.JobCompleteAnnounce(code, data)) == []

    def status(self, handle: bytes) -> tuple[int, int, int]:
        (answer,) = self.tell(draft_wire.JobStatusReq(handle))
        return answer.numerator, answer.denominator, answer.seconds_left

    def completion(self, handle: bytes) -> tuple[int, int, bytes]:
        (answer,) = self.tell(draft_wire.JobCompleteReq(handle))
        assert isinstance(answer, draft_wire.JobCompleteRes), answer
        return answer.elapsed, answer.code, answer.data


class Room:
    """A server without sockets."""

    def __init__(self, **options) -> None:
        self.clock = VirtualClock()
        self.loop = Loop(self.clock)
        self.ids = Ids()
        # Time goes on only when a test says so: commits keep no distance from each other.
        self.dispatcher = Dispatcher(MemoryStore(), self.clock, self.loop, pace_ms=0.0)
        self.hall = Hall("test", "9.9", 42, "info", **options)

    def gearman(self, *, payload_bytes_max: int = 1 << 20, address: str = "10.0.0.1") -> Gearman:
        line = Gearman(self, address)
        session = GearmanSession(line, self.hall, payload_bytes_max=payload_bytes_max)
        return self._joined(line, session)

    def worker(self, *functions: bytes) -> Gearman:
        return self.gearman(address="10.0.0.2").can_do(*functions or (b"f",))

    def draft(self, *, packet_bytes_max: int = 1 << 20, error_packets: bool = True) -> Draft:
        line = Draft(self, "10.0.0.3")
        session = DraftSession(
            line, self.hall, packet_bytes_max=packet_bytes_max, error_packets=error_packets
        )
        return self._joined(line, session)

    def draft_worker(self, *names: bytes) -> Draft:
        return self.draft().connect(*names or (b"f",))

    def _joined(self, line, session):
        line.session = session
        self.dispatcher.on_signal[line.connection] = session.notify
        return line

    def run(self) -> None:
        self.loop.run()

    def run_for(self, milliseconds: int) -> None:
        self.loop.run_for(milliseconds)

    def ask(self, command):
        """A command from elsewhere; gives the reply."""
        replies = []
        self.dispatcher.ask(command, replies.append)
        self.run()
        return replies[0]

    def job(self, handle: bytes) -> Job:
        """The job of a handle, on record or not finished."""
        job = self.dispatcher.store.find(handle[-32:].decode())
        assert job is not None
        return job
