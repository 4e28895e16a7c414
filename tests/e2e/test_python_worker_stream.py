"""The worker's stream of the Python client, against the real server."""

import asyncio
import json

import pytest

from manyhands.client.address import places
from manyhands.client.errors import Refused
from manyhands.client.notes import Job
from manyhands.client.worker_stream import WorkerStream
from tests.e2e.cutting_proxy import DOWN, UP, cutting
from tests.e2e.serving import SECONDS_MAX, serving


class Hands:
    """A worker that keeps what it is given."""

    def __init__(self, slots: int = 0) -> None:
        self.slots = slots
        self.jobs: asyncio.Queue[Job] = asyncio.Queue()
        self.notices: asyncio.Queue[tuple[str, int, str]] = asyncio.Queue()
        self.errors: asyncio.Queue[Refused] = asyncio.Queue()
        self.losses: asyncio.Queue[str] = asyncio.Queue()
        self.connections = 0
        self.stream: WorkerStream | None = None

    def take(self, jobs: list[Job]) -> None:
        for job in jobs:
            self.jobs.put_nowait(job)

    def notified(self, job_id: str, lease_number: int, why: str) -> None:
        self.notices.put_nowait((job_id, lease_number, why))

    def resumed(self) -> None:
        self.connections += 1
        if self.slots and self.stream is not None:
            self.stream.give(self.slots)

    def lost(self, why: str) -> None:
        self.losses.put_nowait(why)

    def closing(self, seconds: float) -> None:
        pass

    def refused(self, error: Refused) -> None:
        self.errors.put_nowait(error)


def hands_of(url: str, name: str | None, slots: int, **options) -> Hands:
    hands = Hands(slots)
    hands.stream = WorkerStream(places(url), hands, name=name, **options)
    return hands


def submitted(api, queue: str, payload) -> str:
    return api.results("submit", queue=queue, payload=payload)["id"]


def run(coroutine) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await coroutine

    asyncio.run(bounded())


def test_jobs_are_taken_and_reported_on(served, api, queue):
    ids = [submitted(api, queue, {"n": n}) for n in range(3)]

    async def work() -> None:
        hands = hands_of(served.url, queue, 3)
        hands.stream.want([queue])
        jobs = [await hands.jobs.get() for _ in ids]
        assert [json.loads(job.payload) for job in jobs] == [{"n": n} for n in range(3)]
        assert set(hands.stream.leases) == set(ids)

        refused = await hands.stream.report(
            done=[(*jobs[0].held, b"[1]", "json"), (ids[0], "wrong", None, "binary")],
            failed=[(*jobs[1].held, "broken", "It broke.", b"", False, None)],
            released=[jobs[2].held],
        )

        assert [(each.list, each.index) for each in refused] == [("done", 1)]
        assert refused[0].code == "already_completed"
        assert not hands.stream.leases
        views = await hands.stream.look(ids)
        assert [view.state for view in views] == ["completed", "failed", "ready"]
        assert views[0].result == b"[1]"
        assert views[1].failure == ("broken", "It broke.", b"")
        await hands.stream.close()

    run(work())


def test_a_cancelled_job_is_told_to_its_worker(served, api, queue):
    job_id = submitted(api, queue, 1)

    async def work() -> None:
        hands = hands_of(served.url, queue, 1)
        hands.stream.want([queue])
        job = await hands.jobs.get()
        await asyncio.to_thread(api.results, "cancel", id=job_id)

        assert await hands.notices.get() == (job_id, job.lease_number, "cancelled")
        assert not hands.stream.leases
        await hands.stream.close()

    run(work())


@pytest.mark.parametrize("way", [UP, DOWN])
def test_p35_a_report_survives_a_cut_at_any_byte(served, api, queue, way):
    """P28 and P35: the lease is named again, and the report is sent again, however much of it
    arrived.
    """

    async def work(bytes_max: int) -> int:
        job_id = submitted(api, queue, bytes_max)
        with cutting(served.addresses["http"]) as (address, cuts):
            if bytes_max:
                cuts.planned = [(way, bytes_max)]
            hands = hands_of(address, queue, 1)
            hands.stream.want([queue])
            job = await hands.jobs.get()
            assert job.id == job_id
            answer = hands.stream.report(done=[(*job.held, b"true", "json")])
            assert await answer == []
            # The connection that is to be cut may live on, with nothing left to carry.
            [view] = await hands.stream.look([job_id])
            assert (view.state, view.result) == ("completed", b"true")
            assert not hands.notices.qsize()
            shown = api.get(f"jobs/{job_id}")
            assert shown["attempts_used"] == 0
            total = cuts.seen[way]
            await hands.stream.close()
        return total

    async def all_cuts() -> None:
        total = await work(0)
        # The handshake has hundreds of bytes; what follows it is cut at every third one.
        for bytes_max in range(max(1, total - 150), total, 3):
            await work(bytes_max)

    run(all_cuts())


def test_p28_jobs_lost_on_their_way_come_again_uncharged(served, api, queue):
    """P28."""

    async def work() -> None:
        with cutting(served.addresses["http"]) as (address, cuts):
            hands = hands_of(address, queue, 1)
            hands.stream.want([queue])
            submitted(api, queue, 1)
            job = await hands.jobs.get()
            hands.stream.leases.clear()  # as if the note had never arrived
            cuts.cut_all()

            again = await hands.jobs.get()

            assert again.id == job.id
            assert again.token != job.token
            assert again.attempts_used == job.attempts_used
            await hands.stream.close()

    run(work())


def test_a_departure_gives_back_what_waits_and_fails_what_runs(served, api, queue):
    ids = [submitted(api, queue, 1) for _ in range(2)]

    async def work() -> None:
        hands = hands_of(served.url, queue, 2)
        hands.stream.want([queue])
        jobs = {job.id: job for job in [await hands.jobs.get() for _ in ids]}
        supervisor = hands_of(served.url, None, 0)
        supervisor.stream.vouch([queue])
        await supervisor.stream.depart(queue, "signal 11", [jobs[ids[0]].held])

        views = await supervisor.stream.look(ids)

        assert views[0].failure is not None
        assert views[0].failure[:2] == ("worker_died", "signal 11")
        assert views[1].state == "ready"
        assert views[1].failure is None
        for each in (hands, supervisor):
            await each.stream.close()

    run(work())


def test_p21_a_refused_token_is_reported_with_the_server_s_sentence(tmp_path):
    """P40."""
    token = "correct-horse-battery-staple"
    tokens = tmp_path / "tokens"
    tokens.write_text(f"operator:ada:{token}\n")
    tokens.chmod(0o600)
    with serving(tmp_path, "--store", "memory", "--tokens-file", str(tokens)) as server:

        async def work() -> None:
            hands = hands_of(server.url, "w", 1, token="wrong" * 8)
            hands.stream.want(["q"])
            error = await hands.errors.get()
            assert error.code == "unauthorized"
            assert "MANYHANDS_TOKEN" in error.message
            await hands.stream.close()

            allowed = hands_of(server.url, "w", 1, token=token)
            assert await allowed.stream.look([]) == []
            assert token not in repr(allowed.stream)
            await allowed.stream.close()

        run(work())
