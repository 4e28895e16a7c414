"""The query string: a shorter way to read it must not read it otherwise."""

from urllib.parse import parse_qsl

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from manyhands.web.envelope import Problem
from manyhands.web.query import Query


@given(st.text("host=wai&%2+\x01;", max_size=40))
@example("")
@example("h=%a2")
@example("&&host=a&&")
@example("host=a=b")
@example("host")
def test_a_query_is_read_as_the_library_reads_it(text):
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict")
        assume(len(dict(pairs)) == len(pairs))
    except UnicodeDecodeError:
        with pytest.raises(Problem):
            Query(text.encode())
        return
    query = Query(text.encode())

    assert {name: query.text(name) for name, _ in pairs} == {
        name: value or None for name, value in pairs
    }
    query.finish()


@pytest.mark.parametrize("raw", [b"host=a&host=b", b"host=a&h%6Fst=a", b"a&a", b"=1&=1"])
def test_a_parameter_that_is_given_twice_is_refused(raw):
    with pytest.raises(Problem, match="is given twice"):
        Query(raw)


@pytest.mark.parametrize("raw", [b"\xff=1", b"host=%ff", b"&".join([b"a=1"] * 101)])
def test_a_query_that_cannot_be_read_is_refused(raw):
    with pytest.raises(Problem) as caught:
        Query(raw)

    assert caught.value.code == "invalid_query"


def test_what_nobody_took_is_refused():
    query = Query(b"host=a&colour=red")
    query.text("host")

    with pytest.raises(Problem):
        query.finish()
