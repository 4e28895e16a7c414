"""The scripts of `manyhands completion`, in the shells they are for."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(sys.executable).parent
SECONDS_MAX = 60.0


def script(shell):
    command = [HERE / "manyhands", "completion", shell]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needs(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")


def environment(tmp_path):
    path = f"{HERE}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(tmp_path), "TERM": "dumb", "LANG": "C.UTF-8"}


class Terminal:
    """A shell on a terminal, as a person has it."""

    def __init__(self, command, env):
        self.shown = b""
        self.pid, self.end = pty.fork()
        if not self.pid:
            os.execvpe(command[0], command, env)

    def type(self, text):
        os.write(self.end, text.encode())

    def wait_for(self, text):
        give_up_at = time.monotonic() + SECONDS_MAX
        while text.encode() not in self.shown:
            ready, _, _ = select.select([self.end], [], [], give_up_at - time.monotonic())
            assert ready, f"the shell showed no {text!r}, but {self.shown!r}"
            self.shown += os.read(self.end, 4096)
        self.shown = b""

    def close(self):
        os.close(self.end)  # hangs up
        os.waitpid(self.pid, 0)


@pytest.fixture
def zsh(tmp_path):
    needs("zsh")
    terminal = Terminal(["zsh", "-f", "-i"], environment(tmp_path))
    terminal.type("PS1='ready''> '; unsetopt beep\n")
    terminal.wait_for("ready> ")
    yield terminal
    terminal.close()


def test_zsh_completes_at_the_first_tab_with_the_script_in_its_fpath(zsh, tmp_path):
    (tmp_path / "_manyhands").write_text(script("zsh"))
    zsh.type(f"fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -u; print in''side\n")
    zsh.wait_for("inside\r\n")
    zsh.type("manyhands schedule sho\t")
    zsh.wait_for("show")


def test_zsh_completes_with_the_script_sourced(zsh):
    zsh.type("autoload -Uz compinit; compinit -u -D; print in''side\n")
    zsh.wait_for("inside\r\n")
    zsh.type("source <(manyhands completion zsh); print read''y\n")
    zsh.wait_for("ready\r\n")
    zsh.type("manyhands schedule sho\t")
    zsh.wait_for("show")


def test_fish_completes_commands_with_their_help(tmp_path):
    needs("fish")
    (tmp_path / "manyhands.fish").write_text(script("fish"))
    asked = f"source {tmp_path}/manyhands.fish; complete -C 'manyhands schedule sho'"
    found = subprocess.run(
        ["fish", "--no-config", "-c", asked],
        env=environment(tmp_path),
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout == "show\tShow one schedule.\n"


def test_bash_completes_commands(tmp_path):
    needs("bash")
    (tmp_path / "manyhands.bash").write_text(script("bash"))
    asked = (
        f"source {tmp_path}/manyhands.bash; COMP_WORDS=(manyhands schedule sho); COMP_CWORD=2;"
        " _manyhands_completion manyhands; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    found = subprocess.run(
        ["bash", "--norc", "-c", asked],
        env=environment(tmp_path),
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == "show"
