"""The app: declared tasks, and one connection for all of them."""

import inspect
import weakref
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from manyhands.client import home
from manyhands.client.address import Place, places, token_of
from manyhands.client.courier import Courier
from manyhands.client.handle import Handle, Server, check_id
from manyhands.client.options import OPTION_NAMES, Options, TaskOptions, check_names
from manyhands.client.raw_client import ANY_RESULT, Client, SyncClient
from manyhands.client.signature import Decode, Encode, Hooks
from manyhands.client.submission import Batch, Submission
from manyhands.client.task import AsyncTask, Task
from manyhands.client.trust import trusting

if TYPE_CHECKING:
    from manyhands.client.worker.in_process import InProcessWorker

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
Lifespan = Callable[[], AbstractAsyncContextManager[S]]
Around = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
AroundT = TypeVar("AroundT", bound=Around)


# All apps of this process, for tests, which bind them to an engine of their own.
APPS: "weakref.WeakSet[App[Any]]" = weakref.WeakSet()


class Decorator(Protocol):
    """What ``app.task(…)`` returns."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class App(Generic[S]):
    """Tasks and a connection. The server is a URL, several separated by commas, or ``embedded()``;
    by default ``MANYHANDS_URL``, else ``http://127.0.0.1:7700``.

    ``token``: by default ``MANYHANDS_TOKEN``. ``ca``, ``cert``: files, for a server with an
    authority of its own, or one that asks for a certificate.
    ``timeout``: how many seconds a server may be away before calls raise ``Unavailable``.
    ``defaults``: options for all tasks. ``encode``, ``decode``: for types that JSON has no form
    for. ``lifespan``: an async context manager, entered once in each process of a worker; what it
    yields is ``app.state``.
    """

    @overload
    def __init__(
        self: "App[None]",
        server: str | Place | None = None,
        *,
        token: str | None = None,
        ca: str | None = None,
        cert: str | tuple[str, str] | None = None,
        timeout: float = 60.0,
        lifespan: None = None,
        defaults: Options | None = None,
        encode: Encode | None = None,
        decode: Decode | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        server: str | Place | None = None,
        *,
        token: str | None = None,
        ca: str | None = None,
        cert: str | tuple[str, str] | None = None,
        timeout: float = 60.0,
        lifespan: Lifespan[S],
        defaults: Options | None = None,
        encode: Encode | None = None,
        decode: Decode | None = None,
    ) -> None: ...
    def __init__(  # noqa: PLR0913 - all but the first by name
        self,
        server: str | Place | None = None,
        *,
        token: str | None = None,
        ca: str | None = None,
        cert: str | tuple[str, str] | None = None,
        timeout: float = 60.0,
        lifespan: Lifespan[Any] | None = None,
        defaults: Options | None = None,
        encode: Encode | None = None,
        decode: Decode | None = None,
    ) -> None:
        check_names(defaults or {}, OPTION_NAMES, "defaults")
        self.tasks: dict[str, Task[..., Any]] = {}
        self.limits: dict[str, int] = {}
        self.arounds: list[Around] = []
        self.more_queues: Sequence[str] = ()  # to take jobs from that name one of the tasks
        self.lifespan = lifespan
        self.hooks = Hooks(encode, decode)
        self._defaults: Options = defaults or {}
        self._state: list[Any] = []
        APPS.add(self)
        self.bind(places(server, trusting(ca, cert)), token_of(token), timeout)

    def bind(self, servers: Sequence[Place], token: str | None, timeout: float) -> None:
        """Connects to another server, as tests do. Handles keep theirs."""
        self.places = servers
        self.timeout = timeout
        self.token = token
        self._courier = Courier(servers, token=token, timeout=timeout)
        self.server = Server(self._courier)
        self.submission = Submission(self._courier)

    def __repr__(self) -> str:
        return f"<App at {self._courier.server_name} with {len(self.tasks)} tasks>"

    # Declaring.

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, **options: Unpack[TaskOptions]) -> Decorator: ...
    def task(self, *functions: Callable[..., Any], **options: Any) -> Any:
        """Declares a task: ``@app.task`` or ``@app.task(retries=5)``."""
        given = cast("TaskOptions", options)
        if functions:
            return self._declare(functions[0], given)
        return lambda function: self._declare(function, given)

    def _declare(self, function: Callable[..., Any], options: TaskOptions) -> Task[..., Any]:
        merged = cast("TaskOptions", {**self._defaults, **options})
        kind = AsyncTask if inspect.iscoroutinefunction(function) else Task
        task: Task[..., Any] = kind(self, function, merged)
        if task.name in self.tasks:
            other = self.tasks[task.name].function
            raise ValueError(
                f"there are two tasks named {task.name!r} in this app, in {other.__module__} and "
                f"{function.__module__}; give one another name with name=…"
            )
        self.tasks[task.name] = task
        return task

    def limit(self, name: str, count: int) -> None:
        """Declares a named limit: at most so many jobs with it run at once."""
        if count < 0:
            raise ValueError(f"a limit is a number of jobs, not {count!r}")
        self.limits[name] = count

    def around(self, manager: AroundT) -> AroundT:
        """Registers a context manager, sync or async, that wraps every run of a job."""
        self.arounds.append(manager)
        return manager

    @property
    def state(self) -> S:
        """What ``lifespan`` yielded in this process."""
        if not self._state:
            raise RuntimeError("app.state is there while a worker runs, in its processes")
        return cast("S", self._state[0])

    @property
    def has_state(self) -> bool:
        """Whether the lifespan has begun in this process."""
        return bool(self._state)

    def set_state(self, state: S | None) -> None:
        """Called by the worker, when the lifespan begins and ends."""
        self._state = [] if state is None else [state]

    # Submitting and asking.

    def batch(self, *, atomic: bool = True) -> Batch:
        """P18: submits in the block are sent when it ends, all or nothing."""
        return Batch(self._courier, atomic=atomic)

    @overload
    def handle(self, job_id: str, task: Task[..., R]) -> Handle[R]: ...
    @overload
    def handle(self, job_id: str) -> Handle[Any]: ...
    def handle(self, job_id: str, task: Task[..., Any] | None = None) -> Handle[Any]:
        """A job that was submitted earlier, or by others."""
        check_id(job_id)
        if task is None:
            return Handle(job_id, self.server, ANY_RESULT)
        return Handle(job_id, self.server, task.results, is_kept=task.keeps_result)

    @property
    def client(self) -> SyncClient:
        """What the server can do besides: queues, schedules, limits, any request."""
        return SyncClient.over(self.server)

    @property
    def aclient(self) -> Client:
        """The same for coroutines."""
        return Client.over(self.server)

    # Working.

    def worker(
        self,
        *,
        concurrency: int = 16,
        queues: Sequence[str] = (),
        ahead: int | None = None,
        grace: float = 30.0,
        name: str | None = None,
    ) -> "InProcessWorker":
        """P76: a worker in this process, for ``with`` or ``async with``. In the latter, tasks that
        are coroutines run in the caller's loop. For a worker of its own: ``manyhands worker``.
        """
        # Only those who work need it.
        from manyhands.client.worker.in_process import InProcessWorker  # noqa: PLC0415

        return InProcessWorker(
            self, concurrency=concurrency, queues=queues, ahead=ahead, grace=grace, name=name
        )

    # The end.

    def close(self) -> None:
        """Closes the connection, when all submits are answered."""
        home.wait(self._courier.close())

    async def aclose(self) -> None:
        """The same in a coroutine."""
        await home.run(self._courier.close())
