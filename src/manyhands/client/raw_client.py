"""Clients without tasks: payloads as bytes, and everything else that the server can do."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Final, Self, Unpack

import msgspec

from manyhands.client import home, ids
from manyhands.client.address import Place, places, token_of
from manyhands.client.courier import Courier
from manyhands.client.handle import Handle, Server, check_id, ids_of
from manyhands.client.notes import Item
from manyhands.client.options import (
    RAW_OPTION_NAMES,
    RawOptions,
    check_names,
    own_headers,
    wire_options,
)
from manyhands.client.submission import Submission
from manyhands.client.trust import trusting

_PAGE_COUNT: Final = 1_000
_EVENTS_WAIT_SECONDS: Final = 30


class _AnyResult:
    """Results without a declared type: JSON as it is, anything else as bytes."""

    def decode(self, result: bytes | None, encoding: str | None) -> Any:  # noqa: ANN401
        if result is None:
            return None
        if encoding == "json":
            return msgspec.json.decode(result)
        return result.decode() if encoding == "text" else result


ANY_RESULT: Final = _AnyResult()


class _Base:
    """What both clients share."""

    def __init__(
        self,
        server: str | Place | None = None,
        *,
        token: str | None = None,
        ca: str | None = None,
        cert: str | tuple[str, str] | None = None,
        timeout: float = 60.0,
    ) -> None:
        found = places(server, trusting(ca, cert))
        self._use(Server(Courier(found, token=token_of(token), timeout=timeout)))

    def _use(self, server: Server) -> None:
        self._server = server
        self._submission = Submission(server.courier)

    @classmethod
    def over(cls, server: Server) -> Self:
        """A client that shares the connection of an app."""
        made = cls.__new__(cls)
        made._use(server)  # noqa: SLF001 - an object of this class
        return made

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._server.courier.server_name}>"

    def handle(self, job_id: str) -> Handle[Any]:
        """A job that was submitted earlier, or by others."""
        check_id(job_id)
        return Handle(job_id, self._server, ANY_RESULT)

    def _pair(
        self, queue: str, payload: bytes | str, options: RawOptions, number: int | None = None
    ) -> tuple[Item, Handle[Any]]:
        check_names(options, RAW_OPTION_NAMES, "submit_raw")
        data = payload.encode() if isinstance(payload, str) else bytes(payload)
        encoding = "text" if isinstance(payload, str) else "binary"
        key = options.get("key")
        job_id = ids.new_id() if key is None else ids.id_of(queue, key, number)
        sent = wire_options(options)
        depends_on = ids_of(options.get("depends_on", ()))
        if depends_on:
            sent["depends_on"] = depends_on
        headers = own_headers(options.get("headers", {})) or None
        return (job_id, queue, data, encoding, sent, headers), self.handle(job_id)


class SyncClient(_Base):
    """A client for threads. ``Client`` is the same for coroutines."""

    def submit_raw(
        self, queue: str, payload: bytes | str = b"", **options: Unpack[RawOptions]
    ) -> Handle[Any]:
        """A job for a worker of any language: the payload is stored as it is."""
        item, handle = self._pair(queue, payload, options)
        self._submission.submit(item, handle)
        return handle

    def submit_many(
        self, queue: str, payloads: Iterable[bytes | str], **options: Unpack[RawOptions]
    ) -> list[Handle[Any]]:
        """One job for each payload, in few round trips."""
        pairs = (
            self._pair(queue, payload, options, number) for number, payload in enumerate(payloads)
        )
        return self._submission.submit_many(pairs)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, object] | None = None,
    ) -> Any:  # noqa: ANN401 - any JSON
        """P31: any request of the native API; gives its results, raises ``Refused``."""
        return self._server.requests.request(method, path, body, query=query)

    def jobs(self, **conditions: object) -> Iterator[dict[str, Any]]:
        """Jobs that match, newest first: by ``state``, ``queue``, ``tag`` and so on."""
        return self._pages("/api/jobs", conditions)

    def queues(self) -> list[dict[str, Any]]:
        """All queues, with their counts and settings."""
        return list(self._pages("/api/queues", {}))

    def schedules(self) -> list[dict[str, Any]]:
        """All schedules."""
        return list(self._pages("/api/schedules", {}))

    def limits(self) -> list[dict[str, Any]]:
        """All named limits."""
        return list(self._pages("/api/limits", {}))

    def _pages(self, path: str, conditions: Mapping[str, object]) -> Iterator[dict[str, Any]]:
        after: object = None
        while True:
            query = {**conditions, "count": _PAGE_COUNT, "after": after}
            page, after = self._server.requests.page(path, query)
            yield from page
            if after is None:
                return

    def events(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """Changes of all jobs, from a cursor on, for ever."""
        requests = self._server.requests
        while True:
            events, after = requests.events(after, _EVENTS_WAIT_SECONDS)
            yield from events

    def cancel(self, *job_ids: str, reason: str = "cancelled") -> None:
        """Cancels jobs and those that depend on them."""
        self.request("POST", "/api/cancel", {"ids": job_ids, "reason": reason})

    def retry(self, *job_ids: str) -> None:
        """Runs finished jobs again."""
        for job_id in job_ids:
            self.request("POST", "/api/requeue", {"id": job_id})

    def close(self) -> None:
        """Closes the connection, when all submits are answered."""
        home.wait(self._server.courier.close())


class Client(_Base):
    """A client for coroutines. ``SyncClient`` is the same for threads."""

    async def submit_raw(
        self, queue: str, payload: bytes | str = b"", **options: Unpack[RawOptions]
    ) -> Handle[Any]:
        """A job for a worker of any language: the payload is stored as it is."""
        item, handle = self._pair(queue, payload, options)
        await self._submission.asubmit(item, handle)
        return handle

    async def submit_many(
        self, queue: str, payloads: Iterable[bytes | str], **options: Unpack[RawOptions]
    ) -> list[Handle[Any]]:
        """One job for each payload, in few round trips."""
        pairs = (
            self._pair(queue, payload, options, number) for number, payload in enumerate(payloads)
        )
        return await self._submission.asubmit_many(pairs)

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, object] | None = None,
    ) -> Any:  # noqa: ANN401 - any JSON
        """P31: any request of the native API; gives its results, raises ``Refused``."""
        ask = self._server.requests.request
        return await asyncio.to_thread(ask, method, path, body, query=query)

    async def jobs(self, **conditions: object) -> AsyncIterator[dict[str, Any]]:
        """Jobs that match, newest first: by ``state``, ``queue``, ``tag`` and so on."""
        async for job in self._pages("/api/jobs", conditions):
            yield job

    async def queues(self) -> list[dict[str, Any]]:
        """All queues, with their counts and settings."""
        return [each async for each in self._pages("/api/queues", {})]

    async def schedules(self) -> list[dict[str, Any]]:
        """All schedules."""
        return [each async for each in self._pages("/api/schedules", {})]

    async def limits(self) -> list[dict[str, Any]]:
        """All named limits."""
        return [each async for each in self._pages("/api/limits", {})]

    async def _pages(
        self, path: str, conditions: Mapping[str, object]
    ) -> AsyncIterator[dict[str, Any]]:
        after: object = None
        while True:
            query = {**conditions, "count": _PAGE_COUNT, "after": after}
            page, after = await asyncio.to_thread(self._server.requests.page, path, query)
            for each in page:
                yield each
            if after is None:
                return

    async def events(self, after: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Changes of all jobs, from a cursor on, for ever."""
        ask = self._server.requests.events
        while True:
            events, after = await asyncio.to_thread(ask, after, _EVENTS_WAIT_SECONDS)
            for event in events:
                yield event

    async def cancel(self, *job_ids: str, reason: str = "cancelled") -> None:
        """Cancels jobs and those that depend on them."""
        await self.request("POST", "/api/cancel", {"ids": job_ids, "reason": reason})

    async def retry(self, *job_ids: str) -> None:
        """Runs finished jobs again."""
        for job_id in job_ids:
            await self.request("POST", "/api/requeue", {"id": job_id})

    async def close(self) -> None:
        """Closes the connection, when all submits are answered."""
        await home.run(self._server.courier.close())
