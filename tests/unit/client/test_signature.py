"""Arguments and results by the annotations of a function."""

import contextlib
import enum
import functools
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.client.notes import View
from manyhands.client.outputs import Output, filled, references
from manyhands.client.signature import Arguments, BadArguments, BadResult, Hooks, Results


def resize(path: str, width: int = 200, *, tags: list[str] = []) -> str:  # noqa: B006
    return path


def arguments(function, **options) -> Arguments:
    return Arguments(function, function.__name__, Hooks(), **options)


def stored(function, *args, **kwargs) -> bytes:
    found = arguments(function)
    return found.encode(found.bind(args, kwargs))[0]


def called(function, payload: bytes, encoding: str = "json", **options):
    """What the function returns for a payload."""
    call = arguments(function, **options).decode(payload, encoding)
    return function(*call.args, **call.kwargs)


# Submitting.


@pytest.mark.parametrize(
    ("args", "kwargs", "payload"),
    [
        (("a",), {}, b'{"path":"a"}'),
        ((), {"path": "a"}, b'{"path":"a"}'),
        (("a", 200), {}, b'{"path":"a"}'),
        (("a", 64), {}, b'{"path":"a","width":64}'),
        (("a",), {"tags": []}, b'{"path":"a"}'),
        (("a",), {"tags": ["x"]}, b'{"path":"a","tags":["x"]}'),
    ],
)
def test_p4_arguments_are_an_object_by_name_without_defaults(args, kwargs, payload):
    assert stored(resize, *args, **kwargs) == payload


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        (("a", 1, 2), {}),
        (("a",), {"widht": 1}),
        (("a",), {"path": "b"}),
        (("a", 1, ["x"]), {}),  # keyword only
    ],
)
def test_p4_wrong_arguments_are_a_type_error(args, kwargs):
    with pytest.raises(TypeError):
        stored(resize, *args, **kwargs)


def test_p4_positional_only_parameters_are_stored_by_name():
    def first(path: str, /, width: int = 1) -> str:
        return f"{path}{width}"

    assert stored(first, "a", width=2) == b'{"path":"a","width":2}'
    assert called(first, b'{"path":"a","width":2}') == "a2"
    with pytest.raises(TypeError):
        stored(first, path="a")


def test_p4_an_argument_without_a_json_form_is_named():
    def work(count: int, thing: Any) -> None: ...

    with pytest.raises(TypeError, match=r"argument thing.*encode"):
        stored(work, 1, object())


@pytest.mark.parametrize("function", [lambda *paths: None, lambda **paths: None])
def test_p4_parameters_that_have_no_name_of_their_own_are_refused(function):
    with pytest.raises(TypeError, match="cannot be stored by name"):
        arguments(function)


# Types.


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int


@attrs.define
class Size:
    width: int


class Note(msgspec.Struct):
    text: str


class Person(TypedDict):
    name: str


class Celsius:
    def __init__(self, degrees: float) -> None:
        self.degrees = degrees

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Celsius) and other.degrees == self.degrees

    __hash__ = None


VALUES = [
    (int, 3),
    (float, 1.5),
    (str, "ü"),
    (bytes, b"\x00\xff"),
    (bool, True),
    (None, None),
    (datetime, datetime(2026, 1, 2, tzinfo=UTC)),
    (UUID, UUID(int=7)),
    (Decimal, Decimal("1.10")),
    (Colour, Colour.RED),
    (Point, Point(1, 2)),
    (Size, Size(3)),
    (Note, Note("x")),
    (Person, {"name": "Ada"}),
    (list[Point], [Point(1, 2)]),
    (dict[int, Point], {1: Point(1, 2)}),
    (tuple[int, str], (1, "a")),
    (int | str | None, "x"),
    (set[int], {1, 2}),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_p5_values_come_back_as_their_type(kind, value):
    def echo(value): ...

    echo.__annotations__ = {"value": kind, "return": kind}
    found = arguments(echo)
    results = Results(echo, "echo", Hooks())

    payload = found.encode(found.bind((value,), {}))[0]

    assert found.decode(payload).kwargs == {"value": value}
    assert results.decode(*results.encode(value)) == value


def test_p5_a_type_that_cannot_be_decoded_is_an_error_with_the_parameters_name():
    def heat(to: list[Celsius]) -> None: ...

    with pytest.raises(TypeError, match=r"task heat: parameter to .*Celsius"):
        arguments(heat)


def test_p5_the_apps_own_types_are_stored_by_its_functions():
    def heat(to: Celsius, limit: Celsius | None = None) -> Celsius:
        return to

    hooks = Hooks(lambda value: value.degrees, lambda kind, value: kind(value))
    found = Arguments(heat, "heat", hooks)

    payload = found.encode(found.bind((Celsius(20.0),), {}))[0]

    assert payload == b'{"to":20.0}'
    assert found.decode(payload).kwargs == {"to": Celsius(20.0)}
    results = Results(heat, "heat", hooks)
    assert results.decode(*results.encode(Celsius(20.0))) == Celsius(20.0)


def test_p5_models_are_validated_by_themselves():
    """As Pydantic's are: what counts is their two methods."""

    class Model:
        def __init__(self, name: str) -> None:
            self.name = name

        @classmethod
        def model_validate(cls, value):
            if "name" not in value:
                raise ValueError("name: field required")
            return cls(value["name"])

        def model_dump(self, mode):
            assert mode == "json"
            return {"name": self.name}

    def greet(model) -> str:
        return model.name

    greet.__annotations__["model"] = Model
    assert stored(greet, Model("Ada")) == b'{"model":{"name":"Ada"}}'
    assert called(greet, b'{"model":{"name":"Ada"}}') == "Ada"
    with pytest.raises(BadArguments, match="field required"):
        called(greet, b'{"model":{}}')


def test_p5_pydantic_models_are_arguments_and_results():
    pydantic = pytest.importorskip("pydantic")

    class Order(pydantic.BaseModel):
        number: int = pydantic.Field(gt=0)
        items: tuple[str, ...] = ()

    def confirm(order, more) -> Any: ...

    confirm.__annotations__.update({"order": Order, "more": list[Order], "return": Order})
    found = arguments(confirm)
    order = Order(number=3, items=("tea",))

    payload = found.encode(found.bind((order, [order]), {}))[0]

    assert found.decode(payload).kwargs == {"order": order, "more": [order]}
    results = Results(confirm, "confirm", Hooks())
    assert results.decode(*results.encode(order)) == order
    with pytest.raises(BadArguments, match="greater than 0"):
        found.decode(b'{"order":{"number":-1},"more":[]}')


def test_p5_unannotated_parameters_take_any_json():
    def echo(value):
        return value

    assert called(echo, b'{"value":{"a":[1,null]}}') == {"a": [1, None]}


def test_p5_an_undefined_annotation_is_an_error_at_import():
    def work(x: "Nowhere") -> None: ...  # noqa: F821

    with pytest.raises(TypeError, match="Nowhere"):
        arguments(work)


# Working.


def test_p6_what_does_not_fit_is_named_with_its_path():
    with pytest.raises(BadArguments, match=r"^Expected int, got str - at \$.width$"):
        called(resize, b'{"path":"a","width":"x"}')


@pytest.mark.parametrize(
    "payload", [b"", b"{", b'{"width":1}', b"[]", b"1", b"null", b'["a",1,[],2]', b"[" * 100_000]
)
def test_p6_bad_payloads_are_bad_arguments(payload):
    with pytest.raises(BadArguments):
        called(resize, payload)


def test_p6_old_and_new_payloads_are_tolerated():
    assert called(resize, b'{"path":"a","gone":1}') == "a"
    with pytest.raises(BadArguments):
        called(resize, b'{"path":"a","gone":1}', strict=True)


@given(st.binary(max_size=40))
def test_p6_random_payloads_are_bad_arguments_or_fit(payload):
    for encoding in ("json", "text", "binary"):
        with contextlib.suppress(BadArguments):
            assert isinstance(called(resize, payload, encoding), str)


def test_p67_arrays_are_arguments_by_position_and_other_values_the_only_one():
    def one(n: int) -> int:
        return n

    assert called(resize, b'["a", 3]') == "a"
    assert called(one, b"7") == 7
    assert called(one, b" [7] ") == 7
    assert called(one, b'{"n":7}') == 7


def test_p67_text_and_bytes_are_json_that_fits_or_the_only_argument():
    def reverse(s: str) -> str:
        return s[::-1]

    def size(data: bytes) -> int:
        return len(data)

    def one(n: int) -> int:
        return n

    assert called(reverse, b"hello", "binary") == "olleh"
    assert called(reverse, b"42", "binary") == "24"
    assert called(reverse, b'{"s":"ab"}', "text") == "ba"
    assert called(size, b"\xff\xfe", "binary") == 2
    assert called(one, b"42", "binary") == 42
    for function, payload in ((one, b"x"), (reverse, b"\xff")):
        with pytest.raises(BadArguments):
            called(function, payload, "binary")


def test_p67_a_task_without_parameters_takes_nothing():
    def nightly() -> str:
        return "done"

    for payload in (b"", b"null", b"{}", b"[]"):
        assert called(nightly, payload) == "done"


# What JSON cannot hold.


NUMBERS = [float("nan"), float("inf"), [1, {"x": -float("inf")}]]


@pytest.mark.parametrize("value", NUMBERS)
def test_p4_numbers_that_json_cannot_hold_are_no_arguments(value):
    """P5: they would arrive as null."""

    def work(first: Any, value: Any) -> None: ...

    with pytest.raises(TypeError, match=r"argument value: -?(nan|inf) has no JSON form"):
        stored(work, None, value)
    with pytest.raises(TypeError, match="argument value"):
        stored(work, Output("0f", "here", is_kept=True), [value, None])
    assert stored(work, None, [1e308, "null"]) == b'{"first":null,"value":[1e308,"null"]}'


@pytest.mark.parametrize("value", NUMBERS)
def test_p7_numbers_that_json_cannot_hold_are_no_result(value):
    def work() -> Any: ...

    results = Results(work, "work", Hooks())

    with pytest.raises(BadResult, match="has no JSON form"):
        results.encode(value)
    assert results.encode([None, 1.5])[0] == b"[null,1.5]"


def test_p5_generators_and_what_is_no_function_are_errors_at_import():
    def items():
        yield 1

    async def aitems():
        yield 1

    class Caller:
        def __call__(self) -> None: ...

    for each in (items, aitems):
        with pytest.raises(TypeError, match=r"it is a generator.*emit"):
            Arguments(each, "items", Hooks())
    for each in (functools.partial(resize, "a"), Caller()):
        with pytest.raises(TypeError, match="is no function; wrap it in one"):
            Arguments(each, "partly", Hooks())


def test_p13_a_unique_key_without_a_json_form_is_named():
    with pytest.raises(TypeError, match="resize: the unique key: objects of type object"):
        arguments(resize).key_of(object())


# Results.


def test_p7_a_result_without_a_json_form_is_a_bad_result():
    def work() -> Any: ...

    with pytest.raises(BadResult, match="object"):
        Results(work, "work", Hooks()).encode(object())


def test_p7_a_result_that_was_not_kept_is_missing_unless_none_fits():
    def nothing() -> None: ...

    def something() -> str: ...

    assert Results(nothing, "nothing", Hooks()).decode(None, None) is None
    with pytest.raises(LookupError):
        Results(something, "something", Hooks()).decode(None, None)


def test_p68_text_goes_back_as_text_to_those_who_sent_text():
    def reverse(s: str) -> str: ...

    results = Results(reverse, "reverse", Hooks())

    assert results.encode("olleh", "binary") == (b"olleh", "text")
    assert results.encode("olleh", "json") == (b'"olleh"', "json")
    assert results.encode(7, "text") == (b"7", "json")
    assert results.decode(b"olleh", "text") == "olleh"
    assert results.decode(b"olleh", "binary") == "olleh"


def test_p69_results_of_other_languages_are_read_by_type():
    def number() -> int: ...

    def anything(): ...

    assert Results(number, "number", Hooks()).decode(b"42", "binary") == 42
    with pytest.raises(ValueError, match="does not fit"):
        Results(number, "number", Hooks()).decode(b"x", "binary")
    for data, value in ((b"[1]", [1]), (b"x", "x"), (b"\xff", b"\xff")):
        assert Results(anything, "anything", Hooks()).decode(data, "binary") == value


def test_p9_raw_tasks_take_and_return_bytes_as_they_are():
    def shrink(data: bytes) -> bytes:
        return data[:1]

    found = arguments(shrink, raw=True)
    results = Results(shrink, "shrink", Hooks(), raw=True)

    assert found.encode(found.bind((b"\xff{",), {})) == (b"\xff{", "binary", [])
    assert found.decode(b"\xff{", "json").args == (b"\xff{",)
    assert results.encode(b"\x00") == (b"\x00", "binary")
    assert results.encode("ü") == ("ü".encode(), "binary")
    assert results.encode(None) == (None, "binary")
    assert results.decode(b"\x00", "binary") == b"\x00"
    with pytest.raises(BadResult):
        results.encode(7)
    with pytest.raises(TypeError):
        found.encode(found.bind(("text",), {}))
    with pytest.raises(TypeError):
        arguments(resize, raw=True)


# Outputs.


def test_p19_outputs_become_references_and_are_filled_in():
    def merge(parts: list[str], extra: dict[str, int]) -> str: ...

    found = arguments(merge)
    one, two = (Output(f"{n:032x}", "server", is_kept=True) for n in (1, 2))

    payload, _, outputs = found.encode(found.bind(([one, "x", two], {"a": one}), {}))

    assert outputs == [one, two, one]
    assert references(payload) == [one.id, two.id]
    results = {
        one.id: View(one.id, "completed", b"7", "json"),
        two.id: View(two.id, "completed", b"text", "text"),
    }
    assert msgspec.json.decode(filled(payload, results)) == {
        "parts": [7, "x", "text"],
        "extra": {"a": 7},
    }
    with pytest.raises(BadArguments, match=r"\$.parts\[0\]"):
        found.decode(filled(payload, results))


def test_p19_a_missing_output_is_an_error():
    payload = b'{"a":{"$output":"01"}}'

    with pytest.raises(LookupError, match="no longer on record"):
        filled(payload, {})
    with pytest.raises(LookupError, match="it is failed"):
        filled(payload, {"01": View("01", "failed")})


def test_p19_the_users_own_references_beside_an_output_are_refused():
    def merge(parts: Any) -> str: ...

    output = Output("01", "server", is_kept=True)
    found = arguments(merge)

    assert found.encode(found.bind(({"$output": "x"},), {}))[2] == []
    with pytest.raises(ValueError, match="of their own"):
        found.encode(found.bind(([{"$output": "x"}, output],), {}))
