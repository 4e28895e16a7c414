"""The address of a database: what libpq takes, and never its password."""

import pytest

from manyhands.config import ConfigError, load_config, warnings_of
from manyhands.config.database import read_address

WITH_PASSWORD = (
    "postgresql://me:hush@db1,db2/jobs",
    "postgresql://db1/jobs?user=me&password=hush",
)


@pytest.mark.parametrize("url", WITH_PASSWORD)
def test_the_password_is_not_shown(url):
    loaded = load_config({"store": url}, {}, None)

    assert "hush" not in str(loaded.plain("store"))
    assert "hush" not in repr(loaded.config)


@pytest.mark.parametrize(
    "text",
    [
        "host=db1 user=me password=hush",
        "postgresql:/me:hush@db1/jobs",
        "mysql://me:hush@db1/jobs",
        "me:hush@db1",
        "postgresql://me:hush@db1/jobs?schema=No",
        "postgresql://me:hush@db1/jobs?target_session_attrs=any",
    ],
)
def test_a_wrong_address_is_refused_without_being_shown(text):
    with pytest.raises(ConfigError) as wrong:
        load_config({"store": text}, {}, None)

    assert "hush" not in str(wrong.value)
    assert "that address" in str(wrong.value)


@pytest.mark.parametrize("url", WITH_PASSWORD)
def test_a_password_on_the_command_line_is_warned_of(url, tmp_path):
    file = tmp_path / "manyhands.toml"
    file.write_text(f'store = "{url}"\n')
    file.chmod(0o644)

    (by_flag,) = warnings_of(load_config({"store": url}, {}, None), None)
    (by_file,) = warnings_of(load_config({}, {}, file), file)

    assert "the password in --store" in by_flag
    assert "MANYHANDS_STORE keeps it from them" in by_flag
    assert "holds a secret" in by_file
    assert "hush" not in by_flag + by_file
    assert warnings_of(load_config({}, {"MANYHANDS_STORE": url}, None), None) == []
    assert warnings_of(load_config({"store": "postgresql://me@db1/jobs"}, {}, None), None) == []


@pytest.mark.parametrize("schema", ["jobs", "_x9"])
def test_the_schema_is_part_of_the_address(schema):
    assert read_address(f"postgresql://db/jobs?schema={schema}").schema == schema
