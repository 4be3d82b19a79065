"""`python -m paths.kernels check | compile | bench`: what the kernels compute, become and cost."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from paths.api import UserError
from paths.kernels.tools.bench import measure, plan_table, timing_table
from paths.kernels.tools.catalog import IMPLEMENTATIONS, find_ops
from paths.kernels.tools.check_child import CheckRequest, check_all
from paths.kernels.tools.compilation import DEFAULT_TARGETS, parse_target
from paths.kernels.tools.compile_child import compile_all
from paths.kernels.tools.roofline import PEAKS, peak_of
from paths.kernels.tools.tables import check_table, compile_table, write_document
from paths.kernels.tools.workloads import workloads

CONSOLE = Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def main(argv: Sequence[str] | None = None) -> int:
    """0: everything passed; 1: something failed; 2: a mistake on the command line."""
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m paths.kernels", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="check | compile | bench")
    op_help = "only this op; may be repeated"

    check = commands.add_parser("check", help="every implementation against its definition")
    check.add_argument("--op", action="append", default=[], help=op_help)
    check.add_argument("--impl", action="append", default=[], help="only this implementation")
    check.add_argument("--slow", action="store_true", help="production widths too")
    check.add_argument("--seed", type=int, default=None, help="repeat a check; drawn afresh otherwise")
    check.add_argument("--jobs", type=int, default=None, help="processes; as many as there are cores")
    check.add_argument("--device", choices=("cpu", "cuda"), default=None, help="cuda where there is a GPU")
    check.set_defaults(run=_check)

    compile_ = commands.add_parser("compile", help="every kernel ahead of time, no GPU needed")
    compile_.add_argument("--op", action="append", default=[], help=op_help)
    compile_.add_argument(
        "--target", action="append", default=[], help=f"default: {', '.join(DEFAULT_TARGETS)}"
    )
    compile_.add_argument("--fast", action="store_true", help="one configuration of each kernel")
    compile_.add_argument("--jobs", type=int, default=None, help="processes; as many as there are cores")
    compile_.add_argument(
        "--write-docs",
        type=Path,
        nargs="?",
        const=Path("docs/kernels.md"),
        help="write the table to this file",
    )
    compile_.set_defaults(run=_compile)

    bench = commands.add_parser("bench", help="speed on a GPU against its roofline")
    bench.add_argument("--op", action="append", default=[], help=op_help)
    bench.add_argument(
        "--dry-run", choices=tuple(PEAKS), help="bytes, operations and roofline of this GPU; times nothing"
    )
    bench.set_defaults(run=_bench)
    return parser


def _check(arguments: argparse.Namespace) -> int:
    started = time.perf_counter()
    ops = [op.name for op in find_ops(arguments.op)]
    for name in arguments.impl:
        if name not in IMPLEMENTATIONS:
            raise UserError(f"unknown implementation {name!r}: allowed are {', '.join(IMPLEMENTATIONS)}")
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: torch sees no GPU here; use --device cpu")
    seed = random.SystemRandom().randrange(1 << 31) if arguments.seed is None else arguments.seed
    request = CheckRequest(
        implementations=arguments.impl or IMPLEMENTATIONS, slow=arguments.slow, seed=seed, device=device
    )
    jobs = arguments.jobs or (len(os.sched_getaffinity(0)) if device == "cpu" else 1)
    rows = check_all(ops, request, jobs=jobs, done=lambda op: print(f"checked {op}", file=sys.stderr))
    CONSOLE.print(check_table(rows))
    failed = [row for row in rows if row.is_bad]
    mode = "in Triton's interpreter" if device == "cpu" else f"on {torch.cuda.get_device_name()}"
    elapsed = time.perf_counter() - started
    print(
        f"{len(rows) - len(failed)} rows passed, {len(failed)} failed, {mode}, seed {seed}, {elapsed:.0f} s"
    )
    return 1 if failed else 0


def _compile(arguments: argparse.Namespace) -> int:
    started = time.perf_counter()
    ops = [op.name for op in find_ops(arguments.op) if "triton" in op.implementations]
    if not ops:
        raise UserError(f"{', '.join(arguments.op)}: no Triton kernel to compile, see `check`")
    targets = arguments.target or DEFAULT_TARGETS
    for target in targets:
        parse_target(target)
    if arguments.write_docs and (arguments.fast or arguments.op or set(targets) != set(DEFAULT_TARGETS)):
        raise UserError("--write-docs writes all ops and targets: leave --op, --target and --fast out")
    jobs = arguments.jobs or len(os.sched_getaffinity(0))
    rows = compile_all(
        ops,
        targets,
        fast=arguments.fast,
        jobs=jobs,
        done=lambda what: print(f"compiled {what}", file=sys.stderr),
    )
    CONSOLE.print(compile_table(rows))
    if arguments.write_docs:
        write_document(arguments.write_docs, rows)
    faults = [row for row in rows if row.fault]
    elapsed = time.perf_counter() - started
    print(f"{len(rows)} kernels compiled, {len(faults)} with a fault, {elapsed:.0f} s")
    return 1 if faults else 0


def _bench(arguments: argparse.Namespace) -> int:
    names = {op.name for op in find_ops(arguments.op)}
    chosen = [workload for workload in workloads() if workload.op in names]
    if not chosen:
        raise UserError(f"no workload for {', '.join(arguments.op)}: it is bound by its launch")
    if arguments.dry_run:
        CONSOLE.print(plan_table(chosen, PEAKS[arguments.dry_run]))
        return 0
    if not torch.cuda.is_available():
        raise UserError("bench needs a GPU and torch sees none; --dry-run shows what it would time")
    device = torch.device("cuda")
    name = torch.cuda.get_device_name(device)
    peak = peak_of(name)
    timings = []
    for workload in chosen:
        print(f"timing {workload.op}: {workload.label}", file=sys.stderr)
        timings.append(measure(workload, device))
        torch.cuda.empty_cache()
    CONSOLE.print(timing_table(timings, peak))
    print(f"{name}" + ("" if peak else f": not in the table of peaks ({', '.join(PEAKS)}), so no roofline"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
