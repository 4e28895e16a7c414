"""Many small worlds, each told by its seed; and proof that the checkers would notice."""

import functools
import os
import re
import subprocess
import sys
import typing
from collections import Counter, deque
from pathlib import Path

import pytest

from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.dispatch.sleepers import Sleepers
from manyhands.dispatch.timer import Timekeeper
from manyhands.engine import claim, graph, lease, resumption
from manyhands.model import commands
from manyhands.model.events import Signal
from manyhands.model.replies import Accepted
from manyhands.protocols.amqp.broker import Broker
from manyhands.protocols.amqp.queues import WatchQueue
from manyhands.protocols.native import stream_reports
from manyhands.protocols.native.stream_routes import StreamRoutes
from manyhands.store.collector import Collector
from manyhands.store.index.live import Index
from manyhands.store.index.namespaces import Namespaces
from tests.simulation.cautious import CONDITIONS
from tests.simulation.checkers import Drained, Violation
from tests.simulation.simulate import FAULTS, options_of, simulate

HERE = Path(__file__).parent
SEEDS = range(1, 41)
FAILED_ONCE = [
    int(line.split()[0])
    for line in (HERE / "seeds.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


STREAM_FAULTS = (
    *("submitted", "take", "reported", "ended", "departed"),
    *("cut", "cut before an answer", "answer lost with the server", "reconnected"),
    *("note doubled", "worker died", "dismissed", "lease gone", "lease lost"),
)


@functools.cache
def run(seed: int) -> tuple[str, Counter[str]]:
    return simulate(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_is_kept_in_this_world(seed):
    run(seed)


@pytest.mark.parametrize("seed", [seed for seed in FAILED_ONCE if seed not in SEEDS])
def test_every_promise_is_kept_in_a_world_that_failed_once(seed):
    run(seed)


def assert_occurs(wanted: set[str]) -> None:
    """In the worlds above or, since what happens in each depends on every line of the server, in
    some more of them.
    """
    missing = set(wanted)
    for seed in (*SEEDS, *range(1_000, 1_100)):
        missing -= set(run(seed)[1])
        if not missing:
            return
    raise AssertionError(f"never happened: {sorted(missing)}")


def test_every_command_and_every_fault_really_occurs():
    wanted = {kind.__name__ for kind in typing.get_args(commands.Command)}
    wanted.update(FAULTS)
    wanted.update(["delivered", "redelivered"])
    wanted.update(["crash with a commit on its way", "wake", "signal ended", "signal notice"])
    wanted.update(["wmp take", "wmp recorded", "wmp lost", "wmp cancelled", "wmp lost message"])
    wanted.update(f"stream {what}" for what in STREAM_FAULTS)

    assert_occurs(wanted)


def test_every_condition_of_a_command_is_met_and_not_met():
    wanted = {f"{name}, {outcome}" for name in CONDITIONS for outcome in ("passed", "refused")}
    wanted.add("schedule moved into step")
    wanted.update(f"claim of {found.value} queues" for found in Drained)

    assert_occurs(wanted)


def test_the_same_seed_tells_the_same_story():
    assert simulate(3, steps=400) == simulate(3, steps=400)


def test_the_story_does_not_depend_on_the_order_of_sets():
    def digest(hash_seed: str) -> str:
        ran = subprocess.run(
            [sys.executable, HERE / "simulate.py", "7", "--steps", "1500"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        found = re.search(r"trace = (\w+)", ran.stdout)
        assert found is not None, ran.stdout
        return found[1]

    assert digest("1") == digest("2")


# A checker that cannot fail proves nothing: each defect below is planted, and must be noticed.


def run_until_noticed(*, streams: bool) -> None:
    # Some defects show in one world of twenty: which one depends on every line of the server.
    for seed in range(1, 401):
        if options_of(seed).streams or not streams:
            simulate(seed, steps=1_500)


def assert_noticed(words: str, *, streams: bool = False) -> None:
    """By the first world that meets the defect; ``streams``: only those with streams can."""
    with pytest.raises(Violation, match=words):
        run_until_noticed(streams=streams)


def test_a_lease_that_anybody_can_claim_to_hold_is_noticed(monkeypatch):
    monkeypatch.setattr(lease, "proves", lambda *_: True)

    assert_noticed("under a foreign lease")


def test_an_answer_before_its_commit_is_noticed(monkeypatch):
    flush = Dispatcher._flush

    def hasty(self):
        gathering = self._open
        flush(self)
        if gathering in self._in_flight:
            answers = [pair for pair in gathering.answers if not isinstance(pair[1], Signal)]
            gathering.answers = [pair for pair in gathering.answers if pair not in answers]
            for settle, reply in answers:
                settle(reply)

    monkeypatch.setattr(Dispatcher, "_flush", hasty)

    assert_noticed("was answered at commit|was answered early")


def test_a_signal_before_its_commit_is_noticed(monkeypatch):
    flush = Dispatcher._flush

    def hasty(self):
        gathering = self._open
        flush(self)
        if gathering in self._in_flight:
            signals = [pair for pair in gathering.answers if isinstance(pair[1], Signal)]
            gathering.answers = [pair for pair in gathering.answers if pair not in signals]
            for deliver, signal in signals:
                deliver(signal)

    monkeypatch.setattr(Dispatcher, "_flush", hasty)

    assert_noticed("told before its commit")


def test_a_dependant_that_starts_one_dependency_too_early_is_noticed(monkeypatch):
    free = graph.free
    monkeypatch.setattr(graph, "free", lambda effects, job, left: free(effects, job, left[1:]))

    assert_noticed("started before|waits for")


def test_a_dependant_that_is_never_freed_is_noticed(monkeypatch):
    monkeypatch.setattr(graph, "_notify_dependants", lambda *_: None)

    assert_noticed("did not end|waits for")


def test_a_dependant_that_escapes_when_it_is_cancelled_later_than_the_others_is_noticed(
    monkeypatch,
):
    monkeypatch.setattr(graph, "is_doomed", lambda *_: False)

    assert_noticed("although it was cancelled with what it depends on")


def test_a_queue_that_counts_as_drained_too_soon_is_noticed(monkeypatch):
    monkeypatch.setattr(claim, "is_stuck", lambda *_: True)

    assert_noticed("was answered True, the queues were open")


def test_an_answer_about_many_jobs_that_outlives_a_change_is_noticed(monkeypatch):
    answers: dict[tuple[int, str], bool] = {}

    def remembered(self, question, answer):
        return answers.setdefault((id(self), question), answer())

    monkeypatch.setattr(Index, "while_unchanged", remembered)

    assert_noticed("the queues were")


def test_a_graph_that_is_resumed_by_outdated_records_is_noticed(monkeypatch):
    monkeypatch.setattr(resumption, "_is_current", lambda *_: True)

    assert_noticed("was completed, and runs again")


def test_an_early_claim_of_a_job_that_is_not_on_disk_is_noticed(monkeypatch):
    monkeypatch.setattr(Collector, "is_unsaved", lambda *_: False)

    assert_noticed("handed out early")


def test_a_standstill_that_costs_leases_is_noticed(monkeypatch):
    monkeypatch.setattr(Timekeeper, "notice_stall", lambda *_: None)

    assert_noticed("expired after")


def test_sleepers_that_are_never_woken_are_noticed(monkeypatch):
    monkeypatch.setattr(Sleepers, "wake", lambda *_: 0)

    assert_noticed("although there is work|did not end")


def test_a_place_in_the_log_that_is_ahead_of_what_was_read_is_noticed(monkeypatch):
    save = WatchQueue.save

    def hasty(self, server=""):
        ahead, self._ahead = self._ahead, deque()
        try:
            return save(self, server)
        finally:
            self._ahead = ahead

    monkeypatch.setattr(WatchQueue, "save", hasty)

    assert_noticed("counts as heard|never delivered")


def test_a_place_in_the_log_that_forgets_what_is_not_acknowledged_is_noticed(monkeypatch):
    give = WatchQueue.take

    def careless(self):
        taken = give(self)
        self._owed.clear()
        return taken

    monkeypatch.setattr(WatchQueue, "take", careless)

    assert_noticed("counts as heard|never delivered")


def test_a_durable_queue_that_is_told_of_before_its_commit_is_noticed(monkeypatch):
    def hasty(self, queue, then):
        self.changed(queue)
        then(None)

    monkeypatch.setattr(Broker, "save", hasty)

    assert_noticed("was not on disk|is gone")


def test_work_that_is_handed_to_a_broken_stream_is_noticed(monkeypatch):
    monkeypatch.setattr(StreamRoutes, "take_name", lambda *_: None)

    assert_noticed("did not end", streams=True)


def test_a_reconnect_that_forgets_what_was_lost_on_the_way_is_noticed(monkeypatch):
    monkeypatch.setattr(StreamRoutes, "held_by", lambda *_: [])

    assert_noticed("did not end", streams=True)


def test_an_answer_on_a_stream_before_its_commit_is_noticed(monkeypatch):
    def hasty(peer, asked, finish):
        for command in asked:
            peer.ask(command)
        finish([Accepted(1)] * len(asked))

    monkeypatch.setattr(stream_reports, "ask_all", hasty)

    assert_noticed("a completion was accepted and is not on disk", streams=True)


def test_names_that_come_back_after_their_graph_had_ended_are_noticed(monkeypatch):
    restore = Namespaces.restore
    monkeypatch.setattr(Namespaces, "restore", lambda self, _: restore(self, {}))

    assert_noticed("came back after its graph had ended")
