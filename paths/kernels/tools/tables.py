"""The tables that the commands print, and docs/kernels.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from paths.api import UserError
from paths.kernels.describe import INNER_OPS
from paths.kernels.tools.check import Row
from paths.kernels.tools.compilation import CompiledRow

BEGIN, END = "<!-- compiled -->", "<!-- end -->"


def check_table(rows: Sequence[Row]) -> Table:
    table = Table("op", "implementation", "cases", "n", "worst error", "of tolerance", "state", "note")
    for row in rows:
        numbers = (f"{row.worst:.2g}", f"{row.excess:.0%}") if row.cases else ("", "")
        table.add_row(row.op, row.implementation, row.group, str(row.cases), *numbers, row.state, row.note)
    return table


def compile_table(rows: Sequence[CompiledRow]) -> Table:
    table = Table("op", "label", "kernel", "target", "registers", "spilled", "shared", "matrix", "note")
    for row in rows:
        table.add_row(*_cells(row), row.fault or row.notes)
    return table


def _cells(row: CompiledRow) -> tuple[str, ...]:
    where = (row.op, row.label, f"{row.kernel.removesuffix('_kernel')} {row.tiles}".strip(), row.target)
    return (*where, row.registers, str(row.spilled), str(row.shared), row.matrix or "none")


def write_document(path: Path, rows: Sequence[CompiledRow]) -> None:
    """Replace what stands between the two markers of docs/kernels.md. Raises UserError where they are not."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise UserError(f"{path}: has no lines {BEGIN} and {END} to write the table between")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n\n{_sections(rows)}\n{END}{after}", encoding="utf-8")


def _sections(rows: Sequence[CompiledRow]) -> str:
    """One table per op of its production shapes; what only the checks need, as a count."""
    production = [row for row in rows if not row.of_check]
    targets = ", ".join(dict.fromkeys(f"`{row.target}`" for row in rows))
    lines = [
        f"Targets: {targets}. {len(production)} kernels of production shapes; {len(rows) - len(production)}"
    ]
    lines[0] += " more that the checks interpret compile as well.\n"
    for op in dict.fromkeys(row.op for row in production):
        inner = [f"Inner kernel of `{INNER_OPS[op]}`.\n"] if op in INNER_OPS else []
        lines += [f"### {op}\n", *inner, *_COLUMNS]
        for row in (row for row in production if row.op == op):
            cells = (*_cells(row)[1:], row.fault or row.notes)
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


_COLUMNS = (
    "| shape | kernel, tiles, warps, stages | target | registers | spilled | shared | matrix | note |",
    "|---|---|---|---|---|---|---|---|",
)
