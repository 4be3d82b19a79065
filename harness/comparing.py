"""What needs no engine: `cmd=compare` and `cmd=import` judge, `cmd=report` draws, `cmd=export` passes on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from harness.console import err, out
from harness.environment import harness_version
from harness.errors import ExitCode
from harness.overrides import parse_override
from harness.pairs import ArmName
from harness.records import Record, RecordError, RunInfo, write_text_atomically
from harness.run_folder import RunFolder, now_text
from harness.step_summary import tell_step_summary
from harness.tier import SINGLE_RUN, Tier, read_tier, validate_tier
from harness.verdict_table import print_imported, print_verdict
from paths.api import UserError
from reports.compare.metric_table import METRICS
from reports.gate.plan_file import ArmSource, ComparisonFile, write_plan
from reports.gate.run_gate import judge_folder, write_judgement
from reports.html import write_report
from reports.interchange.csv_file import read_csv
from reports.interchange.export import FORMATS, export
from reports.interchange.imported import Imported, without_copies
from reports.interchange.json_files import read_json
from reports.interchange.records import metrics_in, records_of
from reports.load import load_run
from reports.verdict_page.page import write_comparison

DEFAULT_TIER = "pr"
KEYS = {
    "compare": ("cmd", "run", "baseline_run", "candidate_run", "tier", "out_dir"),
    "import": ("cmd", "file", "baseline_file", "tier", "out_dir"),
    "report": ("cmd", "run"),
    "export": ("cmd", "run", "format"),
}


def run_offline(verb: str, composed: Mapping[str, Any], words: Sequence[str], command: str) -> ExitCode:
    """The exit code of the verdict, OK where nothing is judged. Raises UserError."""
    _check_keys(verb, words)
    tier = validate_tier(composed["tier"], list(METRICS)) if composed.get("tier") else None
    try:
        if verb == "report":
            return _report(composed)
        if verb == "export":
            return _export(composed)
        return _compare(composed, tier) if verb == "compare" else _import(composed, tier, command)
    except RecordError as error:
        raise UserError(f"cmd={verb}: {error}") from error


def _check_keys(verb: str, words: Sequence[str]) -> None:
    """A key that would be ignored is a mistake."""
    for word in words:
        key = parse_override(word).key_or_group
        if key.split(".")[0] not in KEYS[verb]:
            raise UserError(f"{word}: not a key of cmd={verb}; these are {', '.join(KEYS[verb])}")


def _report(composed: Mapping[str, Any]) -> ExitCode:
    """report.html once more, from what the folder holds."""
    if composed["run"] is None:
        raise UserError("cmd=report needs run=DIR, a folder of results/")
    report = write_report(_folder("run", composed["run"]), warn=lambda text: err.print(text, markup=False))
    print(report)
    return ExitCode.OK


def _compare(composed: Mapping[str, Any], tier: Tier | None) -> ExitCode:
    if composed["run"] is not None:
        if composed["baseline_run"] is not None or composed["candidate_run"] is not None:
            raise UserError("run=DIR judges a comparison again; leave baseline_run and candidate_run out")
        return _judge(_folder("run", composed["run"]), tier)
    runs = {arm: composed[f"{arm}_run"] for arm in ("baseline", "candidate")}
    if None in runs.values():
        raise UserError("cmd=compare needs baseline_run=DIR and candidate_run=DIR, or run=DIR")
    sources = {arm: ArmSource(run_dir=str(_folder(f"{arm}_run", name))) for arm, name in runs.items()}
    folder = _create(composed)
    plan = ComparisonFile(
        baseline=sources["baseline"],
        candidate=sources["candidate"],
        interleaved=False,
        tier=tier or _default_tier(),
        judged_on=date.today(),
    )
    return _judge_new(folder, plan)


def _default_tier() -> Tier:
    from harness.composition import packaged_conf

    return read_tier(DEFAULT_TIER, [packaged_conf()], list(METRICS))


def _folder(key: str, name: Any) -> Path:
    path = Path(str(name)).expanduser().resolve()
    if not path.is_dir():
        raise UserError(f"{key}={name}: no such folder; give one of results/")
    return path


def _create(composed: Mapping[str, Any]) -> RunFolder:
    folder = RunFolder.create(str(composed["out_dir"]))
    folder.remove_cache()  # of compilers: none will run
    return folder


def _judge_new(folder: RunFolder, plan: ComparisonFile) -> ExitCode:
    """A folder whose comparison cannot even be read is not kept."""
    try:
        write_plan(folder.path, plan)
        return _judge(folder.path, None)
    except RecordError:
        folder.discard()
        raise


def _judge(folder: Path, tier: Tier | None) -> ExitCode:
    """Artifacts first, then the exit code. The page reads most files, so it comes before what is written."""
    judgement = judge_folder(folder, tier=tier)
    report = write_comparison(folder, judgement)
    tell_step_summary(write_judgement(folder, judgement))
    print_verdict(judgement, folder, report=report)
    return judgement.outcome.exit_code


@dataclass(frozen=True, kw_only=True)
class _File:
    path: Path
    imported: Imported
    digest: str
    copies: Sequence[str]  # of launches, in words


def _import(composed: Mapping[str, Any], tier: Tier | None, command: str) -> ExitCode:
    if composed["file"] is None:
        raise UserError("cmd=import needs file=F: JSON of vllm bench serve, AIPerf or GuideLLM, or CSV")
    candidate = _read("file", composed["file"])
    baseline = _read("baseline_file", composed["baseline_file"]) if composed["baseline_file"] else None
    for one in (candidate, baseline):
        if baseline is not None and one is not None and one.imported.two_arms:
            raise UserError(f"{one.path.name} has two arms of its own; leave baseline_file out")
    folder = _create(composed)
    by_arm = _records(folder.run_id, candidate, baseline, command)
    records = [record for rows in by_arm.values() for record in rows]
    files = [one for one in (baseline, candidate) if one is not None]
    folder.write_info(_run_info(folder.run_id, command, files))
    copies = [f"{one.path.name}: {line}" for one in files for line in one.copies]
    for line in copies:
        err.print(f"note: {line}", markup=False, soft_wrap=True)
    for record in records:
        folder.append(record)
    if baseline is None and not candidate.imported.two_arms:
        print_imported(len({record.cell_id for record in records}), write_report(folder.path))
        return ExitCode.OK
    chosen = (tier or SINGLE_RUN).model_copy(update={"gated": metrics_in(records)})
    arms = {
        arm: ArmSource(
            run_dir=".",
            arm_ids=sorted({record.arm_id for record in rows}),
            name=f"{arm} of {(baseline or candidate if arm == 'baseline' else candidate).path.name}",
        )
        for arm, rows in by_arm.items()
    }
    plan = ComparisonFile(
        baseline=arms["baseline"],
        candidate=arms["candidate"],
        interleaved=False,
        tier=chosen,
        notes=copies,
        judged_on=date.today(),
    )
    return _judge_new(folder, plan)


def _export(composed: Mapping[str, Any]) -> ExitCode:
    """Files in run/export/FORMAT; those of an earlier export are written again."""
    form = composed["format"]
    if composed["run"] is None or form not in FORMATS:
        raise UserError(f"cmd=export needs run=DIR and format=NAME, NAME one of: {', '.join(FORMATS)}")
    folder = _folder("run", composed["run"])
    data = load_run(folder)
    files = export(data.run, data.records, form)
    target = folder / "export" / form
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_text_atomically(target / name, content)
    except OSError as error:
        raise UserError(f"run={composed['run']}: {target} cannot be written ({error.strerror})") from error
    out.print(f"{len(files)} files in {target}", markup=False, soft_wrap=True)
    return ExitCode.OK


def _read(key: str, name: Any) -> _File:
    path = Path(str(name)).expanduser().resolve()
    if not path.is_file():
        raise UserError(f"{key}={name}: no such file")
    if path.suffix.lower() not in (".csv", ".json", ".jsonl"):
        raise UserError(f"{key}={name}: the name must end in .csv, .json or .jsonl")
    whole = read_csv(path) if path.suffix.lower() == ".csv" else read_json(path)
    imported, copies = without_copies(whole)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return _File(path=path, imported=imported, digest=digest, copies=copies)


def _records(
    run_id: str, candidate: _File, baseline: _File | None, command: str
) -> dict[ArmName, list[Record]]:
    """By arm. A file that names its arms has both; else it is the candidate's, or the baseline's."""
    arms: dict[ArmName, _File] = {"candidate": candidate}
    other = candidate if candidate.imported.two_arms else baseline
    if other is not None:
        arms = {"baseline": other, **arms}
    started = now_text()
    return {
        arm: records_of(
            one.imported, run_id=run_id, arm=arm, file_name=one.path.name, command=command, started_at=started
        )
        for arm, one in arms.items()
    }


def _run_info(run_id: str, command: str, files: Sequence[_File]) -> RunInfo:
    now = now_text()
    return RunInfo(
        run_id=run_id,
        command=command,
        started_at=now,
        finished_at=now,
        harness_version=harness_version(),
        environment={
            "imported": {one.path.name: one.digest for one in files},
            "tool": files[-1].imported.tool,
        },
        plan=[],
    )
