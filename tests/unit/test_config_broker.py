"""The URL of a broker: read in full, shown without its password."""

import pytest

from manyhands.config import Broker, ConfigError, load_config, warnings_of


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://broker", ("broker", 5672, "/", "guest", "guest", False)),
        ("amqps://u:p%40@broker/", ("broker", 5671, "/", "u", "p@", True)),
        ("amqp://u:p@[::1]:99/a%2fb", ("::1", 99, "a/b", "u", "p", False)),
    ],
)
def test_a_url_is_taken_apart(url, expected):
    found = Broker().read(url)

    fields = ("host", "port", "virtual_host", "user", "password", "secure")
    assert tuple(getattr(found, field) for field in fields) == expected


@pytest.mark.parametrize("url", ["http://x", "amqp://", "amqp://x:port", "amqp://x/?heartbeat=1"])
def test_what_is_no_url_of_a_broker_is_refused_without_being_shown(url):
    with pytest.raises(ConfigError) as wrong:
        load_config({"amqp_relay": url}, {}, None)
    assert "that address" in str(wrong.value)


def test_the_password_is_not_shown():
    loaded = load_config({"amqp_relay": "amqp://me:secret@broker/vhost"}, {}, None)

    assert loaded.plain("amqp_relay") == "amqp://me@broker:5672/vhost"
    assert load_config({"amqp_relay": "none"}, {}, None).config.amqp_relay is None


def test_a_password_on_the_command_line_is_warned_of():
    url = "amqp://me:secret@broker/vhost"

    by_flag = load_config({"amqp_relay": url}, {}, None)
    by_variable = load_config({}, {"MANYHANDS_AMQP_RELAY": url}, None)
    without = load_config({"amqp_relay": "amqp://broker/vhost"}, {}, None)

    (warning,) = warnings_of(by_flag, None)
    assert "MANYHANDS_AMQP_RELAY keeps it from them" in warning
    assert "secret" not in warning
    assert warnings_of(by_variable, None) == warnings_of(without, None) == []
