"""The ways of jobs to the server: one, many, or all or nothing; and what its answer means."""

import asyncio
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar, Token
from typing import Any, Final, TypeVar

from manyhands.client import home
from manyhands.client.courier import SLICE_BYTES, SLICE_COUNT, Courier
from manyhands.client.errors import Refused, refusal
from manyhands.client.handle import Handle
from manyhands.client.notes import Item, Submitted
from manyhands.client.outputs import renamed

R = TypeVar("R")
Pair = tuple[Item, Handle[R]]
UNDER_WAY_COUNT: Final = 4  # slices
TOGETHER_COUNT_MAX: Final = 10_000
_ITEM_BYTES: Final = 100
_batch: "ContextVar[Batch | None]" = ContextVar("manyhands_batch", default=None)


class Submission:
    """How one app, or one client, submits."""

    def __init__(self, courier: Courier) -> None:
        self._courier = courier
        self._warnings = threading.Lock()  # taken for ever by the first warning

    def submit(self, item: Item, handle: Handle[Any]) -> None:
        """Returns when the job is on disk."""
        batch = self._batch()
        if batch is not None:
            batch.add(item, handle)
            return
        self.check_thread("asubmit")
        settle, future = home.for_thread()
        self._courier.submit((item,), settle)
        learn([handle], future.result())

    async def asubmit(self, item: Item, handle: Handle[Any]) -> None:
        """The same in a coroutine."""
        batch = self._batch()
        if batch is not None:
            batch.add(item, handle)
            return
        settle, future = home.for_loop()
        self._courier.submit_at_turn_end(item, settle)
        learn([handle], await future)

    def submit_many(self, pairs: Iterable[Pair[R]]) -> list[Handle[R]]:
        """P16: in slices, four of them under way. The first refusal raises, when all have their
        answers.
        """
        batch = self._batch()
        if batch is not None:
            return batch.add_many(pairs)
        self.check_thread("amap")
        handles: list[Handle[R]] = []
        under_way: deque[tuple[list[Handle[R]], Future[Any]]] = deque()
        errors: list[Exception] = []

        def finish_one() -> None:
            own, future = under_way.popleft()
            try:
                learn(own, future.result())
            except Refused as error:
                errors.append(error)

        for some in slices(pairs):
            settle, future = home.for_thread()
            self._courier.submit([item for item, _ in some], settle)
            own = [handle for _, handle in some]
            handles += own
            under_way.append((own, future))
            if len(under_way) >= UNDER_WAY_COUNT:
                finish_one()
            if errors:
                break
        while under_way:
            finish_one()
        if errors:
            raise errors[0]
        return handles

    async def asubmit_many(self, pairs: Iterable[Pair[R]]) -> list[Handle[R]]:
        """The same in a coroutine."""
        batch = self._batch()
        if batch is not None:
            return batch.add_many(pairs)
        handles: list[Handle[R]] = []
        under_way: deque[tuple[list[Handle[R]], asyncio.Future[Any]]] = deque()
        errors: list[Exception] = []

        async def finish_one() -> None:
            own, future = under_way.popleft()
            try:
                learn(own, await future)
            except Refused as error:
                errors.append(error)

        for some in slices(pairs):
            settle, future = home.for_loop()
            self._courier.submit([item for item, _ in some], settle)
            own = [handle for _, handle in some]
            handles += own
            under_way.append((own, future))
            if len(under_way) >= UNDER_WAY_COUNT:
                await finish_one()
            if errors:
                break
        while under_way:
            await finish_one()
        if errors:
            raise errors[0]
        return handles

    def _batch(self) -> "Batch | None":
        batch = _batch.get()
        return batch if batch is not None and batch.courier is self._courier else None

    def check_thread(self, name: str) -> None:
        """P14: on a running loop's thread a blocking call works, and is warned of once."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        if home.home().is_here():
            raise RuntimeError("a blocking call in the client's own thread would wait for ever")
        if self._warnings.acquire(blocking=False):
            text = f"this call blocks the running event loop until the server answers; await {name}"
            warnings.warn(text, RuntimeWarning, stacklevel=4)


class Batch:
    """P18: jobs that are sent together when the block ends: all or nothing, or (``atomic=False``)
    in slices, in order. An exception inside sends nothing.
    """

    def __init__(self, courier: Courier, *, atomic: bool = True) -> None:
        self.courier = courier
        self._atomic = atomic
        self._pairs: list[Pair[Any]] = []
        self._token: Token[Batch | None] | None = None
        self._is_over = False
        self._joined: dict[str, str] = {}  # ids of jobs that joined others, and those

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, item: Item, handle: Handle[R]) -> None:
        """A job that waits for the end of the block."""
        if self._atomic and len(self._pairs) >= TOGETHER_COUNT_MAX:
            raise ValueError(
                f"a batch has at most {TOGETHER_COUNT_MAX} jobs; batch(atomic=False) takes any "
                "number"
            )
        handle.is_pending = True
        self._pairs.append((item, handle))

    def add_many(self, pairs: Iterable[Pair[R]]) -> list[Handle[R]]:
        """Several of them."""
        handles = []
        for item, handle in pairs:
            self.add(item, handle)
            handles.append(handle)
        return handles

    def __enter__(self) -> "Batch":
        self._enter()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._leave()
        if kind is not None:
            return
        for some in self._slices():
            settle, future = home.for_thread()
            self.courier.submit(self._items(some), settle, together=self._atomic)
            self._learn(some, future.result())

    async def __aenter__(self) -> "Batch":
        self._enter()
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        self._leave()
        if kind is not None:
            return
        for some in self._slices():
            settle, future = home.for_loop()
            self.courier.submit(self._items(some), settle, together=self._atomic)
            self._learn(some, await future)

    def _enter(self) -> None:
        if self._is_over or self._token is not None:
            raise RuntimeError("a batch is used once; make another one with app.batch()")
        self._token = _batch.set(self)

    def _leave(self) -> None:
        assert self._token is not None
        _batch.reset(self._token)
        self._is_over = True

    def _slices(self) -> Iterator[list[Pair[Any]]]:
        """One after the other: a job may depend on those before it."""
        if self._atomic:
            if self._pairs:
                yield self._pairs
            return
        for some in slices(self._pairs):
            yield from _apart(some)

    def _items(self, some: list[Pair[Any]]) -> list[Item]:
        """What is sent, with the ids of the jobs that earlier ones have joined."""
        if not self._joined:
            return [item for item, _ in some]
        return [_redirected(item, self._joined) for item, _ in some]

    def _learn(self, some: list[Pair[Any]], exceptions: list[Submitted]) -> None:
        handles = [handle for _, handle in some]
        learn(handles, exceptions)
        for item, handle in some:
            handle.is_pending = False
            if handle.id != item[0]:
                self._joined[item[0]] = handle.id


def _apart(some: list[Pair[R]]) -> Iterator[list[Pair[R]]]:
    """Parts in which no job depends on a unique one of the same part: that one may join another
    job, whose id is only known from the server's answer.
    """
    start = 0
    unique: set[str] = set()
    for index, (item, _) in enumerate(some):
        options = item[4] if isinstance(item[4], dict) else {}
        if not unique.isdisjoint(options.get("depends_on", ())):
            yield some[start:index]
            start, unique = index, set()
        if "unique_key" in options:
            unique.add(item[0])
    yield some[start:]


def _redirected(item: Item, joined: dict[str, str]) -> Item:
    """The same job, depending on the jobs that its dependencies joined."""
    job_id, queue, payload, encoding, options, headers = item
    names = options.get("depends_on", ()) if isinstance(options, dict) else ()
    if joined.keys().isdisjoint(names):
        return item
    for name in names:
        if name in joined:
            payload = renamed(payload, name, joined[name])
    depends_on = list(dict.fromkeys(joined.get(name, name) for name in names))
    return job_id, queue, payload, encoding, {**(options or {}), "depends_on": depends_on}, headers


def slices(pairs: Iterable[Pair[R]]) -> Iterator[list[Pair[R]]]:
    """P16: at most 500 jobs or 4 MiB each."""
    some: list[Pair[R]] = []
    size = 0
    for pair in pairs:
        own = len(pair[0][2]) + _ITEM_BYTES
        if some and (len(some) >= SLICE_COUNT or size + own > SLICE_BYTES):
            yield some
            some, size = [], 0
        some.append(pair)
        size += own
    if some:
        yield some


def learn(handles: list[Handle[R]], exceptions: list[Submitted]) -> None:
    """Handles of jobs that existed get their ids. Raises the first refusal, if there is one; a
    refusal only because of another item says nothing, so that one comes last.
    """
    refused: list[Submitted] = []
    for each in exceptions:
        if each.code is not None:
            refused.append(each)
        elif each.id is not None:
            handles[each.index].id = each.id
    if refused:
        first = next((each for each in refused if each.code != "other_item_refused"), refused[0])
        sentence = first.sentence or ""
        if len(handles) > 1:
            sentence = f"job {first.index + 1} of {len(handles)}: {sentence}"
        raise refusal(first.code or "", sentence, {"index": first.index})
