"""Types of the answers of the queue's REST API."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from manyhands.protocols.taskcluster.messages import Status

RunId = Annotated[int, Meta(ge=1)]


class TaskError(Struct, frozen=True):
    """An error: a sentence, and details about what was sent, if any."""

    message: str
    error: str | UnsetType = UNSET


class Shown(Struct, frozen=True):
    """A task in its current state."""

    status: Status


class Claimed(Struct, frozen=True):
    """A task as handed to its worker."""

    status: Status
    run_id: RunId
    worker_group: str
    worker_id: str
    logs_url: str
    result_url: str


class ArtifactUrls(Struct, frozen=True):
    """Where to upload artifacts, by name."""

    status: Status
    run_id: RunId
    expires: str
    artifact_urls: dict[str, str]


class Pending(Struct, frozen=True):
    """Pending tasks."""

    tasks: list[Status]


class Broker(Struct, frozen=True):
    """Where to receive events."""

    url: str


class Uploaded(Struct, frozen=True):
    """An uploaded file."""

    name: str


class Failure(Struct, frozen=True):
    """Why a task failed."""

    code: str
    message: str
    data: Any = UNSET


class Resolution(Struct, frozen=True, kw_only=True):
    """resolution.json: how a task ended."""

    version: str
    status: Status
    failure: Failure | UnsetType = UNSET
    worker_group: str | UnsetType = UNSET
    worker_id: str | UnsetType = UNSET
    result: str | UnsetType = UNSET
    logs: str | UnsetType = UNSET
