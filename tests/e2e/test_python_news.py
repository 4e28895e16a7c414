"""News of jobs, as their submitters read them (P38)."""

import asyncio
import threading

import pytest

from manyhands import App, Refused, Unavailable
from tests.e2e.cutting_proxy import cutting
from tests.e2e.serving import own_address
from tests.e2e.stream_talk import NEWS, WANT, WORK, talking


@pytest.fixture
def app(served):
    app = App(served.url)
    yield app
    app.close()


def render(app: App, queue: str):
    @app.task(name=queue)
    def render(path: str) -> str: ...

    return render


def leased(talk, queue: str) -> list:
    """The id and the token of a job that this worker has taken."""
    talk.result(WANT, [queue])
    talk.result(WORK, [], [], [], [], [1, 0])
    [row] = talk.jobs(1)
    return [row[0], row[2]]


def test_p38_kept_pieces_come_first_then_news_then_the_end(app, served, queue):
    handle = render(app, queue).submit("a")
    with talking(served, queue) as talk:
        held = leased(talk, queue)
        talk.result(NEWS, [[*held, None, b"one"]])
        news = iter(handle.news())
        assert next(news).partial == b"one"

        talk.result(NEWS, [[*held, [1, 2], None]])
        assert next(news).progress == (1, 2)
        talk.result(NEWS, [[*held, None, b"two"]])
        assert next(news).partial == b"two"
        talk.result(WORK, [[*held, b'"b"', "json"]])

        assert [each.state for each in news] == ["completed"]
    assert handle.result() == "b"
    assert [each.state for each in handle.news() if each.partial is None] == ["completed"]


def test_p38_lines_of_the_log_are_no_pieces_of_the_result(app, api, served, queue):
    handle = render(app, queue).submit("a")
    with talking(served, queue) as talk:
        held = leased(talk, queue)
        talk.result(NEWS, [[*held, None, None, "kept before"], [*held, None, b"one"]])
        news = iter(handle.news())
        assert next(news).partial == b"one"

        talk.result(NEWS, [[*held, None, None, "said later", True], [*held, None, b"two"]])
        assert next(news).partial == b"two"
        talk.result(WORK, [[*held, b'"b"', "json"]])

        assert [each.state for each in news] == ["completed"]
    found = [(each["kind"], each["payload"]) for each in api.get(f"jobs/{handle.id}/log")]
    assert found == [
        *[("log", "kept before"), ("data", "one")],
        *[("warning", "said later"), ("data", "two")],
    ]


def test_p38_coroutines_read_news_too(app, served, queue):
    async def read() -> list:
        handle = await render(app, queue).asubmit("a")
        found = []
        with talking(served, queue) as talk:
            held = leased(talk, queue)
            talk.result(NEWS, [[*held, None, b"one"]])
            async for each in handle.anews():
                found.append(each.partial or each.state)
                if each.partial is not None:
                    talk.result(WORK, [], [[*held, "x", "y", b"", False]])
        return found

    assert asyncio.run(read()) == [b"one", "failed"]


def test_p38_pieces_are_not_repeated_after_a_reconnect(served, queue):
    """P35."""
    with cutting(served.addresses["http"]) as (address, cuts), talking(served, queue) as talk:
        app = App(address)
        handle = render(app, queue).submit("a")
        held = leased(talk, queue)
        talk.result(NEWS, [[*held, None, b"one"]])
        news = iter(handle.news())
        assert next(news).partial == b"one"
        cuts.cut_all()
        talk.result(NEWS, [[*held, None, b"two"]])
        talk.result(WORK, [[*held, None, "json"]])

        rest = [each.partial or each.state for each in news]

        assert rest == [b"two", "completed"]
        app.close()


def test_p38_readers_and_waiters_share_a_job(app, served, queue):
    handle = render(app, queue).submit("a")
    found: list = []
    waiter = threading.Thread(target=lambda: found.append(handle.result()))
    waiter.start()
    with talking(served, queue) as talk:
        held = leased(talk, queue)
        talk.result(NEWS, [[*held, None, b"one"]])
        news = iter(handle.news())
        other = iter(app.handle(handle.id).news())
        assert next(news).partial == next(other).partial == b"one"
        news.close()
        talk.result(WORK, [[*held, b'"b"', "json"]])
        waiter.join()
        assert next(other).state == "completed"
    assert found == ["b"]


def test_p38_news_of_a_server_that_is_away_end_in_an_error(queue):
    app = App(own_address(), timeout=0.2)

    with pytest.raises(Unavailable):
        next(iter(app.handle("0f").news()))
    app.close()
    with pytest.raises(Refused, match="closed"):
        next(iter(app.handle("0f").news()))
