"""Servers behind a proxy, which answers by itself while they restart."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from manyhands import App, Refused, Unavailable
from tests.unit.client.fake_server import SUBMIT, fake_server

SECONDS_MAX = 90.0
JOB = (
    b'{"results": {"id": "0f", "queue": "q", "state": "ready", "attempts_used": 0,'
    b' "submitted_at": 1, "entered_at": 1}}'
)


@contextmanager
def proxy(*statuses: int) -> Iterator[str]:
    """The address of one that answers like this, and then passes requests on."""
    left = list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b"<html>nginx</html>" if left else JOB
            self.send_response(left.pop(0) if left else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer  # noqa: N815 - names that the class looks for

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_p35_a_stream_is_tried_again_while_a_proxy_has_no_server():
    with fake_server() as server:
        server.statuses = [502, 503, 504, 429]
        app = App(server.url, timeout=SECONDS_MAX)

        @app.task
        def work(n: int) -> int: ...

        assert work.submit(1).id == server.notes(SUBMIT)[0][2][0][0]
        assert server.statuses == []
        app.close()


def test_p35_the_state_is_asked_for_again_while_a_proxy_has_no_server():
    with proxy(502, 503, 504) as url:
        app = App(url, timeout=SECONDS_MAX)
        assert app.handle("0f").status().state == "ready"
        app.close()


@pytest.mark.parametrize(
    ("status", "maybe_accepted"), [(502, True), (504, True), (503, False), (429, False)]
)
def test_p31_a_request_that_a_proxy_answers_is_unavailable(status, maybe_accepted):
    """A gateway may have passed it on before it gave up."""
    with proxy(status) as url:
        app = App(url)
        with pytest.raises(Unavailable, match=f"answered with status {status}") as found:
            app.client.request("POST", "/api/submit", {"queue": "q"})
        assert found.value.maybe_accepted is maybe_accepted
        app.close()


def test_p31_another_answer_without_an_envelope_is_a_refusal():
    with proxy(403) as url:
        app = App(url)
        with pytest.raises(Refused, match="answered with status 403") as found:
            app.client.request("POST", "/api/submit", {"queue": "q"})
        assert not isinstance(found.value, Unavailable)
        app.close()


def test_p34_another_server_is_asked_while_a_proxy_has_none():
    with proxy(502) as first, proxy() as second:
        app = App(f"{first}, {second}")
        assert app.client.request("GET", "/api/jobs/0f")["state"] == "ready"
        app.close()
