"""How much memory there is for a server that may not use all of the machine's."""

import os

from manyhands.operate.machine import memory_bytes, quarter_of_machine

WHOLE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def make(tmp_path, line, files):
    cgroup, root = tmp_path / "cgroup", tmp_path / "root"
    cgroup.write_text(line + "\n")
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return cgroup, root


def test_without_a_bound_all_of_the_machines_memory_counts(tmp_path):
    none = tmp_path / "none"

    assert memory_bytes(none, none) == WHOLE
    assert memory_bytes(*make(tmp_path, "0::/a", {"a/memory.max": "max"})) == WHOLE


def test_the_least_bound_of_the_groups_around_us_counts(tmp_path):
    files = {"a/b/memory.max": "30000000", "a/memory.max": "20000000", "memory.max": "max"}

    assert memory_bytes(*make(tmp_path, "0::/a/b", files)) == 20_000_000


def test_inside_of_a_container_the_root_is_our_own_group(tmp_path):
    found = make(tmp_path, "0::/system.slice/outside", {"memory.max": "50000000"})

    assert memory_bytes(*found) == 50_000_000


def test_groups_of_the_first_version_are_looked_at_too(tmp_path):
    line = "5:cpu:/x\n4:memory:/x"
    found = make(tmp_path, line, {"memory/x/memory.limit_in_bytes": "70000000"})

    assert memory_bytes(*found) == 70_000_000


def test_a_server_takes_a_quarter_unless_that_is_too_little_to_live_on():
    assert quarter_of_machine() >= 64 * 1024 * 1024
