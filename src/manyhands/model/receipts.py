"""What is kept of a submit that its sender may have to repeat: the same key gets the same answer,
and nothing runs twice (rule 15).
"""

from typing import Final

import msgspec
from msgspec import Struct


class Once(Struct, frozen=True, gc=False):
    """How a repeated submit is recognised."""

    key: str
    content: str = ""  # a digest of all that was asked for; another one under this key is refused
    note: str = ""  # of the session's own, kept with the answer


class ReceiptItem(Struct, frozen=True, gc=False, array_like=True, omit_defaults=True):
    """The answer to one item: a job, or a refusal."""

    job_id: str = ""
    queue: str = ""
    state: str = ""
    created: bool = True
    name: str = ""
    why: str = ""  # of a refusal
    sentence: str = ""


class Receipt(Struct, frozen=True, gc=False):
    """The answer to a submit."""

    at: int
    content: str
    note: str
    items: tuple[ReceiptItem, ...]

    def weight(self) -> int:
        """Its share of the bound on all receipts."""
        return 1 + len(self.items)


class _Kept(Struct, frozen=True, array_like=True):
    content: str
    note: str
    items: tuple[ReceiptItem, ...]


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Kept).decode


def write_receipt(receipt: Receipt) -> str:
    """The receipt as text, without its time."""
    return _encode(_Kept(receipt.content, receipt.note, receipt.items)).decode()


def read_receipt(at: int, text: str) -> Receipt:
    """Reads what ``write_receipt`` wrote."""
    kept = _decode(text)
    return Receipt(at, kept.content, kept.note, kept.items)
