"""What can be known to be wrong before an engine starts."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from harness.cell import Cell
from harness.equivalence.arms import Arm, find_arms
from harness.hardware import detect_platform
from harness.measurement import LoadSpec
from harness.memory import needed_bytes
from harness.overrides import nearest
from harness.plan import Launch
from harness.workload.dataset import Dataset, DatasetSource
from harness.workload.source import PromptSource
from harness.workload.sources import make_arith, make_dataset, make_random
from paths import registry
from paths.api import Description, Unsupported, UserError
from paths.kernels.cache_bytes import PAGE_SIZE


def describe_path(cell: Cell, sys_path: Sequence[str]) -> Description | Unsupported:
    """What the cell's path says about this machine. Raises UserError for a path that cannot be asked."""
    had_torch = "torch" in sys.modules
    path = registry.load(cell.engine.impl, sys_path)
    asked = f"path {cell.engine.path}: describe() of {cell.engine.impl}"
    try:
        description = path.describe(detect_platform(cell.config.device), cell.engine)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # foreign code may fail in any way; it must not end the list
        raise UserError(f"{asked} failed: {type(error).__name__}: {error}; fix the path") from error
    if not isinstance(description, Description | Unsupported):
        raise UserError(
            f"{asked} returned {type(description).__name__}, not a Description or Unsupported; fix the path"
        )
    if "torch" in sys.modules and not had_torch:
        raise UserError(
            f"path {cell.engine.path}: {cell.engine.impl} imports torch when only asked to describe itself;"
            " move the import into start()"
        )
    return description


@dataclass(kw_only=True)
class Workloads:
    """Prompts of the cells of one launch. Cells with one data set get a part of it each.

    In an experiment each round has prompts of its own, the same on all of its launches.
    """

    cells: Sequence[Cell]
    round: int | None = None  # from 1
    rounds: int = 1
    _datasets: dict[str, Dataset] = field(default_factory=dict)
    _sent: set[str] = field(default_factory=set)  # hashes of the data set prompts that the engine was sent

    def check(self) -> None:
        """Raises UserError for anything that `source` would raise it for."""
        for cell in self.cells:
            self.source(cell)
            load_spec(cell, first_request_id=0)

    def source(self, cell: Cell) -> PromptSource:
        if cell.config.workload.kind == "dataset":
            return self._part(cell)
        return _generated(
            cell, salt=[cell.cell_id] if self.round is None else [cell.cell_id, f"round {self.round}"]
        )

    def common_source(self, cell: Cell) -> PromptSource:
        """The same prompts for every cell with this workload, whatever its path; of a data set the first."""
        if cell.config.workload.kind == "dataset":
            return DatasetSource(self._dataset(cell).part(0, 1))
        return _generated(cell, salt=["equivalence"])

    def _part(self, cell: Cell) -> DatasetSource:
        file = cell.config.workload.file
        sharing = [other.cell_id for other in self.cells if other.config.workload.file == file]
        place = sharing.index(cell.cell_id) + len(sharing) * ((self.round or 1) - 1)
        return DatasetSource(self._dataset(cell).part(place, len(sharing) * self.rounds), self._sent)

    def _dataset(self, cell: Cell) -> Dataset:
        assert cell.config.workload.file is not None, "validate_cell refuses it"
        file = Path(cell.config.workload.file).expanduser().resolve()
        key = f"{file}\0{cell.osl}"
        if key not in self._datasets:
            self._datasets[key] = make_dataset(
                file,
                osl=cell.osl,
                seed=cell.config.seed,
                hf_config=cell.engine.model.hf_config,
                tokenizer=_tokenizer(cell),
                max_model_len=_room(cell),
            )
        return self._datasets[key]


def _generated(cell: Cell, *, salt: Sequence[str]) -> PromptSource:
    """Prompts without end, made as they are asked for."""
    seed, tokenizer = cell.config.seed, _tokenizer(cell)
    if cell.config.workload.kind == "arith":
        return make_arith(osl=cell.osl, seed=seed, salt=salt, tokenizer=tokenizer, max_model_len=_room(cell))
    return make_random(
        isl=cell.isl,
        osl=cell.osl,
        seed=seed,
        salt=salt,
        hf_config=cell.engine.model.hf_config,
        tokenizer=tokenizer,
    )


def _tokenizer(cell: Cell) -> Path | None:
    return Path(cell.engine.model.tokenizer) if cell.engine.model.tokenizer else None


def _room(cell: Cell) -> int:
    """Tokens that one request may have."""
    return min(cell.engine.max_model_len, cell.engine.kv_pages * PAGE_SIZE)


def load_spec(cell: Cell, *, first_request_id: int) -> LoadSpec:
    """The cell's load as the client takes it."""
    concurrency, defaults = cell.config.concurrency, cell.defaults
    return LoadSpec(
        concurrency=concurrency,
        request_rate=cell.config.request_rate,
        burstiness=cell.config.burstiness,
        num_prompts=cell.config.num_prompts,
        measure_s=cell.measure_s,
        warmup_s=cell.warmup_s,
        timeout_s=cell.timeout_s,
        request_timeout_s=cell.config.request_timeout_s,
        warmup_waves=defaults.warmup_waves,
        min_requests=None if concurrency is None else defaults.min_requests(concurrency),
        lag_limit_ms=defaults.lag_limit_ms,
        lag_share_of_ttft=defaults.lag_share_of_ttft,
        osl=cell.osl,
        seed=cell.config.seed,
        first_request_id=first_request_id,
    )


def _memory_shortage(cell: Cell) -> str | None:
    """Why the model does not fit; starting it anyway would take the machine down with it."""
    available, need = psutil.virtual_memory().available, needed_bytes(cell)
    if cell.engine.device != "cpu" or need <= available:
        return None
    return (
        f"model {cell.engine.model.name} needs about {need / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are"
        " free; choose a smaller model or lower engine.kv_pages"
    )


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What is known of each launch before anything starts, by launch_id."""

    workloads: dict[str, Workloads]
    unsupported: dict[str, str]  # why the path cannot run here
    arms: dict[str, Arm] = field(default_factory=dict)  # whose answers are compared; none unless asked for


def check_launches(
    launches: Sequence[Launch],
    sys_path: Sequence[str],
    *,
    rounds: int | None = None,
    foreign: Collection[str] = (),
) -> Preflight:
    """Raises UserError when the configuration is such that a cell could never be measured.

    `rounds`: how many there may be; None: those of `launches`. `foreign`: ids of launches that run other code
    than ours, whose path cannot be asked here.
    """
    rounds = rounds or max(launch.round or 1 for launch in launches)
    workloads = {
        launch.launch_id: Workloads(cells=launch.cells, round=launch.round, rounds=rounds)
        for launch in launches
    }
    for workload in workloads.values():
        workload.check()
    return Preflight(
        workloads=workloads,
        unsupported=_unsupported([one for one in launches if one.launch_id not in foreign], sys_path),
        arms=find_arms(launches, launches[0].cells[0].config.equivalence_prompts),
    )


def _unsupported(launches: Sequence[Launch], sys_path: Sequence[str]) -> dict[str, str]:
    """launch_id → why its path cannot run here. Raises UserError for a path that expects an unknown op."""
    reasons: dict[str, str] = {}
    for launch in launches:
        description = describe_path(launch.cells[0], sys_path)
        if isinstance(description, Unsupported):
            reasons[launch.launch_id] = description.reason
            continue
        _check_expected_ops(launch.cells[0], description)
        if description.kernels and (shortage := _memory_shortage(launch.cells[0])):
            reasons[launch.launch_id] = shortage
    return reasons


def _check_expected_ops(cell: Cell, description: Description) -> None:
    """A mistyped op would otherwise be missed after the measurement. A path need not name its ops."""
    known = description.kernels
    if not known:
        return
    for section in ("any", cell.engine.device):
        expected = cell.config.path.expect.get(section)  # type: ignore[call-overload]
        for op in expected.kernels if expected is not None else ():
            if op not in known:
                raise UserError(
                    f"path.expect.{section}.kernels.{op}: path {cell.engine.path} does not call it"
                    f"{nearest(op, known)} It calls {', '.join(known)}."
                )
