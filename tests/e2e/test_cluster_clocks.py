"""Servers whose machines' clocks are hours apart. They are real; a library before libc's shifts
what the system tells each of them.
"""

import shutil
import subprocess
import time
from contextlib import closing

import pytest

from tests.e2e.cluster import running
from tests.e2e.serving import Api, wait_until

HOURS = 3600
SHIFT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long shift(void) {
    const char *given = getenv("SHIFT_SECONDS");
    return given ? atol(given) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *found) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, found);
    if (code == 0 && clock == CLOCK_REALTIME) found->tv_sec += shift();
    return code;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("shift")
    source, built = folder / "shift.c", folder / "shift.so"
    source.write_text(SHIFT)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", built, source, "-ldl"], check=True)
    return built


@pytest.fixture
def start(postgresql, tmp_path, monkeypatch, library):
    """Starts a server of the cluster whose clock is so many hours ahead."""
    with running(tmp_path, postgresql) as cluster:

        def start_one(name: str, hours: int) -> Api:
            monkeypatch.setenv("LD_PRELOAD", str(library))
            monkeypatch.setenv("SHIFT_SECONDS", str(hours * HOURS))
            server = cluster.start(name)
            monkeypatch.delenv("LD_PRELOAD")
            return Api(server)

        start_one.cluster = cluster
        yield start_one


def test_servers_whose_clocks_are_hours_apart_agree_on_time(start):
    """S19, S22 and S73: nobody is taken for dead, a delay is as long as it is, a lease keeps its
    time when another server takes over, and each shows how far its machine is off.
    """
    cluster = start.cluster
    with closing(start("a", 5)) as ahead, closing(start("b", -5)) as behind:
        cluster.until_ready()
        offsets = {
            row["name"]: row["clock_offset_ms"] for row in wait_until(lambda: beaten(cluster))
        }
        assert offsets["a"] == pytest.approx(5 * HOURS * 1000, abs=60_000)
        assert offsets["b"] == pytest.approx(-5 * HOURS * 1000, abs=60_000)

        delayed = behind.results("submit", queue="later", delay_ms=1_500)["id"]
        assert ahead.get(f"jobs/{delayed}")["state"] == "delayed"
        began = time.monotonic()
        wait_until(lambda: behind.get(f"jobs/{delayed}")["state"] == "ready")
        assert time.monotonic() - began < 60

        leased = ahead.results("submit", queue="held")["id"]
        (held,) = ahead.results("claim", queue="held", worker="w", term_ms=600_000, count=1)
        cluster.kill("a")
        wait_until(lambda: behind.get("queues/held")["counts"]["leased"] == 1)
        wait_until(lambda: cluster.decider() == "b")
        behind.results("complete", id=leased, token=held["token"])
        found = behind.get(f"jobs/{leased}")
        assert found["state"] == "completed"
        assert abs(found["finished_at"] / 1000 - time.time()) < 60


def beaten(cluster) -> list[dict] | None:
    """What both servers said of themselves, once both have."""
    seen = cluster.servers_seen("a")
    is_known = len(seen) == 2 and all(abs(row["clock_offset_ms"]) > HOURS for row in seen)
    return seen if is_known else None
