"""Metrics for Prometheus: frequent events are counted in plain lists, a scrape does the rest."""

import os
import resource
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from manyhands import __version__
from manyhands.dispatch.budget import Budget
from manyhands.dispatch.dispatcher import Dispatcher
from manyhands.model.history import BOUNDS_MS
from manyhands.model.job import State
from manyhands.observe.facts import Commits, Facts
from manyhands.observe.tallies import Tallies

# Beyond this, queues are summed up: a label for each would cost more than it is worth.
_QUEUES_MAX: Final = 1_000
_OTHER: Final = "_other"
_OF_JOBS: Final = ("unfinished_jobs", "events")  # facts of the store that only one server reports
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class _Limited(Collector):
    """The metrics without those of other queues."""

    def __init__(self, whole: "Metrics", may_use: Callable[[str], bool]) -> None:
        self._whole = whole
        self._may_use = may_use

    def describe(self) -> Iterable[Metric]:
        """Nothing before the first scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All that is shown."""
        for family in self._whole.collect():
            family.samples = [
                sample
                for sample in family.samples
                if "queue" not in sample.labels or self._may_use(sample.labels["queue"])
            ]
            yield family


class _Histogram:
    """Durations by upper bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def family(self, name: str, text: str, scale: float) -> HistogramMetricFamily:
        """In Prometheus's form: cumulative counts for each bound, in seconds if ``scale`` is
        1000.
        """
        family = HistogramMetricFamily(name, text)
        buckets: list[tuple[str, float]] = []
        reached = 0
        for bound, count in zip((*self.bounds, None), self.counts, strict=True):
            reached += count
            label = "+Inf" if bound is None else repr(bound / scale)
            buckets.append((label, reached))
        family.add_metric([], buckets, self.total / scale)
        return family


# Of the finer bounds that jobs are counted by.
_JOB_BOUNDS_MS: Final = (
    *(1, 5, 25, 100, 250, 1_000, 2_500, 10_000, 30_000),
    *(60_000, 300_000, 1_800_000, 7_200_000, 86_400_000),
)
_COMMIT_BOUNDS_MS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 1_000.0)
_BATCH_BOUNDS: Final = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 1_000.0, 10_000.0)


def _durations(name: str, text: str, counts: list[int], total_ms: int) -> HistogramMetricFamily:
    """Durations of jobs, in Prometheus's form."""
    family = HistogramMetricFamily(name, text)
    buckets = [
        (repr(bound / 1000), sum(counts[: BOUNDS_MS.index(bound) + 1])) for bound in _JOB_BOUNDS_MS
    ]
    family.add_metric([], [*buckets, ("+Inf", sum(counts))], total_ms / 1000)
    return family


class Metrics(Collector):
    """Counts events as they pass, and reads everything else at a scrape."""

    def __init__(self, dispatcher: Dispatcher, tallies: Tallies, facts: Facts) -> None:
        self._dispatcher = dispatcher
        self._facts = facts
        self._tallies = tallies
        self._commit = _Histogram(_COMMIT_BOUNDS_MS)
        self._batch = _Histogram(_BATCH_BOUNDS)
        self._registry = CollectorRegistry(auto_describe=False)
        # Listeners with metrics of their own add themselves.
        self.sources: list[Callable[[], Iterable[Metric]]] = []
        self._registry.register(self)
        facts.on_commits.append(self._take)

    def render(self, may_use: Callable[[str], bool] | None = None) -> tuple[str, bytes]:
        """The content type and the text of a scrape; of some queues only, if that is given."""
        if may_use is None:
            return CONTENT_TYPE_LATEST, generate_latest(self._registry)
        limited = CollectorRegistry()
        limited.register(_Limited(self, may_use))
        return CONTENT_TYPE_LATEST, generate_latest(limited)

    def describe(self) -> Iterable[Metric]:
        """Nothing before the first scrape: registering must not collect."""
        return ()

    def _take(self, commits: Commits) -> None:
        commit, sizes = self._commit, self._batch
        for elapsed_ms, size in commits:
            commit.counts[bisect_left(commit.bounds, elapsed_ms)] += 1
            commit.total += elapsed_ms
            sizes.counts[bisect_left(sizes.bounds, size)] += 1
            sizes.total += size

    # A scrape.

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        self._facts.count()
        yield InfoMetricFamily("manyhands", "Version of the server.", {"version": __version__})
        if self._dispatcher.decides:  # the others show the same queues: sums would be wrong
            yield from self._queues()
        yield from self._jobs()
        yield from self._commits()
        yield from self._commands()
        yield from self._store()
        yield from _processes()
        for source in self.sources:
            yield from source()

    def _queues(self) -> Iterator[Metric]:
        live = self._dispatcher.store.live
        now = self._dispatcher.clock.now()
        jobs = GaugeMetricFamily(
            "manyhands_queue_jobs", "Jobs on record by queue and state.", labels=["queue", "state"]
        )
        age = GaugeMetricFamily(
            "manyhands_queue_oldest_ready_age_seconds",
            "How long the oldest ready job has been ready.",
            labels=["queue"],
        )
        retrying = GaugeMetricFamily(
            "manyhands_queue_retrying_jobs",
            "Unfinished jobs that failed and are tried again.",
            labels=["queue"],
        )
        other = dict.fromkeys(State, 0)
        names = sorted(name for name in live.queues if name != _OTHER)
        shown = names[:_QUEUES_MAX]
        for name in shown:
            known = live.queues[name]
            for state, count in known.counts.items():
                jobs.add_metric([name, state.value], count)
            retrying.add_metric([name], sum(live.retrying_counts(name).values()))
            oldest_at = known.oldest_ready_at()
            if oldest_at is not None:
                age.add_metric([name], max(0, now - oldest_at) / 1000)
        rest = names[_QUEUES_MAX:]
        if _OTHER in live.queues:
            rest.append(_OTHER)
        for name in rest:
            for state, count in live.queues[name].counts.items():
                other[state] += count
        if rest:
            for state, count in other.items():
                jobs.add_metric([_OTHER, state.value], count)
            tried = sum(sum(live.retrying_counts(name).values()) for name in rest)
            retrying.add_metric([_OTHER], tried)
        yield jobs
        yield age
        yield retrying
        yield GaugeMetricFamily("manyhands_queues", "Queues that are known.", len(live.queues))
        yield GaugeMetricFamily(
            "manyhands_finished_bytes",
            "Payloads and results of finished jobs on record.",
            live.finished_bytes,
        )

    def _jobs(self) -> Iterator[Metric]:
        entered = CounterMetricFamily(
            "manyhands_jobs_entered", "Entries of jobs into a state.", labels=["state"]
        )
        for state, count in self._tallies.entered.items():
            entered.add_metric([state.value], count)
        yield entered
        taken = CounterMetricFamily(
            "manyhands_leases_taken", "Leases that ended without a report.", labels=["reason"]
        )
        for reason, count in self._tallies.taken.items():
            taken.add_metric([reason.value], count)
        yield taken
        realms = CounterMetricFamily(
            "manyhands_realm_jobs",
            "Jobs submitted and handed out, by protocol.",
            labels=["realm", "way"],
        )
        for way, counts in (("in", self._tallies.jobs_in), ("out", self._tallies.jobs_out)):
            for realm, count in counts.items():
                realms.add_metric([realm, way], count)
        yield realms
        total = self._tallies.total()
        yield _durations(
            "manyhands_job_wait_seconds", "From ready to leased.", total.wait, total.wait_ms
        )
        yield _durations(
            "manyhands_job_run_seconds",
            "From leased to the end of the lease.",
            total.run,
            total.run_ms,
        )

    def _commits(self) -> Iterator[Metric]:
        counts = self._dispatcher.counts
        yield CounterMetricFamily("manyhands_commits", "Batches made durable.", counts.batches)
        yield CounterMetricFamily("manyhands_jobs_written", "Job rows written.", counts.jobs)
        yield self._commit.family(
            "manyhands_commit_seconds", "From sealing a batch with events to its answers.", 1000
        )
        yield self._batch.family("manyhands_commit_jobs", "Jobs in a batch that has events.", 1)

    def _commands(self) -> Iterator[Metric]:
        dispatcher = self._dispatcher
        counts = dispatcher.counts
        yield CounterMetricFamily("manyhands_commands", "Commands decided.", counts.commands)
        yield CounterMetricFamily("manyhands_answers", "Answers given.", counts.answers)
        refusals = CounterMetricFamily(
            "manyhands_refusals", "Commands and items of commands refused.", labels=["reason"]
        )
        for why, count in counts.refusals.items():
            refusals.add_metric([why.value], count)
        yield refusals
        yield CounterMetricFamily(
            "manyhands_internal_errors", "Commands undone by a defect of ours.", counts.failures
        )
        yield GaugeMetricFamily(
            "manyhands_sleepers", "Workers that sleep for work.", dispatcher.sleepers.own_count
        )
        if dispatcher.decides:
            workers = dispatcher.store.live.workers_count()
            yield GaugeMetricFamily("manyhands_workers", "Workers that hold leases.", workers)
        yield GaugeMetricFamily(
            "manyhands_events_last_seq", "Newest event's number.", dispatcher.events.last_seq
        )
        yield GaugeMetricFamily(
            "manyhands_event_watchers",
            "Those that wait for the next event.",
            dispatcher.events.watchers_count,
        )
        yield GaugeMetricFamily(
            "manyhands_draining", "Whether the server is stopping.", int(dispatcher.draining)
        )

    def _store(self) -> Iterator[Metric]:
        store = self._dispatcher.store
        facts = GaugeMetricFamily("manyhands_store", "Numbers about the store.", labels=["fact"])
        for name, value in store.facts().items():
            if isinstance(value, int) and (self._dispatcher.decides or name not in _OF_JOBS):
                facts.add_metric([name], value)
        yield facts
        free = store.free_bytes()
        if free is not None:
            yield GaugeMetricFamily("manyhands_store_free_bytes", "Room left on disk.", free)
        full = int(self._dispatcher.store_full)
        yield GaugeMetricFamily("manyhands_store_full", "Whether submits are refused.", full)


def memory_metrics(budget: Budget) -> Iterator[Metric]:
    """What counts against the memory budget."""
    held = GaugeMetricFamily(
        "manyhands_memory_bytes", "What counts against the memory budget.", labels=["kind"]
    )
    for kind, count in budget.held_bytes().items():
        held.add_metric([kind], count)
    yield held
    yield GaugeMetricFamily("manyhands_memory_limit_bytes", "The budget.", budget.bytes_max)
    yield GaugeMetricFamily(
        "manyhands_peers_waiting",
        "Connections that are not read from until there is room.",
        budget.waiting_count,
    )


def _processes() -> Iterator[Metric]:
    """This process and its writer, as the system reports them."""
    cpu = CounterMetricFamily(
        "manyhands_process_cpu_seconds", "Time on a processor.", labels=["process"]
    )
    memory = GaugeMetricFamily(
        "manyhands_process_resident_bytes", "Memory in use.", labels=["process"]
    )
    own = resource.getrusage(resource.RUSAGE_SELF)
    cpu.add_metric(["server"], own.ru_utime + own.ru_stime)
    pages = _read(Path("/proc/self/statm")).split()
    if pages:
        memory.add_metric(["server"], int(pages[1]) * _PAGE)
    seconds, resident = 0.0, 0
    for pid in _children():
        fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
        pages = _read(Path(f"/proc/{pid}/statm")).split()
        if fields and pages:
            seconds += (int(fields[11]) + int(fields[12])) / _TICKS
            resident += int(pages[1]) * _PAGE
    if resident:
        cpu.add_metric(["writer"], seconds)
        memory.add_metric(["writer"], resident)
    yield cpu
    yield memory


def _children() -> list[str]:
    return [
        pid
        for thread in Path("/proc/self/task").glob("*/children")
        for pid in _read(thread).split()
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # another system, or gone meanwhile
