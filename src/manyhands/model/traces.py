"""Stack traces of Python, Java and Node inside the message of a failure: which line says what went
wrong, and which frame is the worker's own code.

A message is read without knowing its language. What is not a stack trace is shown by its first
line.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

# More of a message is never read: what tells stands at the beginning or at the end.
_CHARACTERS_MAX: Final = 64_000
_TRACEBACK: Final = "Traceback (most recent call last):"
# The margin that Python draws around the members of an exception group.
_MARGIN: Final = re.compile(r"^ *[|+] ?")
_PYTHON_FRAME: Final = re.compile(r'\s*File "([^"\n]*)", line (\d+)(?:, in (.*))?')
_AT_FRAME: Final = re.compile(r"\s+at (\S.*)")
_JAVA_FRAME: Final = re.compile(r"[^()\s]+\((?:[^()]*\.\w+:\d+|Native Method|Unknown Source)\)")
_CAUSE: Final = re.compile(r"\s*(?:Caused by|\[cause\]): (\S.*)")
_THREAD: Final = re.compile(r'Exception in thread "[^"\n]*" ')
_ERROR: Final = re.compile(r"\[?(?:Uncaught )?[\w$.]*(?:Error|Exception)\b")
# Node shows where an uncaught error was thrown first: the place, the line of code, and a mark.
_PLACE: Final = re.compile(r"(?:node:|file:|/|[A-Za-z]:\\)\S*:\d+")
_MARK: Final = re.compile(r"\s*\^+")
_HEAD_LINES_MAX: Final = 6
# What an error without frames is shown as, and what follows the name of one that has fields.
_BRACKETS: Final = re.compile(r"\[(.*)\](?: \{)?")
# Node's explanation of a rejection is longer than the reason that comes last.
_REJECTED: Final = re.compile(r"([\w$.]+: )This error originated .* with the reason (.*)")
# Code that comes with the language or was installed, by parts of a file's or a class's name.
_LIBRARY_FILES: Final = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ")
_LIBRARY_CLASSES: Final = ("java.", "javax.", "jdk.", "sun.", "com.sun.", "kotlin.", "scala.")
_LIBRARY_SCRIPTS: Final = ("node:", "/node_modules/", "(internal/", "(<anonymous>)")


def telling_line(message: str) -> str:
    """The line that says what went wrong."""
    if "\n" not in message:
        return message.strip()
    lines = _lines(message)
    _, told = _without_head(lines)
    found = _python_error(lines) or _at_error(told)
    return found or next((line.strip() for line in told if line.strip()), "")


def own_frame(message: str) -> str:
    """The innermost frame that is not a library's, or the innermost one of all; "" if the message
    is no stack trace.
    """
    if "\n" not in message:
        return ""
    lines = _lines(message)
    place, told = _without_head(lines)
    return _python_frame(lines) or _at_frame(told, place)


def _lines(message: str) -> list[str]:
    if len(message) > _CHARACTERS_MAX:
        half = _CHARACTERS_MAX // 2
        message = f"{message[:half]}\n{message[-half:]}"
    return message.splitlines()


def _last_traceback(lines: Sequence[str]) -> list[str] | None:
    """What follows the head of the last traceback; of a group, of the group itself."""
    heads = [at for at, line in enumerate(lines) if line.endswith(_TRACEBACK)]
    if not heads:
        return None
    groups = [at for at in heads if "Group" in lines[at]]
    start = groups[-1] if groups else heads[-1]
    if not groups:
        return list(lines[start + 1 :])
    return [_MARGIN.sub("", line) for line in lines[start + 1 :]]


def _python_error(lines: Sequence[str]) -> str:
    """The first line after the frames, which alone are indented."""
    trace = _last_traceback(lines)
    if trace is None:
        return ""
    found = next((line.strip() for line in trace if line and not line[0].isspace()), "")
    # A trace that was cut has no such line: its last one says most.
    return found or next((line.strip() for line in reversed(trace) if line.strip()), "")


def _python_frame(lines: Sequence[str]) -> str:
    frames: list[tuple[str, str]] = []
    for line in _last_traceback(lines) or ():
        if line and not line[0].isspace():
            break
        match = _PYTHON_FRAME.match(line)
        if match is not None:
            file, number, name = match.groups()
            frames.append((file, f"{file}:{number}" + (f" in {name.strip()}" if name else "")))
    own = [shown for file, shown in frames if not any(part in file for part in _LIBRARY_FILES)]
    return (own or [shown for _, shown in frames] or [""])[-1]


def _without_head(lines: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The place that Node shows first, and the lines below its mark."""
    first = next((at for at, line in enumerate(lines) if line.strip()), 0)
    if lines and _PLACE.fullmatch(lines[first]):
        for at in range(first + 1, min(first + _HEAD_LINES_MAX, len(lines))):
            if _MARK.fullmatch(lines[at]):
                return lines[first], lines[at + 1 :]
    return "", lines


def _at_error(lines: Sequence[str]) -> str:
    """The line that stands before the frames, with the first cause if there are causes."""
    first = next((at for at, line in enumerate(lines) if _AT_FRAME.match(line)), None)
    if first is None:
        return ""
    before = [line.strip() for line in lines[:first] if line and not line[0].isspace()]
    if not before:
        return ""
    found = next((line for line in before if _ERROR.match(line)), before[0])
    found = _THREAD.sub("", found, count=1)
    bare = _BRACKETS.fullmatch(found)
    found = found if bare is None else bare[1]
    rejected = _REJECTED.fullmatch(found)
    found = found if rejected is None else rejected[1] + rejected[2]
    causes = [match[1].strip() for match in map(_CAUSE.match, lines) if match is not None]
    return f"{found} (caused by {causes[-1]})" if causes else found


def _at_frame(lines: Sequence[str], place: str) -> str:
    frames = list(_at_frames(lines))
    if place and not _is_library(place):
        frames.append(place)  # of a script that cannot be read there are no frames
    return next((frame for frame in frames if not _is_library(frame)), (frames or [""])[0])


def _at_frames(lines: Sequence[str]) -> Iterator[str]:
    """The frames of the first cause, or of the only error; the innermost comes first."""
    causes = [at for at, line in enumerate(lines) if _CAUSE.match(line)]
    for line in lines[causes[-1] if causes else 0 :]:
        match = _AT_FRAME.match(line)
        if match is not None:
            yield match[1].strip()


def _is_library(frame: str) -> bool:
    if _JAVA_FRAME.fullmatch(frame):
        # The name of a module may stand before the class: java.base/java.lang.Thread.run(…).
        return frame.partition("(")[0].rpartition("/")[2].startswith(_LIBRARY_CLASSES)
    return any(part in frame for part in _LIBRARY_SCRIPTS)
