"""Who is alive, on our own clock and nobody else's."""

from manyhands.cluster.membership import Beat, Membership, Tenure, slewed


class Observer:
    """A server that beats, and what it sees of another one."""

    def __init__(self) -> None:
        self.now_ms = 1_000.0
        self.membership = Membership(1, 5_000, self.now_ms)
        self.other_beats = 0

    def beat(
        self, after_ms: float = 1_000, *, other_lives: bool = True, took_ms: float = 2
    ) -> None:
        self.now_ms += after_ms
        self.other_beats += other_lives
        rows = (
            Tenure(1, "us", "i1", "here:1", 0, "serving"),
            Tenure(2, "them", "i2", "there:1", self.other_beats, "serving"),
        )
        beat = Beat(rows, 2, 1, int(self.now_ms) + 500_000)
        self.membership.take(beat, self.now_ms, self.now_ms + took_ms)

    def is_dead(self) -> bool:
        return self.membership.is_dead(2, self.now_ms)


def test_a_server_that_beats_lives() -> None:
    observer = Observer()
    for _ in range(60):
        observer.beat()
        assert not observer.is_dead()


def test_a_server_whose_beats_stand_still_for_a_lease_is_dead() -> None:
    """S19."""
    observer = Observer()
    observer.beat()
    for _ in range(4):
        observer.beat(other_lives=False)
        assert not observer.is_dead()
    observer.beat(other_lives=False)
    assert observer.is_dead()
    assert [row.tenure for row in observer.membership.dead(observer.now_ms)] == [2]


def test_nobody_is_dead_for_a_server_that_has_hardly_beaten_itself() -> None:
    """S19: it stood still: that others did not beat in this time is not known."""
    observer = Observer()
    observer.beat()
    observer.beat(after_ms=20_000, other_lives=False)
    assert not observer.is_dead()
    observer.beat(other_lives=False)
    assert not observer.is_dead()
    observer.beat(other_lives=False)
    assert observer.is_dead()


def test_an_outage_of_the_database_kills_nobody() -> None:
    """S19."""
    observer = Observer()
    observer.beat()
    for _ in range(10):
        observer.now_ms += 1_000
        observer.membership.fail()
    observer.beat(other_lives=False)
    for _ in range(4):
        observer.beat(other_lives=False)
        assert not observer.is_dead()
    observer.beat(other_lives=False)
    assert observer.is_dead()


def test_a_certain_death_is_believed_at_once_until_it_beats_again() -> None:
    """S21."""
    observer = Observer()
    observer.beat()
    observer.membership.make_certain(2)
    assert observer.is_dead()
    observer.beat()
    assert not observer.is_dead()


def test_a_server_never_declares_itself_dead() -> None:
    """S19."""
    observer = Observer()
    for _ in range(20):
        observer.beat(other_lives=True)
    assert not observer.membership.is_dead(1, observer.now_ms + 100_000)


def test_a_server_is_suspended_well_before_others_may_call_it_dead() -> None:
    """S20."""
    observer = Observer()
    observer.beat()
    assert observer.membership.suspended_ms() == observer.now_ms + 3_500


def test_a_closed_server_is_forgotten() -> None:
    observer = Observer()
    observer.beat()
    observer.membership.make_certain(2)
    beat = Beat((Tenure(1, "us", "i1", "here:1", 9, "serving"),), None, 2, 0)
    observer.membership.take(beat, observer.now_ms, observer.now_ms)
    assert observer.membership.others() == []
    assert not observer.is_dead()


def test_the_time_of_the_database_is_taken_from_the_quickest_round_trip() -> None:
    """S22."""
    observer = Observer()
    assert observer.membership.offset_ms() is None
    observer.beat(took_ms=900)
    observer.beat(took_ms=2)
    observer.beat(took_ms=400)
    assert observer.membership.offset_ms() == 500_000 - 1


def test_time_is_followed_without_a_jump() -> None:
    """S22."""
    assert slewed(300.0, 1_000.0) == 10.0
    assert slewed(-300.0, 1_000.0) == -10.0
    assert slewed(3.0, 1_000.0) == 3.0
