"""Every bound of the server, with its reason. A peer over a bound gets an answer, not memory."""

from typing import Final

# Names appear in tables, routing keys and URLs: 255 bytes is what AMQP and file systems allow.
QUEUE_NAME_BYTES_MAX: Final = 255
# A name is somebody else's key (a task's full name, a command line): generous, yet bounded.
NAME_BYTES_MAX: Final = 64 * 1024
UNIQUE_KEY_BYTES_MAX: Final = 255
JOB_ID_DIGITS_MAX: Final = 128
TAG_BYTES_MAX: Final = 255
TAGS_COUNT_MAX: Final = 64
HOLDER_NAME_BYTES_MAX: Final = 255

# One payload or result. The writer keeps a whole batch in memory, so this also bounds a batch.
PAYLOAD_BYTES_MAX: Final = 64 * 1024 * 1024
METADATA_BYTES_MAX: Final = 1024 * 1024
FAILURE_MESSAGE_BYTES_MAX: Final = 64 * 1024

# One command. Larger work is sent in several commands, so that others get their turn.
BATCH_COUNT_MAX: Final = 10_000
CLAIM_COUNT_MAX: Final = 10_000
CLAIM_QUEUES_MAX: Final = 1_000

DEPENDENCIES_COUNT_MAX: Final = 10_000
# Jobs that hear, in one command, that what they waited for has ended. If more wait for one job,
# they hear of it in further commands, so that others get their turn. Simulations have less.
DEPENDANTS_TOLD_MAX: int = 500
# Jobs that one command may look at to find those to which the end of a job means anything.
DEPENDANTS_SEEN_MAX: int = 10_000
# A search for a cycle visits at most this many jobs before the edge is refused.
CYCLE_VISITS_MAX: Final = 1_000_000
NAMED_LIMITS_COUNT_MAX: Final = 16
# Leases that a worker who leaves gives back in one command.
DEPARTED_COUNT_MAX: Final = 500

PRIORITY_MAX: Final = 1e15
ATTEMPTS_MAX: Final = 1_000_000
# A hundred years in milliseconds: beyond it a time is a mistake, and sums stay far below 2**63.
TIME_MS_MAX: Final = 100 * 366 * 24 * 3600 * 1000

# History of one job: the first entry and the latest ones are kept.
ATTEMPTS_KEPT_MAX: Final = 100
HISTORY_KEPT_MAX: Final = 100
# A worker's own note on an attempt; what is longer is cut.
NOTE_CHARACTERS_MAX: Final = 1_000

# Partial results kept for one job; older pieces give way.
PARTIALS_KEPT_MAX: Final = 256
PARTIAL_BYTES_MAX: Final = 1024 * 1024

# Work done by one tick, so that a million due jobs do not hold the loop.
TICK_COUNT_MAX: Final = 500
# A lapsed lease without budget fails this long after its expiry, unless its holder speaks up.
LAPSE_GRACE_MS: Final = 10_000

# Queues and schedules that exist at once; each costs memory even when empty.
QUEUES_COUNT_MAX: Final = 100_000
SCHEDULES_COUNT_MAX: Final = 10_000

# Samples of the history: a day by the minute, and more than a week by ten minutes.
HISTORY_MINUTES_MS: Final = 25 * 3600 * 1000
HISTORY_COARSE_MS: Final = 15 * 24 * 3600 * 1000
# Queues that have a sample of their own in one minute, the busiest first; a row has 200 bytes.
HISTORY_QUEUES_MAX: Final = 500
# Queues that are counted apart at a time; each takes more than a kilobyte of memory meanwhile.
HISTORY_TALLIES_MAX: Final = 5_000

# Operations on many jobs: finished ones that are kept, and those that may run or wait to.
BULKS_KEPT_MAX: Final = 200
BULKS_ACTIVE_MAX: Final = 20

# Entries of the audit log that are kept; an entry has some 300 bytes.
AUDIT_KEPT_MAX: Final = 100_000
