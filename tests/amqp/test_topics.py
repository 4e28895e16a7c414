"""Our topic patterns against RabbitMQ's own, with keys and patterns made at random."""

import random

from manyhands.protocols.topic_patterns import Pattern, words_of
from tests.amqp.watching import connect

PATTERNS = 60
KEYS = 60


def made_of(rng: random.Random, words: list[str]) -> str:
    return ".".join(rng.choice(words) for _ in range(rng.randrange(6)))


def test_matching_agrees_with_rabbitmq(rabbit):
    """T30."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    patterns = sorted({made_of(rng, ["a", "b", "*", "#", ""]) for _ in range(PATTERNS)})
    keys = sorted({made_of(rng, ["a", "b", "c", "*", "#", ""]) for _ in range(KEYS)})
    with connect(rabbit.url) as connection:
        channel = connection.channel()
        channel.exchange_declare("topics", "topic", auto_delete=True)
        queues = [channel.queue_declare("", exclusive=True).method.queue for _ in patterns]
        for queue, pattern in zip(queues, patterns, strict=True):
            channel.queue_bind(queue, "topics", pattern)
        channel.confirm_delivery()
        for key in keys:
            channel.basic_publish("topics", key, key.encode())
        for queue, pattern in zip(queues, patterns, strict=True):
            theirs = []
            while (found := channel.basic_get(queue, auto_ack=True))[0] is not None:
                theirs.append(found[2].decode())
            ours = [key for key in keys if Pattern(pattern).matches(words_of(key))]
            assert ours == theirs, f"pattern {pattern!r}, seed {seed}"
