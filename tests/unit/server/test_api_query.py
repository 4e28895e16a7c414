"""The query string: a shorter way to read it must not read it otherwise."""

from urllib.parse import parse_qsl

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manyhands.protocols.http_envelope import Problem
from manyhands.server.api_query import Query


@given(st.text("host=wai&%2+\x01;", max_size=40))
@example("")
@example("h=%a2")
@example("&&host=a&&")
@example("host=a&host=b")
@example("host=a=b")
@example("host")
def test_a_query_is_read_as_the_library_reads_it(text):
    try:
        wanted = dict(parse_qsl(text, keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError:
        with pytest.raises(Problem):
            Query(text.encode())
        return
    query = Query(text.encode())

    assert {name: query.text(name) for name in wanted} == {
        name: value or None for name, value in wanted.items()
    }
    query.finish()


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
