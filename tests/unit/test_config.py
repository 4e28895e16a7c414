"""Where values come from, which win, and what a user is told about a wrong one."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.config import (
    LISTENERS,
    OPTIONS,
    Address,
    Config,
    ConfigError,
    Endpoint,
    Endpoints,
    Profile,
    as_toml,
    load_config,
    load_profiles,
    warnings_of,
)


def a_file(folder: Path, text: str) -> Path:
    file = folder / "manyhands.toml"
    file.write_text(text, encoding="utf-8")
    return file


def refusal(
    flags: dict[str, str | None] | None = None,
    environ: dict[str, str] | None = None,
    file: Path | None = None,
) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(flags or {}, environ or {}, file)
    return str(caught.value)


def test_without_anything_given_every_value_is_the_default():
    loaded = load_config({}, {}, None)

    assert loaded.config == Config()
    assert set(loaded.sources.values()) == {"default"}
    assert loaded.config.http == Address("127.0.0.1", 7700)
    assert loaded.config.payload_bytes_max == 64 * 1024 * 1024


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path):
    file = a_file(tmp_path, "ride_ms = 1\ncommit_pace_ms = 1\ndrain_seconds = 1\n")
    environ = {"MANYHANDS_RIDE_MS": "2", "MANYHANDS_COMMIT_PACE_MS": "2"}

    loaded = load_config({"ride_ms": "3", "log_level": None}, environ, file)

    assert loaded.config.ride_ms == 3
    assert loaded.config.commit_pace_ms == 2
    assert loaded.config.drain_seconds == 1
    assert loaded.sources["ride_ms"] == "flag --ride-ms"
    assert loaded.sources["commit_pace_ms"] == "environment variable MANYHANDS_COMMIT_PACE_MS"
    assert loaded.sources["drain_seconds"] == f"file {file} line 3"
    assert loaded.sources["log_level"] == "default"


def test_a_wrong_key_is_named_with_file_and_line_and_the_nearest_key(tmp_path):
    file = a_file(tmp_path, '# ours\n\ndata = "x"\nretention_day = 3\n')

    assert refusal(file=file) == (
        f"file {file} line 4: retention_day is not an option; did you mean retention_days?"
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\n[zzz]\nhttp = 1\n", 2),
        ("\n\n[[zzz]]\n", 3),
        ('\n"zzz" = 1\n', 2),
        ("zzz.http = 1\n", 1),
    ],
)
def test_a_wrong_key_is_found_however_it_is_written(tmp_path, text, line):
    file = a_file(tmp_path, text)

    assert refusal(file=file) == (
        f"file {file} line {line}: zzz is not an option; `manyhands config` lists all options."
    )


def test_a_wrong_value_is_named_with_file_and_line_and_what_is_accepted(tmp_path):
    file = a_file(tmp_path, '\nlog_format = "xml"\n')

    assert refusal(file=file) == (
        f'file {file} line 2: log_format cannot be "xml" because there is no such choice; '
        "use auto, console or json."
    )


def test_a_wrong_variable_is_named_with_the_nearest_one():
    assert refusal(environ={"MANYHANDS_HTPP": "127.0.0.1:1"}) == (
        "environment: MANYHANDS_HTPP is not an option; did you mean MANYHANDS_HTTP?"
    )


def test_variables_of_others_and_empty_ones_are_left_alone():
    environ = {
        "HOME": "/root",
        "MANYHANDS_CONFIG": "manyhands.toml",
        "MANYHANDS_HTTP": "",
        "MANYHANDS_PORT": "tcp://10.0.0.1:7700",
        "MANYHANDS_PORT_7700_TCP_ADDR": "10.0.0.1",
        "MANYHANDS_SERVICE_HOST": "10.0.0.1",
    }

    assert load_config({}, environ, None).config == Config()


@pytest.mark.parametrize(
    ("name", "raw", "sentence"),
    [
        ("http", "7700", "it is not an address with a port"),
        ("http", ":7700", "it is not an address with a port"),
        ("http", "::1:7700", "it is not an address with a port"),
        ("http", "127.0.0.1:70000", "a port is at most 65535"),
        ("http", "[::zz]:1", "there is no IPv6 address in the brackets"),
        ("ride_ms", "soon", "it is not a duration"),
        ("ride_ms", "1.5", "it is not a whole number of milliseconds"),
        ("ride_ms", "-1", "it is out of range"),
        ("payload_bytes_max", str(512 * 1024 * 1024 + 1), "it is out of range"),
        ("memory", "much", "it is not a size"),
        ("memory", "2GB", "it is not a size"),
        ("memory", "1MiB", "it is out of range"),
        ("insecure", "maybe", "it is neither true nor false"),
        ("server_name", "with space", "it cannot be part of a job handle"),
        ("server_name", "x" * 25, "it cannot be part of a job handle"),
        ("data", "", "it is not a path"),
        ("store", "redis", "there is no such choice"),
    ],
)
def test_a_wrong_flag_is_answered_with_the_flag_the_key_and_the_reason(name, raw, sentence):
    text = refusal({name: raw})

    assert text == (
        f'flag {OPTIONS[name].flag}: {name} cannot be "{raw}" because {sentence}; '
        f"use {OPTIONS[name].kind.accepted}."
    )


@pytest.mark.parametrize(
    ("raw", "count", "shown"),
    [
        ("512MiB", 512 * 1024 * 1024, "512MiB"),
        ("2048MiB", 2**31, "2GiB"),
        (str(2**30 + 1), 2**30 + 1, "1073741825"),
        ("none", None, "none"),
    ],
)
def test_a_size_is_a_number_of_bytes_or_of_a_unit(raw, count, shown):
    loaded = load_config({"memory": raw}, {}, None)

    assert loaded.config.memory == count
    assert loaded.plain("memory") == shown


@pytest.mark.parametrize("line", ["http = 7700", "ride_ms = true", "ride_ms = [1]", "data = {}"])
def test_a_value_of_the_wrong_toml_type_is_refused(tmp_path, line):
    file = a_file(tmp_path, line)

    assert refusal(file=file).startswith(f"file {file} line 1: {line.split()[0]} cannot be ")


def test_a_database_address_never_shows_its_password():
    given = {"store": "postgresql://jobs:secret@db1,db2:5433/jobs?schema=other&password=hidden"}
    address = load_config(given, {}, None).config.store

    assert str(address) == "postgresql://jobs@db1,db2:5433/jobs?schema=other"
    assert "secret" not in f"{address!r}"
    assert "secret" in address.conninfo
    assert "target_session_attrs=read-write" in address.conninfo


@pytest.mark.parametrize("query", ["schema=No", "schema=a;b", "target_session_attrs=any", "%%"])
def test_a_wrong_database_address_is_refused_without_showing_its_password(query):
    text = refusal({"store": f"postgresql://jobs:secret@db/jobs?{query}"})

    assert "secret" not in text


def test_a_file_that_is_no_toml_is_named_with_the_line(tmp_path):
    file = a_file(tmp_path, "ride_ms = 1\nhttp = \n")

    assert refusal(file=file).startswith(f"file {file} is not valid TOML: ")
    assert "line 2" in refusal(file=file)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    missing = tmp_path / "missing.toml"
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")

    assert refusal(file=missing) == f"file {missing} cannot be read: No such file or directory."
    assert refusal(file=binary) == f"file {binary} is not UTF-8 text, as TOML has to be."


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1", "example.org"])
def test_an_address_that_others_can_reach_is_refused_unless_insecure(host):
    text = refusal({"http": f"{host}:80"})

    assert text.startswith(f'flag --http: http cannot be "{host}:80" because other machines could')
    assert "insecure = true" in text
    assert str(load_config({"http": f"{host}:80", "insecure": "true"}, {}, None).config.http) == (
        f"{host}:80"
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "[::1]", "localhost"])
def test_a_loopback_address_is_accepted_with_any_port(host):
    assert str(load_config({"http": f"{host}:0"}, {}, None).config.http) == f"{host}:0"


def test_d34_several_dwork_endpoints_are_written_with_commas_and_names():
    loaded = load_config({"dwork": "127.0.0.1:1, physics=[::1]:2"}, {}, None)

    assert loaded.config.dwork == Endpoints(
        (Endpoint("dwork", Address("127.0.0.1", 1)), Endpoint("physics", Address("::1", 2)))
    )
    assert loaded.plain("dwork") == "127.0.0.1:1,physics=[::1]:2"
    assert load_config({"dwork": "off"}, {}, None).config.dwork is None


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ("127.0.0.1:1,127.0.0.1:2", "there are two addresses for dwork"),
        ("a b=127.0.0.1:1", "a name has only letters, digits, dots, hyphens, underscores"),
        ("physics=off", "off cannot be combined with addresses"),
        ("physics=", "it is not an address with a port"),
        ("127.0.0.1:1,", "it is not an address with a port"),
    ],
)
def test_d34_a_wrong_list_of_endpoints_is_refused(raw, sentence):
    assert f"because {sentence};" in refusal({"dwork": raw})


def test_a_dwork_endpoint_that_others_can_reach_is_refused_unless_insecure():
    assert "other machines could reach" in refusal({"dwork": "127.0.0.1:1,x=0.0.0.0:2"})


def test_tls_needs_a_certificate_and_its_key():
    for name in ("http_tls", "gearman_tls", "amqp_tls"):
        assert "TLS needs a certificate and its key" in refusal({name: "127.0.0.1:1"})
        assert "TLS needs" in refusal({name: "127.0.0.1:1", "tls_cert": "c.pem"})

        given = {name: "127.0.0.1:1", "tls_cert": "c.pem", "tls_key": "k.pem"}
        assert getattr(load_config(given, {}, None).config, name) == Address("127.0.0.1", 1)


def test_curve_needs_the_keys_of_the_server():
    for name in ("dwork_curve", "wmp_curve"):
        assert "CURVE needs the keys" in refusal({name: "127.0.0.1:1"})
        assert load_config({name: "127.0.0.1:1", "curve_key": "k"}, {}, None).config.curve_key


def test_an_address_with_tls_may_be_reached_from_elsewhere_once_peers_need_certificates():
    given = {"gearman_tls": "0.0.0.0:1", "tls_cert": "c.pem", "tls_key": "k.pem"}
    assert "tls_client_ca or access" in refusal(given)
    assert load_config({**given, "tls_client_ca": "ca.pem"}, {}, None).config.gearman_tls


def test_amqp_may_be_reached_from_elsewhere_once_it_asks_who_comes():
    assert "other machines could reach" in refusal({"amqp": "0.0.0.0:1"})
    assert load_config({"amqp": "0.0.0.0:1", "amqp_users": "u"}, {}, None).config.amqp is not None
    assert "other machines could reach" in refusal({"http": "0.0.0.0:1", "amqp_users": "u"})


def test_listeners_that_need_nothing_else_are_on_and_can_be_turned_off():
    with_more = {"http_tls", "gearman_tls", "amqp_tls", "dwork_curve", "wmp_curve", "cluster"}
    assert set(LISTENERS) == {"http", "gearman", "dwork", "wmp", "amqp", *with_more}
    assert {name for name in LISTENERS if OPTIONS[name].default == "off"} == with_more
    assert load_config({"http": "off"}, {}, None).config.http is None


@pytest.mark.parametrize(
    ("host_name", "server_name"),
    [
        ("jobs-1.example.org", "jobs-1"),
        ("under_score", "under-score"),
        ("a" * 60, "a" * 24),
        ("", "manyhands"),
    ],
)
def test_the_server_is_named_after_the_host(monkeypatch, host_name, server_name):
    monkeypatch.setattr("socket.gethostname", lambda: host_name)

    assert Config().server_name == server_name


@pytest.mark.parametrize("name", list(OPTIONS))
def test_every_option_has_a_help_text_and_an_example_that_its_kind_accepts(name):
    option = OPTIONS[name]

    assert option.help.endswith(".")
    assert option.kind.read(option.example) is not None


def test_every_default_can_be_written_as_flag_variable_and_file(tmp_path):
    texts = {
        name: str(option.default).lower() if isinstance(option.default, bool) else option.default
        for name, option in OPTIONS.items()
    }
    as_flags = {name: str(text) for name, text in texts.items()}
    as_environ = {OPTIONS[name].variable: str(text) for name, text in texts.items()}
    lines = [f"{name} = {as_toml(option.default)}" for name, option in OPTIONS.items()]

    assert load_config(as_flags, {}, None).config == Config()
    assert load_config({}, as_environ, None).config == Config()
    assert load_config({}, {}, a_file(tmp_path, "\n".join(lines))).config == Config()


# TOML forbids the one control character that JSON leaves as it is.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=20)


@given(st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), TEXTS))
def test_a_plain_value_written_as_toml_is_read_back(plain):
    assert tomllib.loads(f"key = {as_toml(plain)}")["key"] == plain


def test_a_value_that_is_not_unicode_can_still_be_shown():
    assert as_toml("caf\udce9") == '"caf?"'


def test_w24_the_function_that_chooses_is_named_by_its_module():
    assert load_config({"wmp_choose": "a.b_2:c"}, {}, None).config.wmp_choose == "a.b_2:c"
    assert load_config({"wmp_choose": "none"}, {}, None).config.wmp_choose is None
    for raw in ("function", "a:b:c", ":f", "a b:c", "1a:f", "a:"):
        assert "it does not name a function in a module" in refusal({"wmp_choose": raw})


@pytest.mark.parametrize("name", ["tokens_file", "amqp_users", "tls_key"])
@pytest.mark.parametrize(("mode", "is_warned_of"), [(0o644, True), (0o640, False), (0o600, False)])
def test_a_file_of_secrets_that_every_user_can_read_is_warned_of(
    tmp_path, name, mode, is_warned_of
):
    file = tmp_path / "secrets"
    file.touch()
    file.chmod(mode)

    warnings = warnings_of(load_config({name: str(file)}, {}, None), None)

    expected = f"{name} {file} can be read by every user of this machine; fix that with chmod 600"
    assert warnings == ([expected] if is_warned_of else [])


@pytest.mark.parametrize(
    ("text", "is_warned_of"),
    [
        ('amqp_relay = "amqp://me:secret@broker/"', True),
        ('tokens = "operator:ada:4f2c9d1b7e3a5860"', True),
        ('amqp_relay = "amqp://broker/"', False),
        ('tokens = "none"', False),
    ],
)
def test_a_configuration_with_secrets_that_every_user_can_read_is_warned_of(
    tmp_path, text, is_warned_of
):
    file = tmp_path / "manyhands.toml"
    file.write_text(text)
    file.chmod(0o644)

    warnings = warnings_of(load_config({}, {}, file), file)

    assert [f"{file} holds a secret" in warning for warning in warnings] == [True] * is_warned_of


@pytest.mark.parametrize(
    "origins",
    [
        "*",
        "null",
        "app.example",
        "https://app.example/",
        "https://APP.example",
        "https://app.example:443",
        "http://app.example:80",
        "ftp://app.example",
        "https://a.example,,https://b.example",
        "https://user@app.example",
    ],
)
def test_what_is_no_origin_of_a_page_is_refused(origins):
    assert "is not an origin" in refusal({"cors_origins": origins})


def test_origins_of_pages_are_written_with_commas():
    raw = "https://app.example, http://[::1]:5173"

    loaded = load_config({"cors_origins": raw}, {}, None)

    assert loaded.config.cors_origins == "https://app.example,http://[::1]:5173"


def test_profiles_stand_beside_the_options_of_a_file(tmp_path):
    file = tmp_path / "manyhands.toml"
    file.write_text('ride_ms = 9\n[profiles.far]\nurl = "https://jobs.example"\ntoken = "t"\n')

    assert load_config({}, {}, file).config.ride_ms == 9
    assert load_profiles(file) == {"far": Profile("https://jobs.example", "t")}
    assert repr(load_profiles(file)["far"]) == "Profile(https://jobs.example)"


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("profiles = 7", "they are not a table"),
        ("[profiles]\nfar = 7", "the profile far is not a table"),
        ("[profiles.far]\ntoken = 't'", "the profile far has no url"),
        ("[profiles.far]\nurl = 'u'\ntokn = 't'", "the profile far has the unknown key tokn"),
        ("[profiles.far]\nurl = 7", "url of the profile far is not text"),
        (
            "[profiles.far]\nurl = 'u'\ntoken = 't'\ntoken_file = 'f'",
            "the profile far has both a token and a token_file",
        ),
    ],
)
def test_a_profile_that_cannot_be_used_is_explained(tmp_path, text, because):
    file = tmp_path / "manyhands.toml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=f"line 1: profiles cannot be used because {because}; "):
        load_config({}, {}, file)


def test_several_servers_need_a_shared_database():
    refused = refusal({"cluster": "127.0.0.1:0"})
    assert "share a PostgreSQL database" in refused


def test_the_address_for_other_servers_needs_a_secret_off_the_machine():
    shared = {"store": "postgresql://jobs@db/jobs", "cluster": "10.0.0.5:7750"}
    assert "cluster_secret_file" in refusal(shared)
    given = load_config({**shared, "cluster_secret_file": "/run/secret"}, {}, None)
    assert str(given.config.cluster) == "10.0.0.5:7750"
    assert given.config.cluster_lease_seconds == 5


@pytest.mark.parametrize("excuse", [{"insecure": "true"}, {"access": "/run/access.toml"}])
def test_nothing_else_makes_up_for_an_unprotected_link(excuse):
    """S45: whoever has a link may do anything."""
    shared = {"store": "postgresql://jobs@db/jobs", "cluster": "10.0.0.5:7750"}
    assert "pass themselves off as a server" in refusal({**shared, **excuse})


def test_certificates_for_links_are_given_together():
    shared = {"store": "postgresql://jobs@db/jobs", "cluster": "127.0.0.1:7750"}
    files = {name: f"/run/{name}" for name in ("cluster_tls_cert", "cluster_tls_key")}
    refused = refusal({**shared, **files})
    assert "use it together with cluster_tls_ca" in refused
    given = load_config(
        {**shared, **files, "cluster_tls_ca": "/run/ca", "cluster": "10.0.0.5:7750"}, {}, None
    )
    assert str(given.config.cluster_tls_ca) == "/run/ca"


def test_an_advertised_address_needs_a_listener():
    assert "together with cluster" in refusal({"advertise": "jobs1:7750"})
