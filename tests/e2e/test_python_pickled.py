"""Any function as a job, signed, where both sides allow it (P72)."""

import pytest

from manyhands import App, Executor, JobFailed
from manyhands.client import pickled
from tests.e2e.serving import SECONDS_MAX, wait_until
from tests.e2e.working import working

KEY = "a-secret-of-this-test"
MODULE = f"""
    import os
    os.environ["MANYHANDS_PICKLE_KEY"] = {KEY!r}
    from manyhands import App
    app = App()

    @app.task
    def other() -> None: ...
"""


@pytest.fixture
def app(served, monkeypatch):
    monkeypatch.setenv("MANYHANDS_PICKLE_KEY", KEY)
    app = App(served.url)
    yield app
    app.close()


def test_p72_any_function_is_worked_where_it_is_allowed(app, served, tmp_path, monkeypatch):
    factor = 3
    with (
        working(served.url, tmp_path, "--allow-pickle", code=MODULE),
        Executor(app, pickle=True) as pool,
    ):
        assert pool.submit(lambda n: {n: factor * n}, 2).result(SECONDS_MAX) == {2: 6}
        assert list(pool.map(lambda a, b: a + b, [1, 2], [3, 4])) == [4, 6]

        monkeypatch.setenv("MANYHANDS_PICKLE_KEY", "another-secret-of-this-test")
        with Executor(app, pickle=True) as other, pytest.raises(JobFailed) as found:
            other.submit(print, "never").result(SECONDS_MAX)
        assert found.value.code == "bad_signature"
        assert found.value.attempts == 1


def test_p72_a_worker_that_does_not_allow_it_takes_no_such_jobs(app, served, tmp_path):
    with Executor(app, pickle=True) as pool:
        future = pool.submit(lambda: 1)
        with working(served.url, tmp_path, code=MODULE) as worker:
            wait_until(lambda: list(app.client.jobs(queue=pickled.NAME, state="ready")))
            assert pickled.NAME not in worker.log()
        assert future.cancel()


def test_p72_a_key_is_needed_on_both_sides(app, monkeypatch):
    for key in ("", "short"):
        monkeypatch.setenv("MANYHANDS_PICKLE_KEY", key)
        with pytest.raises(ValueError, match="MANYHANDS_PICKLE_KEY"):
            Executor(app, pickle=True)
        monkeypatch.setenv("MANYHANDS_WORKER_ALLOW_PICKLE", "true")
        with pytest.raises(ValueError, match="MANYHANDS_PICKLE_KEY"):
            pickled.allow(app)


def test_p72_bytes_are_checked_before_they_are_unpickled():
    key = b"k" * 16
    sealed = pickled.sealed([1, 2], key)

    assert pickled.opened(sealed, key) == [1, 2]
    for wrong in (b"", sealed[:-1], sealed[:40] + b"x" + sealed[41:], b"x" * 200):
        with pytest.raises(pickled.BadSignature):
            pickled.opened(wrong, key)
    with pytest.raises(pickled.BadSignature):
        pickled.opened(sealed, b"j" * 16)
