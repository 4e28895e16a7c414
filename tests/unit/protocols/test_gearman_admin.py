"""Admin text, byte by byte as monitors read it. G… are clauses of docs/protocols/gearman.md."""

import pytest

from manyhands.model.commands import ForgetQueue, Look, SetQueue
from manyhands.model.job import State
from manyhands.model.policy import QueuePolicy
from manyhands.model.replies import Refusal
from manyhands.protocols.gearman import codec as wire
from tests.unit.protocols.gearman_room import START_AT, Room


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.mark.parametrize("line", [b"version\n", b"version\r\n", b"VERSION\n", b"  Version \r\n"])
def test_lines_end_either_way_and_commands_are_read_in_any_case(room, line):
    """G47"""
    peer = room.gearman()

    peer.give(line)

    assert peer.take() == b"OK 9.9\n"


def test_many_words_close_nothing(room):
    """G47"""
    peer = room.gearman()

    assert peer.text(b"version one two three four five six") == b"OK 9.9\n"
    assert not peer.closed


def test_a_line_without_an_end_is_refused_and_ends_the_connection(room):
    """G47"""
    peer = room.gearman()

    peer.give(b"x" * 20_000)

    assert peer.take().startswith(b"ERR LINE_TOO_LONG ")
    assert peer.closed


def test_status_has_total_running_and_workers_of_each_function(room):
    """G48"""
    client, worker = room.gearman(), room.worker(b"b", b"idle")
    for function in (b"b", b"b", b"b", b"a"):
        client.submit(function)
    worker.grab()
    client.tell(wire.SUBMIT_JOB_EPOCH, b"a", b"", b"%d" % (START_AT // 1000 + 60), b"")

    assert client.text(b"status") == b"a\t2\t0\t0\nb\t3\t1\t1\nidle\t0\t0\t1\n.\n"


def test_a_function_stays_listed_when_its_work_is_done(room):
    """G48"""
    client, worker = room.gearman(), room.worker()
    handle = client.submit()
    worker.grab()
    worker.tell(wire.WORK_COMPLETE, handle, b"")
    worker.hang_up()

    assert client.text(b"status") == b"f\t0\t0\t0\n.\n"


def test_an_empty_server_answers_with_a_full_stop(room):
    """G48"""
    peer = room.gearman()

    assert peer.text(b"status") == b".\n"
    assert peer.text(b"prioritystatus") == b".\n"
    assert peer.text(b"show jobs") == b".\n"


def test_status_tells_nothing_that_is_not_on_disk(room):
    """G7"""
    peer = room.gearman()

    peer.give(wire.encode_request(wire.SUBMIT_JOB_BG, b"f", b"", b"") + b"status\n")
    before = peer.take()
    room.run()

    assert before == b""
    assert peer.take().endswith(b"f\t1\t0\t0\n.\n")


def test_a_function_said_twice_is_one_worker(room):
    """G48"""
    worker = room.worker(b"f", b"f")

    assert worker.text(b"status") == b"f\t0\t0\t1\n.\n"


def test_priority_status_counts_what_waits(room):
    """G49"""
    client, worker = room.gearman(), room.worker()
    for kind, count in (
        (wire.SUBMIT_JOB_HIGH_BG, 3),
        (wire.SUBMIT_JOB_BG, 2),
        (wire.SUBMIT_JOB_LOW_BG, 1),
    ):
        for _ in range(count):
            client.submit(kind=kind)
    worker.grab()

    assert client.text(b"prioritystatus") == b"f\t2\t2\t1\t1\n.\n"


def test_workers_lists_every_connection(room):
    """G50"""
    worker = room.worker(b"a", b"b")
    worker.tell(wire.SET_CLIENT_ID, b"me")
    draft = room.draft_worker(b"c")
    peer = room.gearman(address="::1")

    lines = peer.text(b"workers")

    assert lines == (
        b"%d 10.0.0.2 me : a b\n" % worker.number
        + b"%d 10.0.0.3 - : c\n" % draft.number
        + b"%d ::1 - :\n.\n" % peer.number
    )


@pytest.mark.parametrize("client_id", [b"a b", b"a\nb", b"a\tb", b"a\x01b", "a\u2028b".encode()])
def test_an_id_cannot_break_the_table(room, client_id):
    """G50"""
    worker = room.worker()
    worker.tell(wire.SET_CLIENT_ID, client_id)

    assert worker.text(b"workers") == b"%d 10.0.0.2 a_b : f\n.\n" % worker.number


def test_single_values(room):
    """G51"""
    peer = room.gearman()

    assert peer.text(b"version") == b"OK 9.9\n"
    assert peer.text(b"getpid") == b"OK 42\n"
    assert peer.text(b"verbose") == b"OK INFO\n"


@pytest.mark.parametrize(
    ("bounds", "taken"),
    [
        (b"2", (2, 0, 0)),
        (b"1 2 3", (1, 1, 1)),
        (b"3 2 1", (3, 0, 0)),
        (b"0 2 1", (4, 0, 0)),
        (b"", (4, 4, 4)),
        (b"0", (4, 4, 4)),
        (b"-1", (4, 4, 4)),
        (b"99999999999999999999999999", (4, 4, 4)),
    ],
)
def test_maxqueue_bounds_all_jobs_of_a_function_by_the_priority_of_the_submit(room, bounds, taken):
    """G52"""
    peer = room.gearman()
    peer.text(b"create function f")

    assert peer.text(b"maxqueue f " + bounds) == b"OK\r\n"

    kinds = (wire.SUBMIT_JOB_HIGH_BG, wire.SUBMIT_JOB_BG, wire.SUBMIT_JOB_LOW_BG)
    answers = [[peer.tell(kind, b"f", b"", b"")[0][0] for _ in range(4)] for kind in kinds]
    assert tuple(row.count(wire.JOB_CREATED) for row in answers) == taken


def test_maxqueue_keeps_the_rest_of_the_policy(room):
    """G52"""
    room.ask(SetQueue(queue="f", policy=QueuePolicy(attempts_max=7)))

    room.gearman().text(b"maxqueue f 5")

    policy = room.dispatcher.store.live.queues["f"].queue.policy
    assert (policy.attempts_max, policy.jobs_max) == (7, 5)


def test_maxqueue_of_an_unknown_function_is_silently_fine(room):
    """G52"""
    peer = room.gearman()

    assert peer.text(b"maxqueue nobody 5") == b"OK\r\n"
    assert peer.text(b"status") == b".\n"


def test_maxqueue_bounds_a_function_that_only_a_worker_has_named_so_far(room):
    """G52"""
    worker, client = room.worker(b"f"), room.gearman()

    assert client.text(b"maxqueue f 1") == b"OK\r\n"

    client.submit()
    [(kind, args)] = client.tell(wire.SUBMIT_JOB_BG, b"f", b"", b"")
    assert (kind, args[0]) == (wire.ERROR, b"QUEUE_ERROR")
    assert worker.grab()


@pytest.mark.parametrize(
    "line", [b"maxqueue", b"maxqueue f x", b"maxqueue f 1 2", b"maxqueue f 1 2 3 4"]
)
def test_maxqueue_with_wrong_words_is_refused(room, line):
    """G52"""
    assert room.gearman().text(line).startswith(b"ERR INVALID_ARGUMENTS ")


def test_a_listing_is_told_before_the_next_is_made(room):
    """G9"""
    peer = room.gearman()
    made = []
    peer.unfinished_jobs = lambda _count_max: made.append(len(peer.take())) or ()
    room.gearman().give(wire.encode_request(wire.SUBMIT_JOB_BG, b"f", b"", b""))

    peer.give(b"show jobs\nversion\nshow jobs\n" + wire.encode_request(wire.ECHO_REQ, b"x"))
    made_at_once = len(made)
    room.run()

    assert made_at_once == 1
    assert made == [0, len(b".\nOK 9.9\n")]
    assert peer.heard() == [(wire.ADMIN_LINE, [b"."]), (wire.ECHO_RES, [b"x"])]


def test_show_jobs_tells_handle_attempts_and_durability(room):
    """G53"""
    client, worker = room.gearman(), room.worker()
    background = client.submit()
    foreground = client.submit(kind=wire.SUBMIT_JOB)
    worker.grab()
    worker.hang_up()

    assert client.text(b"show jobs") == (
        background + b"\t1\t0\t1\n" + foreground + b"\t0\t0\t0\n.\n"
    )


def test_show_unique_jobs_tells_what_a_line_can_hold(room):
    """G54"""
    client = room.gearman()
    for unique, data in [(b"one", b""), (b"", b"x"), (b"-", b"x"), (b"a\nb", b""), (b".", b"")]:
        client.submit(b"f", unique, data)
    client.submit(b"f", b"two\xff")

    assert client.text(b"show unique jobs") == b"one\n-\ntwo\xff\n.\n"


@pytest.mark.parametrize("line", [b"show", b"show x", b"show jobs now", b"show unique"])
def test_what_cannot_be_shown_is_refused(room, line):
    """G58"""
    assert room.gearman().text(line).startswith(b"ERR UNKNOWN_SHOW_ARGUMENTS ")


def test_cancel_ends_a_queued_job_and_tells_its_client(room):
    """G55"""
    client, peer = room.gearman(), room.gearman()
    handle = client.submit(kind=wire.SUBMIT_JOB)

    assert peer.text(b"cancel job " + handle) == b"OK\r\n"

    assert client.heard() == [(wire.WORK_FAIL, [handle])]
    assert peer.text(b"status") == b"f\t0\t0\t0\n.\n"
    assert room.job(handle).state is State.CANCELLED


@pytest.mark.parametrize("end", ["nothing", wire.WORK_COMPLETE, wire.WORK_FAIL, "cancelled"])
def test_a_job_that_has_ended_is_unknown_and_keeps_its_end(room, end):
    """G55"""
    peer, worker = room.gearman(), room.worker()
    handle = peer.submit()
    worker.grab()
    if end == wire.WORK_COMPLETE:
        worker.tell(end, handle, b"r")
    elif end == wire.WORK_FAIL:
        worker.tell(end, handle)
    elif end == "cancelled":
        peer.text(b"cancel job " + handle)
    else:
        handle = b"H:test:" + b"0" * 32
    before = room.ask(Look(handle[-32:].decode()))

    assert peer.text(b"cancel job " + handle) == b"ERR UNKNOWN_JOB\r\n"
    assert room.ask(Look(handle[-32:].decode())) == before


@pytest.mark.parametrize("handle", [b"x", b"H:x:1", b"\xff" * 40])
def test_cancel_of_what_is_no_handle_is_an_unknown_job(room, handle):
    """G55"""
    assert room.gearman().text(b"cancel job " + handle) == b"ERR UNKNOWN_JOB\r\n"


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_create_function_keeps_every_letter(room, line_end):
    """G56"""
    peer = room.gearman()

    peer.give(b"create function fooz" + line_end)
    room.run()

    assert peer.take() == b"OK\r\n"
    assert peer.text(b"status") == b"fooz\t0\t0\t0\n.\n"


def test_a_function_with_too_long_a_name_is_not_created(room):
    """G56"""
    answer = room.gearman().text(b"create function " + b"x" * 256)

    assert answer.startswith(b"ERR INVALID_FUNCTION_NAME ")
    assert answer.endswith(b"\r\n")


def test_drop_function_forgets_an_idle_function(room):
    """G57"""
    peer = room.gearman()
    peer.text(b"create function f")

    assert peer.text(b"drop function f") == b"OK\r\n"
    assert peer.text(b"status") == b".\n"
    assert peer.text(b"drop function f").startswith(b"ERR UNKNOWN_FUNCTION ")


def test_a_function_whose_drop_was_refused_stays_listed_without_its_queue(room):
    """G48 and G57"""
    peer = room.gearman()
    room.worker(b"f").hang_up()
    handle = peer.submit(b"f")

    refused = peer.text(b"drop function f")
    peer.text(b"cancel job " + handle)
    room.ask(ForgetQueue("f"))

    assert refused.startswith(b"ERR FUNCTION_IN_USE ")
    assert peer.text(b"status") == b"f\t0\t0\t0\n.\n"


def test_a_function_that_was_only_ever_named_is_listed_until_it_is_dropped(room):
    """G48 and G57"""
    worker, peer = room.worker(b"named"), room.gearman()
    assert peer.text(b"drop function named").startswith(b"ERR FUNCTION_IN_USE ")

    worker.hang_up()

    assert peer.text(b"status") == b"named\t0\t0\t0\n.\n"
    assert peer.text(b"drop function named") == b"OK\r\n"
    assert peer.text(b"status") == b".\n"


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (b"a b c", b"a b c"),
        (b"a b c", rb"a\x20b\x20c"),
        (b"staging\trev", rb"staging\x09rev"),
        (b"gr\xf6\xdfe", rb"gr\xf6\xdfe"),
        (b"gr\xf6\xdfe", b"gr\xf6\xdfe"),
        (rb"App\xdebug", rb"App\x5cxdebug"),
    ],
)
def test_any_function_can_be_dropped(room, function, shown):
    """G57"""
    worker, peer = room.worker(function), room.gearman()
    worker.hang_up()

    assert peer.text(b"drop function " + shown) == b"OK\r\n"
    assert peer.text(b"status") == b".\n"


def test_a_function_with_a_tab_breaks_no_line(room):
    """G15, G48 and G50"""
    peer, worker = room.gearman(), room.worker(b"staging\trev", b"a b")
    handle = peer.submit(b"staging\trev")

    assert peer.text(b"status") == b"staging\\x09rev\t1\t0\t1\na b\t0\t0\t1\n.\n"
    assert peer.text(b"workers").splitlines()[1] == (
        rb"%d 10.0.0.2 - : staging\x09rev a\x20b" % worker.number
    )
    assert peer.text(rb"maxqueue staging\x09rev 1") == b"OK\r\n"
    assert peer.tell(wire.SUBMIT_JOB_BG, b"staging\trev", b"", b"")[0][0] == wire.ERROR
    assert worker.grab()[:2] == [handle, b"staging\trev"]


def test_every_letter_of_an_escaped_name_counts_when_a_function_is_made(room):
    """G56"""
    peer = room.gearman()

    assert peer.text(rb"create function staging\x09rev") == b"OK\r\n"
    assert room.worker(b"staging\trev").text(b"status") == b"staging\\x09rev\t0\t0\t1\n.\n"


def test_drop_function_leaves_no_job_dangling(room):
    """G57"""
    peer = room.gearman()
    handle = peer.submit()

    assert peer.text(b"drop function f").startswith(b"ERR FUNCTION_IN_USE ")
    assert room.worker().grab()[0] == handle


def test_a_function_with_workers_is_not_dropped(room):
    """G57"""
    peer, _worker = room.gearman(), room.worker()
    peer.text(b"create function f")

    assert peer.text(b"drop function f").startswith(b"ERR FUNCTION_IN_USE ")


@pytest.mark.parametrize(
    "line",
    [
        b"cancel",
        b"cancel job",
        b"cancel x y",
        b"create f",
        b"create function",
        b"drop",
        b"drop a b",
    ],
)
def test_missing_words_are_refused(room, line):
    """G58"""
    assert room.gearman().text(line).startswith(b"ERR INVALID_ARGUMENTS ")


@pytest.mark.parametrize("line", [b"shutdown", b"shutdown graceful", b"", b"  ", b"GET / HTTP/1.1"])
def test_anything_else_is_an_unknown_command(room, line):
    """G58"""
    peer = room.gearman()

    answer = peer.text(line)

    assert answer.startswith(b"ERR UNKNOWN_COMMAND ")
    assert answer.endswith(b"\r\n")
    assert not peer.closed


def test_a_refusal_of_the_engine_is_told_in_gearmans_words(room):
    """G24"""
    room.dispatcher.failed = "disk on fire"
    peer = room.gearman()

    assert peer.text(b"create function f").startswith(b"ERR QUEUE_ERROR ")
    assert peer.text(b"cancel job H:x:" + b"0" * 32).startswith(b"ERR QUEUE_ERROR ")
    assert isinstance(room.ask(SetQueue(queue="f")), Refusal)
