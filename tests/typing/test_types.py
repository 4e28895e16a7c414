"""Both type checkers agree with ``tasks.py``, line by line."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("tasks.py")
PYRIGHT = ROOT / ".test-clients" / "node_modules" / "pyright" / "index.js"
LINES = FILE.read_text(encoding="utf-8").splitlines()


def marked(word: str) -> set[int]:
    """Lines with a mark, counted from 1."""
    return {number for number, line in enumerate(LINES, 1) if line.endswith(f"  # {word}")}


def mypy(folder: Path) -> list[tuple[int, str, str]]:
    """Line, severity and text of what mypy says with its own strict settings."""
    config = folder / "mypy.ini"
    config.write_text("[mypy]\nstrict = true\n")
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir", folder, FILE],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
        timeout=500,
    )
    assert found.returncode in (0, 1), found.stderr
    said = re.findall(r"^.*tasks\.py:(\d+): (error|note): (.*)$", found.stdout, re.MULTILINE)
    return [(int(line), severity, text) for line, severity, text in said]


def pyright(folder: Path) -> list[tuple[int, str, str]]:
    """The same of pyright, in its strict mode."""
    if shutil.which("node") is None or not PYRIGHT.exists():
        assert not os.environ.get("CI"), "pyright is not installed: make test-clients"
        pytest.skip("pyright is not installed: make test-clients")
    shutil.copy(FILE, folder)
    config = folder / "pyrightconfig.json"
    settings = {
        "include": [FILE.name],
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "strict",
        "reportUnusedCallResult": "none",
    }
    config.write_text(json.dumps(settings))
    found = subprocess.run(
        ["node", PYRIGHT, "--outputjson", "--pythonpath", sys.executable, "-p", config],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert found.returncode in (0, 1), found.stderr
    return [
        (each["range"]["start"]["line"] + 1, each["severity"], each["message"])
        for each in json.loads(found.stdout)["generalDiagnostics"]
        if Path(each["file"]).name == FILE.name
    ]


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_p2_types_are_as_declared_and_errors_are_errors(checker, tmp_path):
    """P2, P11."""
    said = checker(tmp_path)

    errors = {line for line, severity, _ in said if severity == "error"}
    wrong = [(line, text) for line, severity, text in said if severity == "error"]
    assert errors == marked("error"), wrong
    shown = {line: text for line, _, text in said if "Task[" in text}
    assert marked("Task") <= set(shown)
    for line in marked("Task"):
        for part in ("path: str", "width: int", "str]"):
            assert part in shown[line]
