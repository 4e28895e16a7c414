"""Several servers on a PostgreSQL whose disk is full: submits are refused, also where they are only
passed on, everything else waits, and nothing that was acknowledged is lost.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.databases import Database, own_folder
from tests.e2e.cluster import running
from tests.e2e.serving import wait_until

_MEBIBYTES = 24


class SmallDisk:
    """A file system of its own, for the tables of a database; it can be filled and cleared."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rest = folder / "rest"

    def fill(self) -> None:
        with self._rest.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def clear(self) -> None:
        self._rest.unlink()


@pytest.fixture
def small_disk(postgresql) -> Iterator[SmallDisk]:
    folder = own_folder()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_MEBIBYTES}m", "tmpfs", str(folder)]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        folder.rmdir()
        pytest.skip("a small disk cannot be mounted here")
    place = folder / "tables"
    place.mkdir(mode=0o700)
    shutil.chown(place, "postgres", "postgres")
    try:
        with postgresql.connect() as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
            connection.execute("CREATE DATABASE small TABLESPACE small")
        yield SmallDisk(folder)
        with postgresql.connect() as connection:
            connection.execute("DROP DATABASE small WITH (FORCE)")
            connection.execute("DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


class OnSmallDisk:
    """The database, for servers."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.new_schema = database.new_schema

    def url(self, schema: str) -> str:
        return self._database.url(schema, "small")


def test_a_full_disk_refuses_submits_and_loses_nothing(tmp_path, postgresql, small_disk):
    with running(tmp_path, OnSmallDisk(postgresql), "a", "b") as cluster:
        owner = cluster.decider()
        (front,) = set(cluster.servers) - {owner}
        url = cluster.servers[front].url
        accepted: list[str] = []

        def submit() -> httpx.Response:
            body = {"queue": "q", "payload": os.urandom(30_000).hex()}
            answer = httpx.post(f"{url}/api/submit", json=body, timeout=60.0)
            if answer.status_code == 200:
                accepted.append(answer.json()["results"]["id"])
            return answer

        def submit_until_refused() -> httpx.Response:
            return wait_until(lambda: next((a for a in [submit()] if a.status_code != 200), None))

        submit()
        small_disk.fill()
        with ThreadPoolExecutor() as pool:
            # The first ones wait for the commit that found no room.
            waiting = [pool.submit(lambda: [submit() for _ in range(30)]) for _ in range(3)]
            metrics = f"{cluster.servers[owner].url}/metrics"
            wait_until(lambda: "\nmanyhands_store_full 1.0\n" in httpx.get(metrics).text)
            refused = submit_until_refused()
            assert refused.json()["error"]["code"] == "store_full", refused.text
            assert refused.status_code == 503
            small_disk.clear()
            wait_until(lambda: submit().status_code == 200)
            for each in waiting:
                each.result()

        for server in cluster.servers.values():
            found: set[str] = set()
            after = ""
            while after is not None:
                answer = httpx.get(
                    f"{server.url}/api/jobs?queue=q&count=1000{after}", timeout=60.0
                ).json()
                found |= {job["id"] for job in answer["results"]}
                after = f"&after={answer['next']}" if answer["next"] else None
            assert found == set(accepted)
        assert all(server.process.poll() is None for server in cluster.servers.values())
