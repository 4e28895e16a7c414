"""`manyhands completion`: what a shell needs to complete command lines."""

import enum
from typing import Annotated, Final

import typer

# zsh runs a file of its fpath in place of the function, at the first Tab: that has to complete too.
_ZSH_REGISTERS: Final = "compdef _manyhands_completion manyhands"
_ZSH_COMPLETES: Final = f"""\
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _manyhands_completion "$@"
else
  {_ZSH_REGISTERS}
fi"""


class Shell(enum.StrEnum):
    """The shells that are supported."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell to complete for.", metavar="SHELL")],
) -> None:
    """Print the completion script for bash, zsh or fish.

    Examples:

      manyhands completion bash > ~/.local/share/bash-completion/completions/manyhands

      manyhands completion zsh > "${fpath[1]}/_manyhands"

      manyhands completion fish > ~/.config/fish/completions/manyhands.fish

      source <(manyhands completion bash)        # for this shell only
    """
    from typer._completion_shared import get_completion_script

    from manyhands.cli import COMPLETION_VARIABLE

    script = get_completion_script(
        prog_name="manyhands", complete_var=COMPLETION_VARIABLE, shell=shell.value
    )
    typer.echo(script.replace(_ZSH_REGISTERS, _ZSH_COMPLETES))
