"""The thread in which an embedded server runs, with a loop of its own.

Nothing of the host process is changed: no signal handler, no logging, no limit, no garbage
collection.
"""

import asyncio
import contextlib
import socket
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from manyhands.app import Server, loop_factory, open_store
from manyhands.config import Address, Config, Listen
from manyhands.config.kinds import WrongValueError
from manyhands.embedding.place import EmbeddedError
from manyhands.loggers import get_logger
from manyhands.observe.loop_errors import LoopErrors
from manyhands.store.contract import Store, StoreError

_log = get_logger("manyhands.embedded")

_QUIET: Final = Config(http=None, gearman=None, dwork=None, wmp=None, amqp=None)


class ServerThread:
    """One run of a server, from its start to its end."""

    def __init__(self, path: Path | None, http: str | None) -> None:
        self._config = _config(path, http)
        self._ready: Future[None] = Future()
        # A daemon: a host that ends without closing it does not hang. Nothing acknowledged is lost.
        self._thread = threading.Thread(target=self._run, name="manyhands server", daemon=True)
        self._server: Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def address(self) -> str | None:
        """Where it serves HTTP, if it does."""
        assert self._server is not None
        return self._server.condition.addresses["http"]

    def is_alive(self) -> bool:
        """Whether it serves."""
        return self._thread.is_alive()

    def begin(self) -> None:
        """Starts, and waits until the server is ready."""
        self._thread.start()
        try:
            self._ready.result()
        except BaseException:
            self._thread.join()
            raise

    def take(self, peer: socket.socket) -> None:
        """Serves a connected socket."""
        assert self._loop is not None
        assert self._server is not None
        taking = self._server.take(peer)
        try:
            asyncio.run_coroutine_threadsafe(taking, self._loop).result()
        except RuntimeError as error:  # the loop is closed
            taking.close()
            raise ConnectionError("the embedded server has stopped") from error

    def stop(self) -> None:
        """Stops in order, and waits for the end."""
        if self._loop is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has stopped by itself
                self._loop.call_soon_threadsafe(self._stop)
        self._thread.join()

    def _stop(self) -> None:
        assert self._server is not None
        self._server.condition.hurried.set()
        self._server.condition.stopping.set()

    # In the thread.

    def _run(self) -> None:
        try:
            store = open_store(self._config)
        except (OSError, StoreError) as error:
            self._ready.set_exception(_not_opened(error))
            return
        try:
            with asyncio.Runner(loop_factory=loop_factory(self._config)) as runner:
                runner.run(self._serve(store))
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            if self._ready.done():
                _log.exception("the embedded server failed")
            else:
                self._ready.set_exception(error)
        finally:
            failure = store.close()
            if failure is not None:
                _log.critical("the store was not closed in order", reason=failure)

    async def _serve(self, store: Store) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(LoopErrors())
        server = Server(self._config, store, loop)
        try:
            await server.start()
        except OSError as error:
            raise EmbeddedError(f"the embedded server cannot start: {error}") from error
        self._server, self._loop = server, loop
        self._ready.set_result(None)
        await server.run()
        if server.condition.failure is not None:
            _log.critical("stopped because the store failed", reason=server.condition.failure)


def _config(path: Path | None, http: str | None) -> Config:
    where: Address | None = None
    if http is not None:
        try:
            where = Listen().read(http)
        except WrongValueError as error:
            raise EmbeddedError(f"http={http!r} is not HOST:PORT: {error}") from None
    if path is None:
        return replace(_QUIET, store="memory", http=where)
    return replace(_QUIET, data=path, http=where)


def _not_opened(error: Exception) -> EmbeddedError:
    return EmbeddedError(
        f"the embedded server cannot start: {error} To use one directory from several processes,"
        " run `manyhands serve`, and give App its address."
    )
