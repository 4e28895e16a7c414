"""Users and passwords from a file, and the guest."""

import pytest

from manyhands.access.accounts import Accounts
from manyhands.access.callers import Callers
from manyhands.access.file import entry_of
from manyhands.config import Token
from manyhands.model.roles import Role

HERE, ELSEWHERE = "127.0.0.1", "192.0.2.7"


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "users"
    file.write_text("# who may watch\n\nanna:s3:cret\nüwe:päss\n")
    return file


@pytest.mark.parametrize(
    ("user", "password", "address", "refusal"),
    [
        ("anna", "s3:cret", ELSEWHERE, None),
        ("üwe", "päss", ELSEWHERE, None),
        ("anna", "s3", HERE, "user 'anna' is unknown, or the password is wrong"),
        ("anna", "", HERE, "user 'anna' is unknown, or the password is wrong"),
        ("nobody", "", HERE, "user 'nobody' is unknown, or the password is wrong"),
        (
            "# who may watch",
            "",
            HERE,
            "user '# who may watch' is unknown, or the password is wrong",
        ),
        ("guest", "guest", HERE, None),
        ("guest", "guest", "::1", None),
        ("guest", "guest", "::ffff:127.0.0.1", None),
        ("guest", "guest", ELSEWHERE, "user 'guest' may only log in from the server's own machine"),
        ("guest", "guest", "", "user 'guest' may only log in from the server's own machine"),
        ("guest", "wrong", HERE, "user 'guest' is unknown, or the password is wrong"),
    ],
)
def test_who_is_let_in(file, user, password, address, refusal):
    """T16"""
    accounts = Accounts(file, Callers(), guest_from_anywhere=True)

    assert accounts.refusal_of(user, password, address) == refusal


def test_without_a_file_the_guest_may_come_from_anywhere_if_anybody_may():
    """T16"""
    assert (
        Accounts(None, Callers(), guest_from_anywhere=True).refusal_of("guest", "guest", ELSEWHERE)
        is None
    )
    assert Accounts(None, Callers(), guest_from_anywhere=False).refusal_of(
        "guest", "guest", ELSEWHERE
    )


def test_the_guest_of_a_file_has_the_password_of_the_file(file):
    file.write_text("guest:other\n")
    accounts = Accounts(file, Callers(), guest_from_anywhere=False)

    assert accounts.refusal_of("guest", "guest", HERE)
    assert accounts.refusal_of("guest", "other", HERE) is None
    assert accounts.refusal_of("guest", "other", ELSEWHERE)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"anna\n", "line 1 is not USER:PASSWORD"),
        (b"\nanna:\n", "line 2 is not USER:PASSWORD"),
        (b":x\n", "line 1 is not USER:PASSWORD"),
        (b"a:b\na:c\n", "line 2 names a again"),
        (b"\xff:x\n", "is not UTF-8 text"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_a_sentence(file, text, sentence):
    file.write_bytes(text)

    with pytest.raises(OSError, match=sentence):
        Accounts(file, Callers(), guest_from_anywhere=False)


def test_a_file_that_is_not_there_is_refused_with_a_sentence(tmp_path):
    with pytest.raises(OSError, match="cannot be read: No such file"):
        Accounts(tmp_path / "nothing", Callers(), guest_from_anywhere=False)


def test_whoever_has_a_token_of_http_may_watch_by_name_and_token():
    tokens = (Token(Role.READ, "wall", "a-secret-of-the-wall"),)
    accounts = Accounts(
        None, Callers([entry_of(token) for token in tokens]), guest_from_anywhere=False
    )

    assert accounts.refusal_of("wall", "a-secret-of-the-wall", ELSEWHERE) is None
    assert accounts.refusal_of("wall", "another", ELSEWHERE)
    assert accounts.refusal_of("ada", "a-secret-of-the-wall", ELSEWHERE)
