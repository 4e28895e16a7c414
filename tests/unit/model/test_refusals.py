"""Every refusal has one category, so every protocol has a word for it."""

from collections import Counter

from manyhands.model.refusals import CATEGORIES, Category, words_for
from manyhands.model.replies import Why


def test_every_refusal_has_exactly_one_category():
    assert set(CATEGORIES) == set(Category)
    assert Counter(why for row in CATEGORIES.values() for why in row) == Counter(Why)


def test_an_exception_wins_over_the_word_of_its_category():
    words = words_for(dict.fromkeys(Category, "no"), {Why.QUEUE_FULL: "later"})

    assert set(words) == set(Why)
    assert words[Why.QUEUE_FULL] == "later"
    assert words[Why.TOO_MANY_QUEUES] == "no"
