"""The first draft: one test or more for each gap that was settled, named by its number."""

import pytest

from manyhands.model import limits
from manyhands.model.commands import Cancel, NewJob, Requeue, SetQueue, Submit
from manyhands.model.job import EndReason, State
from manyhands.model.policy import QueuePolicy
from manyhands.model.replies import Refusal, Why
from manyhands.protocols.gearman import codec as shipped
from manyhands.protocols.gearman import draft as gearman_draft
from manyhands.protocols.gearman.dialect import Dialect, sniff
from manyhands.protocols.gearman.draft_codec import (
    ASYNC_HANDLE,
    ASYNC_THROW_AWAY,
    SYNC_WAIT,
    Error,
    JobAssignReq,
    JobAssignRes,
    JobCompleteAnnounce,
    JobCompleteReq,
    JobCompleteRes,
    JobCreateReq,
    JobCreateRes,
    JobStatusAnnounce,
    JobStatusReq,
    JobStatusRes,
    Noop,
    WorkerConnect,
    WorkerDisconnect,
    WorkerSleep,
    encode,
)
from tests.captured_logs import capture_logs
from tests.unit.protocols.gearman_room import Room

HOUR_MS = 3_600_000


@pytest.fixture
def room() -> Room:
    return Room()


def raw(kind: int, body: bytes = b"", magic: bytes = b"\0GM0") -> bytes:
    return magic + bytes((kind,)) + len(body).to_bytes(4, "big") + body


def faults(peer, data: bytes) -> list[tuple[int, int]]:
    """Codes and offending types of the errors that the bytes bring."""
    peer.give(data)
    peer.room.run()
    answers = peer.heard()
    assert all(isinstance(answer, Error) and answer.text for answer in answers)
    return [(answer.code, answer.offending) for answer in answers]


# Framing.


def test_a1_the_magic_is_the_same_in_both_directions(room):
    app = room.draft()

    app.give(raw(0x0C, b"?"))

    assert app.take().startswith(b"\0GM0\x0d")


def test_a2_numbers_are_big_endian(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    worker.assign()

    worker.give(raw(0x08, b"\0\0\0\x01\0\0\x01\0\0\x01\0\0"))
    app.give(encode(JobStatusReq(handle)))
    room.run()

    assert app.take() == raw(0x0A, b"\0\0\0\x01\0\0\x01\0\0\x01\0\0")


def test_a3_length_excludes_the_header_and_may_be_zero(room):
    app = room.draft(packet_bytes_max=100)

    assert faults(app, raw(0x09, b"x" * 101)[:9]) == [(5, 0x09)]
    assert app.closed
    assert room.draft(packet_bytes_max=100).status(b"x" * 100) == (0, 0, 0)
    assert room.draft().tell(Noop()) == []


def test_a4_the_first_bytes_decide_the_dialect():
    assert sniff(b"\0GM0") is Dialect.DRAFT
    assert sniff(b"\0REQ") is Dialect.SHIPPED
    assert sniff(b"stat") is Dialect.ADMIN_TEXT
    assert sniff(b"\0G") is None


def test_a5_one_connection_may_be_application_and_worker(room):
    both = room.draft_worker()
    handle = both.create(args=b"self")

    assert both.assign() == JobAssignRes(b"f", b"self")
    both.finish(0, b"done")

    assert both.completion(handle)[1:] == (0, b"done")


@pytest.mark.parametrize("name", [b"", b"a b", b"\xe9", b"a\x7f", b"n" * 256])
def test_a6_a_job_name_is_printable_ascii(room, name):
    app = room.draft()

    assert faults(app, raw(0x04, name + b"\0\0\0\x01")) == [(4, 0x04)]
    assert not room.dispatcher.store.live.jobs


def test_a6_a_dupkey_is_bytes_of_a_bounded_number(room):
    app = room.draft()

    assert app.create(dupkey=b"\xff" * 255) == app.create(dupkey=b"\xff" * 255)
    assert app.create(name=b"n" * 255)
    assert faults(app, raw(0x04, b"f\0" + b"k" * 256 + b"\0\0\x01")) == [(4, 0x04)]


# Errors.


def test_a7_an_error_has_a_code_the_offending_type_and_a_sentence(room):
    app = room.draft()

    app.give(raw(0x7F, b"hi"))

    assert app.take().startswith(b"\0GM0\x0e")


@pytest.mark.parametrize("data", [raw(0x7F), raw(0x05), raw(0x04, b"x"), b"WAT!WAT!!"])
def test_a7_without_error_packets_the_connection_is_closed_instead(room, data):
    app = room.draft(error_packets=False)

    app.give(data + encode(JobCreateReq(b"f", b"", ASYNC_HANDLE, b"")))
    room.run()

    assert app.take() == b""
    assert app.closed
    assert not room.dispatcher.store.live.jobs


def test_a7_without_error_packets_a_refusal_closes_too(room):
    app = room.draft(error_packets=False)
    room.dispatcher.store_full = True

    app.give(encode(JobCreateReq(b"f", b"", ASYNC_HANDLE, b"")))
    room.run()

    assert app.take() == b""
    assert app.closed


@pytest.mark.parametrize("why", Why)
def test_a7_every_refusal_has_a_code(why):
    refused = gearman_draft._refused(Refusal(why, "nö"), JobCreateReq(b"f", b"", 1, b""))

    assert refused.code == (7 if why is Why.SHUTTING_DOWN else 6)
    assert refused.text.isascii()


@pytest.mark.parametrize(
    ("data", "code", "closes"),
    [
        (b"\0GM1" + bytes(5), 1, True),
        (raw(0x0F), 2, False),
        (raw(0x07), 3, False),
        (raw(0x08, b"abc"), 4, False),
        (raw(0x04, bytes(2000))[:9], 5, True),
    ],
)
def test_a8_what_loses_the_framing_closes_and_nothing_else(room, data, code, closes):
    app = room.draft(packet_bytes_max=1000)

    assert [found for found, _ in faults(app, data)] == [code]
    assert app.closed is closes


def test_a8_a_full_queue_and_a_stopping_server_keep_the_connection(room):
    app = room.draft()
    app.create()
    room.ask(SetQueue(queue="f", policy=QueuePolicy(jobs_max=1)))
    create = encode(JobCreateReq(b"f", b"", ASYNC_HANDLE, b""))

    full = faults(app, create)
    room.dispatcher.draining = True
    stopping = faults(app, create)

    assert (full, stopping) == ([(6, 0x04)], [(7, 0x04)])
    assert not app.closed


def test_a9_an_unknown_type_is_skipped_by_its_length(room):
    app = room.draft()

    assert faults(app, raw(0x20, b"x" * 50) + raw(0xFF)) == [(2, 0x20), (2, 0xFF)]
    assert app.status(b"?") == (0, 0, 0)


@pytest.mark.parametrize("body", [b"", b"f", b"f\0", b"f\0k", b"f\0k\0", b"f\0k\0\0"])
def test_a10_a_truncated_request_queues_nothing(room, body):
    app = room.draft()

    assert faults(app, raw(0x04, body)) == [(4, 0x04)]
    assert not room.dispatcher.store.live.jobs


# Workers.


@pytest.mark.parametrize("body", [b"a\0b", b"a\0b\0", b"\0a\0\0b\0\0"])
def test_a11_names_are_separated_or_terminated(room, body):
    worker = room.draft()

    worker.give(raw(0x01, body))

    assert list(worker.session.abilities) == ["a", "b"]


def test_a11_a_repeat_replaces_the_whole_list(room):
    worker = room.draft_worker(b"a")
    room.draft().create(b"a")

    worker.connect(b"b")
    others = worker.assign()
    worker.connect()

    assert others == worker.assign() == JobAssignRes()
    assert not worker.session.abilities


def test_a11_a_worker_has_a_bounded_number_of_names(room):
    worker = room.draft_worker(b"a")

    many = b"\0".join(b"n%d" % number for number in range(1001))
    assert faults(worker, raw(0x01, many)) == [(6, 0x01)]
    assert faults(worker, raw(0x01, b"a\0" * 10_001)) == [(4, 0x01)]
    assert list(worker.session.abilities) == ["a"]


def test_a12_a_dropped_name_leaves_the_running_job_alone(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    worker.assign()

    worker.connect(b"other")
    worker.finish(0, b"done")

    assert app.completion(handle)[1:] == (0, b"done")


def test_a13_a_worker_is_its_address_and_connection(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    worker.assign()

    holder = room.job(handle).lease.holder

    assert (holder.name, holder.address) == (worker.connection, "10.0.0.3")


def test_a14_no_sorry_is_an_assignment_of_length_zero(room):
    worker = room.draft_worker()

    worker.give(encode(JobAssignReq()))

    assert worker.take() == raw(0x07)


def test_a15_a_worker_with_a_job_gets_no_second_one(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    app.create()
    worker.assign()

    with capture_logs() as logs:
        second = worker.assign()
        worker.assign()

    assert second == JobAssignRes()
    assert room.job(handle).state is State.LEASED
    assert [entry["log_level"] for entry in logs] == ["warning"]


def test_a15_two_requests_at_once_bring_one_job(room):
    app, worker = room.draft(), room.draft_worker()
    app.give(encode(JobCreateReq(b"f", b"", ASYNC_HANDLE, b"1")) * 2)

    answers = worker.tell(JobAssignReq(), JobAssignReq())

    assert answers == [JobAssignRes(b"f", b"1"), JobAssignRes()]


def test_a16_an_announcement_means_the_job_that_is_held(room):
    app, one, two = room.draft(), room.draft_worker(), room.draft_worker()
    handles = [app.create(), app.create()]
    one.assign()
    two.assign()

    two.finish(0, b"second")
    one.finish(0, b"first")

    assert [app.completion(handle)[2] for handle in handles] == [b"first", b"second"]


def test_a17_an_announcement_about_no_job_is_ignored_and_counted(room):
    worker = room.draft_worker()

    assert worker.tell(JobStatusAnnounce(1, 2), JobCompleteAnnounce(0, b"x")) == []

    assert worker.session.ignored_count == 2


def test_a17_an_announcement_about_a_job_taken_back_is_discarded(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    worker.assign()
    room.ask(Cancel(job_ids=(room.job(handle).job_id,)))

    worker.finish(0, b"too late")

    assert worker.session.ignored_count == 1
    assert app.completion(handle)[1] == 251
    again = app.create()
    assert worker.assign().name == b"f"
    assert room.job(again).state is State.LEASED


def test_a18_a_sleeper_is_woken_once_and_at_once_beside_work(room):
    app, worker = room.draft(), room.draft_worker()
    assert worker.tell(WorkerSleep()) == []

    app.create()
    app.create()
    woken = worker.heard()

    assert woken == [Noop()]
    assert worker.tell(WorkerSleep()) == [Noop()]


def test_a18_asking_for_a_job_ends_the_sleep(room):
    app, worker = room.draft(), room.draft_worker()
    worker.tell(WorkerSleep())
    worker.assign()

    app.create()

    assert worker.heard() == []


def test_a18_a_wake_up_comes_behind_the_answer_that_made_the_worker_sleep(room):
    client, peer = room.gearman(), room.draft_worker()
    packets = JobCreateReq(b"other", b"", ASYNC_HANDLE, b""), JobAssignReq(), WorkerSleep()
    peer.give(b"".join(map(encode, packets)))

    client.give(shipped.encode_request(shipped.SUBMIT_JOB, b"f", b"", b""))
    room.run()

    created, refused, noop = peer.heard()
    assert isinstance(created, JobCreateRes)
    assert (refused, noop) == (JobAssignRes(), Noop())


def test_a18_a_sleeper_hears_of_names_it_learns_in_its_sleep(room):
    app, worker = room.draft(), room.draft_worker()
    worker.tell(WorkerSleep())
    worker.connect(b"g")

    app.create(b"f")
    forgotten = worker.heard()
    app.create(b"g")

    assert forgotten == []
    assert worker.heard() == [Noop()]


@pytest.mark.parametrize("forgets", [False, True])
def test_a18_a_sleeper_without_names_hears_of_the_first_it_learns_and_of_no_other(room, forgets):
    app = room.draft()
    worker = room.draft_worker() if forgets else room.draft()
    worker.tell(WorkerSleep())
    worker.tell(WorkerConnect(()))

    app.create(b"f")
    deaf = worker.heard()
    worker.connect(b"g")
    app.create(b"g")

    assert deaf == []
    assert worker.heard() == [Noop()]


def test_a19_as_many_sleepers_wake_as_there_are_jobs_and_the_rest_a_second_later(room):
    app = room.draft()
    workers = [room.draft_worker() for _ in range(3)]
    for worker in workers:
        worker.tell(WorkerSleep())

    app.create()
    first = [worker.heard() for worker in workers]
    room.dispatcher.keep_house()  # the server does this once a second

    assert first == [[Noop()], [], []]
    assert [worker.heard() for worker in workers] == [[], [Noop()], []]


def test_a20_a_noop_has_no_answer(room):
    assert room.draft().tell(Noop(), Noop()) == []


def test_a21_a_goodbye_gives_the_job_back_uncharged_and_closes(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    worker.assign()

    worker.tell(WorkerDisconnect(), JobCreateReq(b"late", b"", ASYNC_HANDLE, b""))

    job = room.job(handle)
    assert worker.closed
    assert (job.state, job.attempts_used) == (State.READY, 0)
    assert job.attempts[-1].reason is EndReason.GOODBYE
    assert "late" not in room.dispatcher.store.live.queues


def test_a21_answers_that_are_owed_come_before_the_end(room):
    both = room.draft_worker()

    both.give(
        encode(JobCreateReq(b"f", b"", ASYNC_HANDLE, b""))
        + encode(JobAssignReq())
        + encode(WorkerDisconnect())
    )
    was_closed = both.closed
    room.run()

    (created,) = both.heard()
    assert not was_closed
    assert both.closed
    assert room.job(created.handle).state is State.READY
    assert room.job(created.handle).attempts_used == 0


def test_a22_a_lost_connection_gives_the_job_back_and_is_charged(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    worker.assign()

    worker.hang_up()

    job = room.job(handle)
    assert (job.state, job.attempts_used) == (State.READY, 1)
    assert job.attempts[-1].reason is EndReason.LOST


def test_a22_a_job_that_never_reached_its_worker_is_not_charged(room):
    app, worker = room.draft(), room.draft_worker()
    app.give(encode(JobCreateReq(b"f", b"", ASYNC_HANDLE, b"")))
    worker.give(encode(JobAssignReq()))

    worker.hang_up()

    (created,) = app.heard()
    job = room.job(created.handle)
    assert (job.state, job.attempts_used) == (State.READY, 0)


def test_a22_a_connection_that_the_server_ends_is_not_charged(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    worker.assign()

    worker.hang_up(blameless=True)

    assert room.job(handle).attempts_used == 0


def test_a23_a_silent_worker_keeps_its_job(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    worker.assign()

    room.run_for(30 * 24 * HOUR_MS)

    assert room.job(handle).state is State.LEASED


@pytest.mark.parametrize(
    "sign", [Noop(), JobStatusAnnounce(1, 2), JobStatusReq(b"?"), WorkerSleep()]
)
def test_a23_a_lease_of_the_queue_is_renewed_by_any_packet(room, sign):
    room.ask(SetQueue(queue="f", policy=QueuePolicy(lease_ms=1000, lease_forced=True)))
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    worker.assign()

    for _ in range(5):
        room.run_for(900)
        worker.tell(sign)
    alive = room.job(handle).state
    room.run_for(1000)

    assert alive is State.LEASED
    assert room.job(handle).state is State.READY


# Creating jobs.


def test_a24_type_0_waits_type_1_has_a_handle_type_2_has_none(room):
    app = room.draft()

    assert app.create(job_type=SYNC_WAIT).startswith(b"H:test:")
    assert room.draft().create(job_type=ASYNC_HANDLE).startswith(b"H:test:")
    assert room.draft().create(job_type=ASYNC_THROW_AWAY) == b""


@pytest.mark.parametrize("job_type", [3, 255])
def test_a24_any_other_type_is_malformed(room, job_type):
    body = b"f\0\0\0" + bytes((job_type,))

    assert faults(room.draft(), raw(0x04, body)) == [(4, 0x04)]


def test_a25_plain_async_is_the_type_that_is_thrown_away(room):
    app, worker = room.draft(), room.draft_worker(b"pay_updateaccounts")

    app.create(b"pay_updateaccounts", job_type=ASYNC_THROW_AWAY, args=b"argv")

    assert worker.assign() == JobAssignRes(b"pay_updateaccounts", b"argv")


@pytest.mark.parametrize("flags", [0, 1, 255])
def test_a26_flags_are_ignored(room, flags):
    app, worker = room.draft(), room.draft_worker()

    app.give(raw(0x04, b"f\0\0" + bytes((flags, ASYNC_HANDLE)) + b"args"))
    room.run()

    assert worker.assign().args == b"args"


def test_a27_a_job_that_nobody_knows_is_queued(room):
    handle = room.draft().create(b"unheard-of")

    assert room.draft_worker(b"unheard-of").assign().name == b"unheard-of"
    assert room.job(handle).state is State.LEASED


def test_a28_a_dupkey_belongs_to_its_job_name(room):
    app = room.draft()

    first = app.create(b"weblogscom", b"uid")

    assert app.create(b"rss", b"uid") != first
    assert app.create(b"weblogscom", b"uid") == first


def test_a29_a_duplicate_joins_and_its_args_are_dropped(room):
    app, worker = room.draft(), room.draft_worker()

    handle = app.create(dupkey=b"k", args=b"first")
    again = app.create(dupkey=b"k", args=b"second")
    unkeyed = {app.create(), app.create()}

    assert again == handle
    assert len(unkeyed) == 2
    assert worker.assign().args == b"first"


def test_a30_a_dupkey_is_free_once_the_job_has_ended(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create(dupkey=b"k")
    worker.assign()

    while_running = app.create(dupkey=b"k")
    worker.finish()

    assert while_running == handle
    assert app.create(dupkey=b"k") != handle


@pytest.mark.parametrize("first", [ASYNC_HANDLE, ASYNC_THROW_AWAY])
def test_a31_a_sync_joiner_who_leaves_cancels_nothing(room, first):
    app, waiting, worker = room.draft(), room.draft(), room.draft_worker()
    app.create(dupkey=b"k", job_type=first)
    waiting.create(dupkey=b"k", job_type=SYNC_WAIT)

    waiting.hang_up()

    assert worker.assign().name == b"f"


@pytest.mark.parametrize("first", [SYNC_WAIT, ASYNC_THROW_AWAY])
def test_a31_a_joiner_with_a_handle_makes_the_result_be_kept(room, first):
    app, other, worker = room.draft(), room.draft(), room.draft_worker()
    app.create(dupkey=b"k", job_type=first)

    handle = other.create(dupkey=b"k", job_type=ASYNC_HANDLE)
    app.hang_up()
    worker.assign()
    worker.finish(0, b"kept")

    assert other.completion(handle)[1:] == (0, b"kept")


def test_a31_a_sync_joiner_hears_of_a_job_that_was_not_waited_for(room):
    app, waiting, worker = room.draft(), room.draft(), room.draft_worker()
    handle = app.create(dupkey=b"k")
    worker.assign()
    assert waiting.create(dupkey=b"k", job_type=SYNC_WAIT) == handle

    worker.finish(0, b"r")

    assert waiting.heard() == [JobCompleteRes(1, 0, b"r")]
    assert app.completion(handle) == (1, 0, b"r")


def test_a32_a_throw_away_job_is_answered_with_an_empty_body(room):
    app = room.draft()

    app.give(encode(JobCreateReq(b"f", b"", ASYNC_THROW_AWAY, b"")))
    room.run()

    assert app.take() == raw(0x05)


def test_a33_a_handle_is_printable_short_and_never_used_again(room):
    app = room.draft()

    handles = [app.create() for _ in range(200)]

    assert len(set(handles)) == 200
    assert all(3 <= len(handle) <= 63 and handle.isascii() for handle in handles)


# Sync streaming.


def test_a34_a_waiting_application_hears_each_status_and_one_end(room):
    app, worker = room.draft(), room.draft_worker()
    app.create(job_type=SYNC_WAIT)
    worker.assign()

    worker.tell(JobStatusAnnounce(1, 4, 30), JobStatusAnnounce(2, 4))
    worker.finish(0, b"result")

    assert app.heard() == [
        JobStatusRes(1, 4, 30),
        JobStatusRes(2, 4, 0),
        JobCompleteRes(1, 0, b"result"),
    ]


def test_a35_what_is_asked_behind_a_sync_job_is_answered_after_its_end(room):
    app, worker = room.draft(), room.draft_worker()
    other = room.draft().create(args=b"other")

    answers = app.tell(
        JobCreateReq(b"g", b"", SYNC_WAIT, b"1"),
        JobStatusReq(other),
        JobCreateReq(b"g", b"", SYNC_WAIT, b"2"),
        JobCompleteReq(other),
    )
    worker.connect(b"g")
    first = worker.assign()
    worker.finish(0, b"one")
    after_one = app.heard()
    second = worker.assign()
    worker.finish(0, b"two")

    assert [type(answer) for answer in answers] == [JobCreateRes]
    assert (first.args, second.args) == (b"1", b"2")
    assert [type(answer) for answer in after_one] == [JobCompleteRes, JobStatusRes, JobCreateRes]
    assert app.heard() == [JobCompleteRes(1, 0, b"two"), JobCompleteRes(0, 0, b"")]


def test_a35_an_error_behind_a_sync_job_waits_its_turn_too(room):
    app, worker = room.draft(), room.draft_worker()

    app.give(encode(JobCreateReq(b"f", b"", SYNC_WAIT, b"")) + raw(0x04, b"bad"))
    room.run()
    before = app.heard()
    worker.assign()
    worker.finish()

    assert [type(answer) for answer in before] == [JobCreateRes]
    assert [type(answer) for answer in app.heard()] == [JobCompleteRes, Error]


def test_a35_a_lost_framing_does_not_wait(room):
    app = room.draft()

    app.give(encode(JobCreateReq(b"f", b"", SYNC_WAIT, b"")) + b"WATWAT")
    room.run()

    assert [type(answer) for answer in app.heard()] == [JobCreateRes, Error]
    assert app.closed


def test_a35_a_worker_on_the_same_connection_is_not_held_up(room):
    both = room.draft_worker()

    (created, assigned) = both.tell(JobCreateReq(b"f", b"", SYNC_WAIT, b"x"), JobAssignReq())
    ended = both.tell(JobCompleteAnnounce(0, b"r"))

    assert (type(created), assigned) == (JobCreateRes, JobAssignRes(b"f", b"x"))
    assert ended == [JobCompleteRes(1, 0, b"r")]


def test_a35_what_waits_is_bounded(room):
    app, worker = room.draft(), room.draft_worker()
    big = encode(JobCreateReq(b"g", b"", ASYNC_HANDLE, b"x" * 500_000))

    app.give(encode(JobCreateReq(b"f", b"", SYNC_WAIT, b"")) + big * 2)
    calm = app.session.is_overwhelmed()
    app.give(big)
    overwhelmed = app.session.is_overwhelmed()
    worker.assign()
    worker.finish()

    assert (calm, overwhelmed) == (False, True)
    assert not app.session.is_overwhelmed()
    assert len(list(room.dispatcher.store.live.live_jobs())) == 3


def test_a35_thousands_of_refused_requests_are_gone_through_one_by_one(room):
    app, worker = room.draft(), room.draft_worker()
    create = encode(JobCreateReq(b"f", b"", SYNC_WAIT, b""))
    app.give(create * 3001)
    room.run()
    worker.assign()
    room.dispatcher.draining = True

    worker.finish()

    answers = app.heard()
    assert len(answers) == 3002
    assert all(answer.code == 7 for answer in answers[2:])


def test_a36_a_queued_job_is_dropped_when_its_application_leaves(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create(job_type=SYNC_WAIT)

    app.hang_up()

    assert worker.assign() == JobAssignRes()
    assert room.job(handle).reason == "abandoned"


def test_a36_a_running_job_finishes_and_its_result_is_discarded(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create(job_type=SYNC_WAIT)
    worker.assign()

    app.hang_up()
    worker.finish(0, b"unheard")

    job = room.job(handle)
    assert (job.state, job.result) == (State.COMPLETED, None)


# Outcome, retry, queries.


def test_a37_a_worker_is_lost_five_times_and_no_more(room):
    app = room.draft()
    handle = app.create()

    for _ in range(5):
        worker = room.draft_worker()
        assert worker.assign().name == b"f"
        worker.hang_up()

    assert app.completion(handle)[1] == 254
    assert room.draft_worker().assign() == JobAssignRes()


def test_a37_a_reported_code_is_final(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    worker.assign()

    worker.finish(3, b"no disk")

    assert worker.assign() == JobAssignRes()
    assert app.completion(handle) == (1, 3, b"no disk")


@pytest.mark.parametrize(("said", "told"), [(1, 1), (249, 249), (250, 249), (255, 249)])
def test_a38_codes_of_workers_stay_below_the_servers(room, said, told):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    worker.assign()

    worker.finish(said, b"x")

    assert app.completion(handle) == (1, told, b"x")


def test_a38_a_cancelled_job_is_251(room):
    app = room.draft()
    handle = app.create()

    room.ask(Cancel(job_ids=(room.job(handle).job_id,)))

    assert app.completion(handle)[:2] == (1, 251)


def test_a38_a_passed_deadline_is_252(room):
    at = room.clock.now() + 1000
    room.ask(Submit((NewJob(job_id="1" * 32, queue="f", deadline_at=at),)))

    room.run_for(1000)

    assert room.draft().completion(b"H:x:" + b"1" * 32)[1] == 252


def test_a38_a_failed_dependency_is_253(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    needed = room.job(handle).job_id
    room.ask(Submit((NewJob(job_id="2" * 32, queue="g", depends_on=(needed,)),)))
    worker.assign()

    worker.finish(9)

    assert app.completion(b"H:x:" + b"2" * 32)[1] == 253


def test_a39_status_before_during_and_after(room):
    app, worker = room.draft(), room.draft_worker()
    handle, silent = app.create(), app.create()

    queued = app.status(handle)
    worker.assign()
    started = app.status(handle)
    worker.tell(JobStatusAnnounce(3, 7))
    reported = app.status(handle)
    worker.finish()
    worker.assign()
    worker.finish()

    assert queued == started == app.status(b"H:x:" + b"0" * 32) == (0, 0, 0)
    assert reported == (3, 7, 0)
    assert app.status(handle) == (7, 7, 0)
    assert app.status(silent) == (1, 1, 0)


def test_a39_numbers_of_other_fronts_are_cut_to_what_fits(room):
    app, worker = room.draft(), room.worker()
    handle = app.create()
    worker.grab()
    worker.tell(shipped.WORK_STATUS, handle, b"9" * 15, b"9" * 18)

    running = app.status(handle)
    worker.tell(shipped.WORK_COMPLETE, handle, b"")

    assert running == (2**32 - 1, 2**32 - 1, 0)
    assert app.status(handle) == (2**32 - 1, 2**32 - 1, 0)


def test_a40_the_time_left_is_aged_but_not_below_one(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    worker.assign()
    worker.tell(JobStatusAnnounce(1, 2, 60))

    fresh = app.status(handle)[2]
    room.run_for(20_000)
    aged = app.status(handle)[2]
    room.run_for(100_000)

    assert (fresh, aged, app.status(handle)[2]) == (60, 40, 1)


@pytest.mark.parametrize("body", [b"\0\0\0\x01\0\0\0\x02", b"\0\0\0\x01\0\0\0\x02\0\0\0\0"])
def test_a40_a_status_of_8_bytes_gives_no_time(room, body):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    worker.assign()

    worker.give(raw(0x08, body))
    room.run()

    assert app.status(handle) == (1, 2, 0)


def test_a41_an_unknown_total_is_legal(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    worker.assign()

    worker.tell(JobStatusAnnounce(5, 0))

    assert app.status(handle) == (5, 0, 0)


def test_a42_an_unfinished_job_has_status_zero(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()

    queued = app.completion(handle)
    worker.assign()

    assert queued == app.completion(handle) == (0, 0, b"")


@pytest.mark.parametrize(
    ("took_ms", "seconds"), [(0, 1), (999, 1), (1000, 1), (1001, 2), (5000, 5)]
)
def test_a43_elapsed_is_the_last_attempt_rounded_up(room, took_ms, seconds):
    app, lost, worker = room.draft(), room.draft_worker(), room.draft_worker()
    handle = app.create()
    lost.assign()
    room.run_for(60_000)
    lost.hang_up()

    worker.assign()
    room.run_for(took_ms)
    worker.finish()

    assert app.completion(handle)[0] == seconds


@pytest.mark.parametrize("handle", [b"", b"x", b"H:x:1", b"\0" * 40, b"H:x:" + b"0" * 32])
def test_a44_an_unknown_handle_ends_the_polling(room, handle):
    assert room.draft().completion(handle) == (1, 255, b"unknown job")


def test_a45_a_result_is_kept_for_an_hour_and_read_many_times(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    worker.assign()
    worker.finish(0, b"kept")

    room.run_for(HOUR_MS - 1)
    twice = app.completion(handle), app.completion(handle)
    room.run_for(1)

    assert twice == ((1, 0, b"kept"), (1, 0, b"kept"))
    assert app.completion(handle) == (1, 255, b"unknown job")


@pytest.mark.parametrize("job_type", [SYNC_WAIT, ASYNC_THROW_AWAY])
def test_a45_what_was_delivered_or_thrown_away_is_not_kept(room, job_type):
    app, worker = room.draft(), room.draft_worker()
    app.create(job_type=job_type)
    (job,) = room.dispatcher.store.live.live_jobs()
    handle = room.hall.handle_of(job)
    worker.assign()

    worker.finish(0, b"gone")
    app.heard()

    assert room.job(handle).result is None
    assert app.completion(handle) == (1, 255, b"unknown job")


def test_a46_any_connection_may_ask_for_a_handle(room):
    handle = room.draft().create()

    assert room.draft().completion(handle) == (0, 0, b"")


@pytest.mark.parametrize("job_type", [ASYNC_HANDLE, ASYNC_THROW_AWAY])
def test_a47_an_asynchronous_job_is_on_disk_before_its_answer(room, job_type):
    app = room.draft()

    app.give(encode(JobCreateReq(b"f", b"", job_type, b"")))
    before = app.take()
    room.run()

    assert before == b""
    assert len(app.heard()) == 1


def test_a48_a_job_has_normal_priority_and_no_deadline(room):
    job = room.job(room.draft().create())

    assert (job.priority, job.deadline_at) == (0.0, None)


def test_a49_first_come_first_served_and_names_in_turn(room):
    app, worker = room.draft(), room.draft_worker(b"f", b"g")
    for name in (b"f", b"g"):
        for number in (b"1", b"2"):
            app.create(name, args=number)

    given = []
    for _ in range(4):
        given.append(worker.assign())
        worker.finish()

    assert [job.args for job in given] == [b"1", b"1", b"2", b"2"]
    assert given[0].name == given[2].name != given[1].name == given[3].name


def test_a50_the_record_tells_who_started_what_and_how_it_ended(room):
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    room.run_for(500)
    worker.assign()
    room.run_for(1500)
    worker.finish(7, b"why")

    job = room.job(handle)
    (attempt,) = job.attempts
    assert attempt.holder.name == worker.connection
    assert attempt.claimed_at - job.submitted_at == 500
    assert attempt.ended_at - attempt.claimed_at == 1500
    assert (job.failure.code, job.failure.payload) == ("code 7", b"why")


# Between the dialects.


def test_a_shipped_job_is_worked_by_a_draft_worker(room):
    """G59"""
    client, worker = room.gearman(), room.draft_worker()
    handle = client.submit(b"f", b"u", b"a\0b", shipped.SUBMIT_JOB)

    assert worker.assign() == JobAssignRes(b"f", b"a\0b")
    worker.tell(JobStatusAnnounce(1, 2, 30))
    worker.finish(0, b"r")

    assert client.heard() == [
        (shipped.WORK_STATUS, [handle, b"1", b"2"]),
        (shipped.WORK_COMPLETE, [handle, b"r"]),
    ]


def test_a_draft_job_is_worked_by_a_shipped_worker(room):
    """G59"""
    app, worker = room.draft(), room.worker()
    handle = app.create(dupkey=b"k", job_type=SYNC_WAIT, args=b"x")

    assert worker.grab(shipped.GRAB_JOB_UNIQ) == [handle, b"f", b"k", b"x"]
    worker.tell(shipped.WORK_DATA, handle, b"has no packet")
    worker.tell(shipped.WORK_STATUS, handle, b"1", b"2")
    worker.tell(shipped.WORK_COMPLETE, handle, b"r")

    assert app.heard() == [JobStatusRes(1, 2, 0), JobCompleteRes(1, 0, b"r")]


@pytest.mark.parametrize(
    ("report", "data"),
    [((shipped.WORK_FAIL,), None), ((shipped.WORK_EXCEPTION, b"boom"), b"boom")],
)
def test_a_shipped_failure_is_code_1_in_the_draft(room, report, data):
    """G59"""
    app, worker = room.draft(), room.worker()
    handle = app.create()
    worker.grab()

    worker.tell(report[0], handle, *report[1:])

    _, code, told = app.completion(handle)
    assert code == 1
    assert data in (None, told)


def test_a_draft_code_is_a_failure_or_an_exception_in_the_shipped_protocol(room):
    """G59"""
    plain, keen, worker = room.gearman(), room.gearman(), room.draft_worker()
    keen.tell(shipped.OPTION_REQ, b"exceptions")
    handle = plain.submit(b"f", b"u", b"", shipped.SUBMIT_JOB)
    keen.submit(b"f", b"u", b"", shipped.SUBMIT_JOB)
    worker.assign()

    worker.finish(7, b"why")

    assert plain.heard() == [(shipped.WORK_FAIL, [handle])]
    assert keen.heard() == [(shipped.WORK_EXCEPTION, [handle, b"why"])]


def test_handles_and_uniques_are_the_same_in_both_dialects(room):
    """G59"""
    app, client, worker = room.draft(), room.gearman(), room.worker()
    handle = client.submit(b"f", b"u", b"shipped")

    assert app.create(b"f", b"u", ASYNC_HANDLE, b"draft") == handle
    assert app.completion(handle) == (0, 0, b"")
    worker.grab()
    worker.tell(shipped.WORK_COMPLETE, handle, b"r")
    assert app.completion(handle) == (1, 0, b"r")


def test_a_long_dupkey_is_not_shown_to_a_shipped_worker(room):
    """G59"""
    room.draft().create(dupkey=b"k" * 200)

    assert room.worker().grab(shipped.GRAB_JOB_UNIQ)[2] == b""


def test_a_background_result_of_the_shipped_protocol_is_fetched_over_the_draft(room):
    """G45"""
    client, worker, app = room.gearman(), room.worker(), room.draft()
    handle = client.submit()
    worker.grab()
    worker.tell(shipped.WORK_COMPLETE, handle, b"kept")

    room.run_for(24 * HOUR_MS)

    assert app.completion(handle) == (1, 0, b"kept")


def test_a_job_put_to_work_again_has_the_same_handle(room):
    """G14"""
    app, worker = room.draft(), room.draft_worker()
    handle = app.create()
    worker.assign()
    worker.finish(5)

    room.ask(Requeue(job_id=room.job(handle).job_id))
    again = app.completion(handle)
    worker.assign()
    worker.finish(0, b"now")

    assert again == (0, 0, b"")
    assert app.completion(handle) == (1, 0, b"now")


def test_everything_sent_at_once_is_answered_in_order(room):
    """G7"""
    app = room.draft()
    create = JobCreateReq(b"f", b"", ASYNC_HANDLE, b"")

    answers = app.tell(create, JobStatusReq(b"?"), create, JobCompleteReq(b"?"), WorkerConnect(()))

    kinds = [type(answer) for answer in answers]
    assert kinds == [JobCreateRes, JobStatusRes, JobCreateRes, JobCompleteRes]


def test_of_many_requests_for_a_large_result_a_turn_answers_those_that_make_a_mebibyte(room):
    """G9"""
    app, worker = room.draft(), room.draft().connect(b"f")
    handle = app.create()
    worker.assign()
    worker.finish(data=bytes(600_000))

    before = room.dispatcher.counts.commands

    app.give(encode(JobCompleteReq(handle)) * 10)

    assert room.dispatcher.counts.commands - before == 2
    room.run_for(100)
    assert len(app.heard()) == 10


def test_of_many_requests_in_one_packet_a_turn_does_only_so_many(room):
    """G9"""
    app = room.draft()
    app.give(encode(JobStatusReq(b"H:other:1")) * 1_000)
    assert len(app.heard()) == limits.TURN_REQUESTS_MAX

    room.run()

    assert len(app.heard()) == 1_000 - limits.TURN_REQUESTS_MAX
