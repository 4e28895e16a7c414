"""What a child reports to its supervisor: one JSON object a line, over a pipe."""

from typing import Final

import msgspec
from msgspec import Struct

from manyhands.client.trust import Trust
from manyhands.client.worker.tallies import Tally


class Connection(Struct, tag="connection", frozen=True):
    """Where the app's server is."""

    server: str
    token: str | None
    trust: Trust


class Modules(Struct, tag="modules", frozen=True):
    """Files that the child has imported, apart from installed packages."""

    files: list[str]


class Unloadable(Struct, tag="unloadable", frozen=True):
    """The child cannot load the app, and why, as the user should read it."""

    text: str


class Ready(Struct, tag="ready", frozen=True):
    """The child takes work."""


class Leaving(Struct, tag="leaving", frozen=True):
    """The child drains and ends by itself, and why."""

    why: str


class Stalled(Struct, tag="stalled", frozen=True):
    """A job that has to run alone waits for others that take long."""


class Figures(Struct, tag="figures", frozen=True):
    """What the child has done so far."""

    by_task: dict[str, Tally]
    running: int
    ahead: int
    reconnects: int
    is_connected: bool
    silence: float = 0.0  # seconds since the last sign of life of the server


Message = Connection | Modules | Unloadable | Ready | Leaving | Stalled | Figures
UNLOADABLE: Final = 78  # the exit code of a child that cannot load the app
encode: Final = msgspec.json.Encoder().encode
decode: Final[msgspec.json.Decoder[Message]] = msgspec.json.Decoder(Message)
