"""Records of workers, with a clock of their own."""

from manyhands.server.workers import WORKER_MS_MAX, WORKERS_COUNT_MAX, WorkerBook


def test_qb52_silent_workers_vanish_and_those_that_are_heard_of_stay():
    book = WorkerBook("http")
    book.see("silent", "10.0.0.1", 0)
    book.see("alive", "10.0.0.2", 0)
    book.see(None, "10.0.0.3", 0)
    book.see("alive", "10.0.0.2", WORKER_MS_MAX - 1)

    assert [record.name for record in book.records(1)] == ["10.0.0.3", "alive", "silent"]
    assert [record.name for record in book.records(WORKER_MS_MAX)] == ["alive"]
    assert book.record("silent") is None


def test_names_without_end_cost_no_memory_without_end():
    book = WorkerBook("http")
    for number in range(WORKERS_COUNT_MAX + 10):
        book.see(f"w{number}", "10.0.0.1", number)

    assert len(book.records(number)) == WORKERS_COUNT_MAX
    assert book.record("w0") is None
