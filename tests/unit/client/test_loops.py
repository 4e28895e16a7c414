"""The loops that the client makes for itself."""

import importlib.util

import pytest

from manyhands.client import loops


def kind_of_loop() -> str:
    loop = loops.new_loop()
    try:
        return type(loop).__module__.partition(".")[0]
    finally:
        loop.close()


def test_the_clients_loop_is_one_of_uvloop_where_it_is_installed():
    pytest.importorskip("uvloop")

    assert kind_of_loop() == "uvloop"


def test_without_uvloop_it_is_pythons_own(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    assert kind_of_loop() == "asyncio"
