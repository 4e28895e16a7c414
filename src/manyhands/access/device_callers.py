"""Who may connect to a device: callers of an access file that may work, by their CURVE keys."""

from pathlib import Path

from manyhands.access.callers import Callers
from manyhands.access.credentials import Credentials
from manyhands.access.file import AccessFileError, read_access_file
from manyhands.dispatch.clock import Clock
from manyhands.loggers import get_logger
from manyhands.model.roles import Right

_log = get_logger("manyhands.device")


class DeviceCallers:
    """The callers of a file, which is read again when it has changed."""

    def __init__(self, file: Path) -> None:
        """Raises AccessFileError with a sentence if the file cannot be used."""
        self._file = file
        self._changed_ns = self._stamp()
        self._callers = Callers(read_access_file(file), asks_everyone=True, now=Clock().now)

    def accepts(self, key: bytes, address: str) -> bool:
        """Whether the owner of this public key may work. It is asked once for each connection, so
        who is removed from the file keeps the one that it has.
        """
        self._look()
        caller = self._callers.identify(Credentials(curve=key, address=address))
        return caller is not None and caller.has(Right.WORK)

    def _look(self) -> None:
        stamp = self._stamp()
        if stamp == self._changed_ns:
            return
        self._changed_ns = stamp
        try:
            self._callers.replace(read_access_file(self._file))
        except AccessFileError as error:
            _log.error("callers stay as they were: a file cannot be used", reason=str(error))

    def _stamp(self) -> int:
        try:
            return self._file.stat().st_mtime_ns
        except OSError:
            return 0
