"""Every command of the README and of the page about the command line works, in order."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from manyhands.cli import COMMANDS
from tests.e2e.serving import environment, own_port

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
MARK = "-- next --"
# The reader's tools, at the ports of the test. `make serve` returns when the server is ready.
# They replace themselves by what they start, so that a signal reaches it.
TOOLS = {
    "manyhands": """
if [ "$1" = dwork ]; then set -- "$@" --server 127.0.0.1:{dwork}; fi
exec "{python}" -m manyhands "$@"
""",
    "gearman": 'exec "{gearman_tool}" -h 127.0.0.1 -p {gearman} "$@"\n',
    "curl": '"{curl_tool}" --silent --show-error --fail "$@" && echo\n',
    "make": """
rm -f ready
"{python}" -m manyhands serve --http 127.0.0.1:{http} --gearman 127.0.0.1:{gearman} \\
  --dwork 127.0.0.1:{dwork} --wmp off --amqp off --ready-file ready \\
  --pid-file manyhands.pid > server.out 2>&1 < /dev/null &
for _ in $(seq 900); do [ -e ready ] && exit; sleep 0.1; done
echo 'the server was not ready'
""",
}
PRELUDE = """
set -uo pipefail
trap 'kill $(jobs -p) $(cat manyhands.pid) 2> /dev/null; wait' EXIT
"""


def examples(page: str, *headings: str) -> list[str]:
    """The commands below these headings; without any, all of the page."""
    if headings:
        sections = re.split(r"^## ", page, flags=re.MULTILINE)
        page = "".join(text for text in sections if text.startswith(headings))
    return re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def run_all(folder: Path, blocks: list[str]) -> list[str]:
    """What each block printed on either stream."""
    ports = {name: own_port() for name in ("http", "gearman", "dwork")}
    programs = folder / "programs"
    programs.mkdir()
    words = {
        **ports,
        "python": sys.executable,
        "gearman_tool": shutil.which("gearman"),
        "curl_tool": shutil.which("curl"),
    }
    for name, text in TOOLS.items():
        program = programs / name
        program.write_text("#!/bin/sh\n" + text.format(**words))
        program.chmod(0o755)
    script = PRELUDE + f"echo '{MARK}'\n".join(blocks)
    script = script.replace("http://127.0.0.1:7700", f"http://127.0.0.1:{ports['http']}")
    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={
            **environment(),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "MANYHANDS_URL": f"http://127.0.0.1:{ports['http']}",
            "HOME": str(folder),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=480,
    )
    assert "Traceback" not in ended.stdout, ended.stdout
    outputs = ended.stdout.split(MARK)
    assert len(outputs) == len(blocks), ended.stdout
    return outputs


def test_the_five_minutes_show_a_result_a_failure_a_retry_and_a_crash(tmp_path):
    blocks = examples(README, "Five minutes")

    outputs = run_all(tmp_path, blocks)

    said = dict(zip(blocks, outputs, strict=True))

    def output_of(words: str) -> str:
        return next(output for block, output in said.items() if words in block)

    assert "reverse\tready" in output_of("submit reverse 'hello'")
    assert "desserts" in output_of("stressed")
    assert "cat: note.txt: No such file or directory" in output_of("manyhands failures")
    assert "print\t0\t0\t0\t0\t0\t1\t0" in output_of("manyhands failures")
    assert "Retried 1 of 1 job." in output_of("manyhands retry")
    assert "print\tcompleted" in output_of("manyhands retry")
    assert "reverse is paused" in output_of("kill -9")
    assert "reward" in output_of("--result")
    assert (tmp_path / "server.out").read_text().count("pages\thttp://127.0.0.1:") == 1


@pytest.mark.skipif(shutil.which("gearman") is None, reason="gearman-tools are not installed")
def test_the_readme_speaks_every_protocol_it_shows(tmp_path):
    worker = ["make serve\n", "manyhands work reverse --command rev > /dev/null &\n"]
    blocks = examples(README, "Every protocol")

    outputs = run_all(tmp_path, worker + blocks)[2:]

    over_gearman, over_http, graph = outputs
    assert "evil" in over_gearman
    assert over_gearman.count("\treverse\t") == 2
    assert over_http.splitlines()[-1] == "6"
    assert "3 completed, 0 failed" in graph


def test_the_configuration_of_the_readme_can_be_written_read_back_and_examined(tmp_path):
    [block] = examples(README, "Configuration")

    [output] = run_all(tmp_path, [block])

    assert "--log-level debug|info|warning|error" in output
    assert "manyhands.toml is a valid configuration." in output
    assert "configuration\tmanyhands.toml is valid." in output


def test_every_example_of_the_page_works(tmp_path):
    blocks = ["make serve\n", *examples(PAGE)]

    outputs = run_all(tmp_path, blocks)

    for block, output in zip(blocks, outputs, strict=True):
        for trouble in ("Usage:", "Error:", "does not answer", "there is no", "command not found"):
            assert trouble not in output, f"{block}\n{output}"


def test_every_command_stands_on_the_page():
    for command in COMMANDS:
        assert f"manyhands {command.name}" in PAGE, command.name
