"""Figures of a queue, which outlive a restart."""

from tests.e2e.qless.talk import Qless
from tests.e2e.serving import serving


def test_statistics_come_from_the_log_and_outlive_a_restart(tmp_path):
    with serving(tmp_path) as server:
        worker = Qless(server, "w")
        ids = worker.add("q", *range(5))
        worker.take("q", 5)
        worker.complete("q", *ids[:3])
        worker.results("/complete/q", [{"id": ids[3], "meta": 1, "next": "p"}])
        worker.results("/fail/q", [{"id": ids[4], "group": "g"}])
        before = worker.get("/stats/q")
        worker.close()
    with serving(tmp_path) as server:
        worker = Qless(server, "w")
        after = worker.get("/stats/q")
        assert worker.get("/stats/q", date="2012-02-29")["wait"]["count"] == 0
        bad = worker.http.get("/stats/q", params={"date": "yesterday"})
        assert worker.problem(bad) == (400, "invalid_query")
        worker.close()

    assert before == after
    assert (after["wait"]["count"], after["run"]["count"]) == (5, 4)
    assert (after["failures"], after["failed"], after["retries"]) == (1, 1, 0)
    assert sum(after["run"]["histogram"]) == 4
