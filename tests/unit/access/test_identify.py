"""Who a peer is, by what it shows."""

import ipaddress

import pytest

from manyhands.access.callers import (
    SECRET_LENGTH_MAX,
    Callers,
    Entry,
    new_password,
    read_password,
    token_digest,
)
from manyhands.access.credentials import Certificate, Credentials
from manyhands.model.roles import ANYBODY, Caller, Role

TOKEN = "t" * 43
MAILER = Caller("mailer", Role.WORKER, ("mail.*",))
ADA = Caller("ada", Role.OPERATE)
ENTRIES = (
    Entry(caller=MAILER, token=token_digest(TOKEN)),
    Entry(caller=ADA, password=new_password("correct horse")),
    Entry(caller=Caller("cert", Role.READ), certificate="CN=wall,O=Example"),
    Entry(caller=Caller("san", Role.READ), certificate="wall.example"),
    Entry(caller=Caller("key", Role.WORK), curve=b"k" * 32),
    Entry(caller=Caller("site", Role.READ), address=ipaddress.ip_network("10.0.0.0/8")),
    Entry(caller=Caller("rack", Role.SUBMIT), address=ipaddress.ip_network("10.1.0.0/16")),
)


def name_of(callers: Callers, **shown) -> str | None:
    found = callers.identify(Credentials(**shown))
    return None if found is None else found.name


@pytest.fixture
def callers() -> Callers:
    return Callers(ENTRIES, asks_everyone=True)


@pytest.mark.parametrize(
    ("shown", "name"),
    [
        ({"token": TOKEN}, "mailer"),
        ({"user": "mailer", "password": TOKEN}, "mailer"),
        ({"user": "", "password": TOKEN}, "mailer"),
        ({"user": "ada", "password": "correct horse"}, "ada"),
        ({"certificate": Certificate("CN=wall,O=Example")}, "cert"),
        ({"certificate": Certificate("CN=x", ("wall.example",))}, "san"),
        ({"curve": b"k" * 32}, "key"),
        ({"address": "10.2.3.4"}, "site"),
        ({"address": "10.1.3.4"}, "rack"),
        ({"address": "::ffff:10.1.3.4"}, "rack"),
        ({"address": "10.1.3.4", "certificate": Certificate("CN=unknown")}, "rack"),
    ],
)
def test_each_credential_identifies_its_caller(callers, shown, name):
    assert name_of(callers, **shown) == name


@pytest.mark.parametrize(
    "shown",
    [
        {},
        {"token": ""},
        {"token": TOKEN[:-1]},
        {"token": TOKEN * 1000},
        {"token": "\udcff"},
        {"user": "ada", "password": TOKEN},
        {"user": "ada", "password": ""},
        {"user": "", "password": ""},
        {"user": "nobody", "password": "correct horse"},
        {"user": "ada", "password": "x" * (SECRET_LENGTH_MAX + 1)},
        {"curve": b"x" * 32},
        {"certificate": Certificate("CN=unknown", ("other.example",))},
        {"address": "192.0.2.1"},
        {"address": "not an address"},
        # A wrong secret is not made up for by an address that would be let in without one.
        {"address": "10.1.3.4", "token": "wrong"},
        {"address": "10.1.3.4", "user": "ada", "password": "wrong"},
        {"address": "10.1.3.4", "curve": b"x" * 32},
    ],
)
def test_wrong_empty_and_huge_credentials_identify_nobody(callers, shown):
    assert name_of(callers, **shown) is None


def test_without_entries_everybody_is_trusted():
    assert Callers().identify(Credentials(address="127.0.0.1")) is ANYBODY
    assert Callers(asks_everyone=True).identify(Credentials(address="127.0.0.1")) is None


def test_expired_credentials_identify_nobody():
    now = [0]
    entry = Entry(caller=MAILER, token=token_digest(TOKEN), expires_at=1_000)
    callers = Callers([entry], asks_everyone=True, now=lambda: now[0])
    changes: list[None] = []
    callers.subscribe(lambda: changes.append(None))
    found = callers.identify(Credentials(token=TOKEN))
    assert found is not None

    now[0] = 1_000

    assert name_of(callers, token=TOKEN) is None
    callers.expire()
    assert changes == [None]
    assert not callers.knows(found)


def test_a_change_forgets_only_callers_whose_entry_changed(callers):
    mailer, ada = (
        callers.identify(Credentials(token=TOKEN)),
        callers.identify(Credentials(user="ada", password="correct horse")),
    )

    rotated = Entry(caller=MAILER, token=token_digest("another"))
    callers.replace([rotated, *ENTRIES[1:]])

    assert not callers.knows(mailer)
    assert callers.knows(ada)
    assert callers.identify(Credentials(user="ada", password="correct horse")) is ada


def test_secrets_are_not_shown():
    shown = repr(Credentials(address="10.0.0.1", token=TOKEN, user="u", password="secret"))

    assert TOKEN not in shown
    assert "secret" not in shown
    assert "10.0.0.1" in shown


def test_a_stored_password_is_read_back():
    stored = new_password("correct horse")

    assert read_password(str(stored)) == stored
    for broken in ("", "scrypt:1:1:1:a:b", "scrypt:16384:8:1:!:!", f"x{stored}", "scrypt:7:8:1::"):
        assert read_password(broken) is None


@pytest.mark.parametrize(
    ("pattern", "queue", "fits"),
    [
        ("mail.*", "mail.out", True),
        ("mail.*", "mail", False),
        ("mail.*", "email.out", False),
        ("*", "anything\nat all", True),
        ("a?[b]", "a?[b]", True),
        ("a?", "ab", False),
    ],
)
def test_patterns_of_queues_know_only_the_star(pattern, queue, fits):
    assert Caller("x", Role.WORK, (pattern,)).may_use(queue) is fits
