"""What code declares about the server (P55)."""

import pytest

from manyhands import App, cron, every
from manyhands.client.worker.declared import rate, settings_of
from manyhands.client.worker.targets import full_name, load


def test_rates_are_read():
    assert rate("100/s") == {"count": 100, "per_ms": 1_000}
    assert rate("10/5m") == {"count": 10, "per_ms": 300_000}
    for text in ("", "100", "0/s", "1/x", "-1/s"):
        with pytest.raises(ValueError, match="is no rate"):
            rate(text)


def test_settings_of_queues_limits_and_schedules_are_gathered():
    app = App("http://127.0.0.1:1")
    app.limit("smtp", 5)

    @app.task(queue="mail", concurrency=2, rate="3/s")
    def one() -> None: ...

    @app.task(queue="mail", schedule=every(60), retries=2, priority=4)
    def two() -> None: ...

    @app.task(schedule=cron("0 3 * * *", "Europe/Berlin"))
    def three() -> None: ...

    found = {(each.kind, each.name): each.wanted for each in settings_of(app, "tasks:app")}
    assert found == {
        ("limit", "smtp"): {"concurrency_max": 5},
        ("queue", "mail"): {"concurrency_max": 2, "rate": {"count": 3, "per_ms": 1_000}},
        ("schedule", "two"): {
            "queue": "mail",
            "payload": {},
            "headers": {"app": "tasks:app", "task": "two"},
            "interval_ms": 60_000,
            "attempts_max": 3,
            "priority": 4.0,
        },
        ("schedule", "three"): {
            "queue": "three",
            "payload": {},
            "headers": {"app": "tasks:app"},
            "cron": "0 3 * * *",
            "time_zone": "Europe/Berlin",
        },
    }


def test_an_app_has_one_name_however_it_is_given(tmp_path, monkeypatch):
    (tmp_path / "order_tasks.py").write_text("from manyhands import App\n\nhands = App()\n")
    monkeypatch.syspath_prepend(tmp_path)

    names = {full_name(load(target), target) for target in ("order_tasks", "order_tasks:hands")}
    assert names == {"order_tasks:hands"}
