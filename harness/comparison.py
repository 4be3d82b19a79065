"""Two arms measured in one plan: `baseline=NAME`, `cmd=aa`, from the words of the command line to the run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from harness import console
from harness.accuracy.preflight import check_accuracy
from harness.arguments import Arguments
from harness.arms import (
    ArmsRequest,
    arm_words,
    difference,
    dtypes_under_test,
    pair_cells,
    unknown_path,
    without_run_words,
)
from harness.baseline_code import BaselineCode, resolve_baseline
from harness.cell import Cell
from harness.comparison_info import ArmInfo, ComparisonInfo
from harness.composition import Composer, packaged_conf
from harness.environment import code_revision
from harness.environment import fingerprint as environment_fingerprint
from harness.errors import ExitCode, one_line
from harness.gated_run import GatedRun
from harness.noise_floor import fingerprint, floor_path, floor_problem
from harness.overrides import expand_sweeps
from harness.pairs import CellPair, PairPlan, plan_pairs
from harness.plan import Launch
from harness.preflight import Preflight, Workloads, check_launches
from harness.records import RecordError
from harness.resuming import Resumed, resume_run
from harness.run import run_plan
from harness.tier import Pairs, Tier, read_tier, validate_tier
from paths.api import UserError
from reports.compare.floor import FEWEST_PAIRS
from reports.compare.metric_table import METRICS

AA_TIER = "pr"  # of cmd=aa without tier=
UNGATED_PAIRS = 2  # without tier= and pairs=


def measure_arms(
    request: ArmsRequest,
    composed: Mapping[str, Any],
    *,
    composer: Composer,
    arguments: Arguments,
    command: str,
    resume: str | None,
) -> ExitCode:
    """Plan, check and run; with `resume` go on with that run. Raises UserError."""
    if composed.get("experiment") is not None:
        raise UserError("baseline: an experiment compares its own ladder; leave experiment or baseline out")
    code = resolve_baseline(ref=request.baseline_rev, python=request.baseline_python)
    tier = _tier(request, composed)
    pairs = _pairs(request, code, composer=composer, arguments=arguments)
    plan, duplicates = plan_pairs(pairs, most=tier.pairs.max if tier else request.pairs or UNGATED_PAIRS)
    out_dir = Path(pairs[0].candidate.config.out_dir).expanduser().resolve()
    gate = GatedRun(
        plan=plan,
        tier=tier,
        info=_info(request, pairs, plan=plan, tier=tier, code=code),
        code=code,
        out_dir=out_dir,
        dtypes_under_test=dtypes_under_test(request),
    )
    preflight = _check(plan, gate.first, arguments, code)
    prompts = check_accuracy(plan.launches(1))
    without_floor = _why_no_floor(gate)
    resumed = None if resume is None else _resume(resume, gate, preflight)
    console.print_plan(gate.first, duplicates)
    _tell(gate, without_floor)
    if pairs[0].candidate.config.dry_run:
        for launch_id, reason in preflight.unsupported.items():
            if launch_id in {launch.launch_id for launch in plan.launches(1)}:
                print(f"{launch_id}: UNSUPPORTED here: {reason}", file=sys.stderr)
        console.print_commands(gate.first, arguments.config_dirs)
        return ExitCode.OK
    return run_plan(
        gate.first if resumed is None else _planned_before(gate, resumed),
        preflight=preflight,
        config_dirs=arguments.config_dirs,
        command=command if resumed is None else resumed.info.command,
        prompts=prompts,
        gate=gate,
        resumed=resumed,
    )


def _pairs(
    request: ArmsRequest, code: BaselineCode, *, composer: Composer, arguments: Arguments
) -> list[CellPair]:
    """Both arms of every cell, the baseline with the paths of its own revision. Raises UserError."""
    choices = [without_run_words(choice) for choice in expand_sweeps(arguments.overrides, composer.groups)]
    with code.conf() as conf:
        baseline_composer = Composer(arguments.config_dirs, packaged=conf) if code.is_foreign else composer
        known = baseline_composer.groups["path"]
        if request.baseline is not None and request.baseline not in known:
            raise UserError(unknown_path(request.baseline, known))
        return pair_cells(
            request,
            choices,
            composer=composer,
            baseline_composer=baseline_composer,
            revision=code_revision(),
            baseline_revision=code.revision,
        )


def _tier(request: ArmsRequest, composed: Mapping[str, Any]) -> Tier | None:
    """The tier that is asked for, with `pairs=` as its number of pairs. Raises UserError."""
    tier = validate_tier(composed["tier"], list(METRICS)) if composed.get("tier") else None
    if tier is None and request.is_aa:
        tier = read_tier(AA_TIER, [packaged_conf()], list(METRICS))
    if tier is not None and request.pairs is not None:
        pairs = Pairs(min=request.pairs, max=request.pairs, step=1)
        tier = tier.model_copy(update={"pairs": pairs})
    if request.is_aa and tier is not None and tier.pairs.max < FEWEST_PAIRS:
        raise UserError(
            f"cmd=aa: {tier.pairs.max} pairs show no noise; set pairs={FEWEST_PAIRS} or more, or another tier"
        )
    return tier


def _info(
    request: ArmsRequest,
    pairs: Sequence[CellPair],
    *,
    plan: PairPlan,
    tier: Tier | None,
    code: BaselineCode,
) -> ComparisonInfo:
    environment = environment_fingerprint([])
    return ComparisonInfo(
        kind="aa" if request.is_aa else "gate",
        baseline=_arm([pair.baseline for pair in pairs], arm_words(pairs, "baseline"), code),
        candidate=_arm([pair.candidate for pair in pairs], arm_words(pairs, "candidate"), None),
        baseline_set=request.baseline_set,
        difference=difference(pairs),
        tier=tier,
        most_pairs=plan.most,
        fingerprint=fingerprint(environment, [pair.baseline for pair in pairs]),
    )


def _arm(cells: Sequence[Cell], name: str, code: BaselineCode | None) -> ArmInfo:
    return ArmInfo(
        name=name,
        revision=code.revision if code is not None else code_revision(),
        python=code.python if code is not None else None,
        code_root=str(code.installed.root) if code is not None and code.installed is not None else None,
        arm_ids=list(dict.fromkeys(cell.arm_id for cell in cells)),
        folders=list(dict.fromkeys(cell.folder for cell in cells)),
    )


def _check(plan: PairPlan, first: Sequence[Launch], arguments: Arguments, code: BaselineCode) -> Preflight:
    """The first pair stands for all: later ones differ in their prompts alone. Raises UserError."""
    begin = plan.launches(1)
    foreign = {launch.launch_id for launch in begin if launch.arm == "baseline" and code.is_foreign}
    checked = check_launches(
        begin, [str(folder) for folder in arguments.config_dirs], rounds=plan.last, foreign=foreign
    )
    reasons = {
        (launch.arm, launch.engine_id): checked.unsupported[launch.launch_id]
        for launch in begin
        if launch.launch_id in checked.unsupported
    }
    launches = [launch for pair in range(1, plan.last + 1) for launch in plan.launches(pair)]
    return Preflight(
        workloads={
            launch.launch_id: Workloads(cells=launch.cells, round=launch.round, rounds=plan.last)
            for launch in launches
        },
        unsupported={
            launch.launch_id: reasons[launch.arm, launch.engine_id]
            for launch in launches
            if (launch.arm, launch.engine_id) in reasons
        },
        arms=checked.arms,
    )


def _tell(gate: GatedRun, without_floor: str | None) -> None:
    """What a reader must know before hours are spent."""
    say = console.err.print
    arms = (gate.info.baseline, gate.info.candidate)
    code = [f"code: {arms[0].revision} → {arms[1].revision}"] if arms[0].revision != arms[1].revision else []
    for line in [*code, *gate.info.difference] or ["nothing: both arms are the same"]:
        say(f"arms differ in {line}", markup=False, soft_wrap=True)
    if "+dirty" in gate.info.candidate.revision and gate.code.is_foreign:
        say("note: the candidate is this working tree with its uncommitted changes; leave it alone meanwhile")
    tier = gate.tier
    if tier is None or gate.is_aa:
        return
    if tier.pairs.max > tier.pairs.min:
        looks = ", ".join(map(str, tier.pairs.looks))
        say(f"tier {tier.name}: judged at {looks} pairs, alpha {tier.alpha:.4g} each", markup=False)
    if without_floor:
        say(
            f"note: {without_floor}: this run can FAIL but not PASS; first run cmd=aa baseline=NAME with the"
            " same cells",
            markup=False,
            soft_wrap=True,
        )


def _why_no_floor(gate: GatedRun) -> str | None:
    """None when there is a noise floor, or nothing that needs one. Raises UserError for a damaged one."""
    if gate.tier is None or gate.is_aa or not gate.tier.gated:
        return None
    try:
        return floor_problem(
            floor_path(gate.out_dir, gate.info.fingerprint),
            gate.info.fingerprint,
            gate.plan,
            today=date.today(),
            oldest_days=gate.tier.floor_days,
        )
    except RecordError as error:
        raise UserError(f"the A/A run cannot be read: {one_line(error)}; delete that file") from error


def _resume(run_id: str, gate: GatedRun, preflight: Preflight) -> Resumed:
    """Raises UserError."""
    launches = [launch for pair in range(1, gate.plan.last + 1) for launch in gate.plan.launches(pair)]
    return resume_run(
        run_id,
        out_dir=str(gate.out_dir),
        planned={launch.launch_id: launch for launch in launches},
        comparison=gate.info,
        together=preflight.arms,
    )


def _planned_before(gate: GatedRun, resumed: Resumed) -> list[Launch]:
    """The launches of run.json, with the cells that they had."""
    pairs = {
        gate.plan.pair_of(entry["pair"]): {
            cell["cell_id"]
            for other in resumed.info.plan
            if gate.plan.pair_of(other["pair"]) == gate.plan.pair_of(entry["pair"])
            for cell in other["cells"]
        }
        for entry in resumed.info.plan
    }
    return [launch for pair, cells in sorted(pairs.items()) for launch in gate.plan.launches(pair, cells)]
