"""Public names of a package that are imported when first used.

So `switchsd --help` and the viewer start without torch, and `from switchsd.probing import load`
works all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], list[str]]:
    """A package's `__getattr__` and `__all__` for names that live in its modules.

    Args:
        package: the package's `__name__`.
        names: module inside the package → names in it.
    """
    home = {name: module for module, group in names.items() for name in group}

    def getattr_(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home[name]}"), name)

    return getattr_, sorted(home)
