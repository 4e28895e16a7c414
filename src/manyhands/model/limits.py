"""Every bound of the server, with its reason. A peer that exceeds one gets an error."""

from typing import Final

# Names appear in tables, routing keys and URLs: 255 bytes is what AMQP and file systems allow.
QUEUE_NAME_BYTES_MAX: Final = 255
# A name is a foreign key (a task's full name, a command line), so the bound is generous.
NAME_BYTES_MAX: Final = 64 * 1024
UNIQUE_KEY_BYTES_MAX: Final = 255
JOB_ID_DIGITS_MAX: Final = 128
TAG_BYTES_MAX: Final = 255
TAGS_COUNT_MAX: Final = 64
HOLDER_NAME_BYTES_MAX: Final = 255

# One payload or result. The writer keeps a whole batch in memory, so this also bounds a batch.
PAYLOAD_BYTES_MAX: Final = 64 * 1024 * 1024
# What a job takes in memory besides its payload, roughly: its value and its index entries.
JOB_BYTES: Final = 1024
# Larger payloads of unfinished jobs are in memory only until they are in the database, and are read
# again when they are handed out: reading them takes less time than sending them.
PAYLOAD_BYTES_IN_MEMORY: Final = 64 * 1024
METADATA_BYTES_MAX: Final = 1024 * 1024
# Names and values of the headers of one job, which is in memory with them. Trace contexts and
# names of tasks take a few hundred.
HEADERS_BYTES_MAX: Final = 8 * 1024
FAILURE_MESSAGE_BYTES_MAX: Final = 64 * 1024

# One command. Larger work is sent in several commands, so that others get their turn.
BATCH_COUNT_MAX: Final = 10_000
CLAIM_COUNT_MAX: Final = 10_000
CLAIM_QUEUES_MAX: Final = 1_000
# Bytes of payloads per claim; the job that passes this is the last one. An answer is made in one go
# while all other clients wait.
CLAIM_BYTES_MAX: Final = 4 * 1024 * 1024

# What is done for one peer before others get their turn. Requests may have a few bytes each, and
# answers some megabytes: a flood of neither may hold up other clients.
TURN_REQUESTS_MAX: Final = 256
# Bytes of payloads and results in pending answers of a peer, above which it has to wait.
TURN_BYTES_OWED_MAX: Final = 1024 * 1024

# Payloads and results in memory that are not in the database yet. It takes about 60 MB a second, so
# this is a quarter of a second: enough to keep it busy, and no client waits for more than that.
BACKLOG_BYTES_MAX: Final = 16 * 1024 * 1024

DEPENDENCIES_COUNT_MAX: Final = 10_000
# Dependants that one command notifies. If a job has more, further commands notify them, so that
# other clients get their turn. Simulations use a smaller number.
DEPENDANTS_NOTIFIED_MAX: int = 500
# Dependants that one command may examine to find those that change.
DEPENDANTS_SEEN_MAX: int = 10_000
# A search for a cycle visits at most this many jobs before the edge is refused.
CYCLE_VISITS_MAX: Final = 1_000_000
NAMED_LIMITS_COUNT_MAX: Final = 16
# Leases of a departing worker that one command gives back.
DEPARTED_COUNT_MAX: Final = 500

PRIORITY_MAX: Final = 1e15
ATTEMPTS_MAX: Final = 1_000_000
# A hundred years in milliseconds: more is a mistake, and sums stay far below 2**63.
TIME_MS_MAX: Final = 100 * 366 * 24 * 3600 * 1000

# History of one job: the first entry and the latest ones are kept.
ATTEMPTS_KEPT_MAX: Final = 100
HISTORY_KEPT_MAX: Final = 100
# A worker's own note on an attempt; longer ones are cut.
NOTE_CHARACTERS_MAX: Final = 1_000

# Partial results kept for one job; older ones are dropped.
PARTIALS_KEPT_MAX: Final = 256
PARTIAL_BYTES_MAX: Final = 1024 * 1024

# Work done by one tick, so that a million due jobs do not hold the loop.
TICK_COUNT_MAX: Final = 500
# Rule 6: a lapsed lease without budget fails this long after its expiry, unless its holder reports.
LAPSE_GRACE_MS: Final = 10_000

# A submit that is asked once more, because its answer was lost, finds the job that it made if that
# was submitted within this time. An outage of the database may lie between.
ASKED_AGAIN_MS: Final = 600_000

# How long a repeated submit is recognised by its key, and how many answers are kept for that (a
# receipt, and each of its items): about 500 bytes of memory each. The oldest are dropped.
RECEIPT_KEPT_MS: Final = 24 * 3600 * 1000
RECEIPTS_WEIGHT_MAX: int = 200_000

# Queues and schedules that exist at once; each costs memory even when empty.
QUEUES_COUNT_MAX: Final = 100_000
# From here on idle queues are forgotten although they have records, so that clients that use a
# queue per reply are not refused: the bound is on work, not on records.
QUEUES_CROWDED_COUNT: Final = 90_000
# Queues that are checked in one go, to forget them or to drop their oldest records.
QUEUES_A_SLICE: Final = 2_000
SCHEDULES_COUNT_MAX: Final = 10_000

# Samples of the history: a day by the minute, and more than a week by ten minutes.
HISTORY_MINUTES_MS: Final = 25 * 3600 * 1000
HISTORY_COARSE_MS: Final = 15 * 24 * 3600 * 1000
# Queues that have a sample of their own in one minute, the busiest first; a row has 200 bytes.
HISTORY_QUEUES_MAX: Final = 500
# Queues that are counted separately at a time; each takes more than a kilobyte of memory.
HISTORY_TALLIES_MAX: Final = 5_000

# Operations on many jobs: finished ones that are kept, and active ones.
BULKS_KEPT_MAX: Final = 200
BULKS_ACTIVE_MAX: Final = 20

# Entries of the audit log that are kept; an entry has some 300 bytes.
AUDIT_KEPT_MAX: Final = 100_000
