"""Keys of CURVE in files and as text."""

import contextlib

import pytest
import zmq.auth
import zmq.utils.z85
from hypothesis import given
from hypothesis import strategies as st

from manyhands.access.curve_keys import (
    CurveKeyFile,
    as_text,
    file_text,
    new_keys,
    read_key,
    read_keys,
    read_public_key,
)


@given(st.binary(min_size=32, max_size=32))
def test_a_key_is_written_as_zeromq_writes_it(key):
    assert as_text(key) == zmq.utils.z85.encode(key).decode()
    assert read_key(as_text(key)) == key


@given(st.text(max_size=45))
def test_other_text_is_no_key(text):
    with contextlib.suppress(ValueError):
        assert as_text(read_key(text)) == text


def test_a_value_beyond_32_bits_is_no_key():
    with pytest.raises(ValueError, match="40 characters"):
        read_key("#" * 40)


def test_files_are_those_of_pyzmq(tmp_path):
    _, secret = zmq.auth.create_certificates(tmp_path, "theirs")
    ours = tmp_path / "ours.key_secret"
    keys = new_keys()
    ours.write_text(file_text(keys, with_secret=True))

    theirs = read_keys(tmp_path / "theirs.key_secret")
    public, private = zmq.auth.load_certificate(secret)
    assert (as_text(theirs.public), as_text(theirs.secret)) == (public.decode(), private.decode())
    assert read_public_key(tmp_path / "theirs.key") == theirs.public
    public, private = zmq.auth.load_certificate(ours)
    assert (public.decode(), private.decode()) == (as_text(keys.public), as_text(keys.secret))


def test_a_public_file_has_no_secret(tmp_path):
    keys = new_keys()
    file = tmp_path / "a.key"
    file.write_text(file_text(keys, with_secret=False))

    assert as_text(keys.secret) not in file.read_text()
    assert read_public_key(file) == keys.public
    with pytest.raises(OSError, match="has no secret-key"):
        read_keys(file)
    assert as_text(keys.secret) not in repr(keys)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nothing", "has no secret-key"),
        ('secret-key = "short"', "40 characters"),
        (f'public-key = "{"0" * 40}"\nsecret-key = "{as_text(bytes(range(32)))}"', "belong"),
    ],
)
def test_a_broken_file_is_refused_and_keeps_the_keys_of_a_running_server(tmp_path, text, why):
    keys = new_keys()
    file = tmp_path / "server.key_secret"
    file.write_text(file_text(keys, with_secret=True))
    held = CurveKeyFile(file)

    file.write_text(text)
    with pytest.raises(OSError, match=why):
        read_keys(file)
    held.reload()
    assert held.keys == keys

    newer = new_keys()
    file.write_text(file_text(newer, with_secret=True))
    held.reload()
    assert held.keys == newer


def test_a_missing_or_binary_file_is_refused(tmp_path):
    with pytest.raises(OSError, match="cannot be read"):
        read_keys(tmp_path / "nothing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(OSError, match="is not text"):
        read_keys(tmp_path / "binary")
