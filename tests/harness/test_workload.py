from __future__ import annotations

import json

import numpy as np
import pytest

from harness.measurement import Phase
from harness.plan import build_plan
from harness.preflight import Workloads
from harness.workload.dataset import Dataset, DatasetSource, load_dataset
from harness.workload.random import RandomSource, allowed_ids, special_ids
from harness.workload.source import Prompt, prompt_hash
from harness.workload.sources import make_arith, make_random
from paths.api import UserError
from paths.tokenizer import load_tokenizer
from tests.harness.cells import make_cells
from tests.shipped import FOLDER, held_out

HF = {"vocab_size": 100, "bos_token_id": 0, "eos_token_id": [1, 2], "pad_token_id": None}


def source(**changes):
    values = {"isl": 63, "osl": 5, "seed": 0, "salt": ("run", "launch", "cell"), "hf_config": HF}
    return make_random(**(values | changes))


def ids(prompts: list[Prompt]) -> list[list[int]]:
    return [prompt.ids.tolist() for prompt in prompts]


def test_fault_035_ids_stay_in_range_and_are_not_special():
    allowed = allowed_ids(4, special_ids({"eos_token_id": 0}))
    drawn = RandomSource(ids=allowed, isl=10_000, osl=1, seed=0).next(1)[0].ids
    assert set(drawn.tolist()) == {1, 2, 3}
    assert special_ids(HF) == {0, 1, 2}
    many = np.concatenate([prompt.ids for prompt in source().next(111)])
    assert (many.min(), many.max()) == (3, 99)


def test_special_tokens_of_the_tokenizer_are_left_out(tmp_path):
    file = tmp_path / "tokenizer.json"
    added = [{"id": 50, "special": True}, {"id": 51, "special": False}]
    file.write_text(json.dumps({"added_tokens": added}))
    many = set(np.concatenate([prompt.ids for prompt in source(tokenizer=file).next(111)]).tolist())
    assert 50 not in many
    assert 51 in many
    file.write_text("[")
    with pytest.raises(UserError, match=r"tokenizer\.json: unreadable"):
        source(tokenizer=file)


def test_random_prompts_have_exact_lengths_and_are_unique():
    prompts = source().next(63) + source(salt=("run", "launch", "other")).next(63)
    assert {(len(p.ids), p.max_tokens, p.ids.dtype) for p in prompts} == {(63, 5, np.dtype(np.int32))}
    assert len({p.hash for p in prompts}) == 126
    assert all(p.hash == prompt_hash(p.ids) for p in prompts)
    assert source().next(0) == []


def arith(**changes):
    values = {"osl": 5, "seed": 0, "salt": ("run", "launch", "cell"), "tokenizer": FOLDER / "tokenizer.json"}
    return make_arith(**(values | {"max_model_len": 512} | changes))


def test_arith_prompts_are_new_problems_that_the_model_reads():
    drawn, other = arith(), arith(salt=("run", "launch", "other"))
    prompts = drawn.next(63) + drawn.next(48, phase=Phase.WARMUP)
    assert len({p.hash for p in prompts}) == 111
    assert drawn.mark_sent(prompts) == 0
    assert ids(arith().next(63)) == ids(prompts[:63])
    assert not {p.hash for p in other.next(20)} & {p.hash for p in prompts}
    texts = [load_tokenizer(FOLDER / "tokenizer.json").decode(p.ids.tolist()) for p in prompts]
    assert all(text.startswith("Question: ") and text.endswith("?\nAnswer:") for text in texts)
    scored = {f"Question: {problem['question']}\nAnswer:" for problem in held_out()}
    assert len(scored & set(texts)) < 5, "these are the problems that the model is scored on"


def test_arith_needs_a_tokenizer_and_room():
    with pytest.raises(UserError, match=r"the model has no tokenizer; use workload=random"):
        arith(tokenizer=None)
    with pytest.raises(UserError, match=r"osl=480 exceed the engine's limit of 512; lower osl"):
        arith(osl=480)


def test_random_prompts_depend_on_seed_salt_and_phase_alone():
    first = ids(source().next(7))
    assert ids(source().next(7)) == first
    assert ids(source(seed=1).next(7)) != first
    assert ids(source(seed=-1).next(7)) != first
    assert ids(source(salt=("run", "launchcell")).next(7)) != first
    assert ids(source().next(7, phase=Phase.WARMUP)) != first


def test_fault_041_measured_prompts_do_not_depend_on_the_warm_up():
    short, long = source(), source()
    short.next(1, phase=Phase.WARMUP)
    long.next(100, phase=Phase.WARMUP)
    assert ids(short.next(3) + short.next(4)) == ids(long.next(7))


def test_fault_039_no_cell_repeats_the_prompts_of_another():
    hashes = [p.hash for cell in ("a", "b") for p in source(salt=("run", "l0", cell)).next(111)]
    assert len(set(hashes)) == 222


def test_prompt_space_that_runs_out_is_counted_not_endless():
    small = RandomSource(ids=allowed_ids(4, [0]), isl=1, osl=1, seed=0)
    prompts = small.next(10)
    assert len({p.hash for p in prompts}) == 3
    assert small.mark_sent(prompts[:5]) + small.mark_sent(prompts[5:]) == 7


def test_prompts_that_are_drawn_and_never_sent_are_not_repeated():
    small = RandomSource(ids=allowed_ids(4, [0]), isl=1, osl=1, seed=0)
    assert small.mark_sent(small.next(10)[:1]) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"isl": 0}, "isl=0: a prompt needs at least 1 token"),
        ({"hf_config": {}}, "vocab_size=None in the model's config"),
        ({"hf_config": {"vocab_size": 2, "eos_token_id": [0, 1]}}, "no token id is left"),
    ],
)
def test_impossible_workloads_are_one_line_errors(changes, message):
    with pytest.raises(UserError, match=message) as error:
        source(**changes)
    assert "\n" not in str(error.value)


def write(tmp_path, *lines):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return file


def dataset(file, **changes) -> Dataset:
    values = {"vocab_size": 100, "osl": 16, "encode": lambda text: [ord(c) % 100 for c in text]}
    return load_dataset(file, **(values | changes))


def test_dataset_takes_text_ids_and_max_tokens(tmp_path):
    file = write(tmp_path, {"prompt": "abc"}, "", {"prompt_ids": [4, 5], "max_tokens": 3})
    prompts = dataset(file).part(0, 1)
    assert sorted((p.ids.tolist(), p.max_tokens) for p in prompts) == [([4, 5], 3), ([97, 98, 99], 16)]


def test_dataset_cells_have_parts_to_themselves(tmp_path):
    shared = dataset(write(tmp_path, *({"prompt_ids": [i]} for i in range(11))), seed=3)
    parts = [shared.part(index, 3) for index in range(3)]
    assert [len(part) for part in parts] == [3, 4, 4]
    assert sorted(ids([prompt for part in parts for prompt in part])) == [[i] for i in range(11)]
    first, second = (DatasetSource(part) for part in parts[:2])
    assert not first.exact_lengths
    first.next(100)  # however fast another cell was
    second.next(2, phase=Phase.WARMUP)  # however long the warm-up was
    assert ids(second.next(1) + second.next(3)) == ids(parts[1])


def test_more_cells_than_prompts_share_them_and_it_shows(tmp_path):
    shared, sent = dataset(write(tmp_path, {"prompt_ids": [1]}, {"prompt_ids": [2]})), set()
    sources = [DatasetSource(shared.part(index, 3), sent) for index in range(3)]
    assert [source.mark_sent(source.next(1)) for source in sources] == [0, 0, 1]


def test_a_part_that_is_used_up_begins_again_and_it_shows(tmp_path):
    part = dataset(write(tmp_path, *({"prompt_ids": [i]} for i in range(3)))).part(0, 1)
    source = DatasetSource(part)
    assert source.mark_sent(source.next(3)) == 0
    again = source.next(2)
    assert ids(again) == ids(part[:2]) and source.mark_sent(again) == 2


def test_equal_lines_count_as_repeated(tmp_path):
    source = DatasetSource(dataset(write(tmp_path, {"prompt_ids": [1]}, {"prompt_ids": [1]})).part(0, 1))
    assert source.mark_sent(source.next(2)) == 1


def test_both_arms_of_a_dataset_cell_get_the_same_prompts(tmp_path):
    """The arms' engines have different speeds, so each takes another number of prompts."""
    file = write(tmp_path, *({"prompt_ids": [i]} for i in range(10)))
    words = ("workload=dataset", f"workload.file={file}", "concurrency=1,2")
    launches, _ = build_plan(make_cells("+path=scripted", "path.options.gap_ms=1,2", *words))
    taken = {}
    for speed, launch in enumerate(launches, start=1):
        prompts = Workloads(cells=launch.cells)
        for cell in launch.cells:
            drawn = prompts.source(cell).next(2 * speed)
            taken.setdefault(cell.cell_id, []).append(ids(drawn)[:2])
    assert len(launches) == len(taken) == 2
    assert all(one == other for one, other in taken.values())
    one, other = taken.values()
    assert one[0] != other[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not valid JSON"),
        ("[1]", "line 2: must be an object"),
        ({}, 'line 2: needs either "prompt" or "prompt_ids"'),
        ({"prompt": "a", "prompt_ids": [1]}, "line 2: needs either"),
        ({"text": "a"}, "line 2: unknown key 'text'; known: prompt, prompt_ids, max_tokens"),
        ({"prompt": ""}, "line 2: .*not empty"),
        ({"prompt": 7}, "line 2: .*must be a text"),
        ({"prompt_ids": []}, "line 2: .*at least one token id"),
        ({"prompt_ids": [100]}, r"line 2: token id 100 is not in 0\.\.99"),
        ({"prompt_ids": [-1]}, "line 2: token id -1"),
        ({"prompt_ids": [1.5]}, "line 2: token id 1.5"),
        ({"prompt_ids": [True]}, "line 2: token id True"),
        ({"prompt_ids": [1], "max_tokens": 0}, "line 2: max_tokens is 0"),
        ({"prompt_ids": [1], "max_tokens": "9"}, "line 2: max_tokens is '9'"),
        ({"prompt_ids": [1] * 95, "max_tokens": 6}, "line 2: 95 prompt . 6 output tokens exceed"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path, line, message):
    file = write(tmp_path, {"prompt_ids": [1]}, line)
    with pytest.raises(UserError, match=message) as error:
        dataset(file, max_model_len=100)
    assert "\n" not in str(error.value)


def test_files_that_hold_nothing(tmp_path):
    with pytest.raises(UserError, match="no prompts; the file needs at least one line"):
        dataset(write(tmp_path, "", "  "))
    with pytest.raises(UserError, match=r"absent\.jsonl: cannot be read"):
        dataset(tmp_path / "absent.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="binary: cannot be read"):
        dataset(tmp_path / "binary")


def test_text_needs_a_tokenizer_that_fits_the_model(tmp_path):
    file = write(tmp_path, {"prompt": "abc"})
    with pytest.raises(UserError, match=r"line 1: .*needs a tokenizer"):
        dataset(file, encode=None)
    with pytest.raises(UserError, match=r"line 1: the tokenizer gives id 99, the model knows 0\.\.49"):
        dataset(file, vocab_size=50)
    with pytest.raises(UserError, match=r"line 1: .*encodes to no token"):
        dataset(file, encode=lambda text: [])


def test_arith_leaves_out_what_does_not_fit():
    """The longest of the first thousand fits; a longer one that turns up later would fail a measurement."""
    longest = max(len(p.ids) for p in arith(osl=1).next(300))
    tight = arith(osl=1, max_model_len=512)
    tight._limit = longest
    assert max(len(p.ids) for p in tight.next(300)) < longest


@pytest.mark.parametrize("workload", ["random", "arith"])
def test_cells_that_differ_in_output_tokens_alone_have_labels_of_their_own(workload):
    labels = {cell.label for cell in make_cells("+path=scripted", f"workload={workload}", "osl=16,160")}
    work = {"random": "32", "arith": "arith"}[workload]
    assert labels == {f"scripted tiny_v32 kv=auto {work}/{osl} c1" for osl in (16, 160)}
