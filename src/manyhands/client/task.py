"""A function that is worked elsewhere: submitting it, with its options."""

import copy
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack, cast

import msgspec
from msgspec import Raw

from manyhands.client import ids, traces
from manyhands.client.handle import Handle, ids_of
from manyhands.client.notes import Item
from manyhands.client.options import (
    OPTION_NAMES,
    TASK_HEADER,
    TASK_OPTION_NAMES,
    TIMEOUT_HEADER,
    Options,
    TaskOptions,
    check_names,
    own_headers,
    seconds,
    wire_options,
)
from manyhands.client.outputs import HEADER as OUTPUTS_HEADER
from manyhands.client.outputs import Output, wrong_output
from manyhands.client.signature import Arguments, Results

if TYPE_CHECKING:
    from manyhands.client.app import App

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)  # noqa: PLC0105 - the name users see
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
_KEY_BYTES_MAX = 200  # longer unique keys are hashed


# Two steps, so that type checkers know the first parameter before they see the items.


class Map(Generic[T, Q, R]):
    """``task.map``."""

    def __init__(self, task: "Task[..., R]") -> None:
        self._task = task

    def __call__(self, items: Iterable[T], /, *args: Q.args, **kwargs: Q.kwargs) -> list[Handle[R]]:
        """Submits one job for each item, in few round trips."""
        return self._task.app.submission.submit_many(self._task.each(items, args, kwargs))


class AsyncMap(Generic[T, Q, R]):
    """``task.amap``."""

    def __init__(self, task: "Task[..., R]") -> None:
        self._task = task

    async def __call__(
        self, items: Iterable[T], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> list[Handle[R]]:
        """Submits one job for each item, in few round trips."""
        pairs = self._task.each(items, args, kwargs)
        return await self._task.app.submission.asubmit_many(pairs)


class _Submitting(Protocol[T_contra, Q, R]):
    """A task whose first parameter is a ``T``; of other forms, mypy does not infer it."""

    def submit(self, first: T_contra, /, *args: Q.args, **kwargs: Q.kwargs) -> Handle[R]: ...


class _MapOf:
    """How a task gets its ``map``."""

    def __get__(self, task: _Submitting[T, Q, R], owner: object) -> Map[T, Q, R]:
        return Map(cast("Task[..., R]", task))


class _AsyncMapOf:
    """How a task gets its ``amap``."""

    def __get__(self, task: _Submitting[T, Q, R], owner: object) -> AsyncMap[T, Q, R]:
        return AsyncMap(cast("Task[..., R]", task))


class Task(Generic[P, R]):
    """A declared task. Calling it runs the function here and now; ``submit`` has it worked.

    ``map`` submits one job for each item, which is the first argument; ``amap`` is the same in a
    coroutine.
    """

    map = _MapOf()
    amap = _AsyncMapOf()
    is_async = False

    def __init__(self, app: "App[Any]", function: Callable[P, R], options: TaskOptions) -> None:
        check_names(options, TASK_OPTION_NAMES, "a task")
        self.app = app
        self.function = function
        self.name = options.get("name") or function.__name__
        self.options: TaskOptions = options
        self.is_raw = options.get("raw", False)
        self.is_remote = options.get("remote", False)
        self.is_default = options.get("default", False)
        self.keeps_result = options.get("result", True)
        strict = options.get("strict", False)
        hooks = app.hooks
        self.arguments = Arguments(function, self.name, hooks, strict=strict, raw=self.is_raw)
        self.results = Results(function, self.name, hooks, raw=self.is_raw)
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.__wrapped__ = function
        self._given: Options = {}  # what single submits have beyond the declared options
        self._prepare()

    def _prepare(self) -> None:
        """What is the same for all submits with these options."""
        options = self.options
        self.queue = options.get("queue") or self.name
        self._sent = wire_options(options, result=self.keeps_result)
        self._sent_encoded = Raw(msgspec.msgpack.encode(self._sent))
        self._headers = own_headers(options.get("headers", {}))
        if self.queue != self.name:
            self._headers[TASK_HEADER] = self.name
        if "timeout" in self._given:
            self._headers[TIMEOUT_HEADER] = f"{seconds(self._given['timeout'], 'timeout'):g}"
        self._key = options.get("key")
        self._depends_on = ids_of(options.get("depends_on", ()))
        self._unique = options.get("unique", False)
        for name in self._unique_names():
            if not self.arguments.has(name):
                raise TypeError(f"task {self.name}: unique names no parameter {name!r}")

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function: no server, no queue."""
        if self.is_remote:
            raise RuntimeError(f"task {self.name} is remote: its body is elsewhere; submit it")
        return self.function(*args, **kwargs)

    def using(self, **options: Unpack[Options]) -> Self:
        """The same task with other options."""
        check_names(options, OPTION_NAMES, "using")
        other = copy.copy(self)
        other.__dict__["options"] = {**self.options, **options}
        other.__dict__["_given"] = {**self._given, **options}
        other._prepare()  # noqa: SLF001 - an object of this class
        return other

    # Submitting.

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Submits a job. It is on the server's disk when this returns."""
        item, handle = self.prepared(args, kwargs)
        self.app.submission.submit(item, handle)
        return handle

    async def asubmit(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """The same in a coroutine."""
        item, handle = self.prepared(args, kwargs)
        await self.app.submission.asubmit(item, handle)
        return handle

    def each(
        self, items: Iterable[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[tuple[Item, Handle[R]]]:
        """The jobs of a ``map``, one after the other."""
        is_traced = traces.is_needed()
        for number, first in enumerate(items):
            item = self._item((first, *args), kwargs, number, is_traced=is_traced)
            yield item, self._handle(item[0])

    def prepared(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], number: int | None = None
    ) -> tuple[Item, Handle[R]]:
        """A job to be sent, and its handle. The number is that of the item of a ``map``."""
        item = self._item(args, kwargs, number, is_traced=traces.is_needed())
        return item, self._handle(item[0])

    def _handle(self, job_id: str) -> Handle[R]:
        return Handle(job_id, self.app.server, self.results, is_kept=self.keeps_result)

    def _item(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        number: int | None,
        *,
        is_traced: bool,
    ) -> Item:
        """A job as it is sent."""
        bound = self.arguments.bind(args, kwargs)
        payload, encoding, outputs = self.arguments.encode(bound)
        key = self._key
        job_id = ids.new_id() if key is None else ids.id_of(self.name, key, number)
        headers = self._headers or None
        options: Any = self._sent_encoded
        if outputs or self._depends_on or self._unique:
            options = dict(self._sent)
            if outputs:
                headers = {**self._headers, OUTPUTS_HEADER: "1"}
            depends_on = dict.fromkeys((*self._depends_on, *self._ids_of(outputs)))
            if depends_on:
                options["depends_on"] = list(depends_on)
            if self._unique:
                options["unique_key"] = self._unique_key(bound, args, kwargs)
        if is_traced:
            traced = traces.headers_of(self.name, self.queue, job_id)
            headers = {**traced, **(headers or {})} or None
        return job_id, self.queue, payload, encoding, options, headers

    def _ids_of(self, outputs: list[Output]) -> list[str]:
        server = self.app.server.courier.server_name
        for output in outputs:
            if (problem := wrong_output(output, server)) is not None:
                raise ValueError(f"task {self.name}: {problem}")
        return [output.id for output in outputs]

    def _unique_names(self) -> tuple[str, ...]:
        if isinstance(self._unique, str):
            return (self._unique,)
        return self._unique if isinstance(self._unique, tuple) else ()

    def _unique_key(
        self, bound: msgspec.Struct, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str:
        """P13: the same for jobs that want the same."""
        value: object
        if callable(self._unique):
            value = self._unique(*args, **kwargs)
        elif names := self._unique_names():
            values = [self.arguments.value_of(bound, name) for name in names]
            value = values[0] if isinstance(self._unique, str) else values
        else:
            value = bound
        text = value if isinstance(value, str) else self.arguments.key_of(value)
        if self.queue != self.name:
            text = f"{self.name}:{text}"  # other tasks have keys in that queue, too
        if len(text.encode()) > _KEY_BYTES_MAX:
            text = ids.id_of(self.name, text)
        return text


class AsyncTask(Task[P, R]):
    """A task whose function is a coroutine: calling it gives the coroutine."""

    function: Callable[P, Coroutine[Any, Any, R]]  # type: ignore[assignment]
    is_async = True

    def __call__(  # type: ignore[override]
        self, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Runs the function: no server, no queue."""
        if self.is_remote:
            raise RuntimeError(f"task {self.name} is remote: its body is elsewhere; submit it")
        return self.function(*args, **kwargs)
