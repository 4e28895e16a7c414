"""Secrets are compared in constant time: never by ``==``, and with no less work for a stranger."""

import ast
import hashlib
import hmac
import operator
from pathlib import Path

import msgspec
import pytest

import manyhands
from manyhands.access.accounts import Accounts
from manyhands.access.callers import Callers, Entry, Password, new_password, token_digest
from manyhands.access.credentials import Credentials
from manyhands.access.curve_keys import new_keys
from manyhands.cluster.link import Hello, Link, LinkError
from manyhands.model.roles import Caller, Role
from manyhands.net.curve import CurveHandshake
from manyhands.net.zmtp import Handshake, RefusedError
from tests.unit.net import curve_client
from tests.unit.net.curve_client import CurveClient

# All that identify peers, or read what they show.
PACKAGES = ("access", "cluster", "net", "ui", "web", "protocols/amqp", "protocols/taskcluster")
SECRET_WORDS = ("digest", "secret", "password", "cookie", "proof", "csrf", "vouch", "curve")


class Untouchable(bytes):
    """A secret that can only be compared by ``hmac.compare_digest``, which asks none of these."""

    def __eq__(self, _other):
        raise AssertionError("a secret was compared by ==")

    __ne__ = __lt__ = __gt__ = __le__ = __ge__ = __eq__
    __hash__ = bytes.__hash__


def test_an_untouchable_secret_cannot_be_compared_by_value():
    for compare in (operator.eq, operator.ne, operator.lt):
        for pair in ((Untouchable(b"a"), b"a"), (b"a", Untouchable(b"a"))):
            with pytest.raises(AssertionError, match="compared by"):
                compare(*pair)
    assert hmac.compare_digest(Untouchable(b"a"), b"a")


# By the secrets themselves.


def untouchable(password: Password) -> Password:
    return msgspec.structs.replace(password, digest=Untouchable(password.digest))


@pytest.mark.parametrize(
    ("shown", "name"),
    [
        ({"token": "right"}, "token"),
        ({"token": "wrong"}, None),
        ({"user": "token", "password": "right"}, "token"),
        ({"user": "password", "password": "right"}, "password"),
        ({"user": "password", "password": "wrong"}, None),
        ({"user": "nobody", "password": "wrong"}, None),
        ({"curve": b"k" * 32}, "curve"),
        ({"curve": b"x" * 32}, None),
    ],
)
def test_credentials_are_compared_in_constant_time(shown, name):
    callers = Callers(
        [
            Entry(caller=Caller("token", Role.WORK), token=Untouchable(token_digest("right"))),
            Entry(
                caller=Caller("password", Role.WORK), password=untouchable(new_password("right"))
            ),
            Entry(caller=Caller("curve", Role.WORK), curve=Untouchable(b"k" * 32)),
        ],
        asks_everyone=True,
    )

    found = callers.identify(Credentials(**shown))

    assert (found.name if found else None) == name


def test_accounts_of_a_file_are_compared_in_constant_time():
    accounts = Accounts(None, Callers(), guest_from_anywhere=False)
    known = {user: Untouchable(hashed) for user, hashed in accounts._passwords.items()}
    accounts._passwords, accounts._nothing = known, Untouchable(accounts._nothing)

    assert accounts.refusal_of("guest", "guest", "127.0.0.1") is None
    assert accounts.refusal_of("guest", "wrong", "127.0.0.1") is not None
    assert accounts.refusal_of("nobody", "", "127.0.0.1") is not None


@pytest.mark.parametrize("is_right", [True, False])
def test_the_cookie_of_a_curve_handshake_is_compared_in_constant_time(is_right):
    server = new_keys()
    made = []

    def mechanism() -> CurveHandshake:
        made.append(CurveHandshake(server))
        return made[-1]

    client, handshake = CurveClient(new_keys(), server.public), Handshake({b"CURVE": mechanism})
    handshake.feed(curve_client.GREETING)
    handshake.replies.clear()
    handshake.feed(client.hello())
    client.take_welcome(handshake.replies.pop())
    made[0]._cookie = Untouchable(made[0]._cookie)

    if is_right:
        assert handshake.feed(client.initiate()) == b""
    else:
        with pytest.raises(RefusedError, match="another handshake"):
            handshake.feed(client.initiate(cookie=bytes(96)))


@pytest.mark.parametrize("secret", [b"the same", b"another"])
def test_the_proof_of_another_server_is_compared_in_constant_time(monkeypatch, secret):
    def hello(number: int) -> Hello:
        return Hello(1, 1, "c", number, f"i{number}", f"s{number}", bytes([number]) * 32)

    made = Link._digest

    def digest(link: Link, prover: Hello, *rest, **more) -> bytes:
        found = made(link, prover, *rest, **more)
        return found if prover is link._me else Untouchable(found)

    monkeypatch.setattr(Link, "_digest", digest)
    caller = Link(hello(1), secret, calling=True)
    called = Link(hello(2), b"the same", calling=False)
    called.feed(caller.take())

    if secret == b"the same":
        caller.feed(called.take())
        assert caller.is_open
    else:
        with pytest.raises(LinkError, match="does not know the secret"):
            caller.feed(called.take())


# By the code: for whatever the tests above forget.


def secrets_compared_by_value(source: str) -> list[str]:
    """Comparisons by ``==``, ``in`` and the like of something that is called a secret."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare(left=left, ops=ops, comparators=others):
                # What it is looked for in has it as a key.
                sides = [left] if isinstance(ops[0], ast.In | ast.NotIn) else [left, *others]
                by_value = not isinstance(ops[0], ast.Is | ast.IsNot)
                if by_value and any(map(is_secret, sides)):
                    found.append(ast.unparse(node))
            case ast.Match(subject=subject) if is_secret(subject):
                found.append(ast.unparse(subject))
    return found


def is_secret(node: ast.expr) -> bool:
    """Whether it is a secret by its name: the last part of it, also sliced, encoded or made."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            if name in ("encode", "decode", "strip"):
                return isinstance(node, ast.Attribute) and is_secret(node.value)
            # A constant of ours is none.
            return not name.isupper() and any(word in name.lower() for word in SECRET_WORDS)
        case ast.Subscript(value=value):
            return is_secret(value)
        case ast.Call(func=func):
            return is_secret(func)
    return False


@pytest.mark.parametrize(
    "line",
    [
        "entry.digest == given",
        "given != self._cookie",
        "body[:96] == self._cookie[:96]",
        "proof.encode() == ours",
        "_proof(key, salt) == given",
        "token_digest(given) in known",
        "secret not in secrets",
    ],
)
def test_a_comparison_of_a_secret_by_value_is_found(line):
    assert secrets_compared_by_value(line) == [line]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_secret_is_compared_by_value(package):
    files = sorted((Path(manyhands.__file__).parent / package).rglob("*.py"))
    assert files
    for file in files:
        found = secrets_compared_by_value(file.read_text("utf-8"))
        assert not found, f"{file.name}: use hmac.compare_digest"


# By the work.


def work_of(monkeypatch, callers: Callers, user: str) -> list[tuple[int, int, int]]:
    """The cost of every scrypt that a wrong password of a user takes."""
    made, work = hashlib.scrypt, []

    def counted(given, *, n, r, p, **more):
        work.append((n, r, p))
        return made(given, n=n, r=r, p=p, **more)

    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "scrypt", counted)
        assert callers.identify(Credentials(user=user, password="wrong")) is None
    return work


@pytest.mark.parametrize("cost", [{}, {"n": 1 << 15}, {"n": 1 << 10, "p": 2}])
def test_an_unknown_name_costs_the_work_of_a_known_one(monkeypatch, cost):
    """Also where the hashes of a file have another cost than ours."""
    ada, eve = Caller("ada", Role.WORK), Caller("eve", Role.WORK)
    kept = [Password(bytes([n]) * 16, bytes(32), **cost) for n in range(3)]
    callers = Callers(
        [Entry(caller=who, password=one) for who, one in zip((ada, ada, eve), kept, strict=True)],
        asks_everyone=True,
    )

    work = {user: work_of(monkeypatch, callers, user) for user in ("ada", "eve", "nobody")}

    assert work["ada"] == [(kept[0].n, kept[0].r, kept[0].p)] * 2
    assert work["nobody"] == work["eve"] == work["ada"]
