"""The command line: compose, plan, run.

python -m harness +path=dsa_mrv2 concurrency=1,1024
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

import yaml

from harness.arguments import USAGE, Arguments, parse_arguments
from harness.arms import read_arms
from harness.cell import Cell
from harness.composition import Composer, packaged_conf
from harness.environment import code_revision, harness_version
from harness.errors import ExitCode, one_line
from harness.experiment import (
    Experiment,
    arms,
    read_experiment,
    without_experiment,
    without_path_options,
)
from harness.overrides import expand_sweeps
from harness.selection import compose_choice, make_cell
from paths.api import UserError


def run_command(argv: Sequence[str]) -> ExitCode:
    """Do what the words after `python -m harness` ask for."""
    try:
        return _dispatch(parse_arguments(argv), shlex.join(["python", "-m", "harness", *argv]))
    except UserError as error:
        print(f"harness: {one_line(error)}", file=sys.stderr)
        return ExitCode.USAGE


def _dispatch(arguments: Arguments, command: str) -> ExitCode:
    if arguments.version:
        print(f"harness {harness_version()} ({code_revision()})")
        return ExitCode.OK
    composer = Composer(arguments.config_dirs)
    if arguments.help:
        print(USAGE + (packaged_conf() / "config.yaml").read_text(encoding="utf-8"))
        return ExitCode.OK
    if arguments.cfg or arguments.info:
        return _inspect(arguments, composer)
    if not arguments.overrides:
        return _say_what_to_type(composer)
    resume = None
    if any(word.lstrip("+").startswith("resume=") for word in arguments.overrides):
        from harness.resuming import continued

        arguments, resume = continued(arguments)
    choices = expand_sweeps(arguments.overrides, composer.groups)
    composed = composer.compose(without_path_options(choices[0]))
    verb = composed.get("cmd")
    if verb == "list":
        from harness.listing import print_listing

        return print_listing(composer, without_experiment(choices[0]), arguments.config_dirs)
    if verb == "doctor":
        from harness.doctor import print_diagnosis

        return print_diagnosis(composer, without_experiment(choices[0]))
    if verb in ("compare", "import", "report", "export"):
        from harness.comparing import run_offline

        return run_offline(str(verb), composed, choices[0], command)
    request = read_arms(composed)
    if request is not None:
        from harness.comparison import measure_arms

        return measure_arms(
            request, composed, composer=composer, arguments=arguments, command=command, resume=resume
        )
    experiment = read_experiment(composed, composer.groups["path"])
    if experiment is not None:
        choices = arms(experiment, arguments.overrides, composer.groups)
    return _measure(_cells(composer, choices), experiment, arguments, command, resume)


def _cells(composer: Composer, choices: Sequence[tuple[str, ...]]) -> list[Cell]:
    """Every cell, validated; nothing has been started or written yet."""
    revision = code_revision()
    return [make_cell(composer, choice, revision=revision) for choice in choices]


def _measure(
    cells: Sequence[Cell],
    experiment: Experiment | None,
    arguments: Arguments,
    command: str,
    resume: str | None,
) -> ExitCode:
    from harness import console
    from harness.accuracy.preflight import check_accuracy
    from harness.plan import build_plan
    from harness.preflight import check_launches

    launches, duplicates = build_plan(cells, rounds=experiment.rounds if experiment else None)
    preflight = check_launches(launches, [str(folder) for folder in arguments.config_dirs])
    prompts = check_accuracy(launches)
    resumed = None
    if resume is not None:
        from harness.resuming import resume_run

        resumed = resume_run(
            resume,
            out_dir=cells[0].config.out_dir,
            planned={launch.launch_id: launch for launch in launches},
            together=preflight.arms,
        )
    console.print_plan(launches, duplicates)
    if cells[0].config.dry_run:
        for launch_id, reason in preflight.unsupported.items():
            print(f"{launch_id}: UNSUPPORTED here: {reason}", file=sys.stderr)
        console.print_commands(launches, arguments.config_dirs)
        return ExitCode.OK
    from harness.run import run_plan

    return run_plan(
        launches,
        preflight=preflight,
        config_dirs=arguments.config_dirs,
        command=command if resumed is None else resumed.info.command,
        resumed=resumed,
        experiment=experiment,
        prompts=prompts,
    )


def _inspect(arguments: Arguments, composer: Composer) -> ExitCode:
    """--cfg and --info, of the first cell."""
    from harness.inspection import hydra_inspect

    choices = expand_sweeps(arguments.overrides, composer.groups)
    choice = compose_choice(composer, choices[0])
    if len(choices) > 1:
        print(f"# first of {len(choices)} cells: {shlex.join(choices[0])}", file=sys.stderr)
    if choice.chosen is not None:
        print(f"# path auto took {choice.chosen.chosen}: {choice.chosen.reason}", file=sys.stderr)
    if arguments.cfg == "job":
        print(yaml.safe_dump(choice.composed, sort_keys=False), end="")
        return ExitCode.OK
    return hydra_inspect(arguments, choice.overrides)


def _say_what_to_type(composer: Composer) -> ExitCode:
    print("harness: nothing to do. Choose a path and a load:\n", file=sys.stderr)
    for name in composer.groups["path"]:
        print(f"  python -m harness +path={name} concurrency=1,1024", file=sys.stderr)
    print("\nAlso: cmd=list (what each path would run here), cmd=doctor, --help", file=sys.stderr)
    return ExitCode.USAGE
