"""A module of parts and a function that its package shows do not share a name: whoever imports one
gets that one."""

import sys
from importlib import import_module
from pkgutil import iter_modules

import pytest


@pytest.mark.parametrize("package", ["client", "stage", "server", "reduce"])
def test_no_public_function_hides_a_module(package: str) -> None:
    parts = import_module(f"fedslice.{package}")
    names = [found.name for found in iter_modules(parts.__path__)]
    assert names
    for name in names:
        shown = getattr(parts, name, None)  # nothing: nobody imported the module so far
        assert shown is sys.modules.get(f"{parts.__name__}.{name}"), (
            f"{package}/{name}.py has the name of something else that fedslice.{package} shows"
        )
