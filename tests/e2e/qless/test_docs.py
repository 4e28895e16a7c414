"""Every example of the protocol's page works, in the order in which it stands there."""

import json
import re
import subprocess
from pathlib import Path

from manyhands.protocols.qless.paths import RESERVED
from manyhands.protocols.qless.refusals import CODES
from tests.e2e.serving import environment, serving

PAGE = (Path(__file__).parents[3] / "docs" / "protocols" / "qless.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
PRELUDE = 'set -euo pipefail\ncurl() { command curl --silent --show-error --fail "$@"; echo; }\n'


def test_every_example_of_the_page_works(tmp_path):
    with serving(tmp_path, "--store", "memory") as server:
        script = (PRELUDE + "".join(EXAMPLES)).replace("http://127.0.0.1:7700", server.url)
        ended = subprocess.run(
            ["bash", "-c", script],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    assert ended.returncode == 0, ended.stdout[-500:] + ended.stderr
    answers = [json.loads(line) for line in ended.stdout.splitlines() if line]
    assert len(answers) == "".join(EXAMPLES).count("curl ")
    for answer in answers:
        assert answer["results"] is not None
        assert "errors" not in answer


def test_every_reserved_word_stands_on_the_page():
    words = set(re.findall(r"[a-z0-9.\-]+", PAGE.partition("## Transport")[0]))

    assert words >= RESERVED


def test_the_words_of_refusals_that_matter_stand_on_the_page_or_in_the_tests():
    tests = "".join(file.read_text("utf-8") for file in Path(__file__).parent.glob("test_*.py"))

    for code in ("lock_lost", "not_running", "wrong_queue", "duplicate", "in_other_queue", "cycle"):
        assert code in CODES.values()
        assert code in tests
