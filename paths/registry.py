"""Names → execution paths. Others add theirs with `--config-dir` or the entry-point group `harness.paths`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

from paths.api import ExecutionPath, UserError

ENTRY_POINT_GROUP = "harness.paths"


def registered_paths() -> dict[str, str]:
    """Name → "module:Class" of the paths that installed packages register. Imports none of them."""
    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}


def load(impl: str, sys_path: Sequence[str] = ()) -> ExecutionPath:
    """An instance of "module:Class", looking in `sys_path` after everything installed.

    Raises UserError if the module or the class is not there.
    """
    module_name, separator, class_name = impl.partition(":")
    if not separator or not module_name or not class_name:
        raise UserError(f"impl {impl!r}: expected module:Class, as in paths.scripted:ScriptedPath")
    for folder in sys_path:
        if folder not in sys.path:
            sys.path.append(folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        where = f"; looked in {', '.join(sys_path)} too" if sys_path else ""
        raise UserError(f"impl {impl!r}: {error}{where}; install the package or fix impl") from error
    except Exception as error:  # a user's module may fail in any way while it is imported
        raise UserError(
            f"impl {impl!r}: cannot import {module_name}: {type(error).__name__}: {error}"
        ) from error
    path_class = getattr(module, class_name, None)
    if path_class is None:
        names = sorted(name for name in vars(module) if name.endswith("Path") and name != "ExecutionPath")
        raise UserError(f"impl {impl!r}: no such class; {module_name} has {', '.join(names) or 'none'}")
    if not isinstance(path_class, type) or not all(
        hasattr(path_class, name) for name in ("describe", "start")
    ):
        raise UserError(f"impl {impl!r}: not a class with describe and start; fix impl")
    try:
        path: ExecutionPath = path_class()
    except Exception as error:  # a user's class may fail in any way while it is made
        raise UserError(f"impl {impl!r}: {class_name}() failed: {type(error).__name__}: {error}") from error
    return path
