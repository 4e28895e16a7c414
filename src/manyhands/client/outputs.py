"""Outputs of jobs as arguments of others (P19)."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from manyhands.client.notes import View

KEY: Final = "$output"
HEADER: Final = "outputs"
_JOINED_HEADER: Final = "joined."  # and an id: the job that one of that id joined by its unique key
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


class Output:
    """Stands for what a job will return. The type checker takes it for that."""

    __slots__ = ("id", "is_kept", "server")

    def __init__(self, job_id: str, server: str, *, is_kept: bool) -> None:
        self.id = job_id
        self.server = server  # what the job was submitted to
        self.is_kept = is_kept

    def __repr__(self) -> str:
        return f"<the output of job {self.id}>"


def wrong_output(output: Output, server: str) -> str | None:
    """Why this cannot be an argument of a job for the server."""
    if output.server != server:
        return f"job {output.id} is on another server, {output.server}"
    if not output.is_kept:
        return f"job {output.id} keeps no result (result=False), so its output is no argument"
    return None


def settled(payload: bytes, headers: Mapping[str, str]) -> bytes:
    """The payload with the ids that jobs really got, where one joined another of its batch."""
    for name, became in headers.items():
        if name.startswith(_JOINED_HEADER):
            payload = renamed(payload, name.removeprefix(_JOINED_HEADER), became)
    return payload


def renamed(payload: bytes, job_id: str, other_id: str) -> bytes:
    """The payload with references to a job turned into references to another."""
    before, after = (_encode({KEY: each}) for each in (job_id, other_id))
    return payload.replace(before, after)


def references(payload: bytes) -> list[str]:
    """The jobs whose outputs the payload needs. Only for jobs that have the header."""
    found: dict[str, None] = {}

    def visit(value: Any) -> None:  # noqa: ANN401 - any JSON
        if isinstance(value, dict):
            if isinstance(value.get(KEY), str) and len(value) == 1:
                found[value[KEY]] = None
            else:
                for each in value.values():
                    visit(each)
        elif isinstance(value, list):
            for each in value:
                visit(each)

    visit(_decode(payload))
    return list(found)


def filled(payload: bytes, results: Mapping[str, View]) -> bytes:
    """The payload with the outputs in place. Raises LookupError for one that is not there."""

    def fill(value: Any) -> Any:  # noqa: ANN401 - any JSON
        if isinstance(value, dict):
            if isinstance(value.get(KEY), str) and len(value) == 1:
                return _result(value[KEY], results)
            return {key: fill(each) for key, each in value.items()}
        if isinstance(value, list):
            return [fill(each) for each in value]
        return value

    return _encode(fill(_decode(payload)))


def _result(job_id: str, results: Mapping[str, View]) -> Any:  # noqa: ANN401
    view = results.get(job_id)
    if view is None or view.state == "unknown":
        raise LookupError(f"the output of job {job_id} is no longer on record")
    if view.state != "completed":
        raise LookupError(f"job {job_id} has no output: it is {view.state}")
    if view.result is None:
        return None
    if view.encoding == "json":
        return Raw(view.result)
    try:
        text = view.result.decode()
    except UnicodeDecodeError:
        return view.result  # as base64, which is how bytes are stored as JSON
    return text
