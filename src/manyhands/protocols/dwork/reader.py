"""Reads dwork's messages, in three ways that agree about every message: protobuf reads any, and the
most frequent ones are also read by hand, in a fraction of the time.

The schema is kept here as a table from which protobuf's classes are made when this module is
loaded. A message is accepted as a whole or not at all: required fields, known enum values and UTF-8
are checked here, because protobuf does not insist.
"""

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import api_implementation
from google.protobuf.message import DecodeError

from manyhands.protocols.dwork.codec import Counts, Dep, Kind, LogEntry, Made, Phase, Query, Task


class WireError(ValueError):
    """Not a message of this protocol. Its text is a sentence for the peer."""


_OPTIONAL, _REQUIRED, _REPEATED = 1, 2, 3
_DOUBLE, _INT64, _INT32, _BOOL, _STRING, _MESSAGE, _BYTES, _ENUM = 1, 3, 5, 8, 9, 11, 12, 14

_Field = tuple[int, str, int, int, str]  # number, name, label, type, name of that type
# Numbers 3 of TaskMsg and 5 of QueryMsg had, or may have had, a meaning once: never reused here.
_FIELDS: Final[dict[str, tuple[_Field, ...]]] = {
    "TaskMsg.Dep": (
        (1, "name", _REQUIRED, _STRING, ""),
        (2, "location", _OPTIONAL, _STRING, ""),
    ),
    "TaskMsg.LogMsg": (
        (1, "state", _REQUIRED, _ENUM, ".dwork.TaskMsg.State"),
        (2, "time", _REQUIRED, _INT64, ""),
    ),
    "TaskMsg": (
        (1, "name", _REQUIRED, _STRING, ""),
        (2, "origin", _REQUIRED, _STRING, ""),
        (4, "pred", _REPEATED, _MESSAGE, ".dwork.TaskMsg.Dep"),
        (5, "succ", _REPEATED, _MESSAGE, ".dwork.TaskMsg.Dep"),
        (6, "log", _REPEATED, _MESSAGE, ".dwork.TaskMsg.LogMsg"),
        (100, "payload", _OPTIONAL, _BYTES, ""),
        (101, "result", _OPTIONAL, _BYTES, ""),
        (102, "failure", _OPTIONAL, _STRING, ""),
        (103, "priority", _OPTIONAL, _DOUBLE, ""),
        (104, "attempt", _OPTIONAL, _INT32, ""),
        (105, "retry", _OPTIONAL, _BOOL, ""),
        (106, "cancel_on_failure", _OPTIONAL, _BOOL, ""),
        (107, "attempts_max", _OPTIONAL, _INT32, ""),
        (108, "attempts_used", _OPTIONAL, _INT32, ""),
        (109, "state", _OPTIONAL, _STRING, ""),
        (110, "keep", _OPTIONAL, _BOOL, ""),
    ),
    "QueryMsg.Counts": (
        (1, "waiting", _OPTIONAL, _INT64, ""),
        (2, "delayed", _OPTIONAL, _INT64, ""),
        (3, "ready", _OPTIONAL, _INT64, ""),
        (4, "stolen", _OPTIONAL, _INT64, ""),
        (5, "done", _OPTIONAL, _INT64, ""),
        (6, "failed", _OPTIONAL, _INT64, ""),
        (7, "cancelled", _OPTIONAL, _INT64, ""),
        (8, "held", _OPTIONAL, _INT64, ""),
    ),
    "QueryMsg.Made": (
        (1, "added", _OPTIONAL, _INT64, ""),
        (2, "there", _OPTIONAL, _INT64, ""),
        (3, "done", _OPTIONAL, _INT64, ""),
        (4, "again", _OPTIONAL, _INT64, ""),
    ),
    "QueryMsg": (
        (1, "type", _REQUIRED, _ENUM, ".dwork.QueryMsg.Type"),
        (2, "task", _REPEATED, _MESSAGE, ".dwork.TaskMsg"),
        (3, "name", _OPTIONAL, _STRING, ""),
        (4, "n", _OPTIONAL, _INT32, ""),
        (6, "location", _OPTIONAL, _STRING, ""),
        (100, "reason", _OPTIONAL, _STRING, ""),
        (101, "detail", _OPTIONAL, _BOOL, ""),
        (102, "counts", _OPTIONAL, _MESSAGE, ".dwork.QueryMsg.Counts"),
        (103, "resume", _OPTIONAL, _BOOL, ""),
        (104, "made", _OPTIONAL, _MESSAGE, ".dwork.QueryMsg.Made"),
        (105, "lease_ms", _OPTIONAL, _INT64, ""),
    ),
}
_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "TaskMsg.State": (
        *("Pending", "Stolen", "Waiting", "Copying", "Ready", "Started", "Done", "Recorded"),
    ),
    "QueryMsg.Type": (
        *("Create", "Steal", "Complete", "Transfer", "Lookup", "NotFound", "OK", "Exit", "Error"),
    ),
}


def _message_class() -> Any:  # noqa: ANN401 - made from the table, so no type checker knows it
    file = descriptor_pb2.FileDescriptorProto(
        name="manyhands/dwork.proto", package="dwork", syntax="proto2"
    )
    made: dict[str, descriptor_pb2.DescriptorProto] = {}
    for outer in ("TaskMsg", "QueryMsg"):
        made[outer] = file.message_type.add(name=outer)
    for path, fields in _FIELDS.items():
        outer, _, inner = path.partition(".")
        if inner:
            made[path] = made[outer].nested_type.add(name=inner)
        for number, name, label, kind, type_name in fields:
            made[path].field.add(
                name=name,
                number=number,
                label=label,
                type=kind,
                type_name=type_name or None,
            )
    for path, words in _WORDS.items():
        outer, _, inner = path.partition(".")
        choice = made[outer].enum_type.add(name=inner)
        for number, word in enumerate(words):
            choice.value.add(name=word, number=number)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("dwork.QueryMsg"))


QueryMsg: Final = _message_class()
_KINDS: Final = tuple(Kind)
_PHASES: Final = tuple(Phase)


def implementation() -> str:
    """The protobuf backend in use; all but ``upb`` are many times slower."""
    return str(api_implementation.Type())


def decode(body: bytes) -> Query:
    """Decodes a message, or raises WireError. Unknown fields are dropped."""
    return _read_plain(body) or read_any(body)


class PlainReports:
    """Reads a COMPLETE of one task with only a name and an origin, like most, without creating any
    object but its texts. All reports of a worker have the same end, so the end is read once.
    """

    def __init__(self) -> None:
        self._ends: dict[bytes, tuple[str, str]] = {}  # origin and location

    def read(self, body: bytes) -> tuple[str, tuple[str, str]] | None:
        """The name, and origin and location; None for any other or invalid message."""
        if len(body) > _REPORT_BYTES_MAX:
            return None
        try:
            middle = body[5] + 6  # the end of the name
            end = body[middle:]
            known = self._ends.get(end) or self._learn(end)
            # Besides name and origin the task has a tag, two lengths and another tag, and both of
            # its lengths are single bytes.
            if (
                known is None
                or body[3] != body[5] + end[1] + 4
                or body[3] > _SHORT
                or middle == 6
                or body[:3] != _REPORT
                or body[4] != 0x0A
            ):
                return None
            return body[6:middle].decode(), known
        except (IndexError, UnicodeDecodeError):
            return None

    def _learn(self, end: bytes) -> tuple[str, str] | None:
        """An origin, and the location that ends the message."""
        at = end[1] + 2
        if end[0] != 0x12 or end[at] != 0x32 or not 0 < end[at + 1] <= _SHORT:
            return None
        if at + 2 + end[at + 1] != len(end):
            return None
        if len(self._ends) >= _ENDS_COUNT_MAX:
            self._ends.clear()
        known = self._ends[end] = (end[2:at].decode(), end[at + 2 :].decode())
        return known


_REPORT: Final = b"\x08\x02\x12"
_SHORT: Final = 127  # the maximum of a one-byte length
_REPORT_BYTES_MAX: Final = len(_REPORT) + 1 + _SHORT + 2 + _SHORT
_ENDS_COUNT_MAX: Final = 4_096


def _read_plain(body: bytes) -> Query | None:
    """Reads a message of tasks with only a name and an origin, and perhaps a location, like nearly
    every report, by hand in a third of the time. None for any other or invalid message.
    """
    size = len(body)
    tasks: list[Task] = []
    location: str | None = None
    origin, origin_data = "", b""
    try:
        if body[0] != 8 or body[1] >= len(_KINDS):
            return None
        at = 2
        while at < size and body[at] == 0x12:
            length = body[at + 1]
            middle = at + 4 + body[at + 3]
            end = at + 2 + length
            # Fields end with their task, so their lengths are single bytes if the task's is.
            if (
                length > 127
                or body[at + 2] != 0x0A
                or body[middle] != 0x12
                or middle + 2 + body[middle + 1] != end
            ):
                return None
            data = body[middle + 2 : end]
            if data != origin_data:
                origin, origin_data = data.decode(), data
            tasks.append(Task(name=body[at + 4 : middle].decode(), origin=origin))
            at = end
        if at < size:
            length = body[at + 1]
            if body[at] != 0x32 or length > 127 or at + 2 + length != size:
                return None
            location = body[at + 2 :].decode()
        elif at > size:
            return None
    except (IndexError, UnicodeDecodeError):
        return None
    return Query(kind=_KINDS[body[1]], tasks=tuple(tasks), location=location)


def read_any(body: bytes) -> Query:
    """Decodes any message with protobuf."""
    try:
        message = QueryMsg.FromString(body)
    except DecodeError:
        raise WireError("this is not a whole QueryMsg") from None
    if not message.HasField("type"):  # also if its value is unknown
        raise WireError("the type is missing or unknown")
    if not message.IsInitialized():
        missing = ", ".join(message.FindInitializationErrors())
        raise WireError(f"a required field is missing or unknown: {missing}")
    tasks = message.task
    has = message.HasField
    return Query(
        kind=_KINDS[message.type],
        tasks=tuple([_task(task) for task in tasks]) if tasks else (),
        name=_text(message.name, "name") if has("name") else None,
        n=message.n if has("n") else None,
        location=_text(message.location, "location") if has("location") else None,
        reason=_text(message.reason, "reason") if has("reason") else None,
        detail=message.detail,
        counts=Counts(**_numbers(message.counts)) if has("counts") else None,
        resume=message.resume,
        made=Made(**_numbers(message.made)) if has("made") else None,
        lease_ms=message.lease_ms if has("lease_ms") else None,
    )


def _numbers(message: Any) -> dict[str, int]:  # noqa: ANN401
    return {descriptor.name: value for descriptor, value in message.ListFields()}


def _text(value: str | bytes, what: str) -> str:
    # protobuf returns a string that is not UTF-8 as bytes.
    if type(value) is not str:
        raise WireError(f"the {what} is not UTF-8")
    return value


def _task(message: Any) -> Task:  # noqa: ANN401
    fields: dict[str, Any] = {}
    found = message.ListFields()
    if len(found) == 2:  # only the required ones
        name, origin = found[0][1], found[1][1]
        return Task(name=_text(name, "name of a task"), origin=_text(origin, "origin of a task"))
    for descriptor, value in found:
        name = descriptor.name
        if name in _TEXTS:
            fields[name] = _text(value, f"{name} of a task")
        elif name == "pred":
            fields["preds"] = tuple([_dep(dep) for dep in value])
        elif name == "log":
            fields["log"] = tuple([LogEntry(_PHASES[entry.state], entry.time) for entry in value])
        elif name != "succ":
            fields[name] = value
    return Task(**fields)


_TEXTS: Final = frozenset({"name", "origin", "failure", "state"})


def _dep(message: Any) -> Dep:  # noqa: ANN401
    name = _text(message.name, "name of a predecessor")
    if not message.HasField("location"):
        return Dep(name)
    return Dep(name, _text(message.location, "location of a predecessor"))
