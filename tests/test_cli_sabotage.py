"""Built-in engines with one part swapped underneath, through the real command line: each is found out."""

import pytest

from harness.__main__ import main
from harness.records import CellState
from tests.command_line import REPOSITORY, harness, info_of, names, only_run, records_of

SABOTAGED = REPOSITORY / "tests" / "fixtures" / "sabotaged_paths"
TINY = ("measure_s=0.2", "warmup_s=0", "isl=4", "osl=4", "concurrency=2", "engine.kv_pages=64")
SMALL = ("engine.max_model_len=256", "engine.max_num_seqs=4", "engine.max_num_batched_tokens=64")
SAID = {
    "graphs_off": ("0 graphs were captured", "no piecewise graph was captured"),
    "graphs_unused": ("0 of ", "measured steps replayed a graph, expected a fraction of"),
    "other_runner": ("runner 'V1', expected 'V2'",),
    "other_model": (
        "model_class 'GenericModel', expected 'DsaModel'",
        "model_module 'paths.generic_mrv1.model'",
    ),
    "other_kernel": ("kernel sparse_mla ran 'reference', expected cpp or torch",),
}


def test_every_swapped_part_is_a_mismatch_said_first(tmp_path):
    paths = f"+path={','.join(SAID)},dsa_mrv2"
    done = harness(paths, *TINY, *SMALL, "--config-dir", str(SABOTAGED), cwd=tmp_path, timeout=300)
    assert done.returncode == 6, done.stderr
    records = {record.requested["path"]: record for record in records_of(tmp_path)}
    honest = records.pop("dsa_mrv2")
    assert honest.state is CellState.OK and honest.metrics["out_tps"].value > 0
    page = (only_run(tmp_path) / "report.html").read_text()
    banners = page[: page.index("What went wrong")]
    table = done.stdout.index("out tok/s")
    for name, words in SAID.items():
        record = records[name]
        assert record.state is CellState.PATH_MISMATCH and not record.metrics, name
        assert record.startup["ready_s"] > 0, "what its start cost is known"
        assert all(word in record.reason for word in words), record.reason
        assert -1 < done.stdout.index(f"{record.label}: PATH_MISMATCH") < table
        assert f"<b>{name}</b> did not run what its label says" in banners
    assert info_of(tmp_path).exit_code == 6


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raising", "failed: KeyError: 'injected: no such table'"),
        ("exiting", "failed: SystemExit: 3"),
        ("silent", "returned NoneType, not a Description or Unsupported"),
    ],
)
def test_a_path_that_cannot_describe_itself_is_named_in_one_line(name, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([f"+path={name}", "--config-dir", str(SABOTAGED)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith(f"harness: path {name}: describe() of sabotage:")
    assert words in said and "fix the path" in said
    assert names(tmp_path) == []


def test_list_shows_the_selection_and_survives_paths_that_cannot_describe_themselves(tmp_path):
    done = harness("cmd=list", "--config-dir", str(SABOTAGED), cwd=tmp_path)
    assert done.returncode == 0
    for name in ("raising", "exiting", "silent"):
        assert f"{name}: cannot be used: path {name}: describe()" in done.stdout
    text = " ".join(done.stdout.split())
    assert "auto: → generic_mrv1: cpu takes the generic path" in text
    table = done.stdout[done.stdout.index("+path=auto takes") :]
    for word in ("sm_90", "sm_100", "gfx942", "xpu", "cpu", "GlmMoeDsaForCausalLM", "DeepseekV3ForCausalLM",
                 "ROCm keeps", "no indexer", "warning: sm_120 is untested"):  # fmt: skip
        assert word in " ".join(table.split()), word
