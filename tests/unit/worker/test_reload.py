"""Which files a change of which calls for new processes (P53)."""

import json
import sys

import msgspec

from manyhands.client.worker.entry import modules_of_user


def test_p53_modules_of_the_project_are_watched_wherever_it_lies(tmp_path, monkeypatch):
    """Also below the prefix of its interpreter, as in a folder that is an environment, too."""
    (tmp_path / "helper_of_shop.py").write_text("")
    (tmp_path / "shop_tasks.py").write_text("import helper_of_shop")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    __import__("shop_tasks")

    found = modules_of_user("shop_tasks:app")

    assert {str(tmp_path / name) for name in ("shop_tasks.py", "helper_of_shop.py")} <= set(found)
    assert json.__file__ not in found
    assert msgspec.__file__ not in found


def test_p53_a_module_that_could_not_be_imported_is_watched(tmp_path, monkeypatch):
    (tmp_path / "broken_tasks.py").write_text("raise ValueError")
    monkeypatch.syspath_prepend(tmp_path)

    assert str(tmp_path / "broken_tasks.py") in modules_of_user("broken_tasks:app")
