"""``Idempotency-Key``: a request that submits jobs may be repeated, and submits them once."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated, Final

from msgspec import Meta

from manyhands.model.receipts import Once, ReceiptItem
from manyhands.model.replies import Refusal, Why
from manyhands.model.roles import Caller
from manyhands.web.envelope import Problem
from manyhands.web.routes import Parameter

_KEY_BYTES_MAX: Final = 255
_DIGEST_BYTES: Final = 16
# The parameter that a route with this header declares.
ONCE: Final = Parameter(
    "Idempotency-Key",
    Annotated[str, Meta(min_length=1, max_length=_KEY_BYTES_MAX, pattern="^[!-~]+$")],
    "A request with the same key and content makes no further jobs.",
    "header",
)
ONCE_ERRORS: Final = {422: "The key came with another request before."}
# Marks the answer of an earlier request.
REPLAYED: Final = (b"idempotent-replayed", b"true")


def read_once(
    headers: Mapping[bytes, bytes], scope: str, path: bytes, body: bytes, caller: Caller
) -> Once | None:
    """What identifies a repeated request, or None if it has no key. Keys of different callers have
    nothing to do with each other.
    """
    key = headers.get(b"idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= _KEY_BYTES_MAX or not key.isascii():
        sentence = f"an idempotency key has 1 to {_KEY_BYTES_MAX} bytes of ASCII"
        raise Problem(400, "invalid_idempotency_key", sentence)
    content = blake2b(path, digest_size=_DIGEST_BYTES)
    content.update(b"\n")
    content.update(body)
    digest = blake2b(key, digest_size=_DIGEST_BYTES).hexdigest()
    owner = f"@{caller.name}" if caller.name else ""
    return Once(f"{scope}{owner}/{digest}", content.hexdigest())


def refusal_of(item: ReceiptItem) -> Refusal | None:
    """How an item was refused, if it was."""
    return Refusal(Why(item.why), item.sentence) if item.why else None
