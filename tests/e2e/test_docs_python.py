"""Every block of Python on these pages runs as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.serving import environment

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run(folder: Path, *arguments: str) -> str:
    found = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, ""), found.stdout + found.stderr
    return found.stdout


def test_the_example_of_an_embedded_server_works(tmp_path):
    """P74, P76: and it says nothing besides."""
    [program] = blocks("embedded.md")
    (tmp_path / "program.py").write_text(program)

    assert run(tmp_path, "program.py") == "HELLO\n"


def test_the_tests_on_the_page_about_tests_pass(tmp_path):
    for block in blocks("testing.md"):
        name = block.partition("\n")[0].removeprefix("# ")
        (tmp_path / name).write_text(block)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    assert "2 passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")
