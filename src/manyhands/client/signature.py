"""Arguments and results of a function as JSON, by its annotations.

Submitters encode arguments and decode results; workers do the reverse. Both are built from the
signature once, when the task is declared.
"""

import inspect
import math
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType

from manyhands.client.outputs import KEY, Output

Encode = Callable[[Any], Any]  # an object that JSON has no form for → one that it has
Decode = Callable[[type, Any], Any]  # a type and what was stored → an object of the type
_ANY_JSON: Final = msgspec.json.Decoder()
_NULL: Final = b"null"
# What encoders raise for what they cannot encode.
_UNFIT: Final = (TypeError, ValueError, RecursionError, NotImplementedError)
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD,)


class BadArguments(Exception):  # noqa: N818 - the code of the failure
    """What was stored does not fit the parameters (P6)."""


class BadResult(Exception):  # noqa: N818
    """What a task returned cannot be stored (P7)."""


class Call(NamedTuple):
    """How to call the function."""

    args: Sequence[Any]
    kwargs: dict[str, Any]


class _OutputsFound(Exception):  # noqa: N818
    """Among the arguments are outputs of other jobs."""


class Hooks:
    """How types that msgspec does not know are stored: Pydantic models by their own validation,
    others as the app says.
    """

    def __init__(self, encode: Encode | None = None, decode: Decode | None = None) -> None:
        self._encode = encode
        self._decode = decode

    def encode(self, value: Any) -> Any:  # noqa: ANN401 - an object of any type
        """For msgspec's encoders."""
        if isinstance(value, Output):
            raise _OutputsFound
        if hasattr(type(value), "model_validate"):
            return value.model_dump(mode="json")
        if hasattr(type(value), "output") and hasattr(type(value), "aresult"):
            raise TypeError(f"{value!r} is not its result: give its .output")
        if self._encode is not None:
            return self._encode(value)
        raise NotImplementedError

    def decode(self, kind: type, value: Any) -> Any:  # noqa: ANN401
        """For msgspec's decoders."""
        if hasattr(kind, "model_validate"):
            return kind.model_validate(value)
        if self._decode is not None:
            return self._decode(kind, value)
        raise NotImplementedError

    def check(self, annotation: object, what: str) -> None:
        """Raises TypeError unless the type can be decoded."""
        try:
            info = msgspec.inspect.type_info(annotation)
        except TypeError as error:
            raise TypeError(f"{what} cannot be decoded: {error}") from None
        for kind in _custom_types(info, set()):
            if not (hasattr(kind, "model_validate") or self._decode is not None):
                name = getattr(kind, "__name__", kind)
                raise TypeError(
                    f"{what} cannot be decoded: pass App(encode=…, decode=…) for {name}"
                )


def _custom_types(node: object, seen: set[int]) -> Iterator[type]:
    if isinstance(node, msgspec.inspect.CustomType):
        yield node.cls
    elif isinstance(node, tuple):
        for each in node:
            yield from _custom_types(each, seen)
    elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field) and id(node) not in seen:
        seen.add(id(node))
        for name in node.__struct_fields__:
            yield from _custom_types(getattr(node, name), seen)


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    if not hasattr(function, "__annotations__"):
        raise TypeError(f"task {name}: {function!r} is no function; wrap it in one")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"task {name}: it is a generator, and nobody would take its items; return a list, or "
            "hand out pieces by current_job().emit()"
        )
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"task {name}: an annotation is not defined where the task is declared: {error}"
        ) from None


class Arguments:
    """The parameters of a function."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        hooks: Hooks,
        *,
        strict: bool = False,
        raw: bool = False,
    ) -> None:
        self._name = name
        self._hooks = hooks
        self._raw = raw
        self._signature = inspect.signature(function)
        self._parameters = list(self._signature.parameters.values())
        if raw and len(self._parameters) != 1:
            raise TypeError(f"task {name}: with raw=True it takes one parameter, the payload")
        hints = _hints(function, name)
        self._defaults = {
            each.name: each.default
            for each in self._parameters
            if each.default is not inspect.Parameter.empty
        }
        fields = [self._field(each, hints) for each in self._parameters]
        self._is_plain = all(each.kind in _NAMED for each in self._parameters)
        self._struct = msgspec.defstruct(name, fields, forbid_unknown_fields=strict, gc=False)
        by_position = msgspec.defstruct(name, fields, array_like=True, forbid_unknown_fields=True)
        self._encoder = msgspec.json.Encoder(enc_hook=hooks.encode)
        self._sorted = msgspec.json.Encoder(enc_hook=_naming(hooks), order="sorted")
        self._by_name = msgspec.json.Decoder(self._struct, dec_hook=hooks.decode)
        self._by_position = msgspec.json.Decoder(by_position, dec_hook=hooks.decode)
        self._only_type = hints.get(fields[0][0], Any) if len(fields) == 1 else None

    def _field(self, parameter: inspect.Parameter, hints: dict[str, Any]) -> Any:  # noqa: ANN401
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(
                f"task {self._name}: {parameter} cannot be stored by name; "
                "declare a parameter that is a list or a dict"
            )
        annotation = hints.get(parameter.name, Any)
        if not self._raw:
            self._hooks.check(annotation, f"task {self._name}: parameter {parameter.name}")
        if parameter.name in self._defaults:
            return (parameter.name, annotation | UnsetType, UNSET)
        return (parameter.name, annotation)

    # At the submitter.

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Struct:
        """P4: the arguments by name, without those that equal their defaults."""
        if not self._is_plain:
            kwargs = self._signature.bind(*args, **kwargs).arguments
            args = ()
        try:
            bound = self._struct(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._name}{self._signature}: {error}") from None
        for name, default in self._defaults.items():
            value = getattr(bound, name)
            if value is not UNSET and (
                value is default or (type(value) is type(default) and value == default)
            ):
                setattr(bound, name, UNSET)
        return bound

    def encode(self, bound: Struct) -> tuple[bytes, str, list[Output]]:
        """The payload, its encoding, and the outputs of other jobs in it."""
        if self._raw:
            return self._encode_raw(bound)
        try:
            payload = self._encoder.encode(bound)
            if _NULL in payload:
                _check_numbers(bound, self._hooks.encode)
        except _OutputsFound:
            return self._encode_outputs(bound)
        except _UNFIT as error:
            raise self._blame(bound, error) from None
        return payload, "json", []

    def _encode_raw(self, bound: Struct) -> tuple[bytes, str, list[Output]]:
        payload = getattr(bound, self._parameters[0].name)
        if payload is UNSET:
            payload = self._defaults[self._parameters[0].name]
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise TypeError(f"task {self._name}: a raw payload is bytes, not {_kind(payload)}")
        return bytes(payload), "binary", []

    def _encode_outputs(self, bound: Struct) -> tuple[bytes, str, list[Output]]:
        """P19: outputs are stored as ``{"$output": id}``."""
        outputs: list[Output] = []

        def encode(value: Any) -> Any:  # noqa: ANN401
            if isinstance(value, Output):
                outputs.append(value)
                return {KEY: value.id}
            return self._hooks.encode(value)

        try:
            payload = msgspec.json.encode(bound, enc_hook=encode)
            if _NULL in payload:
                _check_numbers(bound, _naming(self._hooks))
        except _UNFIT as error:
            raise self._blame(bound, error) from None
        if _count_references(_ANY_JSON.decode(payload)) != len(outputs):
            raise ValueError(
                f"task {self._name}: the arguments have a key {KEY!r} of their own beside outputs "
                "of other jobs"
            )
        return payload, "json", outputs

    def _blame(self, bound: Struct, error: Exception) -> TypeError:
        """Which argument cannot be stored."""
        for parameter in self._parameters:
            value = getattr(bound, parameter.name)
            try:
                msgspec.json.encode(value, enc_hook=_naming(self._hooks))
                _check_numbers(value, _naming(self._hooks))
            except _UNFIT as problem:
                advice = "pass App(encode=…, decode=…) for types that JSON has no form for"
                text = str(problem) or f"objects of type {_kind(value)} have no JSON form; {advice}"
                return TypeError(f"{self._name}: argument {parameter.name}: {text}")
        return TypeError(f"{self._name}: {error}")

    def value_of(self, bound: Struct, name: str) -> Any:  # noqa: ANN401
        """An argument, or its default."""
        value = getattr(bound, name)
        return self._defaults[name] if value is UNSET else value

    def has(self, name: str) -> bool:
        """Whether there is such a parameter."""
        return name in self._signature.parameters

    def key_of(self, value: object) -> str:
        """A value as text that is the same for equal values."""
        try:
            return self._sorted.encode(value).decode()
        except _UNFIT as error:
            text = str(error) or f"objects of type {_kind(value)} have no JSON form"
            raise TypeError(f"{self._name}: the unique key: {text}") from None

    # At the worker.

    def decode(self, payload: bytes, encoding: str = "json") -> Call:
        """P6, P67: how to call the function. Raises ``BadArguments``."""
        if self._raw:
            return Call((payload,), {})
        if encoding == "json":
            return self._decode_json(payload)
        try:
            return self._decode_json(payload)
        except BadArguments:
            text = self._as_text(payload)
            if text is not None:
                return Call((text,), {})
            raise

    def _decode_json(self, payload: bytes) -> Call:
        start = payload.lstrip()[:1]
        try:
            if start == b"{" or (not self._parameters and payload.strip() in (b"", b"null")):
                bound = self._by_name.decode(payload if start == b"{" else b"{}")
            elif start == b"[":
                bound = self._by_position.decode(payload)
            else:
                bound = self._by_position.decode(b"[" + payload + b"]")
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise BadArguments(_plain(error)) from None
        except (TypeError, ValueError, NotImplementedError) as error:  # of a hook
            raise BadArguments(str(error)) from None
        return self._call(bound)

    def _call(self, bound: Struct) -> Call:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter in self._parameters:
            value = getattr(bound, parameter.name)
            if value is UNSET:
                continue
            if parameter.kind is parameter.POSITIONAL_ONLY:
                args.append(value)
            else:
                kwargs[parameter.name] = value
        return Call(args, kwargs)

    def _as_text(self, payload: bytes) -> str | bytes | None:
        """For a function of one text or of bytes, what a client of another protocol sent."""
        if self._only_type is bytes:
            return payload
        if self._only_type is str:
            try:
                return payload.decode()
            except UnicodeDecodeError:
                return None
        return None


class Results:
    """The return type of a function."""

    def __init__(
        self, function: Callable[..., Any], name: str, hooks: Hooks, *, raw: bool = False
    ) -> None:
        self._name = name
        self._raw = raw
        self._type = _hints(function, name).get("return", Any)
        if not raw:
            hooks.check(self._type, f"task {name}: the return type")
        self._hook = _naming(hooks)
        self._encoder = msgspec.json.Encoder(enc_hook=self._hook)
        self._decoder = msgspec.json.Decoder(self._type, dec_hook=hooks.decode)

    def encode(self, value: object, encoding: str = "json") -> tuple[bytes | None, str]:
        """P7, P68: a result and its encoding, for a job whose payload has the given encoding."""
        if self._raw or encoding != "json":
            if value is None and self._raw:
                return None, "binary"
            if isinstance(value, bytes | bytearray | memoryview):
                return bytes(value), "binary"
            if isinstance(value, str):
                return value.encode(), "binary" if self._raw else "text"
            if self._raw:
                raise BadResult(f"a raw task returns bytes, str or None, not {_kind(value)}")
        try:
            result = self._encoder.encode(value)
            if value is not None and _NULL in result:
                _check_numbers(value, self._hook)
        except _UNFIT as error:
            text = str(error) or f"objects of type {_kind(value)} have no JSON form"
            raise BadResult(text) from None
        return result, "json"

    def decode(self, result: bytes | None, encoding: str | None) -> Any:  # noqa: ANN401
        """What the function returned. Raises LookupError if that was not kept, ValueError if it
        does not fit.
        """
        if result is None:
            if self._type in (None, type(None), Any) or self._raw:
                return None
            try:
                return self._decoder.decode(b"null")
            except msgspec.MsgspecError:
                raise LookupError("no result was kept") from None
        if self._raw or encoding != "json":
            return self._decode_foreign(result)
        try:
            return self._decoder.decode(result)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(f"the result does not fit {self._name}: {_plain(error)}") from None

    def _decode_foreign(self, result: bytes) -> Any:  # noqa: ANN401
        """P69: results of workers in other languages, or to clients of other protocols."""
        if self._type is bytes or (self._raw and self._type is not str):
            return result
        try:
            return result.decode() if self._type is str else self._decoder.decode(result)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            if self._type is Any:
                return _text_or_bytes(result)
            raise ValueError(f"the result does not fit {self._name}: {_plain(error)}") from None


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _naming(hooks: Hooks) -> Encode:
    """The hook, with a reference for outputs, so that they can be part of a key."""

    def encode(value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, Output):
            return {KEY: value.id}
        return hooks.encode(value)

    return encode


def _check_numbers(value: object, hook: Encode) -> None:
    """Raises ValueError if there is a number that JSON cannot hold: msgspec would write null."""
    left = [msgspec.to_builtins(value, enc_hook=hook, str_keys=False)]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            left.extend(each.values())
        elif isinstance(each, list | tuple | set | frozenset):
            left.extend(each)
        elif isinstance(each, float) and not math.isfinite(each):
            raise ValueError(f"{each} has no JSON form")


def _count_references(value: object) -> int:
    if isinstance(value, dict):
        return (KEY in value) + sum(map(_count_references, value.values()))
    if isinstance(value, list):
        return sum(map(_count_references, value))
    return 0


def _plain(error: BaseException) -> str:
    return str(error).replace("`", "")


def _kind(value: object) -> str:
    return type(value).__qualname__
