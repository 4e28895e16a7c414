"""Submits that may be repeated: their answer is kept and given again (rule 15)."""

from typing import Final

from manyhands.engine.effects import Effects
from manyhands.model import limits
from manyhands.model.receipts import Once, Receipt, ReceiptItem
from manyhands.model.replies import Refusal, Repeated, SubmittedMany, Why

# A submit removes one old receipt for each of its items, and a few more, so that expired receipts
# disappear in the end without a timer.
_REMOVED_MORE: Final = 4


def repeated(effects: Effects, once: Once) -> Repeated | Refusal | None:
    """The answer to the first submit with this key, or None if this is the first."""
    receipt = effects.view.receipt(once.key)
    if receipt is None or receipt.at + limits.RECEIPT_KEPT_MS <= effects.now:
        return None
    if receipt.content != once.content:
        sentence = "this key came with another request before; use a new key for each request"
        return Refusal(Why.KEY_REUSED, sentence)
    return Repeated(receipt)


def keep_receipt(effects: Effects, once: Once, reply: SubmittedMany) -> None:
    """Keeps the answer. If nothing was admitted, nothing is kept: the next try may succeed."""
    items: list[ReceiptItem] = []
    admitted = False
    for one in reply.items:
        if isinstance(one, Refusal):
            items.append(ReceiptItem(why=one.why.value, sentence=one.sentence))
        else:
            admitted = True
            job = one.job
            items.append(
                ReceiptItem(job.job_id, job.queue, job.state.value, one.created, job.name or "")
            )
    if not admitted:
        return
    receipts = effects.set().receipts
    receipt = Receipt(effects.now, once.content, once.note, tuple(items))
    weight = effects.view.receipts_weight() + receipt.weight()
    for key, old in effects.view.oldest_receipts(len(items) + _REMOVED_MORE):
        is_old = old.at + limits.RECEIPT_KEPT_MS <= effects.now
        if not is_old and weight <= limits.RECEIPTS_WEIGHT_MAX:
            break
        receipts[key] = None
        weight -= old.weight()
    receipts[once.key] = receipt
