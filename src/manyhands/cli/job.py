"""`manyhands job`: everything about one job."""

import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec
import typer
from msgspec import Raw

from manyhands.cli.content import as_bytes
from manyhands.cli.durations import METAVAR, seconds
from manyhands.cli.http_link import HttpLink, RefusedError, UnansweredError, connected, give_up
from manyhands.cli.output import (
    STATE_STYLES,
    STATE_WORDS,
    ago,
    moment,
    plain,
    plural,
    print_json,
    print_styled,
    readable,
    span,
)
from manyhands.cli.stores import AsJson, fail, misuse
from manyhands.cli.waiting import FINISHED, wait_for_end

_SHOWN_BYTES: Final = 2_000
_LOG_LINES: Final = 20
_INSTANT_WIDTH: Final = len("2026-01-01 00:00:00.000+00:00")
# What happens at the instant that a wait names.
_UNTIL: Final = {
    "delayed": "due",
    "leased": "the lease ends",
    "in_grace": "others get it",
    "rate": "the next go out",
    "overdue": "it was due",
}


class Contents(msgspec.Struct):
    """The parts of an answer that are shown as bytes."""

    encoding: str
    payload: Raw
    result_encoding: str
    result: Raw

    def payload_bytes(self) -> bytes:
        """The payload."""
        return as_bytes(self.payload, self.encoding)

    def result_bytes(self) -> bytes:
        """The result."""
        return as_bytes(self.result, self.result_encoding)


class _Answer(msgspec.Struct):
    results: Contents


def contents_of(link: HttpLink, job_id: str) -> Contents:
    """Payload and result of a job."""
    from manyhands.cli.identity import job_path

    decode = msgspec.json.Decoder(_Answer).decode
    try:
        return link.ask("GET", job_path(job_id), decode=decode).results  # type: ignore[no-any-return]
    except (UnansweredError, RefusedError) as error:
        give_up(error)


@connected
def job(
    job_id: Annotated[
        str,
        typer.Argument(
            help="Its id, the end of it (at least 6 digits), a handle or a UUID.", metavar="ID"
        ),
    ],
    *,
    link: HttpLink,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait", help="Wait so long for its end first.", metavar=METAVAR, parser=seconds()
        ),
    ] = None,
    result: Annotated[
        bool, typer.Option("--result", help="Print only the result, byte by byte.")
    ] = False,
    payload: Annotated[
        bool, typer.Option("--payload", help="Print only the payload, byte by byte.")
    ] = False,
    log: Annotated[
        bool,
        typer.Option(
            "--log", help="Print only what workers reported: log lines, warnings, partial data."
        ),
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="With --log, continue until the job's end.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show one job: its story, why it waits, its log, its payload and its result.

    With --result it exits 1 unless the job is completed. In a pipe, each line begins with what it
    is about and a tab: id, queue, state, code (of its failure), facts, waits, story, log, failure,
    payload, result.

    Examples:

      manyhands job 8cd39c41b2aa

      manyhands job 8cd39c41b2aa --wait 5m --result > out.png

      manyhands job 8cd39c41b2aa --log -f
    """
    from manyhands.cli.identity import find_job
    from manyhands.cli.job_log import entries_of, print_log

    if log + result + payload > 1:
        misuse("--log, --result and --payload exclude each other.")
    if follow and not log:
        misuse("--follow is for --log.")
    found = find_job(link, job_id)
    if log:
        try:
            print_log(link, found["id"], follow=follow, as_json=as_json)
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        return
    if wait is not None and found["state"] not in FINISHED:
        wait_for_end(link, found["id"], wait)
        found = find_job(link, found["id"])
    if as_json:
        print_json(found)
        return
    contents = contents_of(link, found["id"])
    if result or payload:
        _print_bytes(contents, found, result=result)
        return
    story = _Story(found, contents, entries_of(link, found["id"]), link.now())
    if sys.stdout.isatty():
        story.print()
    else:
        for line in story.lines():
            typer.echo(line)


def _print_bytes(contents: Contents, found: Mapping[str, Any], *, result: bool) -> None:
    if not result:
        write_bytes(contents.payload_bytes())
        return
    if found["state"] != "completed":
        state = STATE_WORDS.get(found["state"], found["state"])
        verb = "has" if found["state"] == "failed" else "is"
        fail(f"job {found['id']} {verb} {state}; it has no result.")
    write_bytes(contents.result_bytes())


def write_bytes(data: bytes) -> None:
    """Writes the bytes as they are; on a terminal the prompt begins a new line."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    if sys.stdout.isatty() and not data.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


class _Part(msgspec.Struct):
    """A part of what there is to say about a job."""

    key: str  # in a pipe
    title: str  # on a terminal
    lines: list[str]
    indent: int = 0  # of what a line continues with in the next


class _Story:
    """A job, part by part."""

    def __init__(
        self,
        job: Mapping[str, Any],
        contents: Contents,
        log: list[dict[str, Any]],
        now: int,
    ) -> None:
        self._job = job
        self._contents = contents
        self._log = log
        self._now = now

    def print(self) -> None:
        """For a terminal."""
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False)
        state = self._job["state"]
        console.print(
            Text.assemble(
                (plain(self._job["queue"]), "bold"),
                " · ",
                (self._job["id"], "dim"),
                "   ",
                (f" {STATE_WORDS.get(state, state)} ", f"{STATE_STYLES[state]} reverse"),
            )
        )
        for part in self._parts():
            console.print()
            print_styled(part.title, "bold")
            for line in part.lines:
                # What does not fit goes on below the beginning of the text.
                head, text = line[: part.indent], line[part.indent :]
                first, *more = Text(text).wrap(console, console.width - 2 - part.indent) or [""]
                console.print(Text.assemble("  ", head, first), soft_wrap=True)
                for rest in more:
                    console.print(Text.assemble(" " * (2 + part.indent), rest), soft_wrap=True)

    def lines(self) -> Iterator[str]:
        """For a pipe."""
        yield f"id\t{self._job['id']}"
        yield f"queue\t{plain(self._job['queue'])}"
        yield f"state\t{self._job['state']}"
        if self._job["failure"] is not None:
            yield f"code\t{plain(self._job['failure']['code'])}"
        for part in self._parts():
            for line in part.lines:
                yield f"{part.key}\t{line}"

    def _parts(self) -> Iterator[_Part]:
        job, contents = self._job, self._contents
        yield _Part("facts", "Facts", list(self._facts()))
        if job["waits"]:
            yield _Part("waits", "Why it waits", [self._wait(wait) for wait in job["waits"]])
        yield _Part("story", "Story", list(self._story()), _INSTANT_WIDTH + 2)
        if self._log:
            yield _Part("log", "Log", list(self._last_of_log()), _INSTANT_WIDTH + 2)
        failure = job["failure"]
        if failure is not None:
            text = readable(failure["message"]).splitlines()
            title = f"Failure {plain(failure['code'])}".rstrip()
            yield _Part("failure", title, text or ["(no message)"])
        payload = contents.payload_bytes()
        size = plural(len(payload), "byte")
        yield _Part("payload", f"Payload ({contents.encoding}, {size})", _shown(payload))
        if job["state"] == "completed":
            result = contents.result_bytes()
            size = plural(len(result), "byte")
            yield _Part("result", f"Result ({contents.result_encoding}, {size})", _shown(result))

    def _last_of_log(self) -> Iterator[str]:
        """The latest entries; `--log` has all."""
        from manyhands.cli.job_log import line_of

        more = len(self._log) - _LOG_LINES
        if more > 0:
            yield f"… {plural(more, 'earlier line')}: --log"
        for entry in self._log[-_LOG_LINES:]:
            warned = "warning: " if entry["kind"] == "warning" else ""
            yield f"{moment(entry['at'])}  {warned}{line_of(entry)}"

    def _wait(self, wait: Mapping[str, Any]) -> str:
        sentence = readable(wait["sentence"])
        if wait["until_at"] is None:
            return sentence
        word = _UNTIL.get(wait["what"], "until then")
        return f"{sentence}; {word} {ago(wait['until_at'], self._now)}"

    def _facts(self) -> Iterator[str]:
        job = self._job
        origin = job["origin"]
        by = f" {plain(origin['name'])}" if origin["name"] else ""
        yield f"submitted {ago(job['submitted_at'], self._now)} over {origin['realm']}{by}"
        if job["name"]:
            yield f"name {plain(job['name'])}"
        if job["lease_number"]:
            most = job["terms"].get("attempts_max")
            allowed = f", {most} allowed" if most is not None and most >= 0 else ""
            yield f"{plural(job['lease_number'], 'attempt')}{allowed}"
        if job["tags"]:
            yield f"tags {plain(', '.join(job['tags']))}"
        if job["priority"]:
            yield f"priority {job['priority']:g}"
        if job["depends_on"]:
            yield f"depends on {', '.join(map(plain, job['depends_on']))}"
        progress = job.get("progress")
        if progress:
            yield f"progress {progress['numerator']} of {progress['denominator'] or '?'}"
        if job["deadline_at"] is not None:
            yield f"deadline {moment(job['deadline_at'])}"

    def _story(self) -> Iterator[str]:
        """Everything that happened, in order."""
        job = self._job
        moments = [(job["submitted_at"], "submitted")]
        for attempt in job["attempts"]:
            lasted = span(attempt["ended_at"] - attempt["claimed_at"])
            why = attempt["reason"].replace("_", " ")
            said = f": {plain(attempt['failure']).strip()}" if attempt["failure"] else ""
            moments.append(
                (
                    attempt["claimed_at"],
                    f"attempt {attempt['number']} by {_worker(attempt)}, {why} after {lasted}"
                    f"{said}",
                )
            )
        if job["lease"] is not None:
            lease = job["lease"]
            moments.append((lease["claimed_at"], f"attempt {lease['number']} by {_worker(lease)}"))
        moments += [
            (entry["at"], f"{entry['what']} {entry['detail']}".strip()) for entry in job["history"]
        ]
        if job["finished_at"] is not None:
            why = (job["reason"] or "").replace("_", " ")
            reason = f": {why}" if why and why != job["state"] else ""
            moments.append((job["finished_at"], f"{job['state']}{reason}"))
        for at, what in sorted(moments, key=lambda one: one[0]):
            yield f"{moment(at)}  {what}"


def _worker(lease: Mapping[str, Any]) -> str:
    holder = lease["holder"]
    return f"{plain(holder['name'] or holder['address'])} ({holder['realm']})"


def _shown(data: bytes) -> list[str]:
    """The beginning of a content, as text if it is text."""
    if not data:
        return ["(empty)"]
    part = data[:_SHOWN_BYTES]
    more = [f"… {len(data) - len(part):,} more bytes"] if len(part) < len(data) else []
    try:
        text = part.decode()
    except UnicodeDecodeError:
        if not more or b"\0" in part:
            return [part[at : at + 16].hex(" ") for at in range(0, min(len(part), 256), 16)] + more
        text = part.decode(errors="replace")
    return readable(text).splitlines() + more
