"""The same conversations with gearmand and with us: what is said is the same, but for handles and
the sentences behind error codes.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time

import pytest

from manyhands.protocols.gearman import codec as wire
from tests.e2e.gearman_talk import GearmanTalk, wait_until
from tests.e2e.serving import SECONDS_MAX, own_port, serving

# A question whose answer shows that everything before it was dealt with.
NOBODY = b"H:nobody:" + b"0" * 32


class Other:
    """Something that serves, as far as a connection needs to know it."""

    def __init__(self, address: str) -> None:
        self.addresses = {"gearman": address}


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.fixture
def gearmand(tmp_path):
    if shutil.which("gearmand") is None:
        if os.environ.get("CI"):
            pytest.fail("not installed: gearmand")
        pytest.skip("not installed: gearmand")
    port = own_port()
    command = [
        "gearmand",
        "-L",
        "127.0.0.1",
        "-p",
        str(port),
        "-t",
        "1",
        "-l",
        str(tmp_path / "log"),
    ]
    with subprocess.Popen(command) as process:
        try:
            wait_until(lambda: _answers(port), "gearmand")
            yield Other(f"127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait(SECONDS_MAX)


@pytest.fixture
def manyhands(tmp_path):
    listen = ("--store", "memory", "--http", "off", "--gearman", "127.0.0.1:0")
    folder = tmp_path / "manyhands"
    folder.mkdir()
    with serving(folder, *listen) as it:
        yield it


class Conversation:
    """Plays a script: who says what. Writes down what everybody hears after each line of it."""

    def __init__(self, served) -> None:
        self._served = served
        self._peers: dict[str, GearmanTalk] = {}
        self._handles: list[bytes] = []
        self.heard: list = []

    def play(self, script: list) -> list:
        with contextlib.ExitStack() as stack:
            for who, kind, *args in script:
                if who not in self._peers:
                    self._peers[who] = stack.enter_context(GearmanTalk(self._served))
                peer = self._peers[who]
                if kind == "leave":
                    self._peers.pop(who).close()
                    self._wait_for_the_return_of(args[0])
                    continue
                if kind == "text":
                    peer.send(args[0] + b"\r\n")
                else:
                    peer.put(
                        kind, *(self._handles[arg] if isinstance(arg, int) else arg for arg in args)
                    )
                self._note(who, self._listen(peer))
                for name, other in self._peers.items():
                    if name != who:
                        self._note(name, self._listen(other))
        return self.heard

    def _wait_for_the_return_of(self, number: int) -> None:
        question = wire.GET_STATUS, self._handles[number]
        with GearmanTalk(self._served) as asking:
            wait_until(lambda: asking.tell(*question)[1][2] == b"0", "a lost worker's job")

    def _listen(self, peer: GearmanTalk) -> list:
        peer.put(wire.GET_STATUS, NOBODY)
        heard = []
        while (message := peer.next()) != (wire.STATUS_RES, [NOBODY, b"0", b"0", b"0", b"0"]):
            heard.append(message)
        return heard

    def _note(self, who: str, heard: list) -> None:
        for kind, args in heard:
            if kind == wire.JOB_CREATED and args[0] not in self._handles:
                self._handles.append(args[0])
            shown = args[:1] if kind == wire.ERROR else args
            self.heard.append((who, kind, [self._plain(arg) for arg in shown]))

    def _plain(self, text: bytes) -> bytes:
        for number, handle in enumerate(self._handles):
            text = text.replace(handle, b"<%d>" % number)
        if text.startswith(b"ERR "):
            return b" ".join(text.split()[:2])
        words = text.split(b" ")
        if len(words) > 2 and words[1] == b"127.0.0.1":
            return b" ".join((b"#", *words[1:]))  # a line of `workers` begins with a number
        return text


C, D, W, V = "client", "other client", "worker", "other worker"

SCRIPTS = {
    "a foreground job": [
        (C, wire.SUBMIT_JOB, b"f", b"u", b"da\0ta"),
        (W, wire.CAN_DO, b"f"),
        (W, wire.GRAB_JOB_ALL),
        (W, wire.WORK_STATUS, 0, b"0.5", b"1"),
        (C, wire.GET_STATUS, 0),
        (W, wire.WORK_DATA, 0, b"pi\0ece"),
        (W, wire.WORK_WARNING, 0, b""),
        (W, wire.WORK_COMPLETE, 0, b"re\0sult"),
        (C, wire.GET_STATUS, 0),
        (W, wire.WORK_COMPLETE, 0, b"again"),
        (W, wire.GRAB_JOB),
    ],
    "a failure": [
        (W, wire.CAN_DO, b"f"),
        (C, wire.SUBMIT_JOB_HIGH, b"f", b"", b""),
        (W, wire.GRAB_JOB),
        (W, wire.WORK_FAIL, 0),
        (W, wire.WORK_FAIL, 0),
    ],
    "an exception for who asked": [
        (C, wire.OPTION_REQ, b"exceptions"),
        (C, wire.OPTION_REQ, b"nonsense"),
        (W, wire.CAN_DO, b"f"),
        (C, wire.SUBMIT_JOB_LOW, b"f", b"", b""),
        (W, wire.GRAB_JOB_UNIQ),
        (W, wire.WORK_EXCEPTION, 0, b"bo\0om"),
    ],
    "joined jobs": [
        (C, wire.SUBMIT_JOB, b"f", b"u", b"1"),
        (D, wire.SUBMIT_JOB, b"f", b"u", b"2"),
        (C, wire.SUBMIT_JOB, b"f", b"u", b"3"),
        (V, wire.SUBMIT_JOB_BG, b"f", b"u", b"4"),
        (C, wire.GET_STATUS_UNIQUE, b"u"),
        (W, wire.CAN_DO, b"f"),
        (W, wire.GRAB_JOB_UNIQ),
        (C, wire.GET_STATUS_UNIQUE, b"u"),
        (W, wire.WORK_COMPLETE, 0, b"r"),
        (C, wire.GET_STATUS_UNIQUE, b"u"),
        (C, wire.SUBMIT_JOB_BG, b"f", b"u", b"5"),
    ],
    "uniques that are none, and that are the data": [
        (C, wire.SUBMIT_JOB_BG, b"f", b"", b"same"),
        (C, wire.SUBMIT_JOB_BG, b"f", b"", b"same"),
        (C, wire.SUBMIT_JOB_BG, b"f", b"-", b"same"),
        (C, wire.SUBMIT_JOB_BG, b"f", b"-", b"same"),
        (C, wire.SUBMIT_JOB_BG, b"f", b"-", b"other"),
        (C, wire.SUBMIT_JOB_BG, b"f", b"\xff\x01", b""),
        (C, wire.SUBMIT_JOB_BG, b"f", b"u" * 63, b""),  # with 64 gearmand errs
        (C, wire.SUBMIT_JOB_BG, b"f", b"u" * 65, b""),
        (W, wire.CAN_DO, b"f"),
        *[(W, wire.GRAB_JOB_UNIQ)] * 7,
    ],
    "priorities": [
        (C, wire.SUBMIT_JOB_LOW_BG, b"f", b"a", b"low"),
        (C, wire.SUBMIT_JOB_BG, b"f", b"b", b"normal 1"),
        (C, wire.SUBMIT_JOB_HIGH_BG, b"f", b"c", b"high"),
        (C, wire.SUBMIT_JOB_BG, b"f", b"d", b"normal 2"),
        (W, "text", b"prioritystatus"),
        (W, wire.CAN_DO, b"f"),
        *[(W, wire.GRAB_JOB)] * 5,
    ],
    "sleep and wake": [
        (W, wire.CAN_DO, b"f"),
        (W, wire.PRE_SLEEP),
        (C, wire.SUBMIT_JOB_BG, b"f", b"", b""),
        (C, wire.SUBMIT_JOB_BG, b"f", b"x", b""),
        (W, wire.GRAB_JOB),
        (W, wire.PRE_SLEEP),
        (W, wire.GRAB_JOB),
        (W, wire.PRE_SLEEP),
    ],
    "a reducer": [
        (C, wire.SUBMIT_REDUCE_JOB, b"f", b"u", b"sum", b"data"),
        (W, wire.CAN_DO, b"f"),
        (W, wire.GRAB_JOB_ALL),
        (W, wire.WORK_COMPLETE, 0, b"r"),
        (C, wire.SUBMIT_REDUCE_JOB_BACKGROUND, b"f", b"u", b"sum", b"data"),
        (W, wire.GRAB_JOB_UNIQ),
    ],
    "a time that is past": [
        (C, wire.SUBMIT_JOB_EPOCH, b"f", b"u", b"1", b"data"),
        (W, wire.CAN_DO_TIMEOUT, b"f", b"60000"),
        (W, wire.GRAB_JOB_ALL),
    ],
    "a time to come": [
        (C, wire.SUBMIT_JOB_EPOCH, b"f", b"u", b"%d" % (time.time() + 100_000), b"data"),
        (W, wire.CAN_DO, b"f"),
        (W, wire.GRAB_JOB_ALL),
        (C, wire.GET_STATUS, 0),
        (C, "text", b"status"),
    ],
    "a lost worker": [
        (C, wire.SUBMIT_JOB, b"f", b"u", b"data"),
        (W, wire.CAN_DO, b"f"),
        (V, wire.CAN_DO, b"f"),
        (W, wire.GRAB_JOB),
        (W, wire.WORK_STATUS, 0, b"1", b"2"),
        (W, "leave", 0),
        (C, wire.GET_STATUS, 0),
        (V, wire.GRAB_JOB_ALL),
        (V, wire.WORK_COMPLETE, 0, b"r"),
    ],
    "reports of others": [
        (C, wire.SUBMIT_JOB, b"f", b"", b""),
        (W, wire.CAN_DO, b"f"),
        (W, wire.GRAB_JOB),
        (V, wire.WORK_COMPLETE, 0, b"stolen"),
        (V, wire.WORK_STATUS, 0, b"1", b"1"),
        (W, wire.WORK_COMPLETE, 0, b"r"),
    ],
    "two functions, one worker": [
        (W, wire.CAN_DO, b"f"),
        (W, wire.CAN_DO, b"g"),
        (C, wire.SUBMIT_JOB_BG, b"g", b"", b"g"),
        (W, wire.GRAB_JOB),
        (W, wire.CANT_DO, b"f"),
        (C, wire.SUBMIT_JOB_BG, b"f", b"", b"f"),
        (W, wire.GRAB_JOB),
        (W, wire.CAN_DO, b"f"),
        (W, wire.GRAB_JOB),
    ],
    "small talk": [
        (C, wire.ECHO_REQ, b"a\0b"),
        (C, wire.ECHO_REQ, b""),
        (C, wire.GET_STATUS, b"H:x:1"),
        (C, wire.GET_STATUS_UNIQUE, b"none"),
        (C, wire.ALL_YOURS),
        (C, wire.SUBMIT_JOB_SCHED, b"f", b"u", b"1", b"2", b"3", b"4", b"5", b"d"),
        (C, wire.GRAB_JOB),
    ],
    "text": [
        (C, "text", b"status"),
        (C, "text", b"create function made"),
        (C, "text", b"STATUS"),
        (C, "text", b"drop function made"),
        (C, "text", b"maxqueue nobody 5"),
        (C, "text", b"maxqueue"),
        (C, "text", b"show x"),
        (C, "text", b"shutdown"),
        (C, "text", b"nonsense"),
        (C, "text", b"cancel job H:x:1"),
        (C, wire.SUBMIT_JOB, b"f", b"u", b""),
        (C, "text", b"show jobs"),
        (C, "text", b"show unique jobs"),
        (C, "text", b"workers"),
        (W, "text", b"status"),
    ],
    "a full queue": [
        (C, wire.SUBMIT_JOB_BG, b"f", b"u", b""),
        (C, "text", b"maxqueue f 1"),
        (C, wire.SUBMIT_JOB_BG, b"f", b"v", b""),
        (C, wire.SUBMIT_JOB_BG, b"f", b"u", b""),
        (C, "text", b"maxqueue f 0"),
        (C, wire.SUBMIT_JOB_BG, b"f", b"v", b""),
    ],
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_both_servers_say_the_same(gearmand, manyhands, script):
    """G12 to G58, as far as gearmand does it too"""
    theirs = Conversation(gearmand).play(SCRIPTS[script])
    ours = Conversation(manyhands).play(SCRIPTS[script])

    assert ours == theirs
