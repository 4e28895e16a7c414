"""Every code block of the Python pages is run.

A Python block that begins with a file's name is that file; any other is a program of its own. Shell
blocks are run as they are; servers and workers stay until the page ends. A block of text after one
of these is what it printed.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.serving import SECONDS_MAX, environment, own_address, wait_until

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "python").glob("*.md"))
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w/]+\.py)\n")
_DATA = frozenset({"dockerfile", "ini", "json", "toml", "yaml"})  # not to be run
_STAYS = re.compile(r"([A-Z_]+=\w+ )?manyhands (serve|worker)\b(?!.*--check)")


class Reader:
    """Does what a page says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        address = own_address()
        binaries = str(Path(sys.executable).parent)
        others = {f"MANYHANDS_{name}": "off" for name in ("GEARMAN", "DWORK", "WMP", "AMQP")}
        self.environment = environment() | others
        self.environment |= {
            "MANYHANDS_HTTP": address,
            "MANYHANDS_URL": f"http://{address}",
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        }
        self.started: list[subprocess.Popen[str]] = []

    def run(self, kind: str, text: str) -> str | None:
        """What the block printed, if it was run."""
        if kind == "python":
            if found := _FILE.match(text):
                file = self.folder / found[1]
                file.parent.mkdir(exist_ok=True)
                file.write_text(text)
                return None
            return self._output([sys.executable, "-c", text])
        if kind in _DATA:
            return None
        assert kind == "sh", f"a block of {kind} is neither run nor compared"
        if text.startswith("pip install"):
            return None  # it is installed
        if _STAYS.match(text):
            self._start(text)
            return None
        return self._output(["bash", "-euo", "pipefail", "-c", text])

    def _output(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=4 * SECONDS_MAX,
        )
        assert done.returncode == 0, done.stderr
        assert "Error" not in done.stderr
        return done.stdout

    def _start(self, command: str) -> None:
        log = self.folder / f"log{len(self.started)}"
        with log.open("w") as out:
            process = subprocess.Popen(
                ["bash", "-c", f"exec env {command}"],
                cwd=self.folder,
                env=self.environment,
                stdout=out,
                stderr=out,
                text=True,
            )
        self.started.append(process)
        if "serve" in command:
            wait_until(lambda: self._is_served() or process.poll() is not None)
        assert process.poll() is None, log.read_text()

    def _is_served(self) -> bool:
        asked = "import os, urllib.request as r; r.urlopen(os.environ['MANYHANDS_URL'] + '/readyz')"
        done = subprocess.run(
            [sys.executable, "-c", asked], env=self.environment, check=False, capture_output=True
        )
        return done.returncode == 0

    def close(self) -> None:
        for process in reversed(self.started):
            process.terminate()
            process.wait(SECONDS_MAX)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_does_what_it_says(page, tmp_path):
    follow(page.read_text(encoding="utf-8"), tmp_path)


def test_the_first_program_of_the_readme_does_what_it_says(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    follow(readme.partition("## In Python\n")[2].partition("\n## ")[0], tmp_path)

    assert (tmp_path / "jobs").is_dir()


def follow(page: str, folder: Path) -> None:
    """Does what a page says, and compares what it shows."""
    reader = Reader(folder)
    printed: str | None = None
    try:
        for kind, text in _BLOCK.findall(page):
            if kind == "text":
                assert printed == text
            else:
                printed = reader.run(kind, text)
    finally:
        reader.close()


def test_there_are_pages():
    assert PAGES
