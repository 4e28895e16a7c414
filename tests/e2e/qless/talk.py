"""The qless API as tests speak it."""

import json
import socket
from collections import deque
from urllib.parse import quote

import httpx

from tests.e2e import described
from tests.e2e.serving import Served, wait_until

__all__ = ["Qless", "Wire", "wait_until"]


class Qless:
    """A client; `host` names the worker that it is."""

    def __init__(self, served: Served, host: str | None = None) -> None:
        self.served = served
        self.host = host
        self.http = httpx.Client(base_url=served.url, timeout=120.0)

    def close(self) -> None:
        self.http.close()

    def also(self, host: str) -> "Qless":
        """Another worker on the same connections."""
        other = Qless.__new__(Qless)
        other.served, other.host, other.http = self.served, host, self.http
        return other

    def post(self, path: str, data, **headers) -> httpx.Response:
        body = {"data": data}
        if self.host is not None:
            body["host"] = self.host
        return self.http.post(path, json=body, headers=headers)

    def told(self, path: str, data, **headers) -> tuple:
        """The results, and the codes of what was refused, by index."""
        response = self.post(path, data, **headers)
        assert response.status_code == 200, response.text
        envelope = response.json()
        assert "error" not in envelope
        errors = envelope.get("errors", [])
        return envelope["results"], {row["index"]: row["code"] for row in errors}

    def results(self, path: str, data, **headers):
        """The results; nothing may have been refused."""
        found, refused = self.told(path, data, **headers)
        assert not refused, refused
        return found

    def add(self, queue: str, *metas, **options) -> list[str]:
        """Jobs of these metas, all with the same options."""
        return self.results(f"/add/{queue}", [{"meta": meta, **options} for meta in metas])

    def add_id(self, queue: str, job_id: str, meta=None, **options) -> str:
        [found] = self.results(f"/add/{queue}", [{"id": job_id, "meta": meta, **options}])
        return found

    def take(self, queue: str, count: int | None = None, **query):
        """What a worker is given."""
        if self.host is not None:
            query.setdefault("host", self.host)
        path = f"/get/{quote(queue, safe='')}" + (f"/{count}" if count is not None else "")
        return self.get(path, **query)

    def get(self, path: str, **query):
        response = self.http.get(path, params=query)
        assert response.status_code == 200, response.text
        assert "error" not in response.json()
        return response.json()["results"]

    def problem(self, response: httpx.Response) -> tuple[int, str]:
        """The status and the code of an error."""
        envelope = response.json()
        assert envelope["results"] is None
        assert envelope["error"]["message"]
        assert "total" in envelope["time"]
        return response.status_code, envelope["error"]["code"]

    def set(self, queue: str, **settings):
        return self.results(f"/queues/{queue}", settings)

    def complete(self, queue: str, *ids: str, meta=None, **options):
        return self.results(
            f"/complete/{queue}", [{"id": job_id, "meta": meta, **options} for job_id in ids]
        )

    def beat(self, queue: str, *items):
        return self.told(f"/heartbeat/{queue}", list(items))

    def job(self, job_id: str):
        return self.get(f"/job/{job_id}")

    def state(self, job_id: str) -> tuple[str, str | None]:
        found = self.job(job_id)
        return found["state"], found["detail"]

    def queue(self, name: str):
        return self.get(f"/queues/{quote(name, safe='')}")

    def counts(self, name: str, *keys: str) -> list[int]:
        found = self.queue(name)
        return [found[key] for key in keys]


class Wire:
    """A bare connection, for what no library would send."""

    def __init__(self, served: Served) -> None:
        host, port = served.addresses["http"].split(":")
        self.peer = socket.create_connection((host, int(port)), timeout=90)
        self._file = self.peer.makefile("rb")
        self._asked: deque[tuple[str, str]] = deque()  # and not answered yet
        self.host = f"{host}:{port}"

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        given = {"Host": self.host, **{k.replace("_", "-"): v for k, v in headers.items()}}
        if body or method == "POST":
            given.setdefault("Content-Length", str(len(body)))
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in given.items())
        self._asked.append((method, path))
        self.peer.sendall(head.encode("latin-1") + b"\r\n" + body)

    def answer(self, *, body: bool = True) -> tuple[int, dict[str, str], bytes]:
        """The status, the headers, the body."""
        file = self._file
        status = int(file.readline().split()[1])
        headers = {}
        while (line := file.readline().strip()) != b"":
            name, _, value = line.decode("latin-1").partition(": ")
            headers[name.lower()] = value
        size = int(headers.get("content-length", 0)) if body else 0
        content = file.read(size)
        if self._asked and status >= 200:
            asked = self._asked.popleft()
            if content and headers.get("content-type", "").startswith("application/json"):
                described.check(*asked, status, content)
        return status, headers, content

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, str]:
        """The status and the code of the error."""
        self.send(method, path, body, **headers)
        status, _, found = self.answer(body=method != "HEAD")
        return status, json.loads(found)["error"]["code"] if found else ""

    def close(self) -> None:
        self._file.close()
        self.peer.close()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
