"""`cmd=list`: paths and what each would run here, models, workloads. Starts nothing, imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.tree import Tree

from harness.composition import Composer
from harness.console import out
from harness.environment import code_revision
from harness.errors import ExitCode
from harness.preflight import describe_path
from harness.selection import make_cell
from harness.selection_table import print_selection
from paths.api import Description, Unsupported, UserError


def print_listing(composer: Composer, choice: Sequence[str], config_dirs: Sequence[Path]) -> ExitCode:
    """Everything that can be chosen, with the other keys of the command line as given."""
    sys_path = [str(folder) for folder in config_dirs]
    given = tuple(text for text in choice if not text.startswith("+path="))
    chosen = [text.removeprefix("+path=") for text in choice if text.startswith("+path=")]
    paths = Tree("[bold]paths[/] (+path=NAME)")
    names = chosen or composer.groups["path"]
    failures = [_add_path(paths, name, composer, (f"+path={name}", *given), sys_path) for name in names]
    if failures[0] is not None and None not in failures:
        raise failures[0]
    out.print(paths, soft_wrap=True)
    print_selection()
    for group in sorted(composer.groups.keys() - {"path"}):
        out.print(f"[bold]{group}s[/] ({group}=NAME): {', '.join(composer.groups[group])}", soft_wrap=True)
    return ExitCode.OK


def _add_path(
    tree: Tree, name: str, composer: Composer, choice: tuple[str, ...], sys_path: Sequence[str]
) -> UserError | None:
    """One path: what it would run, or why it cannot. A broken one is a line and is returned, not raised."""
    try:
        cell = make_cell(composer, choice, revision=code_revision())
        described = describe_path(cell, sys_path)
    except UserError as error:
        tree.add(f"[red]{escape(name)}[/]: cannot be used: {escape(str(error))}")
        return error
    if cell.chosen is not None:
        text = f"→ {cell.chosen.chosen}: {cell.chosen.reason}"
        tree.add(f"[green]{escape(name)}[/]: {escape(text)}")
    elif isinstance(described, Unsupported):
        tree.add(f"[yellow]{escape(name)}[/]: unsupported here: {escape(described.reason)}")
    else:
        _add_description(tree, name, described)
    return None


def _add_description(tree: Tree, name: str, described: Description) -> None:
    branch = tree.add(f"[green]{escape(name)}[/]: {escape(described.summary)}")
    branch.add(
        f"model {escape(described.model)}, runner {escape(described.runner)}, "
        f"compile mode {escape(described.compile_mode)}, graph mode {escape(described.graph_mode)}"
    )
    if described.kernels:
        kernels = branch.add("kernels")
        for op, chosen in described.kernels.items():
            kernels.add(f"{escape(op)}: {escape(chosen.impl)} [dim]({escape(chosen.why)})[/]")
