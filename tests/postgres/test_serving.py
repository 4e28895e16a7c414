"""The real program on a real PostgreSQL: what survives, who may start, and what is refused."""

import json
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise

import httpx
import psycopg
import pytest

from manyhands.store.postgres.schema import VERSION
from tests.databases import database, own_folder
from tests.e2e.serving import Api, command, environment, own_port, run, serving, start, wait_until


@pytest.fixture
def store(postgresql):
    return postgresql.url(postgresql.new_schema())


def submit(api: Api, queue: str, count: int, **fields) -> list[str]:
    items = [{"queue": queue, "payload": number, **fields} for number in range(count)]
    return [row["id"] for row in api.results("submit", items=items)]


def work_off(api: Api, queue: str, count: int) -> list[str]:
    claimed = api.results("claim", queue=queue, count=count)
    for job in claimed:
        api.results("complete", id=job["id"], token=job["token"], result="done")
    return [job["id"] for job in claimed]


def states(api: Api, ids: list[str]) -> list[str]:
    return [api.get(f"jobs/{job_id}")["state"] for job_id in ids]


def failed_start(tmp_path, *arguments: str) -> tuple[int, str]:
    """How a server that cannot start ends."""
    given = ["serve", "--http", "off", "--gearman", "off", "--data", str(tmp_path / "data")]
    ended = subprocess.run(
        command(*given, "--dwork", "off", "--wmp", "off", "--amqp", "off", *arguments),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return ended.returncode, ended.stderr


def test_jobs_events_and_settings_survive_a_stop_and_a_start(tmp_path, store):
    with serving(tmp_path, "--store", store) as served:
        api = Api(served)
        api.http.put("/api/queues/q", json={"policy": {"attempts_max": 3}}).raise_for_status()
        ids = submit(api, "q", 5)
        worked = work_off(api, "q", 2)
        last = api.get("about")["store"]
        api.close()
        assert served.stop() == 0
    with serving(tmp_path, "--store", store) as served:
        api = Api(served)

        assert states(api, worked) == ["completed"] * 2
        assert len(work_off(api, "q", 10)) == 3
        assert states(api, ids) == ["completed"] * 5
        assert api.get("queues/q")["policy"]["attempts_max"] == 3
        assert api.get("about")["store"]["tenure"] > last["tenure"]
        api.close()


def test_nothing_acknowledged_is_lost_when_the_server_is_killed_again_and_again(tmp_path, store):
    """S66."""
    ids: list[str] = []
    worked: list[str] = []
    for _ in range(4):
        served = start(tmp_path, "--store", store)
        api = Api(served)
        ids += submit(api, "q", 20)
        worked += work_off(api, "q", 5)
        served.process.kill()  # at once: its journal may not be applied
        served.process.wait()
        api.close()
    with serving(tmp_path, "--store", store) as served:
        api = Api(served)

        assert states(api, worked) == ["completed"] * len(worked)
        assert len(set(worked)) == len(worked)
        rest = work_off(api, "q", 1000)
        assert sorted(rest + worked) == sorted(ids)
        events = api.get("events?after=0&count=1000")
        numbers = [event["seq"] for event in events]
        assert all(after == before + 1 for before, after in pairwise(numbers))
        api.close()


def test_clients_wait_while_the_database_restarts_and_nothing_is_lost(tmp_path):
    """S7 and S68."""
    with database(durable=True) as one:
        (tmp_path / "server").mkdir()
        with serving(tmp_path / "server", "--store", one.url()) as served:
            api = Api(served)
            ids = submit(api, "q", 10)
            for _ in range(3):
                one.restart()
                ids += submit(api, "q", 10)
            worked = work_off(api, "q", 100)

            assert sorted(worked) == sorted(ids)
            assert "the database answers again" in served.log()
            assert len(api.get("jobs?queue=q&state=completed&count=100")) == 40
            api.close()
            assert served.stop() == 0


def test_a_second_server_is_refused_while_the_first_lives(tmp_path, store):
    """S17."""
    with serving(tmp_path, "--store", store, "--server-name", "first"):
        code, text = failed_start(tmp_path, "--store", store)

    assert code == 1
    assert "server first" in text
    assert "already uses this database" in text


def test_a_server_that_was_taken_over_ends_with_code_4(tmp_path, postgresql):
    """S8."""
    schema = postgresql.new_schema()
    with serving(tmp_path, "--store", postgresql.url(schema)) as served:
        api = Api(served)
        submit(api, "q", 1)
        with postgresql.connect() as connection:
            connection.execute(f"UPDATE {schema}.tenures SET state = 'closing', closed_by = 99")
            connection.execute(
                f"INSERT INTO {schema}.journal SELECT tenure, 1000000, 1, '' FROM {schema}.tenures"
            )

        assert served.process.wait(60) == 4
        assert "another server has taken over" in served.log()
        api.close()


def test_a_stopped_server_is_replaced_and_fenced_when_it_wakes(tmp_path, store):
    """S67."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    sleeper = start(tmp_path / "a", "--store", store)
    api = Api(sleeper)
    ids = submit(api, "q", 3)
    sleeper.process.send_signal(signal.SIGSTOP)
    try:
        with serving(tmp_path / "b", "--store", store) as heir:
            other = Api(heir)
            assert sorted(work_off(other, "q", 10)) == sorted(ids)
            sleeper.process.send_signal(signal.SIGCONT)

            assert sleeper.process.wait(60) == 4
            assert states(other, ids) == ["completed"] * 3
            other.close()
    finally:
        if sleeper.process.poll() is None:
            sleeper.process.kill()
            sleeper.process.wait()
        api.close()


def test_a_finished_job_is_found_and_run_again_although_it_has_left_memory(tmp_path, store):
    """S38."""
    with serving(tmp_path, "--store", store) as served:
        api = Api(served)
        (job_id,) = submit(api, "q", 1, id="c0ffee")
        work_off(api, "q", 1)
        wait_until(lambda: api.get("jobs?queue=q&state=completed"))
        api.results("requeue", id=job_id)

        assert states(api, [job_id]) == ["ready"]
        assert work_off(api, "q", 1) == [job_id]
        api.close()


@pytest.fixture
def guarded(postgresql):
    """A role that has to show its password."""
    with postgresql.connect() as connection:
        connection.execute("DROP ROLE IF EXISTS guarded")
        connection.execute("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'right'")
    rules = postgresql.data / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + before)
    try:
        with postgresql.connect() as connection:
            connection.execute("SELECT pg_reload_conf()")
        yield postgresql
    finally:
        rules.write_text(before)


def test_a_wrong_password_is_refused_and_not_shown(tmp_path, guarded):
    """S62."""
    url = guarded.url(user="guarded:verysecret")

    def refused() -> bool:
        code, text = failed_start(tmp_path, "--store", url)
        assert "verysecret" not in text
        return code == 1 and "password authentication failed" in text

    wait_until(refused)


def test_why_the_database_cannot_be_reached_any_more_is_in_the_log(tmp_path, guarded):
    """S7: nothing is acknowledged until it can."""

    def set_password(password: str) -> None:
        with guarded.connect() as connection:
            connection.execute(f"ALTER ROLE guarded PASSWORD '{password}'")

    url = guarded.url(guarded.new_schema(), user="guarded:right")
    with (
        serving(tmp_path, "--store", url) as served,
        closing(Api(served)) as api,
        ThreadPoolExecutor(1) as threads,
    ):
        submit(api, "q", 1)
        set_password("another")
        guarded.terminate()
        waiting = threads.submit(submit, api, "q", 1)
        wait_until(lambda: "password authentication failed" in served.log())
        assert not waiting.done()
        set_password("right")

        assert waiting.result(60)
        assert "guarded:right" not in served.log()


def test_a_role_without_rights_is_told_what_it_needs(tmp_path, postgresql):
    """S3."""
    schema = postgresql.new_schema()
    with postgresql.connect() as connection:
        connection.execute("DROP ROLE IF EXISTS poor")
        connection.execute("CREATE ROLE poor LOGIN")
    made = run("migrate", "--store", postgresql.url(schema))
    code, text = failed_start(tmp_path, "--store", postgresql.url(schema, user="poor"))

    assert made.returncode == 0, made.stderr
    assert code == 1
    assert "permission denied" in text
    assert "SELECT, INSERT, UPDATE and DELETE" in text


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        ("ALTER ROLE odd SET synchronous_commit = off", "synchronous_commit = off"),
        ("ALTER ROLE odd SET default_transaction_read_only = on", "read-only"),
    ],
)
def test_a_database_that_cannot_keep_a_promise_is_refused(tmp_path, postgresql, prepare, sentence):
    """S5 and S7."""
    with postgresql.connect() as connection:
        connection.execute("DROP ROLE IF EXISTS odd")
        connection.execute("CREATE ROLE odd LOGIN SUPERUSER")
        connection.execute(prepare)
    code, text = failed_start(tmp_path, "--store", postgresql.url("odd", user="odd"))

    assert code == 1
    assert sentence in text


def test_a_role_that_is_not_there_is_named(tmp_path, postgresql):
    code, text = failed_start(tmp_path, "--store", postgresql.url(user="nobody"))

    assert code == 1
    assert 'role "nobody" does not exist. Check the user and the password' in text


@pytest.mark.parametrize("columns", ["key text, value text", "something integer"])
def test_a_schema_of_somebody_else_is_refused(tmp_path, postgresql, columns):
    schema = postgresql.new_schema()
    with postgresql.connect() as connection:
        connection.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.facts({columns})")
    code, text = failed_start(tmp_path, "--store", postgresql.url(schema))

    assert code == 1
    assert f"the schema {schema} has a table named facts that is not of manyhands" in text


def test_tables_of_a_newer_version_are_refused(tmp_path, postgresql):
    """S60."""
    schema = postgresql.new_schema()
    run("migrate", "--store", postgresql.url(schema))
    with postgresql.connect() as connection:
        connection.execute(f"UPDATE {schema}.facts SET value = '99' WHERE key = 'schema'")
    code, text = failed_start(tmp_path, "--store", postgresql.url(schema))

    assert code == 1
    assert "newer version of manyhands (schema 99" in text


def test_a_database_that_is_not_there_is_named(tmp_path):
    code, text = failed_start(tmp_path, "--store", f"postgresql://x@127.0.0.1:{own_port()}/jobs")

    assert code == 1
    assert "Check that PostgreSQL runs there" in text


def test_the_printed_statements_make_the_tables(tmp_path, postgresql):
    """S3."""
    schema = postgresql.new_schema()
    printed = run("migrate", "--store", postgresql.url(schema), "--print")
    with postgresql.connect() as connection:
        connection.execute(printed.stdout)
    with serving(tmp_path, "--store", postgresql.url(schema)) as served:
        api = Api(served)
        assert submit(api, "q", 1)
        api.close()
    again = run("migrate", "--store", postgresql.url(schema))

    assert "nothing was changed" in again.stdout


def test_an_export_moves_jobs_from_sqlite_to_postgresql_and_back(tmp_path, store):
    """S58."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with serving(tmp_path / "a") as served:
        api = Api(served)
        ids = submit(api, "q", 4, tags=["moved"])
        done = work_off(api, "q", 1)
        submit(api, "next", 1, depends_on=[ids[3]])
        api.close()
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    assert run("export", str(first), "--data", str(tmp_path / "a" / "data")).returncode == 0
    env = environment() | {"MANYHANDS_STORE": store}
    taken = subprocess.run(
        command("import", str(first)), env=env, capture_output=True, text=True, check=False
    )
    assert taken.returncode == 0, taken.stderr
    with serving(tmp_path / "b", "--store", store) as served:
        api = Api(served)
        assert states(api, ids) == ["completed"] + ["ready"] * 3
        written = subprocess.run(
            command("export", str(second)), env=env, capture_output=True, text=True, check=False
        )
        api.close()

    assert written.returncode == 0, written.stderr

    def jobs(file):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        return {row["job"]["job_id"]: row["job"]["state"] for row in rows if row["kind"] == "job"}

    assert jobs(first) == jobs(second)
    assert done[0] in jobs(second)


def test_commands_on_files_say_that_the_database_does_it(store):
    """S58."""
    env = environment() | {"MANYHANDS_STORE": store}
    for words in (("backup", "x"), ("check",), ("compact",)):
        ended = subprocess.run(
            command(*words), env=env, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 1
        assert "pg_dump" in ended.stderr


def test_pgbouncer_in_transaction_mode_may_stand_between(tmp_path, postgresql):
    """S53."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("pgbouncer is not installed")
        pytest.skip("pgbouncer is not installed")
    port, folder = own_port(), own_folder()
    (folder / "users").write_text('"postgres" ""\n')
    (folder / "ini").write_text(
        "[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\npool_mode = transaction\n"
        f"unix_socket_dir =\nauth_file = {folder / 'users'}\ndefault_pool_size = 3\n"
        "[databases]\n"
        f"postgres = host=127.0.0.1 port={postgresql.port} user=postgres\n"
    )
    words = [program, str(folder / "ini")]
    if os.getuid() == 0:
        words = ["runuser", "-u", "postgres", "--", *words]
    with (tmp_path / "log").open("wb") as log:
        bouncer = subprocess.Popen(words, stdout=log, stderr=log)
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres?schema={postgresql.new_schema()}"

    def answers() -> bool:
        assert bouncer.poll() is None, (tmp_path / "log").read_text()
        try:
            psycopg.connect(url.partition("?")[0]).close()
        except psycopg.OperationalError:
            time.sleep(0.05)
            return False
        return True

    try:
        wait_until(answers)
        (tmp_path / "server").mkdir()
        with serving(tmp_path / "server", "--store", url) as served:
            api = Api(served)
            ids = [submit(api, "q", 1)[0] for _ in range(20)]
            assert len(work_off(api, "q", 100)) == 20
            assert len(api.get("jobs?queue=q&state=completed&count=100")) == len(ids)
            api.close()
            assert served.stop() == 0
    finally:
        bouncer.terminate()
        bouncer.wait(30)
        shutil.rmtree(folder)


def test_the_doctor_looks_at_the_database(postgresql):
    env = environment() | {"MANYHANDS_STORE": postgresql.url("doctored")}
    ended = subprocess.run(
        command("doctor", "--json"), env=env, capture_output=True, text=True, check=False
    )
    found = [json.loads(line) for line in ended.stdout.splitlines()]

    (database_found,) = [row for row in found if row["what"] == "database"]
    assert database_found["level"] == "ok"
    assert "no tables yet" in database_found["sentence"]


def test_readers_are_told_when_the_database_is_away(tmp_path):
    with database() as one:
        (tmp_path / "server").mkdir()
        with serving(tmp_path / "server", "--store", one.url()) as served:
            api = Api(served)
            submit(api, "q", 1)
            one.stop(signal.SIGQUIT)

            answer = api.http.get("/api/jobs", timeout=60)
            assert answer.status_code == 503
            assert httpx.get(f"{served.url}/healthz").status_code == 200
            one.start()
            submit(api, "q", 1)
            assert len(api.get("jobs?queue=q")) == 2
            api.close()


def test_a_window_that_the_tables_refuse_ends_the_server_and_is_applied_later(tmp_path, postgresql):
    """S16: the journal still holds it."""
    schema = postgresql.new_schema()
    url = postgresql.url(schema)
    with serving(tmp_path, "--store", url) as served, closing(Api(served)) as api:
        with postgresql.connect() as connection:
            table = f"{schema}.jobs"
            connection.execute(f"ALTER TABLE {table} ADD CONSTRAINT odd CHECK (queue <> 'bad')")
        job_id = api.results("submit", queue="bad")["id"]

        assert served.process.wait(90) == 1
        assert "the tables refused what is in the journal" in served.log()
    with postgresql.connect() as connection:
        connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT odd")
    served.ready_file.unlink(missing_ok=True)
    with serving(tmp_path, "--store", url) as served, closing(Api(served)) as api:
        assert api.get(f"jobs/{job_id}")["state"] == "ready"


def test_tables_are_not_changed_under_a_server_of_the_version_before(tmp_path, postgresql):
    """S60, S75: once that one is gone they are, however it ended."""
    schema = postgresql.new_schema()
    url = postgresql.url(schema)
    after = tmp_path / "after"
    after.mkdir()
    with serving(tmp_path, "--store", url) as before, postgresql.connect() as connection:
        last = f"UPDATE {schema}.facts SET value = '{VERSION - 1}' WHERE key = 'schema'"
        connection.execute(last)
        refused = run("serve", "--store", url, "--http", "off")

        assert refused.returncode == 1
        assert "has to wait until it has stopped" in refused.stderr
        before.process.kill()
        before.process.wait()
        with serving(after, "--store", url) as served:
            assert served.stop() == 0
        version = connection.execute(f"SELECT value FROM {schema}.facts WHERE key = 'schema'")
        assert version.fetchone() == (str(VERSION),)
