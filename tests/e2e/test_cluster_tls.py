"""Links between servers with TLS: who has no certificate of the same authority gets none."""

import socket
import subprocess
from contextlib import closing

import pytest

from tests.e2e.certificates import Authority, Pair
from tests.e2e.cluster import ALL, is_ready, running
from tests.e2e.serving import SECONDS_MAX, Api, command, environment, wait_until

BOTH_ENDS = "serverAuth,clientAuth"


def options(authority: Authority, pair: Pair) -> tuple[str, ...]:
    return (
        *("--cluster-tls-cert", str(pair.certificate)),
        *("--cluster-tls-key", str(pair.key)),
        *("--cluster-tls-ca", str(authority.file)),
    )


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "certificates")


@pytest.fixture
def cluster(postgresql, tmp_path, authority):
    """Two servers, each with a certificate of its own, in whatever name."""
    with running(tmp_path, postgresql) as found:
        for name in ("a", "b"):
            pair = authority.sign(name, "DNS:elsewhere.example.org", usage=BOTH_ENDS)
            found.start(name, *options(authority, pair))
        found.until_ready()
        yield found


def apart(cluster) -> tuple[str, str]:
    owner = cluster.decider()
    (front,) = set(cluster.servers) - {owner}
    return owner, front


def test_jobs_pass_between_servers_and_outlive_one_of_them(cluster):
    """S45, S21 and S31."""
    owner, front = apart(cluster)
    with closing(Api(cluster.servers[front])) as there:
        job_id = there.results("submit", queue="q", payload="x" * 200_000)["id"]
        assert wait_until(lambda: there.get(f"jobs/{job_id}"))["state"] == "ready"
        cluster.kill(owner)
        (job,) = there.results("claim", queue="q", worker="w", count=1)

    assert job["id"] == job_id
    assert job["payload"] == "x" * 200_000


def test_who_speaks_no_tls_is_refused(cluster):
    owner, _ = apart(cluster)
    server = cluster.servers[owner]
    host, _, port = server.addresses["cluster"].rpartition(":")
    with socket.create_connection((host, int(port)), SECONDS_MAX) as stranger:
        stranger.sendall(b"\0\0\0\x05hello")
        heard = b""
        while data := stranger.recv(65_536):
            heard += data

    assert b"hello" not in heard
    wait_until(lambda: "a link was refused" in server.log())
    assert is_ready(server)


@pytest.mark.parametrize("trusts_us", [False, True], ids=["own authority", "our authority"])
def test_a_certificate_of_another_authority_gets_no_link(cluster, tmp_path, authority, trusts_us):
    """Whether or not it would accept ours."""
    owner, _ = apart(cluster)
    other = Authority(tmp_path / "certificates", "others")
    pair = other.sign("stranger", usage=BOTH_ENDS)
    words = ["serve", "--store", cluster.database.url(cluster.schema), "--server-name", "c"]
    words += ["--cluster", "127.0.0.1:0", "--cluster-secret-file", str(cluster.secret)]
    words += [word for name in (*ALL, "http") for word in (f"--{name}", "off")]
    words += options(authority if trusts_us else other, pair)
    log = tmp_path / "stranger.log"
    with log.open("wb") as file:
        stranger = subprocess.Popen(
            command(*words), env=environment(), stdout=subprocess.DEVNULL, stderr=file
        )
    try:
        wait_until(lambda: "a link was refused" in cluster.servers[owner].log())
        wait_until(lambda: "a link was refused" in log.read_text())
        assert stranger.poll() is None  # it goes on trying, and serves nobody
        assert '"ready"' not in log.read_text()
        assert is_ready(cluster.servers[owner])
    finally:
        stranger.kill()
        stranger.wait()
