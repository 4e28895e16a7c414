"""Binds all apps of the process to one engine, those that a test makes too."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from manyhands.client import app as apps
from manyhands.client import home
from manyhands.testing.control import Manyhands
from manyhands.testing.courier import EngineServer, InlineHome

_BOUND = ("_courier", "server", "submission")


@contextmanager
def bound() -> Iterator[Manyhands]:
    """Inside, submits of any app go to this engine, and no thread is started for them."""
    control = Manyhands(lambda: tuple(apps.APPS))
    server = EngineServer(control.courier, control.engine)
    module = cast("Any", apps)
    kept = {name: getattr(module, name) for name in ("Courier", "Server")}
    before = [(app, {name: app.__dict__[name] for name in _BOUND}) for app in apps.APPS]
    kept_home = home._home  # noqa: SLF001 - the seam for this
    module.Courier = lambda *_args, **_options: control.courier
    module.Server = lambda _courier: server
    home._home = cast("Any", InlineHome())  # noqa: SLF001
    try:
        for app, _ in before:
            app.bind((), None, control.courier.timeout)
        yield control
    finally:
        home._home = kept_home  # noqa: SLF001
        for name, value in kept.items():
            setattr(module, name, value)
        for app, fields in before:
            app.__dict__.update(fields)
        control.close()
