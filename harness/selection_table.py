"""What `+path=auto` takes for each architecture and platform, as a table."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from rich import box
from rich.markup import escape
from rich.table import Table

from harness.console import out
from paths.api import Platform
from paths.kernels.gates import Formats
from paths.select import ARCHITECTURES, capability_name, select


def _with_tools(device: str, capability: tuple[int, int] | None = None) -> Platform:
    return Platform(device=device, capability=capability, compiler=True, python_headers=True)


PLATFORMS = (
    *(_with_tools("cuda", capability) for capability in ((8, 0), (9, 0), (10, 0), (12, 0))),
    _with_tools("rocm", (9, 4)),
    _with_tools("xpu"),
    _with_tools("cpu"),
)
CACHES = (Formats(), Formats(kv_dtype="fp8_ds_mla", index_dtype="fp8"))


@dataclass(frozen=True, kw_only=True)
class Row:
    """Architectures, platforms and caches that are treated alike; drafts stand with their models."""

    platforms: tuple[str, ...]
    architectures: tuple[str, ...]
    caches: tuple[str, ...]
    path: str
    kernels: tuple[str, ...]
    reason: str


def print_selection() -> None:
    """The table, and under it the warnings of the platforms in it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), title_justify="left")
    table.title = "+path=auto takes (path.options.dsa=true or false overrules it)"
    for heading, width in (("platform", 8), ("architecture", 23), ("KV cache", 10), ("path", 12)):
        table.add_column(heading, overflow="fold", min_width=width)
    table.add_column("kernels", overflow="fold")
    table.add_column("why", overflow="fold", ratio=1)
    for row in rows():
        caches = ["any"] if len(row.caches) == len(CACHES) else row.caches
        cells = (row.platforms, row.architectures, caches, [row.path], [", ".join(row.kernels)], [row.reason])
        table.add_row(*(escape("\n".join(words)) for words in cells))
    out.print(table)
    for warning in warnings():
        out.print(f"  warning: {warning}", markup=False, soft_wrap=True)


def rows() -> list[Row]:
    """Every combination of architecture, platform and cache, in rows of those that end alike."""
    alike: dict[Row, list[str]] = {}
    for platform in PLATFORMS:
        for row in _rows_of(platform):
            alike.setdefault(row, []).append(capability_name(platform))
    return [dataclasses.replace(row, platforms=tuple(platforms)) for row, platforms in alike.items()]


def _rows_of(platform: Platform) -> list[Row]:
    """Of one platform, not named in them yet."""
    alike: dict[tuple[str, str, tuple[str, ...]], list[tuple[str, str]]] = {}
    for architecture in ARCHITECTURES:
        for formats in CACHES:
            chosen = select(architecture=architecture, platform=platform, formats=formats)
            members = alike.setdefault((chosen.path, chosen.reason, chosen.kernels), [])
            members.append((architecture, formats.kv_dtype))
    return [
        Row(
            platforms=(),
            architectures=tuple(dict.fromkeys(architecture for architecture, _ in members)),
            caches=tuple(dict.fromkeys(cache for _, cache in members)),
            path=path,
            kernels=kernels,
            reason=reason,
        )
        for (path, reason, kernels), members in alike.items()
    ]


def warnings() -> list[str]:
    """What the selection warns of on these platforms, once each."""
    said = (
        warning
        for platform in PLATFORMS
        for architecture in ARCHITECTURES
        for formats in CACHES
        for warning in select(architecture=architecture, platform=platform, formats=formats).warnings
    )
    return list(dict.fromkeys(said))
