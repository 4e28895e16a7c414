"""A RabbitMQ node of the tests' own: on loopback, with its own data, cookie and port mapper."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.e2e.serving import own_port

# Not the one in /usr/sbin: that one changes user and directory.
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONTROL = SERVER.with_name("rabbitmqctl")
START_SECONDS_MAX = 240.0


def is_installed() -> bool:
    return SERVER.exists() and all(map(shutil.which, ("epmd", "openssl")))


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine that vouches for itself, and its key."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    return certificate, key


class Rabbit:
    """Can be stopped, killed and started again on the same data and ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.tls_port, self._distribution_port, self._mapper_port = (
            own_port() for _ in range(4)
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._mapper: subprocess.Popen[bytes] | None = None
        for name in ("home", "mnesia", "log"):
            (folder / name).mkdir(parents=True)
        cookie = folder / "home" / ".erlang.cookie"
        cookie.write_text("test" + os.urandom(12).hex())
        cookie.chmod(0o400)
        self.certificate, self.key = make_certificate(folder)
        (folder / "enabled_plugins").write_text("[].\n")
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.local = 127.0.0.1:{self.port}\n"
            f"listeners.ssl.local = 127.0.0.1:{self.tls_port}\n"
            f"ssl_options.certfile = {self.certificate}\n"
            f"ssl_options.keyfile = {self.key}\n"
            "loopback_users.guest = true\n"
            "disk_free_limit.absolute = 50MB\n"
            "log.console = true\nlog.console.level = warning\nlog.file = false\n"
        )
        self.environment = self._environment()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def tls_url(self) -> str:
        return f"amqps://guest:guest@127.0.0.1:{self.tls_port}/"

    def _environment(self) -> dict[str, str]:
        folder = self.folder
        kept = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("RABBITMQ_", "ERL_"))
        }
        return kept | {
            "HOME": str(folder / "home"),
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"t{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "no-env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(folder / "rabbit.pid"),
            "RABBITMQ_PLUGINS_EXPAND_DIR": str(folder / "plugins-expand"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1}"
                " +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
            ),
        }

    def start(self) -> None:
        with (self.folder / "log" / "console.log").open("ab") as log:
            self._mapper = subprocess.Popen(
                ["epmd", "-port", str(self._mapper_port), "-address", "127.0.0.1"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            self._process = subprocess.Popen(
                [SERVER],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = (self.folder / "log" / "console.log").read_text()
                raise AssertionError(f"RabbitMQ did not start: {text[-2000:]}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 10) as connection,
        ):
            connection.settimeout(10)
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"
        return False

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As if the machine had gone, for the node at least: all of its processes at once."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            if number is signal.SIGKILL:
                os.killpg(self._process.pid, number)
            else:
                self._process.send_signal(number)
            try:
                self._process.wait(90)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(90)
        if self._mapper is not None and self._mapper.poll() is None:
            self._mapper.terminate()
            self._mapper.wait(90)

    def control(self, *arguments: str) -> str:
        command = [CONTROL, "-n", self.environment["RABBITMQ_NODENAME"], *arguments]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=True, timeout=240
        )
        return done.stdout
