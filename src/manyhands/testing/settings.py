"""What apps declare about the server, as commands for the engine of a test."""

import msgspec
from msgspec.structs import replace

from manyhands.client.worker.declared import Setting
from manyhands.model.commands import Command, PutSchedule
from manyhands.operate.schedules import first_firing_at
from manyhands.protocols.native import settings


def command_of(setting: Setting, now: int) -> Command:
    """Puts the setting if there is none, as a worker does at its start."""
    match setting.kind:
        case "queue":
            body = settings.QUEUE(msgspec.json.encode({"policy": setting.wanted}))
            return body.command(setting.name, if_absent=True)
        case "limit":
            limit = settings.LIMIT(msgspec.json.encode(setting.wanted))
            return limit.command(setting.name, if_absent=True)
        case _:
            schedule = settings.SCHEDULE(msgspec.json.encode(setting.wanted)).schedule(
                setting.name, next_at=0
            )
            first_at = first_firing_at(schedule, now)
            return PutSchedule(replace(schedule, next_at=first_at), if_absent=True)
