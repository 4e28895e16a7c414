"""`manyhands access`: the file of callers, their roles and their credentials."""

import os
import secrets
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from manyhands.access.callers import Callers, Entry, new_password, token_digest
from manyhands.access.credentials import Certificate, Credentials
from manyhands.access.curve_keys import as_text, file_text, new_keys
from manyhands.access.file import (
    CALLER_NAME,
    AccessFileError,
    read_access,
    read_access_file,
)
from manyhands.cli.output import Column, moment, print_json, print_table, readable
from manyhands.cli.stores import AsJson, fail, misuse
from manyhands.config.durations import read_ms
from manyhands.config.files import PRIVATE_MODE, open_draft, refuse_special
from manyhands.config.reader import as_toml
from manyhands.dispatch.clock import Clock
from manyhands.model.roles import RIGHTS, Caller, Right, Role

access = typer.Typer(
    help="Make, list, test and remove the callers of the access file.",
    epilog="Example: manyhands access new mailer --role worker --queues 'mail.*'",
    no_args_is_help=True,
)
File = Annotated[
    Path,
    typer.Option(
        "--file",
        "-f",
        help="The access file.",
        envvar="MANYHANDS_ACCESS",
        metavar="FILE",
    ),
]
_FILE: Final = Path("access.toml")
_HEAD: Final = "[[caller]]"
_PASSWORD_LENGTH_MIN: Final = 8
_COLUMNS: Final = (
    Column("CALLER", folds=True),
    Column("ROLE"),
    Column("QUEUES", folds=True),
    Column("BY"),
    Column("EXPIRES"),
)


@access.command()
def new(  # noqa: PLR0913 - one for each flag
    name: Annotated[str, typer.Argument(help="The caller's name.", metavar="NAME")],
    *,
    role: Annotated[Role, typer.Option("--role", "-r", help="What it may do.")],
    queues: Annotated[
        list[str] | None,
        typer.Option(
            "--queues",
            "-q",
            help="Pattern of queues, such as mail.*; repeatable.",
            metavar="PATTERN",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            help="When it ends, such as 90d from now, or 2030-01-31T00:00:00Z.",
            metavar="DURATION|TIME",
        ),
    ] = None,
    password: Annotated[
        bool,
        typer.Option("--password", help="Ask for a password, instead of making a token."),
    ] = False,
    certificate: Annotated[
        str | None,
        typer.Option(
            "--certificate", help="Subject of its certificate, or a name.", metavar="SUBJECT"
        ),
    ] = None,
    curve: Annotated[
        str | None, typer.Option("--curve", help="Its CURVE public key.", metavar="KEY")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", help="Its network, such as 10.1.0.0/16.", metavar="NETWORK"),
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Another credential for a caller that exists: to rotate it."),
    ] = False,
    file: File = _FILE,
) -> None:
    """Make a caller. Its token is printed once; the file only holds a hash of it.

    Examples:

      manyhands access new mailer --role worker --queues 'mail.*'

      manyhands access new ada --role operate --password

      manyhands access new visitor --role read --expires 8h
    """
    given = [
        kind
        for kind, value in (
            ("password", password),
            ("certificate", certificate),
            ("curve", curve),
            ("address", address),
        )
        if value
    ]
    if len(given) > 1:
        misuse(f"a caller has one credential, not both {given[0]} and {given[1]}; use --again.")
    if not CALLER_NAME.fullmatch(name):
        misuse("a caller's name has up to 64 letters, digits and any of . _ @ -")
    text = _text(file)
    known = [entry.caller for entry in _read(text, file) if entry.caller.name == name]
    if known and not again:
        fail(f"{name} exists in {file}; --again gives it another credential.")
    secret = ""
    if password:
        secret = _ask_password()
        line = f"password = {as_toml(str(new_password(secret)))}"
    elif given:
        kind = given[0]
        line = (
            f"{kind} = {as_toml({'certificate': certificate, 'curve': curve}.get(kind, address))}"
        )
    else:
        secret = secrets.token_urlsafe(32)
        line = f"token = {as_toml('sha256:' + token_digest(secret).hex())}"
    lines = [_HEAD, f"name = {as_toml(name)}", f"role = {as_toml(role.value)}"]
    if queues:
        lines.append(f"queues = [{', '.join(map(as_toml, queues))}]")
    if expires:
        lines.append(f"expires = {_instant(expires)}")
    lines.append(line)
    added = "\n".join(lines) + "\n"
    changed = f"{text.rstrip()}\n\n{added}" if text.strip() else added
    _read(changed, file)
    _write(file, changed)
    typer.echo(readable(f"{name} is in {file}."), err=True)
    if secret and not password:
        typer.echo("This is its token. It is not shown again:", err=True)
        typer.echo(secret)


def _instant(text: str) -> str:
    """An instant of TOML from one, or from a duration until then."""
    ms = None if text.isdecimal() else read_ms(text)  # 2030 alone is no number of seconds
    try:
        found = (
            datetime.fromisoformat(text)
            if ms is None
            else datetime.fromtimestamp((Clock().now() + ms) / 1000, UTC)
        )
    except (ValueError, OverflowError, OSError):
        misuse(f"--expires {text}: use a duration such as 90d, or an instant with its zone.")
    if found.tzinfo is None:
        misuse(f"--expires {text} has no time zone; add Z for UTC.")
    return found.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@access.command(name="list")
def list_callers(*, file: File = _FILE, as_json: AsJson = False) -> None:
    """List callers, without their credentials.

    Example:

      manyhands access list
    """
    rows = [_row(entry) for entry in _read_file(file)]
    if as_json:
        for row in rows:
            print_json(row)
        return
    print_table(
        _COLUMNS,
        [
            [
                row["name"],
                row["role"],
                " ".join(row["queues"]) or "all",
                row["by"],
                row["expires"] or "-",
            ]
            for row in rows
        ],
    )


@access.command()
def remove(
    name: Annotated[str, typer.Argument(help="The caller's name.", metavar="NAME")],
    *,
    file: File = _FILE,
) -> None:
    """Remove a caller with all its credentials. A running server closes its connections.

    Example:

      manyhands access remove mailer
    """
    text = _text(file)
    _read(text, file)
    blocks = _blocks(text)
    left = [block for block in blocks if _name_of(block) != name]
    if len(left) == len(blocks):
        fail(f"there is no {name} in {file}.")
    changed = "".join(left)
    _read(changed, file)
    _write(file, changed)
    typer.echo(readable(f"{name} is removed from {file}."), err=True)


@access.command(name="test")
def identify(
    *,
    file: File = _FILE,
    user: Annotated[
        str | None,
        typer.Option("--user", "-u", help="The secret is this user's password.", metavar="NAME"),
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(
            "--certificate", help="Test a certificate's subject or name.", metavar="SUBJECT"
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", help="Test an address.", metavar="ADDRESS")
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="A queue to use.", metavar="QUEUE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say who a token belongs to and what it may do. The token is read from standard input, where
    the list of processes does not show it. Without any input, only the file is checked.

    Examples:

      manyhands access test < token.txt

      manyhands access test --address 10.1.2.3 --queue mail.out
    """
    callers = Callers(_read_file(file), asks_everyone=True, now=Clock().now)
    if certificate is not None or address is not None:
        shown = Credentials(
            address=address,
            certificate=None if certificate is None else Certificate(certificate, (certificate,)),
        )
    else:
        secret = _ask_secret()
        if not secret:
            typer.echo(readable(f"{file} is valid: {len(callers.entries)} callers."))
            return
        shown = (
            Credentials(token=secret)
            if user is None
            else Credentials(user=user, password=secret, address=address)
        )
    caller = callers.identify(shown)
    if caller is None:
        fail("nobody has these credentials: the server would refuse them.")
    rights = _rights(caller, queue)
    if as_json:
        print_json({"name": caller.name, "role": caller.role, "queues": caller.queues, **rights})
        return
    where = f"in {queue}" if queue is not None else f"in {', '.join(caller.queues) or 'all queues'}"
    may = ", ".join(right for right, allowed in rights.items() if allowed) or "do nothing"
    typer.echo(readable(f"{caller.name} has the role {caller.role}: it may {may} {where}."))


@access.command()
def curve(
    name: Annotated[
        str, typer.Argument(help="What the files are called, with their folder.", metavar="NAME")
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Make a pair of CURVE keys, for a server or a client of dwork and WMP. NAME.key_secret has
    both keys; NAME.key has the public one, which is also printed and may be given away.

    Examples:

      manyhands access curve server

      manyhands access new node-7 --role worker --curve "$(manyhands access curve node-7)"
    """
    keys = new_keys()
    files = {
        Path(f"{name}.key_secret"): (file_text(keys, with_secret=True), PRIVATE_MODE),
        Path(f"{name}.key"): (file_text(keys, with_secret=False), 0o644),
    }
    for file in files:
        if file.exists() or file.is_symlink():
            fail(f"{file} exists already; it is not overwritten.")
    for file, (text, mode) in files.items():
        try:
            with os.fdopen(open_draft(file, mode), "w", encoding="utf-8") as written:
                written.write(text)
        except OSError as error:
            fail(f"{file} cannot be written: {error.strerror}.")
    if as_json:
        print_json({"public": as_text(keys.public), "files": [str(file) for file in files]})
    else:
        typer.echo(as_text(keys.public))


def _rights(caller: Caller, queue: str | None) -> dict[str, bool]:
    usable = queue is None or caller.may_use(queue)
    shown = (Right.LOOK, Right.SUBMIT, Right.WORK, Right.OPERATE)
    return {right.value: usable and right in RIGHTS[caller.role] for right in shown}


def _row(entry: Entry) -> dict[str, Any]:
    by = next(
        kind
        for kind in ("token", "password", "certificate", "curve", "address")
        if getattr(entry, kind) is not None
    )
    expires = None
    if entry.expires_at is not None:
        expires = moment(entry.expires_at)
    return {
        "name": entry.caller.name,
        "role": entry.caller.role.value,
        "queues": list(entry.caller.queues),
        "by": by,
        "expires": expires,
    }


def _ask_password() -> str:
    if sys.stdin.isatty():
        secret: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        secret = sys.stdin.readline().rstrip("\n")
    if len(secret) < _PASSWORD_LENGTH_MIN:
        fail(f"a password has at least {_PASSWORD_LENGTH_MIN} characters.")
    return secret


def _ask_secret() -> str:
    if sys.stdin.isatty():
        return str(
            typer.prompt("Token or password", default="", show_default=False, hide_input=True)
        )
    return sys.stdin.readline().rstrip("\n")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{file} cannot be read: {error}")


def _read(text: str, file: Path) -> list[Entry]:
    try:
        return read_access(text)
    except AccessFileError as error:
        fail(f"{file} cannot be used: {error}.")


def _read_file(file: Path) -> list[Entry]:
    try:
        return read_access_file(file)
    except AccessFileError as error:
        fail(str(error))


def _blocks(text: str) -> list[str]:
    """The text before the first caller, and each caller with what follows it."""
    blocks = [""]
    for line in text.splitlines(keepends=True):
        if line.strip() == _HEAD:
            blocks.append("")
        blocks[-1] += line
    return blocks


def _name_of(block: str) -> str | None:
    tables = tomllib.loads(block).get("caller")
    return tables[0].get("name") if tables else None


def _write(file: Path, text: str) -> None:
    """Replaces the file at once, readable by its owner only: the server never sees half of it."""
    try:
        refuse_special(file)
        draft = file.with_name(f"{file.name}.new")
        mode = file.stat().st_mode & 0o770 if file.exists() else PRIVATE_MODE
        descriptor = open_draft(draft, mode or PRIVATE_MODE)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(descriptor)
        draft.replace(file)
    except OSError as error:
        fail(f"{file} cannot be written: {error}")
