"""Every refusal in dwork's words: not found, an error, or that the server is about to stop."""

from typing import Final

from manyhands.model.refusals import Category, words_for
from manyhands.model.replies import Why
from manyhands.protocols.dwork.codec import Kind

ANSWERS: Final[dict[Why, Kind]] = words_for(
    {
        **dict.fromkeys(Category, Kind.ERROR),
        Category.UNKNOWN: Kind.NOT_FOUND,
        Category.NOT_HELD: Kind.NOT_FOUND,
        Category.UNAVAILABLE: Kind.EXIT,
    },
    {Why.STORE_FULL: Kind.ERROR},
)
