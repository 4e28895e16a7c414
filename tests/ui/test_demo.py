"""The demonstration that `make demo` starts: work of every protocol, and a page to look at it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

DEMO = Path(__file__).parents[2] / "examples/demo.py"
SECONDS_MAX = 180.0
REALMS = {"native", "qless", "gearman", "dwork", "wmp", "taskcluster"}


def test_the_demonstration_has_work_of_every_protocol_and_stops_cleanly(tmp_path):
    place = tmp_path / "address"
    command = [sys.executable, str(DEMO), "--free-ports", "--address-file", str(place)]
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + SECONDS_MAX
        seen: set[str] = set()
        told = 0
        while not (seen >= REALMS and told) and time.monotonic() < deadline:
            assert process.poll() is None, (tmp_path / "out").read_text()
            time.sleep(0.2)
            if place.exists() and (address := place.read_text()):
                rows = httpx.get(f"{address}/api/protocols", timeout=SECONDS_MAX).json()["results"]
                jobs = [pair for row in rows for pair in row["realms"].items()]
                seen = {realm for realm, counts in jobs if counts["jobs_in"]}
                told = sum(row["deliveries"] or 0 for row in rows)
        assert seen >= REALMS
        assert told
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(SECONDS_MAX)
    assert code == 0, (tmp_path / "out").read_text()
    assert "Traceback" not in (tmp_path / "out").read_text()
