"""P72: any function as a job, by cloudpickle, for those who trust all that have the key.

Payloads and results are signed (HMAC-SHA-256) and checked before they are unpickled. Nothing of
this happens unless both sides say so: ``Executor(app, pickle=True)`` and ``manyhands worker
--allow-pickle``, with the same ``MANYHANDS_PICKLE_KEY``.
"""

import hashlib
import hmac
import importlib
import os
from collections.abc import Callable
from typing import Any, Final

from manyhands.client.app import App
from manyhands.client.errors import Fail
from manyhands.client.options import TaskOptions
from manyhands.client.task import Task

NAME: Final = "manyhands.pickled"
KEY_VARIABLE: Final = "MANYHANDS_PICKLE_KEY"
ALLOWED_VARIABLE: Final = "MANYHANDS_WORKER_ALLOW_PICKLE"
_KEY_BYTES_MIN: Final = 16
_DIGEST_BYTES: Final = 32


class BadSignature(Exception):  # noqa: N818 - the code of the failure
    """The bytes were not signed with this key."""


def key_of_environment() -> bytes:
    """The key, or a sentence that says what to do."""
    key = os.environ.get(KEY_VARIABLE, "").encode()
    if len(key) < _KEY_BYTES_MIN:
        raise ValueError(
            f"{KEY_VARIABLE} must be set to a secret of at least {_KEY_BYTES_MIN} characters, "
            "the same for submitters and workers"
        )
    return key


def sealed(value: object, key: bytes) -> bytes:
    """A value, pickled and signed."""
    data: bytes = _cloudpickle().dumps(value)
    return hmac.digest(key, data, hashlib.sha256) + data


def opened(data: bytes, key: bytes) -> Any:  # noqa: ANN401 - any object
    """The value, if it was signed with the key."""
    digest, rest = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if not hmac.compare_digest(digest, hmac.digest(key, rest, hashlib.sha256)):
        raise BadSignature(f"it was not signed with this {KEY_VARIABLE}")
    return _cloudpickle().loads(rest)


def _cloudpickle() -> Any:  # noqa: ANN401 - an extra, whose types may not be there
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        raise ValueError("this needs the extra: pip install 'manyhands[pickle]'") from None


def _run(payload: bytes) -> bytes:
    """What a worker does."""
    try:
        key = key_of_environment()
        function, args, kwargs = opened(payload, key)
    except (BadSignature, ValueError) as error:
        raise Fail(str(error), code="bad_signature") from None
    return sealed(function(*args, **kwargs), key)


def allow(app: App[Any]) -> None:
    """Has the workers of an app take such jobs, if the environment says so."""
    if os.environ.get(ALLOWED_VARIABLE, "").lower() in ("1", "true", "yes", "on"):
        _cloudpickle()
        key_of_environment()
        app.task(name=NAME, raw=True)(_run)


class _Opening:
    """Opens results."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def decode(self, result: bytes | None, encoding: str | None) -> Any:  # noqa: ANN401
        """For handles."""
        del encoding
        if result is None:
            raise LookupError("no result was kept")
        return opened(result, self._key)


class PickledTask(Task[..., Any]):
    """A task that is any function: the first argument is the function."""

    def __init__(self, app: App[Any]) -> None:
        self._secret = key_of_environment()
        _cloudpickle()
        options: TaskOptions = {"name": NAME, "raw": True, "remote": True}
        super().__init__(app, _run, options)
        self.results = _Opening(self._secret)  # type: ignore[assignment]

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bytes:
        """The payload of a call."""
        return sealed((function, args, kwargs), self._secret)
