"""Whose request it is."""

import pytest

from manyhands.net.http_peer import Peer, Proxies


@pytest.mark.parametrize(
    ("direct", "headers", "address"),
    [
        ("10.0.0.1", {}, "10.0.0.1"),
        ("::ffff:10.0.0.1", {}, "10.0.0.1"),
        ("10.0.0.1", {b"x-forwarded-for": b"1.2.3.4"}, "1.2.3.4"),
        ("10.0.0.1", {b"x-forwarded-for": b"9.9.9.9, 1.2.3.4, 10.0.0.7"}, "1.2.3.4"),
        ("10.0.0.1", {b"forwarded": b'for="[2001:db8::1]:80";by=x'}, "2001:db8::1"),
        ("10.0.0.1", {b"forwarded": b"for=unknown"}, "10.0.0.1"),
        ("10.0.0.1", {b"x-forwarded-for": b"nonsense"}, "10.0.0.1"),
        ("8.8.8.8", {b"x-forwarded-for": b"1.2.3.4"}, "8.8.8.8"),
        ("", {b"x-forwarded-for": b"1.2.3.4"}, ""),
    ],
)
def test_only_what_trusted_proxies_say_is_believed(direct, headers, address):
    """QA14: and an IPv4 address is the same however it is written."""
    assert Peer(direct, Proxies("10.0.0.0/8, 192.168.1.1")).address(headers) == address


def test_without_trusted_proxies_the_connection_counts():
    assert Peer("10.0.0.1", Proxies(None)).address({b"forwarded": b"for=1.2.3.4"}) == "10.0.0.1"
