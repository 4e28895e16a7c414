"""The banner at the start of a server."""

import sys

import pytest

from manyhands.config import load_config
from manyhands.operate.banner import print_banner

LISTENING = {"http": "127.0.0.1:7700", "http_tls": None, "gearman": "127.0.0.1:4730"}


@pytest.fixture
def shown(capsys, monkeypatch):
    """The lines on a terminal."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")

    def show(addresses, kind: str = "sqlite", **options: str) -> list[str]:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        print_banner(load_config(options, {}, None).config, addresses, {"kind": kind})
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    return show


def test_on_a_terminal_the_pages_come_first_and_what_is_off_last(shown):
    _, *rows = shown(LISTENING, data="/srv/jobs")

    assert rows == [
        "pages http://127.0.0.1:7700/ui/",
        "http http://127.0.0.1:7700/",
        "gearman 127.0.0.1:4730",
        "off http_tls",
        "store /srv/jobs",
    ]


@pytest.mark.parametrize(
    ("kind", "store", "place"),
    [
        ("memory", "memory", "memory only: gone when it stops"),
        ("postgresql", "postgresql://ada:secret@db/jobs", "postgresql://ada@db/jobs"),
    ],
)
def test_it_names_where_jobs_are_kept_without_a_password(shown, kind, store, place):
    *_, last = shown({"http": None}, kind, store=store)

    assert last == f"store {place}"


def test_in_a_pipe_each_listener_is_a_line(capsys):
    print_banner(load_config({}, {}, None).config, LISTENING, {"kind": "sqlite"})

    assert capsys.readouterr().out.splitlines() == [
        "http\t127.0.0.1:7700",
        "http_tls\toff",
        "gearman\t127.0.0.1:4730",
        "pages\thttp://127.0.0.1:7700/ui/",
    ]
