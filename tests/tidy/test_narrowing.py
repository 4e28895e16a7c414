"""The build refuses code that means something else once it is compiled."""

import subprocess
import sys

import pytest

from tests.tidy.test_tidy import ROOT

SOURCE = """
class Value:
    def __init__(self, text: str | None) -> None:
        self.text = text


class Decoder:
    def __init__(self) -> None:
        self.fault: str | None = None

    def take(self) -> None:
        self.fault = "too long"

    def fault_after_a_call(self) -> str | None:
        if self.fault is not None:
            return None
        self.take()
        return self.fault

    def fault_before_a_call(self) -> str | None:
        if self.fault is None:
            return None
        self.take()
        return self.fault

    def fault_in_a_loop(self) -> str:
        if self.fault is None:
            self.fault = ""
        found = ""
        for _ in range(3):
            found += self.fault
            self.take()
        return found

    def fault_without_a_call(self) -> str:
        if self.fault is not None and len(self.fault) > 3:
            return self.fault[1:] + self.fault
        return "fine"

    def fault_in_a_variable(self) -> str:
        fault = self.fault
        if fault is None:
            return "fine"
        self.take()
        return fault

    def fault_after_it_was_set(self) -> str:
        self.take()
        self.fault = "short"
        return self.fault

    def fault_of_a_value(self, value: Value) -> str:
        if value.text is None:
            return "fine"
        self.take()
        return value.text

    def fault_that_is_asked_for_again(self) -> None:
        if self.fault is not None:
            return
        self.take()
        if self.fault is not None:
            raise ValueError
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What is found in that source."""
    folder = tmp_path_factory.mktemp("narrowing")
    (folder / "decoder.py").write_text(SOURCE)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from pathlib import Path; from mypyc.build import mypycify;"
        "from narrowing import find_narrowings;"
        "mypycify(['decoder.py']);"
        "print(*find_narrowings(Path('build/ops.txt'), {'decoder.Value'}), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(ROOT / "tools")],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in done.stdout.split("\n") if line.startswith("Decoder.")]


def test_an_attribute_that_a_call_may_have_changed_is_found(found):
    assert found == [
        "Decoder.fault_after_a_call (line 18): self.fault was looked at before a call, and is"
        " taken for None after it",
        "Decoder.fault_before_a_call (line 24): self.fault was looked at before a call, and is"
        " taken for str after it",
        "Decoder.fault_in_a_loop (line 31): self.fault was looked at before a call, and is"
        " taken for str after it",
        "Decoder.fault_that_is_asked_for_again (line 62): self.fault was looked at before a call,"
        " and is taken for None after it",
    ]
