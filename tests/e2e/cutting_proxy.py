"""A TCP proxy that cuts connections after so many bytes of one direction."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

UP, DOWN = "up", "down"


@dataclass
class Cuts:
    """What the proxy does to its connections, one after the other; later ones pass untouched."""

    target: tuple[str, int]
    planned: list[tuple[str, int]] = field(default_factory=list)
    connections_count: int = 0
    seen: dict[str, int] = field(default_factory=dict)  # bytes of the last connection
    seen_first: dict[str, int] = field(default_factory=dict)  # and of the first
    # Of each connection, how many bytes there were before each piece that came, and after it.
    pieces: list[dict[str, list[tuple[int, int]]]] = field(default_factory=list)
    is_frozen: bool = False  # nothing is passed on any more, and nothing closed
    _open: list[socket.socket] = field(default_factory=list)
    _swallowed: int = 0  # connections up to this number are silent

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            self.connections_count += 1
            self.pieces.append({UP: [], DOWN: []})
            self._open.append(near)
            if self.is_frozen:
                continue
            try:
                far = socket.create_connection(self.target)
            except OSError:
                near.close()
                continue
            self._open.append(far)
            cut = self.planned.pop(0) if self.planned else None
            self.seen = {UP: 0, DOWN: 0}
            self.seen_first = self.seen_first or self.seen
            for source, sink, way in ((near, far, UP), (far, near, DOWN)):
                bytes_max = cut[1] if cut is not None and cut[0] == way else None
                threading.Thread(
                    target=self._pump,
                    args=(source, sink, way, bytes_max, self.connections_count),
                    daemon=True,
                ).start()

    def _pump(self, source, sink, way: str, bytes_max: int | None, number: int) -> None:
        seen = self.seen
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if number <= self._swallowed:
                    continue
                if bytes_max is not None:
                    data = data[: bytes_max - seen[way]]
                if self.is_frozen:
                    return
                sink.sendall(data)
                self.pieces[number - 1][way].append((seen[way], seen[way] + len(data)))
                seen[way] += len(data)
                if bytes_max is not None and seen[way] >= bytes_max:
                    break
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def freeze(self) -> None:
        """Passes nothing on from now on."""
        self.is_frozen = True

    def thaw(self) -> None:
        """New connections pass again, and those that were frozen break."""
        self.is_frozen = False
        self.cut_all()

    def swallow(self) -> None:
        """The connections there are pass nothing on from now on; later ones do."""
        self._swallowed = self.connections_count

    def cut_all(self) -> None:
        """Breaks every connection now."""
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open.clear()


@contextmanager
def cutting(address: str) -> Iterator[tuple[str, Cuts]]:
    """The address of a proxy before a server, and its plan."""
    host, _, port = address.rpartition(":")
    cuts = Cuts((host, int(port)))
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=cuts.serve, args=(listener,), daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", cuts
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        cuts.cut_all()
