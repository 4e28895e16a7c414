"""Copies of values with changes, also where the server is compiled and values are no structs."""

import inspect

from msgspec import Struct, structs


def replace(value, **changes):
    """The same value, but for these fields."""
    if isinstance(value, Struct):
        return structs.replace(value, **changes)
    kind = type(value)
    fields = [name for name, item in vars(kind).items() if inspect.isgetsetdescriptor(item)]
    return kind(**{name: getattr(value, name) for name in fields} | changes)
