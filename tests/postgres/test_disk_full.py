"""A database whose disk is full: a real one, with its tables on a file system of some megabytes."""

import contextlib
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.databases import Database, own_folder
from tests.e2e.serving import SECONDS_MAX, Api, serving, wait_until

SIZE = "24m"


@pytest.fixture
def small():
    """An instance that keeps new tables on a small file system."""
    folder = own_folder()
    mounted = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mounted, capture_output=True, check=False).returncode:
        folder.rmdir()
        pytest.skip("a small file system needs root and the right to mount")
    database = None
    try:
        shutil.chown(folder, "postgres", "postgres")
        database = Database()
        with database.connect() as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
        database.set("default_tablespace", "small")
        yield database
    finally:
        if database is not None:
            database.close()
        subprocess.run(["umount", str(folder)], check=True)
        Path(folder).rmdir()


def fill(database: Database) -> None:
    """Takes all the room that there is."""
    with database.connect() as connection:
        connection.execute("CREATE TABLE filler(data text) WITH (autovacuum_enabled = off)")
        connection.execute("ALTER TABLE filler ALTER data SET STORAGE EXTERNAL")
        for size in (2_000_000, 200_000, 20_000, 2_000):
            with contextlib.suppress(psycopg.errors.DiskFull):
                while True:
                    connection.execute("INSERT INTO filler VALUES(repeat('x', %s))", (size,))


def submit(url: str) -> httpx.Response:
    body = {"queue": "q", "payload": "x" * 20_000}
    return httpx.post(f"{url}/api/submit", json=body, timeout=SECONDS_MAX)


def test_submits_are_refused_while_the_disk_is_full_and_nothing_is_lost(tmp_path, small):
    """S57, S74: everything else waits; it goes on by itself once there is room."""
    with (
        serving(tmp_path, "--store", small.url()) as server,
        closing(Api(server)) as api,
        ThreadPoolExecutor(1) as threads,
    ):
        before = api.results("submit", queue="q", payload="first")["id"]
        fill(small)

        waiting = threads.submit(submit, server.url)  # it meets the full disk
        wait_until(lambda: "manyhands_store_full 1.0" in httpx.get(f"{server.url}/metrics").text)
        refused = submit(server.url)

        assert refused.json()["error"]["code"] == "store_full"
        assert not waiting.done()
        with small.connect() as connection:
            connection.execute("DROP TABLE filler")
        answer = waiting.result(SECONDS_MAX)
        assert answer.status_code == 200
        wait_until(lambda: submit(server.url).status_code == 200)
        jobs = {job["id"] for job in api.get("jobs?queue=q&count=1000")}
        assert {before, answer.json()["results"]["id"]} < jobs
        (claimed,) = api.results("claim", queue="q", worker="w", count=1)
        assert claimed["id"] == before
        assert server.stop() == 0
