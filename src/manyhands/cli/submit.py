"""`manyhands submit`: a job for a queue, and its result."""

import sys
import time
from typing import Annotated, Any, Final

import typer

from manyhands.cli import suggestions
from manyhands.cli.content import as_content, is_json
from manyhands.cli.durations import METAVAR, seconds
from manyhands.cli.http_link import HttpLink, RefusedError, UnansweredError, connected, give_up
from manyhands.cli.numbers import finite
from manyhands.cli.output import print_json, readable
from manyhands.cli.stores import AsJson, fail, misuse
from manyhands.model.failures import headline
from manyhands.model.payload import Encoding
from manyhands.model.traces import telling_line

_TRIES: Final = 20
_PAUSE_SECONDS: Final = 0.5
_NOT_IN_TIME: Final = 3
_TREATMENT = "How it is treated"


def _option(*names: str, text: str, metavar: str, **more: Any) -> Any:  # noqa: ANN401 - of typer
    return typer.Option(*names, help=text, metavar=metavar, rich_help_panel=_TREATMENT, **more)


@connected
def submit(  # noqa: PLR0913 - each is a flag
    queue: Annotated[
        str,
        typer.Argument(help="The queue; created if it is new.", autocompletion=suggestions.queues),
    ],
    payload: Annotated[
        str, typer.Argument(help="Data for the worker; - is standard input.", show_default=False)
    ] = "",
    *,
    link: HttpLink,
    wait: Annotated[
        bool,
        typer.Option("--wait", "-w", help="Wait for the end and print the result, byte by byte."),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", help="Wait no longer than this.", metavar=METAVAR, parser=seconds()
        ),
    ] = None,
    delay: Annotated[
        float,
        _option(
            "--delay",
            text="Not before this time has passed.",
            metavar=METAVAR,
            parser=seconds(),
            show_default=False,
        ),
    ] = 0.0,
    key: Annotated[
        str | None,
        _option(
            "--key",
            text="While a job of the queue with this key is unfinished, take that one instead.",
            metavar="KEY",
        ),
    ] = None,
    after: Annotated[
        list[str] | None,
        _option("--after", text="A job that must complete first; may be repeated.", metavar="ID"),
    ] = None,
    tag: Annotated[
        list[str] | None,
        _option("--tag", "-t", text="A word to search by; may be repeated.", metavar="TAG"),
    ] = None,
    limit: Annotated[
        list[str] | None,
        _option(
            "--limit", text="A named limit it counts against; may be repeated.", metavar="NAME"
        ),
    ] = None,
    priority: Annotated[
        float | None,
        _option("--priority", "-p", text="Higher goes first.", metavar="NUMBER", callback=finite),
    ] = None,
    attempts: Annotated[
        int | None,
        _option(
            "--attempts", text="Maximum number of attempts; -1 is unlimited.", metavar="NUMBER"
        ),
    ] = None,
    encoding: Annotated[
        Encoding | None,
        _option(
            "--encoding",
            text="What the payload is: json, text or binary (default: json if it is an object or "
            "an array, else text if it is UTF-8).",
            metavar="KIND",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job and print its id; it is on disk by then.

    With --wait the result is printed instead. Exit codes: 0 submitted (with --wait: completed), 1
    refused (with --wait: failed or cancelled), 2 wrong arguments, 3 not finished within --timeout.
    If the answer is lost, the request is repeated, without a second job.

    Examples:

      manyhands submit mail 'to: ada'

      manyhands submit resize - --wait --timeout 2m < photo.jpg > small.jpg

      manyhands submit report '{"month": 7}' --delay 5m --key july --tag monthly

      manyhands submit publish --after 8cd39c41b2aa
    """
    from manyhands.cli.identity import full_ids

    data = sys.stdin.buffer.read() if payload == "-" else payload.encode(errors="surrogateescape")
    if encoding is Encoding.JSON and not is_json(data):
        misuse("the payload is not JSON.")
    body: dict[str, Any] = {"queue": queue}
    if data or encoding is not None:
        body["payload"], body["encoding"] = as_content(data, encoding)
    if delay:
        body["delay_ms"] = round(delay * 1000)
    if after:
        body["depends_on"] = full_ids(link, after)
    given = {
        "unique_key": key,
        "tags": tag,
        "limits": limit,
        "priority": priority,
        "attempts_max": attempts,
    }
    body |= {name: value for name, value in given.items() if value is not None}
    made = _submit(link, body)
    if not wait:
        if as_json:
            print_json(made)
            return
        typer.echo(made["id"])
        if not made["created"] and sys.stderr.isatty():
            sentence = "an unfinished job of the queue has this key; nothing new was submitted."
            typer.echo(f"manyhands: {sentence}", err=True)
        return
    _print_end(link, made["id"], timeout, as_json=as_json)


def _submit(link: HttpLink, body: dict[str, Any]) -> dict[str, Any]:
    """Submits once, however often it has to be tried."""
    import secrets

    once = {"Idempotency-Key": secrets.token_hex(16)}
    left = _TRIES
    while True:
        try:
            return link.ask("POST", "/api/submit", body, headers=once)["results"]  # type: ignore[no-any-return]
        except RefusedError as error:
            give_up(error)
        except UnansweredError as error:
            left -= 1
            # Where nobody listens, there is nothing that could have been submitted.
            if left == 0 or error.nobody_listens or "not a manyhands" in str(error):
                give_up(error)
            time.sleep(_PAUSE_SECONDS)


def _print_end(link: HttpLink, job_id: str, limit: float | None, *, as_json: bool) -> None:
    import msgspec

    from manyhands.cli.identity import job_path
    from manyhands.cli.job import contents_of, write_bytes
    from manyhands.cli.waiting import wait_for_end

    try:
        end = wait_for_end(link, job_id, limit)
    except KeyboardInterrupt:
        fail(f"job {job_id} continues; `manyhands job {job_id} --wait 1h --result` waits again.")
    if end is None:
        typer.echo(f"manyhands: job {job_id} has not finished in time; it continues.", err=True)
        raise SystemExit(_NOT_IN_TIME)
    if as_json:
        typer.echo(msgspec.json.encode(link.get(job_path(job_id))).decode())
    elif end.state == "completed":
        write_bytes(contents_of(link, job_id).result_bytes())
    else:
        failure = end.failure or {}
        said = headline(failure.get("code", ""), telling_line(failure.get("message", "")))
        why = said or end.reason or ""
        said = f": {readable(why)}" if why else ""
        typer.echo(f"manyhands: job {job_id} {end.state}{said}", err=True)
    if end.state != "completed":
        raise SystemExit(1)
