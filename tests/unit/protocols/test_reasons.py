"""Every reason for which a job can end has its word in the protocols that have words for them."""

from manyhands.model.events import KINDS
from manyhands.model.job import State
from manyhands.protocols.gearman.draft import CODES
from manyhands.protocols.taskcluster.messages import FAILURES

FAILED = set(KINDS[State.FAILED].reasons)
CANCELLED = set(KINDS[State.CANCELLED].reasons)


def test_the_gearman_draft_has_a_code_for_every_end_that_is_no_success():
    assert set(CODES) == FAILED | CANCELLED


def test_taskcluster_has_a_word_for_every_failure():
    assert set(FAILURES) == FAILED
