"""Commands that are loaded when they are used, so that each starts as fast as if it were alone."""

from collections.abc import Sequence
from copy import copy
from functools import partial
from importlib import import_module
from typing import Any

import typer
from msgspec import Struct
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

# What a value is, instead of the type that reads it.
_METAVARS = {
    "str": "TEXT",
    "int": "NUMBER",
    "int range": "NUMBER",
    "float": "NUMBER",
    "float range": "NUMBER",
    "path": "PATH",
}


class Lazy(Struct, frozen=True):
    """A command, or a group of them: where it is, under which heading and how it is listed."""

    panel: str
    name: str
    place: str  # module:attribute
    help: str


class SectionedCommand(TyperCommand):
    """A command whose plain help has its options under headings, as the one with boxes has."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - types of typer's
        """Writes a list for each heading, in the order of their first options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                panel = getattr(parameter, "rich_help_panel", None) or usual
                sections.setdefault(panel, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class LazyGroup(TyperGroup):
    """A group that also has the commands of a table."""

    table: Sequence[Lazy] = ()
    markup: Any = None  # that of the whole program

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - as in the base
        """All names, in the order of the table."""
        return list(dict.fromkeys((*(row.name for row in self.table), *self.commands)))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        """The command, to be listed; ``resolve_command`` loads the one that is used."""
        row = self._row(cmd_name)
        if row is None or row.name in self.commands:
            return super().get_command(ctx, cmd_name)
        return TyperCommand(
            name=row.name,
            help=row.help,
            short_help=row.help,  # else it would be cut
            rich_help_panel=row.panel,
            rich_markup_mode=self.markup,
        )

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Writes a list of commands for each heading."""
        limit = formatter.width - 6 - max(len(row.name) for row in self.table)
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            panel = command.rich_help_panel or "Commands"
            sections.setdefault(panel, []).append((name, command.get_short_help_str(limit)))
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        """As usual; a wrong name is compared with all that there are."""
        row = self._row(args[0])
        if row is not None:
            self.commands.setdefault(row.name, self.load(row))
        else:
            for other in self.table:
                self.commands.setdefault(other.name, self.get_command(ctx, other.name))
        return super().resolve_command(ctx, args)

    def load(self, row: Lazy) -> Any:  # noqa: ANN401
        """The command itself."""
        module, _, attribute = row.place.partition(":")
        found = getattr(import_module(module), attribute)
        if isinstance(found, typer.Typer):
            found.rich_markup_mode = self.markup
            built: Any = get_group(found)
        else:
            alone = typer.Typer(add_completion=False, rich_markup_mode=self.markup)
            alone.command(name=row.name, cls=SectionedCommand)(found)
            built = get_command(alone)
        built.name = row.name
        _name_values(built)
        return built

    def _row(self, name: str) -> Lazy | None:
        return next((row for row in self.table if row.name == name), None)


def _metavar(name: str, *_: Any, **__: Any) -> str:  # noqa: ANN401
    return name


def _usage(name: str, *_: Any) -> list[str]:  # noqa: ANN401
    return [name]


def _type_name(parameter: Any) -> str:  # noqa: ANN401
    """What reads a value: an object, or, as of typer 0.29, the annotation alone."""
    if hasattr(parameter, "type"):
        found: str = parameter.type.name
        return found
    return parameter.bare_type().removeprefix("list[").removesuffix("]").lower()  # type: ignore[no-any-return]


def _plain_numbers(kind: Any) -> Any:  # noqa: ANN401
    """A type of numbers that refuses in a sentence."""
    plain, read = copy(kind), kind.convert
    least, most = getattr(kind, "min", None), getattr(kind, "max", None)

    def convert(value: Any, parameter: Any, ctx: Any) -> Any:  # noqa: ANN401
        try:
            return read(value, parameter, ctx)
        except typer.BadParameter:
            try:
                number = float(value)
            except ValueError:
                sentence = f"{value!r} is not a number."
            else:
                if kind.name.startswith("int") and not number.is_integer():
                    sentence = f"{value} is not a whole number."
                elif least is not None and number < least:
                    sentence = f"{value} is too small; the least is {least}."
                else:
                    sentence = f"{value} is too large; the most is {most}."
            raise typer.BadParameter(sentence, ctx, parameter) from None

    plain.convert = convert
    plain._describe_range = lambda: _range(least, most)  # noqa: SLF001 - it has no other name
    return plain


def _range(least: float | None, most: float | None) -> str:
    """The numbers that fit, for the help."""
    if least is None:
        return f"at most {most}"
    return f"at least {least}" if most is None else f"{least} to {most}"


def _name_values(command: Any) -> None:  # noqa: ANN401
    """Gives every value a name for the help that says what it is."""
    for parameter in command.params:
        kind = getattr(parameter, "type", None)
        if kind is not None and kind.name.partition(" ")[0] in ("int", "integer", "float"):
            parameter.type = _plain_numbers(kind)
        default = getattr(parameter, "show_default", None)
        if isinstance(default, str) and parameter.param_type_name == "option":
            # Typer would put it in parentheses within its brackets.
            parameter.help = f"{parameter.help}  [default: {default}]"
            parameter.show_default = False
        if parameter.metavar is None and not getattr(parameter, "is_flag", False):
            if parameter.param_type_name == "argument":
                several = "..." if parameter.nargs != 1 else ""
                parameter.metavar = (parameter.name or "").upper() + several
            else:
                parameter.metavar = _METAVARS.get(_type_name(parameter))
        if parameter.param_type_name == "argument":
            # The name says it all; the help with boxes would add the type.
            if hasattr(parameter, "type"):
                parameter.type = copy(parameter.type)
                parameter.type.get_metavar = lambda *_, **__: ""
            else:
                parameter.display_type_rich = lambda *_, **__: ""
            # Once in brackets or not at all, and without the braces that a usage line would have.
            shown = parameter.metavar
            if not (parameter.required or shown.startswith("[")):
                shown = f"[{shown}]"
            parameter.make_metavar = partial(_metavar, shown)
            parameter.get_usage_pieces = partial(_usage, shown)
    for below in getattr(command, "commands", {}).values():
        below.short_help = " ".join((below.help or "").partition("\n\n")[0].split())
        _name_values(below)
