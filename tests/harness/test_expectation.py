"""What a path must prove of its graphs, breaks and caches; what ran, against what the label says."""

from __future__ import annotations

import dataclasses

import pytest
from pydantic import ValidationError

from harness.config import Expectation
from harness.counters import replayed_steps
from harness.expectation import mismatches
from harness.recording import counter_difference, judge_measurement
from harness.records import CellState
from paths.api import Counters, Platform
from paths.kernels.cache_bytes import cache_bytes_per_token
from paths.scripted import ScriptedPath
from tests.harness.cells import make_cell, make_cells
from tests.harness.measurements import MS, Row, Snapshot, measurement

TOO_LARGE = "FULL: num_reqs above the largest size 64; PIECEWISE: num_tokens above the largest size 256"
TO_PIECEWISE = "FULL: num_reqs above the largest size 64"
FULL_ONLY = "FULL: num_reqs above the largest size 64; PIECEWISE: not configured"
UNEXPLAINED = "FULL: query_len 2 was not captured; PIECEWISE: not configured"


def counted(full=0, piecewise=0, none=0, uniform=0, **misses):
    steps = {"FULL": full, "PIECEWISE": piecewise, "NONE": none}
    return {"steps": steps, "uniform_steps": uniform, "graph_misses": misses}


def check(expected, *, steps=None, measured=True, **changes):
    cell = make_cell()
    effective = dataclasses.replace(ScriptedPath().start(cell.engine).effective(), **changes)
    path = cell.config.path.model_copy(update={"expect": {"any": Expectation.model_validate(expected)}})
    return mismatches(path, cell.engine, effective, measured=measured, counted=steps)


@pytest.mark.parametrize("field", ["model_class", "model_module", "runner", "compile_mode"])
@pytest.mark.parametrize("measured", [True, False])
def test_names(field, measured):
    assert check({field: "this"}, measured=measured, **{field: "this"}) == []
    assert check({field: "this"}, measured=measured, **{field: "that"}) == [
        f"{field} 'that', expected 'this'"
    ]


def test_kv_dtype():
    assert check({"kv_dtype": "fp8"}, kv_dtype="bf16") == ["kv_dtype 'bf16', expected 'fp8'"]


@pytest.mark.parametrize("measured", [True, False])
def test_number_of_graphs(measured):
    bounds = {"graphs_min": 2, "graphs_max": 3}
    assert [bool(check(bounds, measured=measured, graphs=n)) for n in range(1, 5)] == [
        True,
        False,
        False,
        True,
    ]
    assert check({"graphs_min": 2}, graphs=0) == ["0 graphs were captured, expected 2 or more"]
    assert check({"graphs_max": 0}, graphs=1) == ["1 graphs were captured, expected 0 or fewer"]


def test_breaks_per_layer():
    assert check({"breaks_per_layer": 1}, breaks_per_layer=1.0) == []
    assert check({"breaks_per_layer": 1}, breaks_per_layer=0.75) == [
        "breaks_per_layer 0.75, expected 1 breaks per layer"
    ]
    assert check({"breaks_per_layer": 1}) == ["no piecewise graph was captured, expected 1 breaks per layer"]


def test_modes_that_may_occur():
    expected = {"graph_modes": ["FULL", "NONE"]}
    assert check(expected, graph_modes={"FULL": 3, "PIECEWISE": 0, "NONE": 2}) == []
    assert check(expected, graph_modes={"PIECEWISE": 1}) == [
        "1 steps ran in graph mode PIECEWISE, expected FULL or NONE"
    ]
    assert check({"graph_modes": []}, graph_modes={"NONE": 1}) != []


@pytest.mark.parametrize(
    ("misses", "eligible"),
    [({}, 10), ({TOO_LARGE: 4}, 6), ({TO_PIECEWISE: 4}, 10), ({FULL_ONLY: 4}, 6), ({UNEXPLAINED: 4}, 10),
     ({"FULL: capture was not called": 4}, 10), ({"PIECEWISE: num_tokens above the largest size 256": 4}, 6),
     ({"PIECEWISE: not configured": 4}, 10)],
)  # fmt: skip
def test_only_steps_too_large_for_any_graph_are_excused(misses, eligible):
    steps = counted(full=2, piecewise=3, none=5, **misses)
    assert replayed_steps(steps, uniform_only=False) == (5, eligible)


@pytest.mark.parametrize(
    ("steps", "proven"),
    [(counted(full=3, none=90, uniform=3), True), (counted(full=3, none=90, uniform=4), False),
     (counted(full=3, none=90, uniform=13, **{FULL_ONLY: 10}), True), (counted(none=90), True),
     (counted(none=90, uniform=10, **{FULL_ONLY: 10}), True), (counted(none=90, uniform=1), False),
     (counted(none=90, uniform=11, **{FULL_ONLY: 10}), False), (None, False)],
)  # fmt: skip
def test_mixed_steps_without_a_graph_for_them_do_not_count(steps, proven):
    """graphs=full: decode steps must replay however many prefill steps ran eagerly, as they should."""
    (cell,) = make_cells("+path=dsa_mrv2_full")
    effective = ScriptedPath().start(make_cell().engine).effective()
    found = mismatches(cell.config.path, cell.engine, effective, measured=True, counted=steps)
    assert (not [said for said in found if "replay" in said]) is proven


def test_drafts_behind_replayed_steps_replay():
    """Known fault 121: a part of the path that silently runs without its graphs."""
    expected = {"min_replay_frac": 0.9}
    eager = {"FULL": 0, "PIECEWISE": 0, "NONE": 12}
    steps = {"FULL": 6, "NONE": 1}
    (said,) = check(expected, steps=counted(full=6), graph_modes=steps, draft_modes=eager)
    assert said == "none of 12 forward passes of drafts replayed a FULL graph"
    behind_prompts = eager | {"PIECEWISE": 5}
    assert check(expected, steps=counted(full=6), graph_modes=steps, draft_modes=behind_prompts) != []
    assert check(expected, steps=counted(full=6), graph_modes=steps, draft_modes=eager | {"FULL": 1}) == []
    assert check(expected, steps=counted(full=6), graph_modes=steps) == []
    prompts_alone = {"PIECEWISE": 3}
    assert check(expected, steps=counted(), graph_modes=prompts_alone, draft_modes=eager) == []
    assert check({}, graph_modes=steps, draft_modes=eager) == []


def test_mixed_steps_count_where_a_graph_is_promised_for_them():
    expected = {"min_replay_frac": 0.9, "graph_modes": ["FULL", "PIECEWISE", "NONE"]}
    assert check(expected, steps=counted(full=3, none=90, uniform=3)) != []


def test_fraction_of_replayed_steps():
    expected = {"min_replay_frac": 0.9}
    assert check(expected, steps=counted(full=9, none=1)) == []
    (said,) = check(expected, steps=counted(full=8, none=2, **{UNEXPLAINED: 2}))
    assert said == (
        f"8 of 10 measured steps replayed a graph, expected a fraction of 0.9 (2 × {UNEXPLAINED})"
    )
    assert check(expected, steps=counted(none=50)) != []
    assert check(expected, steps=counted(full=5, none=50, **{TOO_LARGE: 50})) == []
    assert check(expected, steps=counted(none=50, **{TOO_LARGE: 50})) == []
    assert check(expected, steps=counted(none=50), measured=False) == []
    assert check(expected, steps=counted()) == []
    assert check({"min_replay_frac": 1}, steps=counted(full=10**6, none=1)) != []


def test_replays_that_nobody_counted_are_not_proven():
    expected = {"min_replay_frac": 0.9}
    assert check(expected, steps=None) == [
        "replays not known: no engine counters of the load, expected a fraction of 0.9"
    ]
    assert check(expected, steps=None, measured=False) == []
    assert check({"runner": "script"}, steps=None) == []


@pytest.mark.parametrize("arm", ["dsa_mrv1", "dsa_mrv2", "generic_mrv1", "generic_mrv2"])
@pytest.mark.parametrize(
    ("steps", "proven"),
    [(counted(none=9, **{TOO_LARGE: 9}), True), (counted(none=9, **{TOO_LARGE: 8, UNEXPLAINED: 1}), False),
     (counted(none=9), False), (counted(full=1, none=9, **{TOO_LARGE: 9}), True), (None, False)],
)  # fmt: skip
def test_a_path_with_graphs_replays_where_one_step_is_small_enough(arm, steps, proven):
    """Of a load in which every step is above the largest size, nothing is asked."""
    (cell,) = make_cells(f"+path={arm}")
    effective = ScriptedPath().start(make_cell().engine).effective()
    found = mismatches(cell.config.path, cell.engine, effective, measured=True, counted=steps)
    assert (not [said for said in found if "replay" in said]) is proven


@pytest.mark.parametrize("word", ["kv_dtype=auto", "kv_dtype=fp8", "kv_dtype=fp8_ds_mla", "dtype=float32"])
@pytest.mark.parametrize("model", ["tiny_v32", "tiny_glm"])
def test_bytes_per_token_follow_from_the_model(word, model):
    cell = make_cell(word, f"model={model}")
    kv = {"kv_dtype=auto": "bf16", "dtype=float32": "float32"}.get(word, word.removeprefix("kv_dtype="))
    index = "fp8" if kv.startswith("fp8") else kv
    right = cache_bytes_per_token(cell.model, kv_dtype=kv, index_dtype=index)
    path = cell.config.path.model_copy(update={"expect": {"any": Expectation(kv_bytes_per_token="computed")}})
    effective = ScriptedPath().start(cell.engine).effective()

    def found(number):
        ran = dataclasses.replace(effective, kv_bytes_per_token=number)
        return mismatches(path, cell.engine, ran, measured=False)

    assert found(right) == []
    assert found(right + 1) == [
        f"kv_bytes_per_token {right + 1}, expected {right} ({kv} cache, {index} index cache)"
    ]


@pytest.mark.parametrize(
    "wrong",
    [{"min_replay_frac": 1.1}, {"min_replay_frac": -0.1}, {"graphs_min": -1}, {"graph_modes": ["SOME"]},
     {"kv_bytes_per_token": "5"}, {"kernels": {"sample": "torch"}},
     {"runer": "V1"}],
)  # fmt: skip
def test_an_expectation_that_means_nothing_is_refused(wrong):
    with pytest.raises(ValidationError):
        Expectation.model_validate(wrong)


ARMS = [
    "generic_mrv1", "generic_mrv2", "generic_mrv2_eager", "generic_eager",
    "dsa_mrv1", "dsa_mrv2", "dsa_mrv2_full", "dsa_mrv2_eager",
]  # fmt: skip


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_built_in_path_must_prove_what_it_is(arm, device):
    """A label without a promise would prove nothing."""
    platform = Platform(device=device, capability=(9, 0), compiler=True, python_headers=True)
    (cell,) = make_cells(f"+path={arm}", platform=platform)
    options, sections = cell.engine.options, cell.config.path.expect
    any_, here = sections["any"], sections[device]
    assert any_.runner == options["runner"]
    assert any_.model_class == {"dsa": "DsaModel", "generic": "GenericModel"}[options["model"]]
    assert any_.model_module and any_.kv_bytes_per_token == "computed" and here.kernels["sparse_mla"]
    assert any_.compile_mode == ("inductor-piecewise" if options["compiled"] else "none")
    may = set(any_.graph_modes)
    if options["graphs"] == "none":
        assert (may, any_.graphs_max) == ({"NONE"}, 0)
    else:
        assert any_.graphs_min >= 1 and {"FULL", "NONE"} <= may
        assert ("PIECEWISE" in may) == ("piecewise" in options["graphs"])
        assert any_.min_replay_frac > 0.9
    if options["graphs"] == "full_and_piecewise":
        assert any_.breaks_per_layer == 1


def snapshot(ms, **counters):
    return Snapshot(time_ns=ms * MS, counters=Counters(**counters))


def test_ratios_of_the_window():
    load = measurement(
        Row(events=[(1, 1), (2, 1)]),
        snapshots={
            "before": snapshot(0, steps={"FULL": 100, "NONE": 100}),
            "window_start": snapshot(1, steps={"FULL": 10, "NONE": 2}, tokens_real=10, tokens_padded=10),
            "window_end": snapshot(
                2, steps={"FULL": 16, "NONE": 4}, graph_misses={TOO_LARGE: 1}, host_device_copies=16,
                blocking_waits=4, tokens_real=40, tokens_padded=50,
            ),
            "after": snapshot(3),
        },
    )  # fmt: skip
    found = counter_difference(load, make_cell())
    assert found["ratios"] == {
        "replay_frac": 6 / 7, "copies_per_step": 2.0, "waits_per_step": 0.5, "padding_frac": 0.25,
    }  # fmt: skip
    assert found["graph_misses"] == {TOO_LARGE: 1}


def test_ratios_of_no_step_are_missing_not_zero():
    load = measurement(Row(events=[(1, 1)]), snapshots={"before": snapshot(0), "after": snapshot(3)})
    assert set(counter_difference(load, make_cell())["ratios"].values()) == {None}


def test_steps_of_the_window_decide_not_those_of_the_warm_up():
    """A path that stops replaying when it is measured is a mismatch whatever it did before."""
    cell = make_cell()
    path = cell.config.path.model_copy(update={"expect": {"any": Expectation(min_replay_frac=0.5)}})
    cell = dataclasses.replace(cell, config=cell.config.model_copy(update={"path": path}))
    effective = ScriptedPath().start(cell.engine).effective()
    load = measurement(
        Row(events=[(1, 1), (2, 1)]),
        snapshots={
            "before": snapshot(0, steps={"FULL": 900}),
            "after": snapshot(3, steps={"FULL": 900, "NONE": 9}),
        },
    )
    outcome = judge_measurement(load, cell, effective)
    assert outcome.state is CellState.PATH_MISMATCH and "0 of 9 measured steps" in outcome.reason
    assert outcome.counters["ratios"]["replay_frac"] == 0 and outcome.metrics is None


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize(
    ("ran", "words"),
    [({}, []),
     ({"mtp": 0, "mtp_forced_al": None}, ["mtp 0, requested 3", "mtp_forced_al None, requested 2.5"]),
     ({"mtp": 2}, ["mtp 2, requested 3"]), ({"mtp_forced_al": 2.0}, ["mtp_forced_al 2.0, requested 2.5"])],
)  # fmt: skip
def test_speculation_is_acknowledged(ran, words, measured):
    cell = make_cell("mtp=3", "mtp_mode=forced", "mtp_forced_al=2.5")
    effective = dataclasses.replace(ScriptedPath().start(cell.engine).effective(), **ran)
    assert mismatches(cell.config.path, cell.engine, effective, measured=measured) == words


def test_drafts_that_nobody_asked_for_are_a_mismatch():
    assert check({}, mtp=1) == ["mtp 1, requested 0"]


def test_the_cache_of_an_mtp_layer_is_expected():
    plain, drafting = make_cell(), make_cell("mtp=2")
    path = plain.config.path.model_copy(
        update={"expect": {"any": Expectation(kv_bytes_per_token="computed")}}
    )
    for cell, layers in ((plain, 0), (drafting, 1)):
        effective = ScriptedPath().start(cell.engine).effective()
        right = cache_bytes_per_token(cell.model, kv_dtype="bf16", index_dtype="bf16", mtp_layers=layers)
        ran = dataclasses.replace(effective, kv_bytes_per_token=right)
        assert mismatches(path, cell.engine, ran, measured=False) == []
