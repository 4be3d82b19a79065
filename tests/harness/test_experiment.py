"""An experiment: what its file may say, which cells it makes, in which order its rounds run."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from harness.composition import Composer
from harness.experiment import arms, read_experiment, without_path_options
from harness.overrides import expand_sweeps
from harness.plan import build_plan
from harness.preflight import Workloads, check_launches
from paths.api import UserError
from tests.harness.cells import make_cells

FIXTURES = Path(__file__).parent.parent / "fixtures" / "experiments"
LADDER = ("walking", "running", "flying")
KNOWN = ["flying", "running", "walking", "auto"]


def given(**changes):
    return {
        "experiment": {
            "name": "mine",
            "rounds": 3,
            "ladder": [{"path": "walking"}, {"path": "running", "switch": "run"}],
        }
        | changes
    }


def cells_of(*words, config_dirs=(FIXTURES,)):
    """The cells of one round and the experiment, as the command line makes them."""
    composer = Composer(config_dirs)
    (first, *_) = expand_sweeps(words, composer.groups)
    experiment = read_experiment(composer.compose(without_path_options(first)), composer.groups["path"])
    choices = arms(experiment, words, composer.groups)
    return experiment, [make_cells(*choice, config_dirs=config_dirs)[0] for choice in choices]


def test_shipped_ladder_changes_one_switch_at_a_time():
    experiment, cells = cells_of("experiment=attribution", "concurrency=1,16", config_dirs=())
    assert experiment.rounds == 3 and len({rung.switch for rung in experiment.ladder}) == 5
    ladder = ["generic_mrv1", "generic_mrv2", "generic_mrv2_eager", "dsa_mrv2_eager", "dsa_mrv2"]
    assert experiment.paths == ladder
    asked = [(cell.engine.path, cell.config.concurrency) for cell in cells]
    assert asked == [(path, load) for path in ladder for load in (1, 16)]
    options = [cell.engine.options for cell in cells[::2]]
    for before, after in pairwise(options):
        changed = {key for key in before | after if before.get(key) != after.get(key)}
        # without compilation there are no pieces to capture: these two go together
        assert len(changed) == 1 or changed == {"compiled", "graphs"}, (before, after)


@pytest.mark.parametrize("spelling", ["experiment=speeds", "+experiment=speeds", "++experiment=speeds"])
def test_spellings(spelling):
    assert cells_of(spelling)[0].name == "speeds"


def test_no_experiment_is_none():
    assert read_experiment({"isl": 4}, KNOWN) is None and read_experiment({"experiment": None}, KNOWN) is None


def test_command_line_goes_before_the_experiment():
    experiment, cells = cells_of("experiment=speeds", "experiment.rounds=2", "isl=7", "concurrency=1,2")
    assert experiment.rounds == 2
    assert {(cell.isl, cell.osl, cell.measure_s) for cell in cells} == {(7, 6, 0.3)}
    # alone, each cell is measured without the experiment
    assert [cell.overrides for cell in cells][:2] == [
        ("+path=walking", "osl=6", "measure_s=0.3", "warmup_s=0", "isl=7", f"concurrency={load}")
        for load in (1, 2)
    ]


def test_options_of_all_paths_at_once():
    _, cells = cells_of("experiment=speeds", "path.options.first_ms=3")
    assert [cell.engine.options["first_ms"] for cell in cells] == [3, 3, 3]
    assert [cell.engine.options["gap_ms"] for cell in cells] == [32, 16, 8]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rounds": 0}, "experiment.rounds=0: not allowed; allowed: an integer from 1"),
        ({"rounds": 1.5}, "experiment.rounds=1.5: not allowed; allowed: an integer from 1"),
        ({"rounds": "3"}, "experiment.rounds=3: not allowed; allowed: an integer from 1"),
        ({"ladder": [{"path": "walking"}]}, "two or more"),
        ({"ladder": []}, "two or more"),
        ({"ladder": "walking"}, "experiment.ladder=walking: not allowed; allowed: a list of two or more"),
        ({"ladder": ["walking", "running"]}, "experiment.ladder.0=walking: not allowed; allowed: a mapping"),
        ({"ladder": [{"switch": "a"}, {"path": "running"}]}, "experiment.ladder.0.path: missing"),
        (
            {"ladder": [{"path": "walking"}, {"path": "runing", "switch": "run"}]},
            "unknown path runing; known: flying, running, walking, auto; did you mean running",
        ),
        (
            {"ladder": [{"path": "walking"}, {"path": "walking", "switch": "a"}]},
            "path walking is in the ladder twice",
        ),
        ({"ladder": [{"path": "walking"}, {"path": "auto", "switch": "a"}]}, "path auto is no rung"),
        ({"ladder": [{"path": "walking"}, {"path": "running"}]}, "path running has no switch"),
        (
            {"ladder": [{"path": "walking", "switch": "a"}, {"path": "running", "switch": "b"}]},
            "path walking is the first and has a switch",
        ),
        ({"lader": []}, "unknown key experiment.lader; known here: name, rounds, ladder, overrides"),
        ({"overrides": ["path=walking"]}, "overrides has path=walking; allowed: any key but path"),
        ({"overrides": ["path.options.gap_ms=1"]}, "allowed: any key but path"),
        ({"overrides": ["cmd=list"]}, "allowed: any key but path, experiment, cmd"),
        ({"overrides": "isl=4"}, "experiment.overrides=isl=4: not allowed; allowed: a list of key=value"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_experiment_says_what_is_allowed(changes, said):
    with pytest.raises(UserError) as error:
        read_experiment(given(**changes), KNOWN)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("word", ["path=walking", "+path=flying,running", "path.options.gap_ms=1,2"])
def test_the_paths_are_the_experiments(word):
    with pytest.raises(UserError, match="experiment=speeds sets the paths"):
        cells_of("experiment=speeds", word)


def test_two_experiments_are_two_runs():
    with pytest.raises(UserError, match="experiment has one value per run"):
        cells_of("experiment=speeds,attribution")
    with pytest.raises(UserError, match="one value per run"):
        cells_of("experiment=speeds", "experiment.rounds=1,2")


# --- rounds ---


def test_rounds_alternate_and_no_path_is_always_first():
    """Known fault 047, over rounds: a fixed order charges one arm with the slot effect."""
    _, cells = cells_of("experiment=speeds", "concurrency=1,2")
    launches, duplicates = build_plan(cells, rounds=3)
    order = [[one.cells[0].engine.path for one in launches if one.round == number] for number in (1, 2, 3)]
    assert order == [list(LADDER), list(reversed(LADDER)), list(LADDER)]
    assert duplicates == 0 and [launch.launch_id for launch in launches] == [f"L{n:03d}" for n in range(9)]
    assert [(launch.pair, launch.slot, launch.order) for launch in launches] == [
        (n // 3, n % 3, n) for n in range(9)
    ]
    # an engine serves all of its cells within a round, and is a new one in the next
    assert [[cell.config.concurrency for cell in launch.cells] for launch in launches] == [[1, 2]] * 9
    assert launches[0].describe()["round"] == 1


def test_engines_that_differ_in_more_than_the_path_alternate_among_each_other():
    _, cells = cells_of("experiment=speeds", "kv_dtype=bf16,fp8")
    launches, _ = build_plan(cells, rounds=2)
    first = [launch.cells[0].engine.path for launch in launches if launch.slot == 0]
    assert first == ["walking", "flying", "flying", "walking"]
    assert [launch.pair for launch in launches] == [n // 3 for n in range(12)]


def test_a_run_without_experiment_has_no_round():
    (launch,), _ = build_plan(make_cells("+path=scripted"))
    assert launch.round is None


def prompts_of(launches):
    """(round, path, cell) → the first prompts of that launch."""
    workloads = check_launches(launches, [str(FIXTURES)]).workloads
    found = {}
    for launch in launches:
        for cell in launch.cells:
            prompts = workloads[launch.launch_id].source(cell).next(4)
            found[launch.round, cell.engine.path, cell.cell_id] = [prompt.hash for prompt in prompts]
    return found


@pytest.mark.parametrize("workload", ["random", "dataset"])
def test_prompts_are_new_in_each_round_and_the_same_for_all_arms_of_it(workload, tmp_path):
    words = ["experiment=speeds", "concurrency=1,2", f"workload={workload}"]
    if workload == "dataset":
        file = tmp_path / "prompts.jsonl"
        file.write_text("".join(f'{{"prompt_ids": [{n}, {n + 1}]}}\n' for n in range(100, 124)))
        words.append(f"workload.file={file}")
    _, cells = cells_of(*words)
    launches, _ = build_plan(cells, rounds=3)
    found = prompts_of(launches)
    assert len(found) == 3 * 3 * 2
    for number in (1, 2, 3):
        for cell in {cell.cell_id for cell in cells}:
            arms_of_round = [prompts for key, prompts in found.items() if key[::2] == (number, cell)]
            assert arms_of_round == [arms_of_round[0]] * 3
    by_arm = [hash_ for key, prompts in found.items() if key[1] == "walking" for hash_ in prompts]
    assert len(by_arm) == len(set(by_arm)) == 3 * 2 * 4


def test_prompts_of_a_run_without_experiment_stay_as_they_were():
    (cell,) = make_cells("+path=scripted")
    plain, first = (Workloads(cells=[cell], round=number).source(cell).next(1)[0] for number in (None, 1))
    assert not np.array_equal(plain.ids, first.ids)


def test_null_is_no_experiment():
    assert expand_sweeps(["experiment=null", "concurrency=1,2"], {}) == [
        ("concurrency=1",),
        ("concurrency=2",),
    ]
