"""What a visitor hears while the records are far behind of what is durable."""

import asyncio

import httpx

from manyhands.app import Server
from manyhands.config import Address, Config
from manyhands.store.contract import StoreFailedError
from manyhands.store.memory import MemoryStore


class BehindStore(MemoryStore):
    """Nobody who asks for records gets them in time."""

    def search(self, *_wanted):
        raise StoreFailedError("the store's records are not up to date; see the log")


async def ask(path: str, *, stalled: bool = False) -> httpx.Response:
    config = Config(http=Address("127.0.0.1", 0), gearman=None, dwork=None, wmp=None, amqp=None)
    server = Server(config, BehindStore(), asyncio.get_running_loop())
    await server.start()
    server.dispatcher.stalled = stalled  # nobody keeps house here, who would look
    async with httpx.AsyncClient(base_url=f"http://{server.condition.addresses['http']}") as http:
        answer = await http.get(path, headers={"accept": "text/html"}, timeout=90)
    await server.drain()
    return answer


def test_a_question_that_takes_too_long_may_be_asked_again_later():
    answer = asyncio.run(ask("/api/jobs"))

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "unavailable"
    assert "not up to date" in answer.json()["error"]["message"]
    assert answer.headers["retry-after"]


def test_a_page_that_takes_too_long_says_so():
    answer = asyncio.run(ask("/ui/jobs"))

    assert answer.status_code == 503
    assert "not up to date" in answer.text


def test_a_server_whose_disk_stands_still_is_not_ready():
    answer = asyncio.run(ask("/readyz", stalled=True))

    assert answer.status_code == 503
    assert answer.json()["results"] == {"ready": False, "missing": ["disk"]}
