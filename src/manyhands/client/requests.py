"""Plain requests over HTTP, for everything that has no note (P31)."""

import http.client
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from manyhands.client.address import Place, why_not
from manyhands.client.errors import (
    Problem,
    QueueFull,
    Refused,
    Unavailable,
    problem_of,
    refusal,
)

_SAFE: Final = frozenset({"GET", "HEAD"})
# Statuses of proxies that have no server at the moment. The gateways may have passed a request on.
_GATEWAYS: Final = frozenset({502, 504})
_PASSING: Final = _GATEWAYS | {429, 503}


class _Envelope(msgspec.Struct):
    results: Any = None
    error: Problem | None = None
    next: Any = None  # the cursor of the next page


_read: Final = msgspec.json.Decoder(_Envelope).decode


class _NoServerError(OSError):
    """A proxy answered by itself."""

    def __init__(self, status: int) -> None:
        super().__init__(f"a proxy answered with status {status}")
        self.was_not_passed_on = status not in _GATEWAYS


class Requests:
    """Requests to the first server that answers. Each is one connection: they are rare."""

    def __init__(self, places: Sequence[Place], token: str | None, timeout: float) -> None:
        self._places = places
        self._token = token
        self._timeout = timeout

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, object] | None = None,
        wait: float = 0.0,
    ) -> Any:  # noqa: ANN401 - any JSON
        """The results of an answer; raises ``Refused`` for an error. ``wait``: how many seconds
        longer than usual the answer may take.
        """
        return self._request(method, path, body, query, wait).results

    def page(
        self, path: str, query: Mapping[str, object], wait: float = 0.0
    ) -> tuple[list[dict[str, Any]], Any]:
        """A page of a list, and the cursor of the next one."""
        envelope = self._request("GET", path, None, query, wait)
        return envelope.results, envelope.next

    def events(self, after: int, wait: int) -> tuple[list[dict[str, Any]], int]:
        """Events after a cursor, and the next cursor."""
        query = {"after": after, "count": 1_000, "wait": wait}
        return self.page("/api/events", query, wait)

    def _request(
        self,
        method: str,
        path: str,
        body: object,
        query: Mapping[str, object] | None,
        wait: float,
    ) -> _Envelope:
        if query:
            given = {name: value for name, value in query.items() if value is not None}
            path = f"{path}?{urlencode(given)}"
        problems: list[str] = []
        for place in self._places:
            try:
                return self._ask(place, method, path, body, wait)
            except (OSError, http.client.HTTPException) as error:
                problems.append(f"{place.name}: {why_not(error)}")
                if method not in _SAFE and not _was_not_read(error):
                    sentence = f"no answer from {problems[-1]}"
                    raise Unavailable(sentence, maybe_accepted=True) from None
        raise Unavailable(f"no answer from {'; '.join(problems)}")

    def _ask(self, place: Place, method: str, path: str, body: object, wait: float) -> _Envelope:
        connection = place.http(self._timeout + wait)
        headers = {"Host": place.host}
        token = self._token if self._token is not None else place.token
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        data = None
        if body is not None:
            data = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, place.prefix + path, data, headers)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        return _read_answer(response.status, answer, response.getheader("Retry-After"))


def _was_not_read(error: Exception) -> bool:
    """Whether no server has read the request."""
    if isinstance(error, _NoServerError):
        return error.was_not_passed_on
    return isinstance(error, ConnectionRefusedError)


def _read_answer(status: int, answer: bytes, retry_after: str | None) -> _Envelope:
    try:
        envelope = _read(answer)
    except (msgspec.MsgspecError, RecursionError):
        if status < 400:
            return _Envelope(answer.decode(errors="replace"))
        if status in _PASSING:
            raise _NoServerError(status) from None
        problem = problem_of(status, None)
        raise Refused(problem.code, problem.message) from None
    if envelope.error is None:
        return envelope
    problem = problem_of(status, envelope.error)
    if problem.code == "queue_full" and retry_after is not None and retry_after.isdigit():
        raise QueueFull(problem.message, problem.detail, float(retry_after))
    raise refusal(problem.code, problem.message, problem.detail)
