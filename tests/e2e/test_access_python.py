"""Python tasks of callers that may not do everything: who submits, and who works."""

import pytest

from manyhands import App, JobFailed
from tests.e2e.serving import SECONDS_MAX, run, serving
from tests.e2e.stream_talk import LOOK, SUBMIT, WANT, WORK, new_id, talking


def new(file, name: str, *more: str) -> str:
    made = run("access", "new", name, "--file", str(file), *more)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> dict[str, str]:
    file = tmp_path_factory.mktemp("access") / "access.toml"
    return {
        "file": str(file),
        "web": new(file, "web", "--role", "submit"),
        "crew": new(file, "crew", "--role", "work", "--queues", "merge"),
        "cooks": new(file, "cooks", "--role", "work", "--queues", "cook"),
        "mailer": new(file, "mailer", "--role", "worker", "--queues", "mail.*"),
        "helper": new(file, "helper", "--role", "worker"),
    }


@pytest.fixture(scope="module")
def guarded(tokens, tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    with serving(folder, "--store", "memory", "--access", tokens["file"]) as served:
        yield served


def declared(url: str, token: str):
    app = App(url, token=token)

    @app.task
    def cook(what: str) -> str:
        if not what:
            raise ValueError("nothing to cook")
        return what.upper()

    @app.task
    def merge(parts: list[str]) -> str:
        return " ".join(parts)

    return app, cook, merge


def test_p19_a_worker_gets_the_outputs_of_jobs_that_it_may_not_look_at(guarded, tokens):
    """S9: whoever submits gives them to it as arguments."""
    web, cook, merge = declared(guarded.url, tokens["web"])
    crew, *_ = declared(guarded.url, tokens["crew"])
    cooks, *_ = declared(guarded.url, tokens["cooks"])
    with web.batch():
        parts = [cook.submit("soup"), cook.submit("cake")]
        menu = merge.submit([part.output for part in parts])

    with crew.worker(queues=["merge"]), cooks.worker(queues=["cook"]):
        assert menu.result(SECONDS_MAX) == "SOUP CAKE"
        with pytest.raises(JobFailed, match="nothing to cook") as failed:
            cook.using(retries=0).submit("").result(SECONDS_MAX)
    assert failed.value.attempts == 1
    for app in (web, crew, cooks):
        app.close()


def looked_up(talk, *ids: str) -> list[str]:
    return [view[1] for view in talk.result(LOOK, list(ids))]


def test_a_worker_does_not_see_what_somebody_else_s_job_was_made_to_depend_on(guarded, tokens):
    """It may submit, so it could name any job whose id it knows."""
    web, cook, _ = declared(guarded.url, tokens["web"])
    cooks, *_ = declared(guarded.url, tokens["cooks"])
    with cooks.worker(queues=["cook"]):
        secret = cook.submit("soup")
        assert secret.result(SECONDS_MAX) == "SOUP"
    item = [new_id(), "mail.x", b"1", "json", {"depends_on": [secret.id]}]
    headers = {"Authorization": f"Bearer {tokens['mailer']}"}
    with talking(guarded, "patterns", additional_headers=headers) as talk:
        error, _ = talk.ask(SUBMIT, [item], False, False)
        assert error[0] == "not_allowed"  # not even that, with a job of another queue
    headers = {"Authorization": f"Bearer {tokens['helper']}"}
    with talking(guarded, "curious", additional_headers=headers) as talk:
        talk.submit(item)
        talk.result(WANT, ["mail.x"])
        talk.result(WORK, [], [], [], [], [1, 0])
        talk.jobs(1)

        assert looked_up(talk, secret.id) == ["unknown"]
    for app in (web, cooks):
        app.close()
