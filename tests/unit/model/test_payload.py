"""How the same payload looks to peers that speak JSON and to peers that speak bytes."""

import base64
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.model.payload import (
    Encoding,
    as_json_object,
    as_json_value,
    from_json_object,
    from_json_text,
    guess_encoding,
)


def shown(payload: bytes, encoding: Encoding) -> object:
    """What a JSON peer reads in the end."""
    return json.loads(msgspec.json.encode({"payload": as_json_value(payload, encoding)}))["payload"]


@pytest.mark.parametrize("text", [b'{"a":[1,2.50]}', b"null", b"7", b'"x"', b" [1] "])
def test_json_is_shown_as_the_value_it_is(text):
    value = shown(text, Encoding.JSON)

    assert value == json.loads(text)


def test_json_reaches_a_peer_digit_for_digit():
    raw = b'{"big":123456789012345678901234567890,"b":1.10}'

    encoded = msgspec.json.encode(as_json_value(raw, Encoding.JSON))

    assert encoded == raw


def test_an_empty_payload_that_was_called_json_is_shown_as_null():
    value = shown(b"", Encoding.JSON)

    assert value is None


@pytest.mark.parametrize("encoding", [Encoding.TEXT, Encoding.BINARY])
@given(text=st.text())
def test_what_is_utf8_is_shown_as_a_string(encoding, text):
    value = shown(text.encode(), encoding)

    assert value == text


@pytest.mark.parametrize("encoding", [Encoding.TEXT, Encoding.BINARY])
@given(payload=st.binary())
def test_other_bytes_are_shown_in_base64_and_nothing_is_lost(encoding, payload):
    value = shown(payload, encoding)

    if isinstance(value, str):
        assert value.encode() == payload
    else:
        assert list(value) == ["base64"]
        assert base64.b64decode(value["base64"]) == payload


def test_json_is_never_guessed():
    guesses = [guess_encoding(payload) for payload in (b'{"a":1}', b"", "é".encode(), b"\xff")]

    assert guesses == [Encoding.TEXT, Encoding.TEXT, Encoding.TEXT, Encoding.BINARY]


def test_words_of_encodings_are_those_that_are_stored():
    assert [str(encoding) for encoding in Encoding] == ["binary", "text", "json"]


@given(text=st.text())
def test_a_string_comes_back_as_the_text_it_was_shown_for(text):
    sent_back = from_json_text(json.dumps(text).encode(), Encoding.TEXT)

    assert sent_back == (text.encode(), Encoding.TEXT)


@given(payload=st.binary())
def test_what_was_shown_comes_back_byte_for_byte(payload):
    text = msgspec.json.encode(as_json_value(payload, Encoding.BINARY))

    back, _ = from_json_text(text, Encoding.BINARY)

    assert back == payload


@pytest.mark.parametrize("text", [b'"x"', b'{"base64":"eA=="}', b"{}", b"7"])
def test_what_was_json_stays_json_digit_for_digit(text):
    assert from_json_text(text, Encoding.JSON) == (text, Encoding.JSON)


@pytest.mark.parametrize(
    "text", [b"7", b"null", b'{"base64":1}', b'{"base64":"!"}', b'{"base64":"eA==","more":1}']
)
def test_what_only_looks_like_bytes_is_json(text):
    assert from_json_text(text, Encoding.BINARY) == (text, Encoding.JSON)


@pytest.mark.parametrize(
    "text", [b"1e400", b"[1e400]", b'{"base64":1e400}', b'{"a":1.10}', b"9" * 5000]
)
def test_a_number_that_no_float_holds_comes_back_digit_for_digit(text):
    assert from_json_text(text, Encoding.BINARY) == (text, Encoding.JSON)


@pytest.mark.parametrize(
    ("payload", "encoding", "text"),
    [
        (b'{"a": 1.10}', Encoding.JSON, b'{"a": 1.10}'),
        (b"1.10", Encoding.JSON, b'{"value":1.10}'),
        (b'{"a": 1}', Encoding.BINARY, b'{"value":"{\\"a\\": 1}"}'),
        (b"", Encoding.TEXT, b'{"value":""}'),
        (b"\xff\x00", Encoding.BINARY, b'{"base64":"/wA="}'),
    ],
)
def test_a_peer_that_takes_objects_only_is_shown_one(payload, encoding, text):
    shown_text = msgspec.json.encode(as_json_object(payload, encoding))

    assert shown_text == text


@pytest.mark.parametrize("encoding", list(Encoding))
@given(value=st.one_of(st.text(), st.integers(), st.dictionaries(st.text(), st.text())))
def test_what_was_shown_as_an_object_comes_back_as_it_was(encoding, value):
    payload = json.dumps(value).encode()
    text = msgspec.json.encode(as_json_object(payload, encoding))

    back, _ = from_json_object(text, payload, encoding)

    assert back == payload


@given(payload=st.binary())
def test_bytes_that_were_shown_as_an_object_come_back_byte_for_byte(payload):
    text = msgspec.json.encode(as_json_object(payload, Encoding.BINARY))

    back, _ = from_json_object(text, payload, Encoding.BINARY)

    assert back == payload


@pytest.mark.parametrize(
    ("text", "payload", "like", "back"),
    [
        (b'{"value": 1}', b'{"a": 1}', Encoding.JSON, (b'{"value": 1}', Encoding.JSON)),
        (b'{"value": 1}', b"7", Encoding.JSON, (b"1", Encoding.JSON)),
        (b'{"value": "x"}', b"\xff", Encoding.BINARY, (b"x", Encoding.TEXT)),
        (b'{"value": {"value": 1}}', b"x", Encoding.TEXT, (b'{"value": 1}', Encoding.JSON)),
        (b'{"value": 1, "more": 2}', b"x", Encoding.TEXT, None),
        (b'"x"', b"x", Encoding.TEXT, (b"x", Encoding.TEXT)),
    ],
)
def test_a_value_is_taken_out_of_its_object_unless_the_payload_was_an_object(
    text, payload, like, back
):
    assert from_json_object(text, payload, like) == (back or (text, Encoding.JSON))
