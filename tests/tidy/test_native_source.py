"""What is compiled is a copy of the source: it means the same, also before anybody compiles it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.test_tidy import ROOT

STORY = """
from manyhands.engine.decide import decide
from manyhands.model.commands import ByToken, Claim, Complete, NewJob, Submit
from manyhands.model.job import Holder, Job, Lease, State
from manyhands.native import replace
from manyhands.store.collector import Collector

names = list(Job.__init__.__annotations__)
holder = Holder("native", "w")
job = Job(job_id="0" * 32, queue="q", state=State.READY, payload=b"x", tags=("t",))
assert job == job.changed() and job is not job.changed()
assert repr(job).startswith("Job(job_id='000")
for name in names[:-1]:
    assert getattr(job.changed(), name) == getattr(job, name), name
moved = replace(job, queue="other", priority=2.0)
assert (moved.queue, moved.priority, moved.payload, job.queue) == ("other", 2.0, b"x", "q")
assert replace(holder, name="v") == Holder("native", "v")
assert moved != job and hash(job) == hash(job.changed())

store = Collector(lambda _: None)
def ask(command):
    reply, effects = decide(command, store.index, 1)
    store.write(effects)
    return reply
submitted = ask(Submit((NewJob(job_id="1" * 32, queue="q", payload=b"p"),))).items[0].job
(claimed,) = ask(Claim(queues=("q",), holder=holder, tokens=("k",))).jobs
assert type(claimed.lease) is Lease and submitted.lease is None and submitted.serial == 1
done = ask(Complete(job_id="1" * 32, proof=ByToken("k"), result=b"r")).job
assert (done.state, done.result, claimed.state) == (State.COMPLETED, b"r", State.LEASED)
print("told")
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A copy of the source as it is compiled, and the modules that are."""
    folder = tmp_path_factory.mktemp("native")
    script = (
        "import sys; from pathlib import Path; import compile, native_source;"
        "print(*native_source.prepare(Path(sys.argv[1]), compile.COMPILED), sep='\\n')"
    )
    package = folder / "manyhands"
    shutil.copytree(
        ROOT / "src" / "manyhands", package, ignore=shutil.ignore_patterns("__pycache__")
    )
    found = subprocess.run(
        [sys.executable, "-c", script, str(package)],
        cwd=ROOT / "tools",
        capture_output=True,
        text=True,
        check=True,
    )
    return folder, found.stdout.split()


def test_a_job_goes_through_the_copy_as_it_does_through_the_source(prepared):
    folder, _ = prepared

    told = subprocess.run(
        [sys.executable, "-c", STORY],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (told.stdout, told.stderr) == ("told\n", "")


def test_no_struct_is_left_in_a_module_that_is_compiled(prepared):
    # The compiler drops what stands behind the base of a class, and with it what the struct means.
    _, modules = prepared

    assert len(modules) > 30
    for module in modules:
        assert "(Struct" not in Path(module).read_text(encoding="utf-8"), module
