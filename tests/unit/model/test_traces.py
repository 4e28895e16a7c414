"""Of a stack trace the line is shown that says what went wrong, and the place where it did."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manyhands.model.failures import group_of
from manyhands.model.job import Failure
from manyhands.model.traces import own_frame, telling_line

PYTHON = """\
Traceback (most recent call last):
  File "/srv/app/worker.py", line 31, in main
    charge(order)
  File "/srv/app/billing/charge.py", line 12, in charge
    session.post(url, json=body)
  File "/srv/venv/lib/python3.12/site-packages/requests/api.py", line 115, in post
    return request("post", url, data=data)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
DBDown: connection refused
"""
CHAINED = (
    PYTHON
    + """
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/srv/app/worker.py", line 33, in main
    report(error)
  File "/srv/app/report.py", line 8, in report
    raise ReportError("no way to report") from None
app.errors.ReportError: no way to report
and what to do about it
"""
)
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/srv/app/fan.py", line 4, in out
  |     raise ExceptionGroup("three of them", errors)
  | ExceptionGroup: three of them (3 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: 1
    +------------------------------------
"""
JAVA = """\
Exception in thread "main" com.shop.OrderFailed: order 17 was not shipped
\tat com.shop.Ship.run(Ship.java:41)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.net.ConnectException: Connection refused
\tat java.base/sun.nio.ch.Net.connect0(Native Method)
\tat com.shop.Client.open(Client.java:12)
\t... 3 more
"""
NODE = """\
/srv/app/index.js:12
    throw new TypeError("x is not a function");
    ^

TypeError: x is not a function
    at node:internal/util:1:2
    at run (/srv/app/node_modules/queue/run.js:3:9)
    at handle (/srv/app/handle.js:12:11)
    at async main (/srv/app/index.js:7:3)

Node.js v20.1.0
"""

# As Node 20 writes them.
NODE_CAUSE = """\
/srv/app/a.js:3
function settings(){ try { load() } catch (e) { throw new Error('no settings', {cause: e}) } }
                                                ^

Error: no settings
    at settings (/srv/app/a.js:3:51)
    ... 5 lines matching cause stack trace ...
    at node:internal/main/run_main_module:28:49 {
  [cause]: SyntaxError: Unexpected end of JSON input
      at JSON.parse (<anonymous>)
      at load (/srv/app/a.js:2:23)
}

Node.js v20.20.2
"""
NODE_REJECTED = """\
node:internal/process/promises:389
      new UnhandledPromiseRejection(reason);
      ^

UnhandledPromiseRejection: This error originated either by throwing inside of an async function \
without a catch block, or by rejecting a promise which was not handled with .catch(). The promise \
rejected with the reason "no stock".
    at throwUnhandledRejectionsMode (node:internal/process/promises:389:7)
    at process.processTicksAndRejections (node:internal/process/task_queues:96:32) {
  code: 'ERR_UNHANDLED_REJECTION'
}
"""
NODE_BRACKETS = """\
node:internal/modules/run_main:123
    triggerUncaughtException(
    ^

[AggregateError: All promises were rejected] {
  [errors]: [
    Error: first server down
        at file:///srv/app/h.mjs:1:35
  ]
}
"""
NODE_OWN_CLASS = """\
/srv/app/k.js:2
throw new OutOfStock('article 17');
^

OutOfStock: article 17
    at Object.<anonymous> (/srv/app/k.js:2:7)
"""
NODE_SYNTAX = """\
/srv/app/f.js:1
let x = ;
        ^

SyntaxError: Unexpected token ';'
    at wrapSafe (node:internal/modules/cjs/loader:1464:18)
"""
NODE_NO_ERROR = """\

/srv/app/j.js:1
throw null;
^
null
(Use `node --trace-uncaught ...` to show where the exception was thrown)
"""


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (PYTHON, "DBDown: connection refused"),
        ("the charge failed\n" + PYTHON, "DBDown: connection refused"),
        (CHAINED, "app.errors.ReportError: no way to report"),
        (GROUP, "ExceptionGroup: three of them (3 sub-exceptions)"),
        (
            JAVA,
            "com.shop.OrderFailed: order 17 was not shipped"
            " (caused by java.net.ConnectException: Connection refused)",
        ),
        (NODE, "TypeError: x is not a function"),
        (NODE_CAUSE, "Error: no settings (caused by SyntaxError: Unexpected end of JSON input)"),
        (NODE_REJECTED, 'UnhandledPromiseRejection: "no stock".'),
        (NODE_BRACKETS, "AggregateError: All promises were rejected"),
        (NODE_OWN_CLASS, "OutOfStock: article 17"),
        (NODE_SYNTAX, "SyntaxError: Unexpected token ';'"),
        (NODE_NO_ERROR, "null"),
        ("/srv/a.js:1\nno mark below", "/srv/a.js:1"),
        ("Error: boom\nin two lines\n    at f (/srv/a.js:1:1)", "Error: boom"),
        ("Uncaught Error: boom\n    at /srv/a.js:1:1\n", "Uncaught Error: boom"),
        ("Traceback (most recent call last):\n", "Traceback (most recent call last):"),
        ('Traceback (most recent call last):\n  File "a.py", line 1', 'File "a.py", line 1'),
        ("no such box\nTraceback:\n  line 3", "no such box"),
        ("panic: no\n\ngoroutine 1 [running]:\nmain.main()\n\t/srv/a.go:3", "panic: no"),
        ("\n\n  plain  \nmore", "plain"),
        ("", ""),
    ],
)
def test_the_line_that_says_what_went_wrong_is_found(message, line):
    assert telling_line(message) == line


@pytest.mark.parametrize(
    ("message", "frame"),
    [
        (PYTHON, "/srv/app/billing/charge.py:12 in charge"),
        (CHAINED, "/srv/app/report.py:8 in report"),
        (GROUP, "/srv/app/fan.py:4 in out"),
        (JAVA, "com.shop.Client.open(Client.java:12)"),
        (NODE, "handle (/srv/app/handle.js:12:11)"),
        (NODE_CAUSE, "load (/srv/app/a.js:2:23)"),
        (NODE_SYNTAX, "/srv/app/f.js:1"),
        (NODE_NO_ERROR, "/srv/app/j.js:1"),
        ("just a sentence", ""),
        ("", ""),
    ],
)
def test_the_innermost_frame_that_is_no_librarys_is_found(message, frame):
    assert own_frame(message) == frame


def test_a_trace_through_libraries_alone_shows_its_innermost_frame():
    trace = PYTHON.replace("/srv/app/", "/usr/lib/python3.12/")

    frame = own_frame(trace)

    assert frame == "/srv/venv/lib/python3.12/site-packages/requests/api.py:115 in post"


def test_tracebacks_of_different_errors_are_different_groups():
    other = PYTHON.replace("DBDown: connection refused", "KeyError: 'name'")

    groups = [group_of(Failure("error", text)) for text in (PYTHON, other)]

    assert [group.line for group in groups] == ["DBDown: connection refused", "KeyError: 'name'"]
    assert groups[0].group_id != groups[1].group_id


@given(st.text(alphabet="at File:Traceback(most recent call last)\n\t .,12|+-", max_size=3_000))
@example("\n \n")
def test_any_text_has_one_line(message):
    assert "\n" not in telling_line(message)
    assert "\n" not in own_frame(message)


@pytest.mark.parametrize(
    "line", ["  File ", "\tat ", "    at (", "Caused by: ", '  |   File "', "  ^", "/a:1"]
)
def test_reading_takes_time_in_proportion_to_the_length(line):
    message = "Traceback (most recent call last):\n" + (line + "\n") * 200_000

    assert "\n" not in telling_line(message) + own_frame(message)
