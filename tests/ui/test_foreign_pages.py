"""Pages of other sites cannot have work taken, in a real browser, whatever the server is called."""

import http.server
import threading

import pytest

from tests.e2e.serving import Api, serving
from tests.ui.conftest import CHROMIUM

_PAGE = """<!doctype html><title>elsewhere</title>
<img src="{url}/get/{queue}/3"><img src="{url}/{queue}/3">
<img src="{url}/0.2.0/claim-work/default/{queue}?worker_group=g&worker_id=w">
<link rel="prefetch" href="{url}/get/{queue}">
<iframe src="{url}/get/{queue}"></iframe>
<script src="{url}/get/{queue}"></script>
<script>
fetch("{url}/get/{queue}", {{mode: "no-cors", credentials: "include"}}).catch(() => 0)
fetch("{url}/get/{queue}", {{mode: "no-cors", referrerPolicy: "no-referrer"}}).catch(() => 0)
</script>"""


@pytest.fixture(scope="module")
def chromium(browser):
    """For which `jobs.example` and `evil.example` are here."""
    rules = "MAP *.example 127.0.0.1"
    args = ["--no-sandbox", f"--host-resolver-rules={rules}"]
    found = browser.browser_type.launch(executable_path=CHROMIUM, args=args, timeout=180_000)
    yield found
    found.close()


@pytest.fixture
def another_site():
    """Serves one page; gives where it is, and a dictionary to put the page into."""
    content = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(content["page"].encode())

        def log_message(self, *_):
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port, content
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("name", ["jobs.example", "localhost"])
def test_a_page_of_another_site_takes_no_work(tmp_path, chromium, another_site, name):
    port, content = another_site
    with serving(tmp_path, "--store", "memory", "--server-name", "jobs.example") as served:
        api = Api(served)
        api.results("submit", items=[{"queue": "q"} for _ in range(9)])
        ours = f"http://{name}:{served.url.rpartition(':')[2]}"
        content["page"] = _PAGE.format(url=ours, queue="q")
        page = chromium.new_page()
        asked, answers = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("response", lambda answer: answers.append((answer.url, answer.status)))

        page.goto(f"http://evil.example:{port}/", wait_until="networkidle")

        assert len([url for url in asked if url.startswith(ours)]) >= 7
        assert {status for url, status in answers if url.startswith(ours)} == {403}
        assert api.get("queues/q")["counts"]["ready"] == 9
        page.goto(f"{ours}/ui/")
        taken = page.evaluate("fetch('/get/q').then(answer => answer.status)")
        assert taken == 200
        page.close()
        api.close()


_FETCHING = """<!doctype html><title>an application</title><script>
window.found = (async () => {{
  const body = JSON.stringify({{queue: "q", payload: 1}})
  const headers = {{"Content-Type": "application/json", "Idempotency-Key": "k"}}
  const added = await fetch("{url}/api/submit", {{method: "POST", body, headers}})
  const stream = new WebSocket("{url}/api/stream".replace("http", "ws"), "manyhands.1")
  const opened = await new Promise(done => {{
    stream.onopen = () => done(true)
    stream.onerror = () => done(false)
  }})
  return [added.status, (await added.json()).results.queue, opened]
}})().catch(error => String(error))
</script>"""


@pytest.mark.parametrize("is_named", [True, False])
def test_a_page_of_a_named_origin_uses_the_apis_and_no_other_does(
    tmp_path, chromium, another_site, is_named
):
    port, content = another_site
    named = f"http://app.example:{port}" if is_named else "http://else.example"
    with serving(
        tmp_path, "--store", "memory", "--server-name", "jobs.example", "--cors-origins", named
    ) as served:
        ours = f"http://jobs.example:{served.url.rpartition(':')[2]}"
        content["page"] = _FETCHING.format(url=ours)
        page = chromium.new_page()

        page.goto(f"http://app.example:{port}/")
        found = page.evaluate("window.found")
        page.close()

    if is_named:
        assert found == [200, "q", True]
    else:
        assert found == "TypeError: Failed to fetch"
