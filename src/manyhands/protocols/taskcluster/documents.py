"""The documents and files of tasks, and the description of the messages about them."""

import asyncio
from collections.abc import Mapping
from importlib import resources
from typing import Final

import msgspec

from manyhands.config import Config
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.model.job import Job
from manyhands.protocols.taskcluster import answers, rest
from manyhands.protocols.taskcluster.endpoint import SENT, find_run, find_task, read_run
from manyhands.protocols.taskcluster.log import base_url, reachable
from manyhands.protocols.taskcluster.messages import VERSION
from manyhands.protocols.taskcluster.rest import RestError
from manyhands.protocols.taskcluster.uploads import Uploads
from manyhands.web.exchange import Exchange

RUN: Final = "/store/{task}/runs/{run}"
_FOLDERS_COUNT: Final = f"/{VERSION}{RUN}/".count("/")  # before the name of a run's file
# Schemes, with the listener and a description of each.
_ENDPOINTS: Final = {
    "amqp": ("amqp", "The embedded endpoint; read-only."),
    "amqps": ("amqp_tls", "The embedded endpoint over TLS; read-only."),
}
_FILES: Final = resources.files("manyhands.protocols.taskcluster")


class Documents:
    """What can be read and uploaded."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        config: Config,
        addresses: Mapping[str, str | None],
        uploads: Uploads,
    ) -> None:
        self._dispatcher = dispatcher
        self._config = config
        self._addresses = addresses
        self._uploads = uploads

    def _base_url(self) -> str:
        return base_url(self._config.server_name, self._addresses)

    async def amqp(self, _exchange: Exchange) -> object:
        name = self._config.server_name
        account = "guest:guest@" if self._config.amqp_users is None else ""
        for scheme, (listener, _) in _ENDPOINTS.items():
            address = self._addresses[listener]
            if address is not None:
                return answers.Broker(f"{scheme}://{account}{reachable(name, address)}/")
        raise RestError(404, "this server has no AMQP endpoint")

    async def schema(self, exchange: Exchange) -> object:
        name = exchange.params["name"]
        known = {file.name: file for file in (_FILES / "schemas").iterdir()}
        if name not in known:
            raise RestError(404, "there is no such schema")
        schema = msgspec.json.decode(await asyncio.to_thread(known[name].read_bytes))
        # With an id, a schema fetched alone leads to those it refers to.
        return {"$id": f"{self._base_url()}/0.2.0/schemas/{name}", **schema}

    async def asyncapi(self, _exchange: Exchange) -> object:
        document = msgspec.json.decode(
            await asyncio.to_thread((_FILES / "asyncapi.json").read_bytes)
        )
        document["servers"] = {
            scheme: {
                "host": reachable(self._config.server_name, address),
                "protocol": scheme,
                "protocolVersion": "0.9.1",
                "description": description,
            }
            for scheme, (listener, description) in _ENDPOINTS.items()
            if (address := self._addresses[listener]) is not None
        }
        return document

    async def definition(self, exchange: Exchange) -> object:
        job = await find_run(self._dispatcher, exchange, to_read=True)
        return msgspec.Raw(rest.definition_of(job))

    async def resolution(self, exchange: Exchange) -> object:
        return rest.resolution_of(await find_task(self._dispatcher, exchange), self._base_url())

    async def logs(self, exchange: Exchange) -> object:
        job, run_id = await find_task(self._dispatcher, exchange), read_run(exchange)
        return await self._uploaded(exchange, job, rest.LOGS) or rest.logs_of(job, run_id)

    async def result(self, exchange: Exchange) -> object:
        job, run_id = await find_task(self._dispatcher, exchange), read_run(exchange)
        return await self._uploaded(exchange, job, rest.RESULT) or rest.result_of(job, run_id)

    async def artifact(self, exchange: Exchange) -> object:
        name = f"artifacts/{exchange.params['name']}"
        sent = await self._uploaded(exchange, await find_task(self._dispatcher, exchange), name)
        if sent is None:
            raise RestError(404, "there is no such artifact")
        return sent

    async def _uploaded(self, exchange: Exchange, job: Job, name: str) -> object:
        artifact = self._uploads.find(job, read_run(exchange), name)
        if artifact is None:
            return None
        await self._uploads.send(exchange, artifact)
        return SENT

    async def upload(self, exchange: Exchange) -> object:
        job = await find_run(self._dispatcher, exchange)
        *_, name = exchange.path.rstrip("/").split("/", maxsplit=_FOLDERS_COUNT)
        return await self._uploads.receive(exchange, job, read_run(exchange), name)
