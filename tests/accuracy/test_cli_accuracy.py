"""`accuracy=` on the command line: mistakes before anything starts, and whole runs."""

import json
import shutil

import pytest

from harness.__main__ import main
from harness.accuracy import preflight, process
from harness.accuracy.preflight import scored_concurrency
from harness.accuracy.questions import read_questions
from harness.accuracy.spec import stages
from harness.plan import build_plan
from tests.command_line import FAST, harness, names, only_run, records_of
from tests.harness.cells import make_cell, make_cells
from tests.shipped import FOLDER

DENSE = ("+path=scripted", *FAST)


@pytest.fixture
def files(tmp_path):
    """Ten questions and six worked examples."""
    texts = [
        {"question": f"How much is {i} + 1?", "answer": f"{i} + 1 = {i + 1}\n#### {i + 1}"} for i in range(16)
    ]
    for name, chosen in (("test", texts[:10]), ("train", texts[10:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(text) + "\n" for text in chosen))
    (tmp_path / "broken.jsonl").write_text('{"question": "a", "answer": "#### 1"}\n{"question": "b"}\n')
    (tmp_path / "numberless.jsonl").write_text('{"question": "a", "answer": "four"}\n')
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "twice.jsonl").write_text('{"question": "a", "answer": "#### 1"}\n' * 2)
    (tmp_path / "surrogate.jsonl").write_text('{"question": "a \\ud800", "answer": "#### 1"}\n')
    return tmp_path


LOCAL = ("accuracy=gsm8k", "gsm8k.test_file=test.jsonl", "gsm8k.train_file=train.jsonl")


@pytest.mark.parametrize(
    ("words", "value", "remedy"),
    [
        (["accuracy=gsm"], "accuracy=gsm", "allowed: arith_gsm, gsm8k, a list"),
        (["accuracy=[arith_gsm,gsm]"], "gsm", "allowed: arith_gsm, gsm8k, a list"),
        (["accuracy=[]"], "accuracy=[]", "allowed: arith_gsm"),
        (["accuracy=arith_gsm", "shots=-1"], "shots=-1", "an integer from 0"),
        (["accuracy=arith_gsm", "shots=51"], "shots=51", "allowed: 0 to 50"),
        (["accuracy=arith_gsm", "limit=0"], "limit=0", "an integer from 1"),
        (["accuracy=arith_gsm", "gsm8k.test_file=x"], "gsm8k.test_file=x", "set accuracy=gsm8k"),
        (["accuracy=gsm8k", "gsm8k.test_file=no"], "gsm8k.test_file=", "set gsm8k.train_file=FILE"),
        (["accuracy=gsm8k", "gsm8k.train_file=train.jsonl"], "gsm8k.train_file=", "gsm8k.test_file=FILE"),
        (["accuracy=gsm8k", "gsm8k.test_file=no", "shots=0"], "no such file", "give a JSONL file"),
        ([*LOCAL, "shots=7"], "shots=7", "allowed: 0 to 6"),
        ([LOCAL[0], "gsm8k.test_file=broken.jsonl", LOCAL[2]], "line 2", '"question" and "answer"'),
        ([LOCAL[0], "gsm8k.test_file=numberless.jsonl", LOCAL[2]], "'four'", "#### NUMBER"),
        ([LOCAL[0], "gsm8k.test_file=empty.jsonl", LOCAL[2]], "no problems", "at least one line"),
        ([LOCAL[0], "gsm8k.test_file=twice.jsonl", LOCAL[2]], "'a' twice", "remove one"),
        ([LOCAL[0], "gsm8k.test_file=surrogate.jsonl", LOCAL[2]], "line 1: text that is not", "correct it"),
        ([LOCAL[0], "gsm8k.test_file=train.jsonl", LOCAL[2]], "6 of its questions", "a file without them"),
        (["accuracy=arith_gsm", "limit=2", "engine.max_model_len=500"], "together", "lower shots"),
        (["accuracy=arith_gsm", "limit=2", "engine.kv_pages=8"], "kv_pages=8", "raise engine.kv_pages"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_before_any_work(words, value, remedy, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    before = names(files)
    assert main([*DENSE, *words]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == "" and value in line and remedy in line
    assert names(files) == before


def test_without_lm_eval_it_is_said(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(process, "find_spec", lambda name: None)
    assert main([*DENSE, "accuracy=arith_gsm"]) == 2
    assert "pip install '.[eval]'" in capsys.readouterr().err
    assert main([*DENSE, "dry_run=true"]) == 0  # who scores nothing needs nothing


def test_prompts_are_prepared_for_every_tokenizer_rule(monkeypatch, tmp_path):
    """Known fault 087: a score with a BOS must not carry the hash of prompts without one."""
    other = shutil.copytree(FOLDER, tmp_path / "other")
    (other / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    asked = []
    monkeypatch.setattr(preflight, "prepare", lambda job, _: asked.append(job.prompts) or [])
    words = ("+path=scripted", "accuracy=arith_gsm", f"checkpoint=auto,{other}", "concurrency=1,2")
    launches, _ = build_plan(make_cells(*words))
    found = preflight.check_accuracy(launches)
    assert [rules.bos_id for rules in asked] == [None, 0]
    assert [rules for _, rules in found] == asked


def test_forced_drafts_are_no_answers(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = [
        "+path=dsa_mrv2",
        "mtp=2",
        "mtp_mode=forced",
        "mtp_forced_al=2.5",
        "accuracy=arith_gsm",
        "dry_run=true",
    ]
    assert main(words) == 2
    assert "mtp_forced_al=2.5" in capsys.readouterr().err


def test_the_highest_load_of_a_launch_carries_the_scores():
    cells = make_cells("+path=scripted", "concurrency=1,64,8", "accuracy=arith_gsm")
    assert [scored_concurrency(cells, cell) for cell in cells] == [None, 64, None]
    alone = make_cell("concurrency=1", "accuracy=arith_gsm")
    assert scored_concurrency([alone], alone) == 1 and len(stages(alone.accuracy, 1)) == 1
    open_loop = make_cell("request_rate=5", "accuracy=arith_gsm")
    assert scored_concurrency([open_loop], open_loop) == 64
    plain = make_cell("concurrency=9")
    assert scored_concurrency([plain], plain) is None
    two = make_cells("+path=scripted", "concurrency=1,4", "accuracy=arith_gsm", "shots=0,5")
    assert sorted(filter(None, (scored_concurrency(two, cell) for cell in two))) == [4, 4]


def test_a_list_is_one_value_and_a_comma_a_sweep(files, monkeypatch):
    monkeypatch.chdir(files)
    (both,) = make_cells("+path=scripted", "accuracy=[arith_gsm,gsm8k]", *LOCAL[1:])
    assert both.accuracy.tasks == ("arith_gsm", "gsm8k")
    swept = make_cells("+path=scripted", "accuracy=arith_gsm,null")
    assert [cell.accuracy is None for cell in swept] == [False, True]
    assert len({cell.cell_id for cell in swept}) == 2


def test_what_is_asked_is_part_of_the_cell_and_where_it_lies_is_not(files, monkeypatch):
    monkeypatch.chdir(files)
    here = make_cell(*LOCAL)
    (files / "moved").mkdir()
    for name in ("test", "train"):
        (files / "moved" / f"{name}.jsonl").write_bytes((files / f"{name}.jsonl").read_bytes())
    moved = make_cell(LOCAL[0], "gsm8k.test_file=moved/test.jsonl", "gsm8k.train_file=moved/train.jsonl")
    assert here.cell_id == moved.cell_id != make_cell(*LOCAL, "limit=3").cell_id
    assert make_cell().cell_id == make_cell("shots=3").cell_id  # nothing is scored


def test_the_questions_stay_behind_a_run(files):
    done = harness(*DENSE, "concurrency=1,2", *LOCAL, "shots=3", "limit=4", cwd=files)
    assert done.returncode == 0, done.stderr
    low, high = records_of(files)
    assert low.accuracy == [] and [score.part for score in high.accuracy] == ["full", "first"]
    assert high.requested["accuracy"]["shots"] == 3 and high.accuracy[0].prompts_hash
    rows = read_questions(only_run(files)).to_pylist()
    assert len(rows) == 8 and {row["cell_id"] for row in rows} == {high.cell_id}
    assert "accuracy gsm8k 3-shot c2, first 4" in done.stderr
    assert "gsm8k 3-shot c1, first 4" in done.stdout
    assert 'id="accuracy"' in (only_run(files) / "report.html").read_text()
    assert not (only_run(files) / "accuracy").exists()


@pytest.mark.slow
def test_gsm8k_runs_through_on_a_model(gsm8k_folder, tmp_path):
    """Every question of the limit has its row; what a model of this size scores is another matter."""
    words = [
        f"gsm8k.test_file={gsm8k_folder}/test.jsonl",
        f"gsm8k.train_file={gsm8k_folder}/train_first200.jsonl",
    ]
    load = ("concurrency=4", "num_prompts=4", "measure_s=0", "warmup_s=0", "isl=8", "osl=4")
    done = harness("+path=dsa_mrv2", "accuracy=gsm8k", *words, "limit=6", *load, cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stderr
    (record,) = records_of(tmp_path)
    assert [score.answered for score in record.accuracy] == [6, 6]
    assert record.accuracy[0].dsa_active_token_frac == 1.0
    assert len(read_questions(only_run(tmp_path))) == 12
