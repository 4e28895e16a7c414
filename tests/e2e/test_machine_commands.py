"""`manyhands restore` and `manyhands doctor`: a machine, its disk, and a store on it."""

import json
import socket

import pytest

from tests.conformance.stores.opened import Opened
from tests.e2e.serving import Api, own_port, run, serving

LISTENERS = ("http", "gearman", "dwork", "wmp", "amqp")


@pytest.fixture
def backup(tmp_path):
    """A backup with three jobs and an artifact."""
    opened = Opened("sqlite", tmp_path / "first")
    for number in range(3):
        opened.submit(payload=b"payload %d" % number)
    opened.commit()
    opened.close()
    file = tmp_path / "copy.db"
    ended = run("backup", str(file), "--data", str(opened.directory))
    assert ended.returncode == 0, ended.stderr
    (tmp_path / "copy.db.artifacts").mkdir()
    (tmp_path / "copy.db.artifacts" / "kept").write_text("artifact")
    return file


def test_a_backup_is_restored_into_a_new_directory_and_served(backup, tmp_path):
    folder = tmp_path / "second"
    folder.mkdir()

    ended = run("restore", str(backup), "--data", str(folder / "data"))

    assert ended.returncode == 0, ended.stderr
    assert "bytes checked and restored in" in ended.stdout
    assert (folder / "data" / "manyhands.db").stat().st_mode & 0o077 == 0
    assert (folder / "data" / "artifacts" / "kept").read_text() == "artifact"
    (folder / "data" / "artifacts" / "kept").unlink()
    with serving(folder) as served:
        api = Api(served)
        assert len(api.get("jobs")) == 3
        api.close()


def test_a_store_that_is_there_is_never_overwritten(backup, tmp_path):
    ended = run("restore", str(backup), "--data", str(tmp_path / "first"))

    assert ended.returncode == 1
    place = tmp_path / "first" / "manyhands.db"
    assert ended.stderr == (
        f"manyhands: {place} already exists. Move it away, or name another directory with --data.\n"
    )


def test_a_damaged_backup_is_not_restored(backup, tmp_path):
    data = bytearray(backup.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4096] = b"\xff" * 4096
    backup.write_bytes(data)

    ended = run("restore", str(backup), "--data", str(tmp_path / "second"))

    assert ended.returncode == 1
    assert "damaged" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "second" / "manyhands.db").exists()


@pytest.mark.parametrize("content", [b"", b"no database at all", None])
def test_what_is_no_backup_is_refused_with_a_sentence(tmp_path, content):
    file = tmp_path / "copy.db"
    if content is not None:
        file.write_bytes(content)

    ended = run("restore", str(file), "--data", str(tmp_path / "second"))

    assert ended.returncode == 1
    assert ended.stderr.startswith(f"manyhands: {file} is")
    assert "Traceback" not in ended.stderr


def test_a_directory_that_a_server_uses_is_refused(backup, tmp_path):
    folder = tmp_path / "second"
    folder.mkdir()
    with serving(folder) as served:
        ended = run("restore", str(backup), "--data", str(served.data))

    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr


def config_of(tmp_path, **addresses: str):
    file = tmp_path / "manyhands.toml"
    rows = {name: addresses.get(name, "off") for name in LISTENERS}
    file.write_text("".join(f'{name} = "{address}"\n' for name, address in rows.items()))
    return file


def examined(tmp_path, file, *more: str):
    ended = run(
        *("doctor", "--config", str(file), "--data", str(tmp_path / "data"), "--json"),
        *("--url", f"http://127.0.0.1:{own_port()}", *more),
    )
    assert "Traceback" not in ended.stderr
    return ended.returncode, [json.loads(line) for line in ended.stdout.splitlines()]


def test_the_doctor_finds_a_machine_fit_for_the_server(tmp_path):
    address = f"127.0.0.1:{own_port()}"

    code, found = examined(tmp_path, config_of(tmp_path, http=address))

    by_name = {row["what"]: row for row in found}
    assert code == 0
    assert set(by_name) == {
        *("versions", "configuration", "data directory", "disk", "sync", "memory"),
        *("open files", "clock", "server", "ports"),
    }
    assert by_name["ports"]["sentence"] == f"free: http {address}."
    assert by_name["data directory"]["sentence"].endswith("data will be created.")
    assert not (tmp_path / "data").exists()


def test_the_doctor_names_the_listener_whose_port_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, found = examined(tmp_path, config_of(tmp_path, gearman=address))

    assert code == 1
    assert [row["sentence"] for row in found if row["level"] == "bad"] == [
        f"gearman cannot listen on {address}: Address already in use; --gearman HOST:PORT takes "
        "another one, --gearman off starts without it."
    ]


def test_the_doctor_explains_a_wrong_configuration(tmp_path):
    file = tmp_path / "manyhands.toml"
    file.write_text('ride_ms = "soon"\n')

    code, found = examined(tmp_path, file)

    assert code == 1
    assert found[-1]["what"] == "configuration"
    assert "ride_ms cannot be" in found[-1]["sentence"]


def test_the_doctor_examines_a_server_that_runs(served, tmp_path):
    file = config_of(tmp_path, http=served.addresses["http"])

    ended = run("doctor", "--config", str(file), "--data", str(tmp_path), "--url", served.url)

    assert ended.returncode == 0
    assert f"ok\tserver\t{served.url} is ready" in ended.stdout
    assert f"in use, as expected while it runs: http {served.addresses['http']}." in ended.stdout
