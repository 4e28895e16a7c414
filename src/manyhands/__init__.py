"""Manyhands: one durable job server behind many job protocols.

The names below are those of the Python client. They are loaded on first use, so that importing the
package costs next to nothing: no thread, no loop, no connection.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from manyhands.client.app import App as App
    from manyhands.client.errors import Cancelled as Cancelled
    from manyhands.client.errors import Fail as Fail
    from manyhands.client.errors import JobCancelled as JobCancelled
    from manyhands.client.errors import JobFailed as JobFailed
    from manyhands.client.errors import QueueFull as QueueFull
    from manyhands.client.errors import Refused as Refused
    from manyhands.client.errors import ResultGone as ResultGone
    from manyhands.client.errors import Retry as Retry
    from manyhands.client.errors import Unavailable as Unavailable
    from manyhands.client.executor import Executor as Executor
    from manyhands.client.gathering import agather as agather
    from manyhands.client.gathering import as_completed as as_completed
    from manyhands.client.gathering import await_ as await_
    from manyhands.client.gathering import gather as gather
    from manyhands.client.gathering import wait as wait
    from manyhands.client.handle import Handle as Handle
    from manyhands.client.job import Job as Job
    from manyhands.client.job import current_job as current_job
    from manyhands.client.options import Backoff as Backoff
    from manyhands.client.options import cron as cron
    from manyhands.client.options import every as every
    from manyhands.client.raw_client import Client as Client
    from manyhands.client.raw_client import SyncClient as SyncClient
    from manyhands.client.task import Task as Task
    from manyhands.embedding import embedded as embedded
else:
    # Where each name is found.
    _PLACES = {
        "manyhands.client.app": ("App",),
        "manyhands.client.errors": (
            "Cancelled",
            "Fail",
            "JobCancelled",
            "JobFailed",
            "QueueFull",
            "Refused",
            "ResultGone",
            "Retry",
            "Unavailable",
        ),
        "manyhands.client.executor": ("Executor",),
        "manyhands.client.gathering": ("agather", "as_completed", "await_", "gather", "wait"),
        "manyhands.client.handle": ("Handle",),
        "manyhands.client.job": ("Job", "current_job"),
        "manyhands.client.options": ("Backoff", "cron", "every"),
        "manyhands.client.raw_client": ("Client", "SyncClient"),
        "manyhands.client.task": ("Task",),
        "manyhands.embedding": ("embedded",),
    }
    _MODULES = {name: module for module, names in _PLACES.items() for name in names}
    __all__ = [*_MODULES]  # noqa: PLE0604 - all of them are names

    def __getattr__(name):
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib  # noqa: PLC0415 - only where it is needed

        found = globals()[name] = getattr(importlib.import_module(module), name)
        return found

    def __dir__():
        return sorted({*globals(), *_MODULES})
