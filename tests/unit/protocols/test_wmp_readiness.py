"""Whatever workers say in whatever order: who was woken is known, and no work is overlooked."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.protocols.wmp.codec import Command
from manyhands.protocols.wmp.readiness import Phase
from tests.unit.protocols.wmp_desk import Desk

PEERS = st.sampled_from([b"A", b"B"])
ROLES = st.sampled_from(["mail", "mail", "print"])
STEPS = st.one_of(
    st.tuples(st.just("ready"), PEERS, ROLES, st.integers(1, 3)),
    st.tuples(st.just("give"), PEERS, ROLES, st.integers(1, 3)),
    st.tuples(st.just("add"), ROLES),
    st.tuples(st.just("commit")),
    st.tuples(st.just("wait"), st.sampled_from([100, 600])),
)


def take_step(desk: Desk, number: int, what: str, *given: object) -> None:
    match what, given:
        case "ready", (peer, role, slots):
            desk.say(peer, Command.READY, role=role, slots=slots)
        case "give", (peer, role, count):
            desk.say(peer, Command.GIVE, role=role, n=count, lock=f"L{number}")
        case "add", (role,):
            desk.add(role)
        case "commit", ():
            desk.commit()
            desk.holding = True
        case "wait", (ms,):
            desk.pass_time(ms)


def check(desk: Desk) -> None:
    """Everybody who can be woken is in line, and each WAKE without an answer is counted once."""
    found = desk.session.readiness
    woken: Counter[str] = Counter()
    for entry in found.entries.values():
        woken[entry.woken_for] += entry.woken_count
        in_line = [role for role, line in found._armed.items() if entry in line]
        assert in_line == (list(entry.roles) if entry.phase is Phase.READY else [])
    assert +woken == Counter(found._outstanding)


@settings(max_examples=150)
@given(steps=st.lists(STEPS, min_size=10, max_size=30))
def test_w23_w25_after_any_conversation_whoever_is_ready_hears_of_the_work_that_is_left(steps):
    desk = Desk()
    desk.holding = True  # so that much happens between a question and its answer
    for number, step in enumerate(steps):
        take_step(desk, number, *step)
        check(desk)
    desk.commit()
    desk.pass_time(1_000)

    for role in ("mail", "print"):
        desk.heard(b"Z")
        left = desk.ready_count(role)
        desk.say(b"Z", Command.READY, role=role)
        desk.pass_time(1_000)
        assert desk.commands(b"Z") == (["WAKE"] if left else [])
