"""What the tests here share: an address as URL, jobs that run, and collecting messages."""

import time
from collections.abc import Callable
from contextlib import closing

import pika

from tests.e2e.serving import Api, Served

EXCHANGES = ("task_pending_v1", "task_running_v1", "task_completed_v1", "task_failed_v1")
SECONDS_MAX = 90.0


def url_of(served: Served) -> str:
    return f"amqp://guest:guest@{served.addresses['amqp']}/"


def connect(url: str, **options) -> pika.BlockingConnection:
    parameters = pika.URLParameters(url)
    # However busy the machine is: nobody is to be given up for being slow.
    patient = {"heartbeat": 0, "socket_timeout": SECONDS_MAX, "stack_timeout": SECONDS_MAX}
    for name, value in {**patient, **options}.items():
        setattr(parameters, name, value)
    return pika.BlockingConnection(parameters)


def run_jobs(served: Served, queue: str, count: int) -> list[str]:
    """Submit, claim and complete so many: three messages each. Gives their ids."""
    with closing(Api(served)) as api:
        items = [{"queue": queue, "payload": number} for number in range(count)]
        api.results("submit", items=items)
        jobs = api.results("claim", queue=queue, count=count, worker="w1")
        assert len(jobs) == count
        api.results("complete", items=[{"id": job["id"], "token": job["token"]} for job in jobs])
    return [job["id"] for job in jobs]


def bind_all(channel, name: str = "", key: str = "#", **options) -> str:
    """A queue that hears everything (that fits)."""
    if not name:
        options["exclusive"] = True
    name = channel.queue_declare(name, **options).method.queue
    for exchange in EXCHANGES:
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_bind(name, exchange, key)
    return name


def collect(channel, queue: str, is_enough: Callable[[list[tuple]], bool]) -> list[tuple]:
    """Messages as (method, properties, body), until there are enough."""
    found: list[tuple] = []
    for method, properties, body in channel.consume(
        queue, inactivity_timeout=SECONDS_MAX, auto_ack=True
    ):
        assert method is not None, f"only {len(found)} messages came"
        found.append((method, properties, body))
        if is_enough(found):
            break
    channel.cancel()
    return found


def collect_count(channel, queue: str, count: int) -> list[tuple]:
    return collect(channel, queue, lambda found: len(found) >= count)


def until(is_so: Callable[[], object], what: str) -> None:
    """Ask again and again, for things that give no sign of their own."""
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
