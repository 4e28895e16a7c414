"""Finds the app that a worker runs: ``tasks:app``, ``tasks``, ``package.tasks:make()`` (P54)."""

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import manyhands
from manyhands.client.app import App

_OURS: Final = str(Path(manyhands.__file__).parent)


class TargetError(Exception):
    """There is no such app, and why; ``trace`` is the user's own traceback."""

    def __init__(self, sentence: str, trace: str = "") -> None:
        super().__init__(sentence)
        self.trace = trace


def load(target: str, framework: str | None = None) -> App[Any]:
    """The app. The current directory is on the path. A framework is a module of ours that sets
    itself up first, and prepares the app for its worker.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if framework is None:
        return _load(target)
    module = _import(framework, framework)
    _call(module.set_up, f"{framework.rpartition('.')[2]} cannot be set up")
    app = _load(target)
    module.prepare(app)
    return app


def full_name(app: App[Any], target: str) -> str:
    """The name of a loaded app with its attribute: ``tasks`` and ``tasks:app`` are the same app."""
    name, _, attribute = target.partition(":")
    if attribute:
        return target
    found = vars(sys.modules[name]).items()
    return next(f"{name}:{key}" for key, value in found if value is app)


def _load(target: str) -> App[Any]:
    name, _, attribute = target.partition(":")
    module = _import(name, target)
    found = _only_app(module, name) if not attribute else _look_up(module, name, attribute)
    if not isinstance(found, App):
        raise TargetError(f"{target} is not an App, but of type {type(found).__name__}")
    return found


def _import(name: str, target: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        example = "an example of an app is tasks:app"
        raise TargetError(f"{target!r} names no module; {example}")
    if name.endswith(".py"):
        raise TargetError(f"name the module {name.removesuffix('.py')!r} instead of its file")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name or name.startswith(f"{error.name}."):
            where = "in the current directory or on the path"
            raise TargetError(f"there is no module {error.name!r} {where}") from None
        raise TargetError(f"{name} cannot be imported", _trace(error)) from None
    except BaseException as error:  # noqa: BLE001 - whatever a module does
        raise TargetError(f"{name} cannot be imported", _trace(error)) from None


def _look_up(module: ModuleType, name: str, attribute: str) -> object:
    is_call = attribute.endswith("()")
    try:
        found: Any = module
        for part in attribute.removesuffix("()").split("."):
            found = getattr(found, part)
    except AttributeError:
        raise TargetError(f"module {name!r} has no {attribute.removesuffix('()')!r}") from None
    return _call(found, f"{name}:{attribute} failed") if is_call else found


def _call(function: Callable[[], object], problem: str) -> object:
    try:
        return function()
    except BaseException as error:  # noqa: BLE001
        raise TargetError(problem, _trace(error)) from None


def _only_app(module: ModuleType, name: str) -> App[Any]:
    apps = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    if len({id(app) for app in apps.values()}) == 1:
        return next(iter(apps.values()))
    if not apps:
        raise TargetError(f"module {name!r} has no App")
    raise TargetError(f"module {name!r} has several apps; say which: {name}:{next(iter(apps))}")


def _trace(error: BaseException) -> str:
    """The user's frames only."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _is_ours(file: str) -> bool:
    return file.startswith((_OURS, "<frozen importlib")) or file == importlib.__file__
