"""The table of commands, their help, and the completion of shells."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from typer.main import get_command

from manyhands import __version__
from manyhands.cli import COMMANDS, app, group, main


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    printed = capsys.readouterr()
    return int(left.value.code or 0), printed.out, printed.err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_explains_itself_with_an_example(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "200")

    code, out, _ = run(capsys, command.name, "-h")

    assert code == 0
    assert f"manyhands {command.name}" in out.partition("xample")[2]


def test_the_values_of_flags_are_named_by_what_they_are(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    group = get_command(app)

    def explained(words: list[str]) -> str:
        return run(capsys, *words, "-h")[1]

    for row in COMMANDS:
        loaded = group.load(row)
        names = list(getattr(loaded, "commands", ())) or [""]
        for name in names:
            out = explained([row.name, *([name] if name else [])])
            assert "range>" not in out
            assert "<str>" not in out
            assert "<=x" not in out
            assert "default: (" not in out


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_the_help_lists_every_command(capsys, flag):
    code, out, _ = run(capsys, flag)

    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if line.startswith("  ")][3:-1] == [
        command.name for command in COMMANDS
    ]


def test_the_version_is_one_line(capsys):
    assert run(capsys, "--version") == (0, f"manyhands {__version__}\n", "")


def test_help_is_a_word_as_well(capsys):
    assert run(capsys, "help") == run(capsys, "--help")
    assert run(capsys, "help", "queue", "set") == run(capsys, "queue", "set", "--help")


def test_a_mistyped_command_is_answered_with_the_one_that_was_meant(capsys):
    code, _, err = run(capsys, "staus")

    assert code == 2
    assert "No such command 'staus'. Did you mean 'status'" in err


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("few", "'few' is not a number."),
        ("1.5", "1.5 is not a whole number."),
        ("1e999", "1e999 is not a whole number."),
        ("0", "0 is too small; the least is 1."),
        ("1001", "1001 is too large; the most is 1000."),
    ],
)
def test_a_number_that_cannot_be_is_refused_in_a_sentence(capsys, value, sentence):
    code, _, err = run(capsys, "failures", "--count", value)

    assert code == 2
    assert sentence in err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script(capsys, shell):
    code, out, _ = run(capsys, "completion", shell)

    assert code == 0
    assert f"_MANYHANDS_COMPLETE=complete_{shell}" in out


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("manyhands que", ["queue"]),
        ("manyhands queue re", ["resume"]),
        ("manyhands submit --wa", ["--wait"]),
        ("manyhands completion b", ["bash"]),
        ("manyhands top --sort re", ["ready", "retrying"]),
        ("manyhands serve --log-format j", ["json"]),
        ("manyhands status --profile f", ["far", "farther"]),
        ("manyhands queue show --profile far q", []),  # nobody answers: nothing is offered
    ],
)
def test_a_shell_completes_commands_and_flags(tmp_path, words, completed):
    file = tmp_path / "manyhands.toml"
    urls = {"far": "http://127.0.0.1:1", "farther": "http://127.0.0.1:1"}
    file.write_text("".join(f"[profiles.{name}]\nurl = '{url}'\n" for name, url in urls.items()))
    found = subprocess.run(
        [sys.executable, "-m", "manyhands"],
        env={
            **os.environ,
            "MANYHANDS_CONFIG": str(file),
            "_MANYHANDS_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert (found.stdout.split(), found.stderr) == (completed, "")


def test_help_beside_a_candidate_stays_in_its_line_however_narrow_the_terminal():
    found = subprocess.run(
        [sys.executable, "-m", "manyhands"],
        env={
            **os.environ,
            "COLUMNS": "40",
            "_MANYHANDS_COMPLETE": "complete_fish",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            "_TYPER_COMPLETE_ARGS": "manyhands submit --",
        },
        capture_output=True,
        text=True,
        check=True,
    )

    lines = found.stdout.splitlines()
    assert len(lines) > 10
    assert all(line.startswith("--") and "\t" in line for line in lines)


def test_a_command_loads_no_other():
    script = (
        "import sys\n"
        "from manyhands.cli import main\n"
        "try: main(['submit', '--help'])\n"
        "except SystemExit: pass\n"
        "others = {'rich', 'apsw', 'asyncio', 'manyhands.cli.serve', 'manyhands.cli.dwork'}\n"
        "sys.exit(' '.join(others & set(sys.modules)) or 0)\n"
    )

    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert found.returncode == 0, found.stderr


class LaterArgument:
    """An argument as typer has it from 0.29 on: with an annotation, and without an object that
    reads it. No version of it fits beside all tools of the tests.
    """

    param_type_name = "argument"
    name = "target"
    metavar = None
    nargs = 1
    required = False

    def bare_type(self) -> str:
        return "str"


def test_arguments_are_named_with_every_typer_that_may_be_installed():
    argument = LaterArgument()

    group._name_values(SimpleNamespace(params=[argument]))

    assert argument.metavar == "TARGET"
    assert argument.get_usage_pieces(None) == ["[TARGET]"]
    assert argument.display_type_rich(None) == ""


def test_options_are_named_with_every_typer_that_may_be_installed():
    option = LaterArgument()
    option.param_type_name = "option"
    option.bare_type = lambda: "list[Path]"

    group._name_values(SimpleNamespace(params=[option]))

    assert option.metavar == "PATH"
