"""What the `manyhands` command prints, where, and how it exits."""

import json
import subprocess
import sys
from types import ModuleType

import pytest

from manyhands import __version__
from manyhands.cli import main
from manyhands.config import OPTIONS, Address, Config


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for option in OPTIONS.values():
        monkeypatch.delenv(option.variable, raising=False)
    monkeypatch.delenv("MANYHANDS_CONFIG", raising=False)
    for variable in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COLUMNS", "200")


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    printed = capsys.readouterr()
    return int(left.value.code or 0), printed.out, printed.err


@pytest.fixture
def served(monkeypatch) -> list[Config]:
    """Stands in for the server and keeps the configurations it was started with."""
    configs: list[Config] = []
    app = ModuleType("manyhands.app")
    app.run = lambda config, _warnings: configs.append(config)
    monkeypatch.setitem(sys.modules, "manyhands.app", app)
    return configs


def test_help_names_every_command(capsys):
    code, out, _ = run(capsys, "--help")

    assert code == 0
    assert all(command in out for command in ("serve", "config", "version"))


def test_help_of_serve_names_every_option_that_has_a_choice(capsys):
    _, out, _ = run(capsys, "serve", "--help")

    for option in OPTIONS.values():
        shown = option.kind.accepted != "off" and not option.secret
        assert (f"{option.flag} " in out) is shown
    assert "example 127.0.0.1:8080" in " ".join(out.split())  # it may stand on two lines
    assert "\x1b[" not in out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["retry", "--help"], "Run failed jobs again, under the same ids."),
        (["dwork", "status", "--nope"], "Error: No such option: --nope"),
        (["wmp", "submit"], "Error: Missing argument 'ROLE'."),
    ],
)
def test_in_a_pipe_help_and_mistakes_are_plain_lines(arguments, line):
    ended = subprocess.run(
        [sys.executable, "-m", "manyhands", *arguments], capture_output=True, text=True, check=False
    )

    said = (ended.stdout + ended.stderr).splitlines()
    assert line in [text.strip() for text in said]


def test_help_loads_nothing_heavy():
    script = (
        "import sys\n"
        "from manyhands.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'apsw', 'asyncio', 'httptools', 'manyhands.app'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)\n"
    )

    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert found.returncode == 0, found.stderr


def test_serve_hands_the_effective_configuration_to_the_server(capsys, served, monkeypatch):
    monkeypatch.setenv("MANYHANDS_LOG_LEVEL", "debug")

    code, _, _ = run(capsys, "serve", "--http", "0.0.0.0:0", "--insecure", "--ride-ms", "9")

    assert code == 0
    [config] = served
    assert config.http == Address("0.0.0.0", 0)
    assert config.insecure is True
    assert config.ride_ms == 9
    assert config.log_level == "debug"


def test_a_wrong_option_ends_serve_with_a_sentence_on_stderr(capsys, served):
    code, out, err = run(capsys, "serve", "--ride-ms", "soon")

    assert (code, out, served) == (2, "", [])
    assert err == (
        'manyhands: flag --ride-ms: ride_ms cannot be "soon" because it is not a duration; '
        "use a duration from 0ms to 1000ms, such as 5ms.\n"
    )


def test_config_in_a_pipe_is_toml_that_says_where_values_come_from(capsys, tmp_path):
    file = tmp_path / "manyhands.toml"
    file.write_text("drain_seconds = 3\n")

    _, out, _ = run(capsys, "config", "--config", str(file), "--no-insecure")

    lines = out.splitlines()
    assert len(lines) == len(OPTIONS)
    assert f"drain_seconds = 3  # file {file} line 1" in lines
    assert "insecure = false  # flag --insecure" in lines
    assert 'http = "127.0.0.1:7700"  # default' in lines


def test_config_in_a_pipe_can_be_read_back(capsys, tmp_path):
    file = tmp_path / "manyhands.toml"
    _, out, _ = run(capsys, "config", "--log-level", "error")
    file.write_text(out)

    _, again, _ = run(capsys, "config", "--json", "--config", str(file))

    assert json.loads(again)["log_level"]["value"] == "error"


def test_config_on_a_terminal_is_a_table_without_colours_if_asked(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")

    _, out, _ = run(capsys, "config", "--server-name", "jobs-1")

    assert "option" in out.splitlines()[0]
    assert "flag --server-name" in out
    assert "\x1b[32m" not in out


def test_config_finds_its_file_through_the_environment(capsys, tmp_path, monkeypatch):
    file = tmp_path / "elsewhere.toml"
    file.write_text("ride_ms = 8\n")
    monkeypatch.setenv("MANYHANDS_CONFIG", str(file))

    _, out, _ = run(capsys, "config", "--json")

    assert json.loads(out)["ride_ms"] == {"value": 8, "source": f"file {file} line 1"}


def test_config_check_judges_the_file_alone(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("MANYHANDS_RIDE_MS", "nonsense")
    file = tmp_path / "manyhands.toml"
    file.write_text("ride_ms = 8\n")

    code, out, _ = run(capsys, "config", "--check", str(file))
    _, as_json, _ = run(capsys, "config", "--check", str(file), "--json")
    file.write_text("\nride = 8\n")
    wrong_code, _, wrong_err = run(capsys, "config", "--check", str(file))

    assert (code, out) == (0, f"{file} is a valid configuration.\n")
    assert json.loads(as_json) == {"file": str(file), "valid": True}
    assert wrong_code == 2
    assert wrong_err == (
        f"manyhands: file {file} line 2: ride is not an option; did you mean ride_ms?\n"
    )


def test_version_names_what_a_report_needs(capsys):
    _, text, _ = run(capsys, "version")
    _, out, _ = run(capsys, "version", "--json")

    assert text.startswith(f"manyhands {__version__}\n")
    versions = json.loads(out)
    assert list(versions)[:3] == ["manyhands", "python", "sqlite"]
    assert list(versions)[3:] == ["zeromq", "protobuf", "platform"]
    assert versions["manyhands"] == __version__
