"""What an app declares about the server: schedules, limits and settings of queues (P55)."""

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from manyhands.client.app import App
from manyhands.client.options import TASK_HEADER, Cron, Every, wire_options
from manyhands.client.task import Task

_RATE: Final = re.compile(r"(\d+)\s*/\s*(\d*)\s*(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# Schedules are recognised as an app's own by this header.
_APP_HEADER: Final = "app"
# What options of a task mean for the jobs of its schedule; the rest is about single submits.
_TERMS: Final = frozenset(
    {"priority", "attempts_max", "backoff", "lease_ms", "attempt_ms_max", "limits", "tags"}
)


class Setting(Struct, frozen=True):
    """One thing that code declares: where it is on the server, and what it should be there."""

    kind: str  # queue, limit or schedule
    name: str
    wanted: dict[str, Any]

    @property
    def path(self) -> str:
        """Where the API has it."""
        return f"/api/{self.kind}s/{self.name}"


class Difference(Struct, frozen=True):
    """A setting that is not as code declares it."""

    setting: Setting
    found: dict[str, Any] | None  # None: the server has none

    def __str__(self) -> str:
        what = f"{self.setting.kind} {self.setting.name}"
        if self.found is None:
            return f"{what}: not there; the code has {_shown(self.setting.wanted)}"
        return f"{what}: {_shown(self.found)}; the code has {_shown(self.setting.wanted)}"


def _shown(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in sorted(values.items())) or "nothing"


def rate(text: str) -> dict[str, int]:
    """``100/s``, ``10/5m``."""
    found = _RATE.fullmatch(text.strip())
    if found is None or not int(found[1]):
        raise ValueError(f"{text!r} is no rate; examples are 100/s and 10/5m")
    return {"count": int(found[1]), "per_ms": int(found[2] or 1) * _UNIT_MS[found[3]]}


def settings_of(app: App[Any], origin: str) -> list[Setting]:
    """All that the app at ``origin`` declares. Raises ValueError for what makes no sense."""
    found = [Setting("limit", name, {"concurrency_max": n}) for name, n in app.limits.items()]
    policies: dict[str, dict[str, Any]] = {}
    for task in app.tasks.values():
        policy = policies.setdefault(task.queue, {})
        if "concurrency" in task.options:
            policy["concurrency_max"] = task.options["concurrency"]
        if "rate" in task.options:
            policy["rate"] = rate(task.options["rate"])
    found += [Setting("queue", queue, policy) for queue, policy in policies.items() if policy]
    found += [
        Setting("schedule", task.name, _schedule(task, origin))
        for task in app.tasks.values()
        if "schedule" in task.options
    ]
    return found


def _schedule(task: Task[..., Any], origin: str) -> dict[str, Any]:
    headers = {_APP_HEADER: origin}
    if task.queue != task.name:
        headers[TASK_HEADER] = task.name
    wanted: dict[str, Any] = {"queue": task.queue, "payload": {}, "headers": headers}
    sent = wire_options(task.options, result=task.keeps_result)
    wanted |= {name: value for name, value in sent.items() if name in _TERMS}
    match task.options["schedule"]:
        case Cron() as schedule:
            wanted |= {"cron": schedule.expression, "time_zone": schedule.timezone}
        case Every() as schedule:
            wanted["interval_ms"] = round(schedule.seconds * 1000)
    return wanted


class Registry:
    """The settings of a server."""

    def __init__(self, app: App[Any], origin: str) -> None:
        self._client = app.client
        self._origin = origin
        self._settings = settings_of(app, origin)

    def put_missing(self) -> list[Difference]:
        """Puts what the server has not; gives what it has and is different."""
        return [
            difference
            for difference in self.differences()
            if difference.found is not None or not self.put(difference.setting, if_absent=True)
        ]

    def put(self, setting: Setting, *, if_absent: bool = False) -> bool:
        """Sets it; whether that was done."""
        body = {"policy": setting.wanted} if setting.kind == "queue" else setting.wanted
        query = {"if_absent": "true"} if if_absent else None
        answer = self._client.request("PUT", setting.path, body, query=query)
        return bool(answer.get("applied", True)) if isinstance(answer, dict) else True

    def differences(self) -> list[Difference]:
        """What is not as the code has it."""
        there = {
            "queue": {each["name"]: each.get("policy") or {} for each in self._client.queues()},
            "limit": {each["name"]: each for each in self._client.limits()},
            "schedule": {each["id"]: each | each["terms"] for each in self._client.schedules()},
        }
        found: list[Difference] = []
        for setting in self._settings:
            present = there[setting.kind].get(setting.name)
            if not present:
                found.append(Difference(setting, None))
            elif not _fits(setting.wanted, present):
                shown = {key: present.get(key) for key in setting.wanted}
                found.append(Difference(setting, shown))
        return found

    def stale_schedules(self) -> list[str]:
        """Schedules of this app that the code no longer has."""
        declared = {each.name for each in self._settings if each.kind == "schedule"}
        return [
            each["id"]
            for each in self._client.schedules()
            if each["id"] not in declared and each["headers"].get(_APP_HEADER) == self._origin
        ]

    def remove_schedule(self, name: str) -> None:
        """Deletes it."""
        self._client.request("DELETE", f"/api/schedules/{name}")


def _fits(wanted: Mapping[str, Any], present: Mapping[str, Any]) -> bool:
    return all(present.get(key) == value for key, value in wanted.items())
