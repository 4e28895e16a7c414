"""Logs, results and artifacts of runs: uploaded during a run, served with its record."""

import asyncio
import hmac
import os
import re
from collections.abc import AsyncIterator, Mapping
from typing import Final
from urllib.parse import parse_qs, quote, urlencode

import msgspec

from manyhands.config import Config
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.model.job import Job, Lease, State
from manyhands.operate.artifacts import PIECE_BYTES, Artifact, Artifacts
from manyhands.protocols.taskcluster import rest
from manyhands.protocols.taskcluster.answers import Uploaded
from manyhands.protocols.taskcluster.identifiers import run_id_of, task_id_of
from manyhands.protocols.taskcluster.log import base_url
from manyhands.protocols.taskcluster.rest import RestError
from manyhands.web.exchange import Exchange

_SWEEP_SECONDS: Final = 3600.0
_JSON_TYPE: Final = "application/json"
_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
# A browser must not run anything that a worker uploaded as if it came from this server.
_HARMLESS: Final = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"sandbox"),
    (b"accept-ranges", b"bytes"),
]


class Uploads:
    """Upload URLs are signed by the lease and valid as long as it is."""

    def __init__(
        self, dispatcher: Dispatcher, config: Config, addresses: Mapping[str, str | None]
    ) -> None:
        self._dispatcher = dispatcher
        self._server_name = config.server_name
        self._addresses = addresses
        self._files = Artifacts(None if config.store == "memory" else config.data)
        self._bytes_max = config.payload_bytes_max
        self._sweeping: asyncio.Future[int] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.call_later(_SWEEP_SECONDS, self._sweep_later)

    def url(self, job: Job, lease: Lease, name: str, content_type: str = _JSON_TYPE) -> str:
        """Where to PUT a file of the run: a document or an artifact."""
        task, run = task_id_of(job.job_id), run_id_of(lease.number)
        where = base_url(self._server_name, self._addresses)
        folder = f"{where}/0.2.0/store/{task}/runs/{run}"
        key = rest.upload_key(lease, name, content_type)
        query = urlencode({"type": content_type, "key": key})
        return f"{folder}/{quote(name)}?{query}"

    async def receive(self, exchange: Exchange, job: Job, run_id: int, name: str) -> object:
        """Stores a file of a run that is still held."""
        query = parse_qs(exchange.query_string.decode("latin-1"))
        content_type = query.get("type", [_JSON_TYPE])[0]
        given = query.get("key", [""])[0]
        lease = job.lease
        is_held = lease is not None and job.state is State.LEASED
        if lease is None or not is_held or run_id_of(lease.number) != run_id:
            raise RestError(410, f"run {run_id} is over")
        if not hmac.compare_digest(
            given.encode(), rest.upload_key(lease, name, content_type).encode()
        ):
            raise RestError(403, "the URL was not issued to the worker of this run")
        if self._dispatcher.store_full:
            raise RestError(507, "the disk is nearly full; nothing new is accepted")
        if name in (rest.LOGS, rest.RESULT):
            body = await _gather(exchange.pieces(), rest.DOCUMENT_BYTES_MAX)
            _check_document(body, name)
            pieces = _one_piece(body)
        else:
            pieces = exchange.pieces()
        draft = self._files.begin(task_id_of(job.job_id), run_id, name, content_type, lease.number)
        try:
            async for piece in pieces:
                draft.write(piece)
                if draft.size > self._bytes_max:
                    raise RestError(413, f"an upload has at most {self._bytes_max} bytes")
            await asyncio.to_thread(draft.finish)
        except BaseException:
            draft.discard()
            raise
        return Uploaded(name)

    def find(self, job: Job, run_id: int, name: str) -> Artifact | None:
        """The file uploaded under that name."""
        return self._files.find(task_id_of(job.job_id), run_id, name)

    async def result(self, job: Job, lease: Lease) -> bytes | None:
        """The result.json of a run that is still held, or None if there is none yet. Runs beyond
        the highest number share it, so files of an earlier one do not count.
        """
        artifact = self.find(job, run_id_of(lease.number), rest.RESULT)
        if artifact is None or artifact.lease_number != lease.number:
            return None
        return await asyncio.to_thread(artifact.read)

    async def send(self, exchange: Exchange, artifact: Artifact) -> None:
        """Sends the whole file, or the requested range."""
        start, stop = 0, artifact.size
        headers = [*_HARMLESS, (b"content-type", artifact.content_type.encode("latin-1"))]
        wanted = _RANGE.fullmatch(exchange.headers.get(b"range", b"").decode("latin-1"))
        status = 200
        if wanted is not None and any(wanted.groups()):
            first, last = wanted.groups()
            if first:
                start = int(first)
                stop = min(stop, int(last) + 1) if last else stop
            else:
                start = max(0, stop - int(last))
            if start >= stop:
                size = (b"content-range", b"bytes */%d" % artifact.size)
                raise RestError(416, f"there are {artifact.size} bytes", headers=(size,))
            status = 206
            span = f"bytes {start}-{stop - 1}/{artifact.size}"
            headers.append((b"content-range", span.encode()))
        headers.append((b"content-length", b"%d" % (stop - start)))
        await exchange.begin_stream(status, headers)
        with artifact.open() as file:
            file.seek(start, os.SEEK_CUR)
            while start < stop:
                piece = file.read(min(PIECE_BYTES, stop - start))
                start += len(piece)
                await exchange.send_piece(piece)
        await exchange.end_stream()

    def _sweep_later(self) -> None:
        self._sweeping = self._loop.run_in_executor(None, self._files.sweep, self._is_known)
        self._loop.call_later(_SWEEP_SECONDS, self._sweep_later)

    def _is_known(self, task_id: str) -> bool:
        return self._dispatcher.store.find(task_id.replace("-", "")) is not None


async def _gather(pieces: AsyncIterator[bytes], bytes_max: int) -> bytes:
    gathered = bytearray()
    async for piece in pieces:
        gathered += piece
        if len(gathered) > bytes_max:
            raise RestError(413, f"the document has more than {bytes_max} bytes")
    return bytes(gathered)


async def _one_piece(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _check_document(body: bytes, name: str) -> None:
    try:
        msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise RestError(400, f"{name} is not a JSON object", str(error)) from None
