"""Sweeps, composition, defaults and identities."""

import json
import math
import shlex
from pathlib import Path

import pytest
import yaml

import harness.composition
from harness.composition import Composer, packaged_conf
from harness.config import CellConfig
from harness.overrides import expand_sweeps
from harness.preflight import load_spec
from harness.validation import validate_cell
from paths import registry
from paths.api import Platform, UserError
from tests.harness.cells import make_cell, make_cells

FAULTY = Path(__file__).parent.parent / "fixtures" / "faulty_paths"
GROUPS = {"path": ["dsa_mrv2", "generic_mrv1", "scripted"], "model": ["tiny_glm", "tiny_v32"]}


@pytest.mark.parametrize(
    ("words", "cells"),
    [
        (["isl=1,2", "osl=3"], [("isl=1", "osl=3"), ("isl=2", "osl=3")]),
        (["a=x,y", "b=1,2"], [("a=x", "b=1"), ("a=x", "b=2"), ("a=y", "b=1"), ("a=y", "b=2")]),
        (["isl=range(1,4)"], [("isl=1",), ("isl=2",), ("isl=3",)]),
        (["isl=range(1,9,step=4)"], [("isl=1",), ("isl=5",)]),
        (["isl=choice(7,9)"], [("isl=7",), ("isl=9",)]),
        (["model=glob(*glm)"], [("model=tiny_glm",)]),
        (["path=glob(*,exclude=s*)"], [("+path=dsa_mrv2",), ("+path=generic_mrv1",)]),
        (["a=[1,2]"], [("a=[1,2]",)]),
        (["a=[1,2],[3]"], [("a=[1,2]",), ("a=[3]",)]),
        (["a='x,y'"], [("a='x,y'",)]),
        ([], [()]),
    ],
)  # fmt: skip
def test_sweeps_multiply_with_the_first_key_outermost(words, cells):
    assert expand_sweeps(words, GROUPS) == cells


def test_five_hundred_cells_need_few_compositions(monkeypatch):
    composed = []
    original = harness.composition.compose
    monkeypatch.setattr(
        harness.composition, "compose", lambda *a, **k: composed.append(k) or original(*a, **k)
    )
    cells = make_cells("+path=scripted,dsa_mrv2", "concurrency=range(1,251)")
    assert len(cells) == len({(cell.cell_id, cell.engine.path) for cell in cells}) == 500
    assert cells[499].config.concurrency == 250
    assert len(composed) == 2  # one per path: a composition costs 30 ms


def test_merged_values_equal_a_full_composition():
    """The shortcut must give what Hydra itself gives."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    words = [
        "+path=scripted",
        "model=tiny_glm",
        "isl=7",
        "path.options.gap_ms=2.5",
        "++path.options.extra={a:[1]}",
        "debug={checks:true}",
    ]
    with initialize_config_dir(str(packaged_conf()), version_base=None):
        expected = OmegaConf.to_container(compose("config", overrides=words), resolve=True)
    assert Composer().compose(words) == expected


def test_one_cell_does_not_leak_into_the_next():
    composer = Composer()
    first = composer.compose(["+path=scripted", "path.options.gap_ms=3", "isl=5"])
    second = composer.compose(["+path=scripted"])
    assert first["path"]["options"]["gap_ms"] == 3 and second["path"]["options"]["gap_ms"] == 10
    assert second["isl"] is None


def test_interpolation_sees_the_override():
    assert Composer().compose(["+path=scripted", "osl=${isl}", "isl=9"])["osl"] == 9


@pytest.mark.parametrize("file", sorted(packaged_conf().glob("path/*.yaml")), ids=lambda file: file.stem)
@pytest.mark.parametrize("model", sorted(packaged_conf().glob("model/*.yaml")), ids=lambda file: file.stem)
def test_every_path_with_every_model_is_valid(file, model):
    (cell,) = make_cells(f"+path={file.stem}", f"model={model.stem}")
    assert (cell.chosen.requested if cell.chosen else cell.engine.path) == file.stem
    assert cell.engine.model.name == model.stem


def test_every_key_of_config_yaml_is_a_field_and_the_reverse():
    text = (packaged_conf() / "config.yaml").read_text()
    keys = yaml.safe_load(text).keys() - {"defaults"} | {"path", "model", "workload"}
    assert keys == set(CellConfig.model_fields)
    for line in text.splitlines():
        if ":" in line and not line.lstrip().startswith(("#", "-")) and not line.endswith(":"):
            assert "#" in line, f"{line!r} is not explained"


def test_users_folder_adds_a_path_and_wins_over_nothing_else():
    (cell,) = make_cells("+path=faulty", config_dirs=(FAULTY,))
    assert cell.engine.impl == "faulty_engines:FaultyPath" and cell.config.model.name == "tiny_v32"
    with pytest.raises(UserError, match="path=faulty: unknown"):
        make_cells("+path=faulty")


def test_users_folder_with_odd_characters(tmp_path):
    folder = tmp_path / "it's, a [folder]"
    (folder / "path").mkdir(parents=True)
    (folder / "path" / "mine.yaml").write_text("name: mine\nimpl: paths.scripted:ScriptedPath\n")
    (cell,) = make_cells("+path=mine", config_dirs=(folder,))
    assert cell.engine.path == "mine"


def test_malformed_yaml_of_a_user_is_one_line(tmp_path):
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "mine.yaml").write_text("name: [mine\nimpl: x\n")
    with pytest.raises(UserError) as caught:
        make_cells("+path=mine", config_dirs=(tmp_path,))
    assert "\n" not in str(caught.value) and "mine.yaml" in str(caught.value)


@pytest.mark.parametrize("words", [("+path=dsa_mrv2",), ("+path=auto",)])
@pytest.mark.parametrize("word", ["path.name=generic_mrv1", "+path.name=generic_mrv1"])
def test_a_path_cannot_run_under_the_name_of_another(words, word):
    with pytest.raises(UserError, match=r"^\+?path\.name=generic_mrv1: a label says what ran"):
        make_cells(*words, word)


def test_path_of_an_entry_point_needs_no_file(monkeypatch):
    plugin = {"plugged": "paths.scripted:ScriptedPath"}
    monkeypatch.setattr(harness.composition, "registered_paths", lambda: plugin)
    first, second = make_cells("+path=plugged,scripted")
    assert (first.engine.path, first.engine.impl) == ("plugged", plugin["plugged"])
    assert second.engine.path == "scripted"


def test_registry_lists_what_it_has():
    assert registry.load("paths.scripted:ScriptedPath").name == "scripted"
    with pytest.raises(UserError, match=r"no such class; paths\.scripted has ScriptedPath"):
        registry.load("paths.scripted:Nothing")


@pytest.mark.parametrize(
    ("impl", "words"),
    [
        ("os:getcwd", "not a class with describe and start"),
        ("os:sep", "not a class with describe and start"),
        ("paths.api:Request", "not a class with describe and start"),
        ("paths.api:ExecutionPath", r"ExecutionPath\(\) failed: TypeError: "),
    ],
)
def test_registry_refuses_what_is_no_path(impl, words):
    with pytest.raises(UserError, match=rf"^impl '{impl}': {words}"):
        registry.load(impl)


def test_registry_prefers_what_is_installed_over_a_users_folder(tmp_path):
    (tmp_path / "paths").mkdir()
    (tmp_path / "json.py").write_text("raise RuntimeError('shadowed')")
    assert registry.load("paths.scripted:ScriptedPath", [str(tmp_path)]).name == "scripted"


# --- defaults ---


def test_cpu_defaults():
    cell = make_cell()
    assert (cell.isl, cell.osl, cell.measure_s, cell.warmup_s, cell.timeout_s) == (32, 16, 15.0, 5.0, 600.0)
    engine = cell.engine
    assert (engine.max_num_seqs, engine.max_num_batched_tokens) == (1024, 2048)
    assert (engine.max_model_len, engine.kv_pages) == (8192, 2048)
    assert (Path(engine.model.checkpoint) / "model.safetensors").is_file()
    assert make_cell("model=tiny_glm").engine.model.checkpoint == "dummy"


def test_gpu_changes_sizes_only():
    cell = make_cell(platform=Platform(device="cuda", capability=(9, 0)))
    assert (cell.isl, cell.osl, cell.measure_s, cell.warmup_s, cell.timeout_s) == (
        1024,
        1024,
        60.0,
        20.0,
        3600.0,
    )
    assert cell.engine.model == make_cell().engine.model
    assert cell.engine.device == "cuda"


def test_the_profile_of_the_platform_reaches_the_load():
    gpu = Platform(device="cuda", capability=(9, 0))
    one, many = (load_spec(make_cell(f"concurrency={c}"), first_request_id=0) for c in (1, 7))
    assert (one.warmup_waves, one.min_requests, many.min_requests) == (1, 2, 14)
    assert (one.lag_limit_ms, one.lag_share_of_ttft) == (10.0, 0.05)
    one, many = (load_spec(make_cell(f"concurrency={c}", platform=gpu), first_request_id=0) for c in (1, 7))
    assert (one.warmup_waves, one.min_requests, many.min_requests) == (2, 32, 35)
    assert (one.lag_limit_ms, one.lag_share_of_ttft) == (1.0, 0.01)


def test_limits_of_time_reach_the_load():
    load = load_spec(make_cell("timeout_s=7", "request_timeout_s=3"), first_request_id=0)
    assert (load.timeout_s, load.request_timeout_s) == (7.0, 3.0)
    assert load_spec(make_cell("timeout_s=7"), first_request_id=0).request_timeout_s is None


def test_max_model_len_follows_the_model_down_and_not_the_sweep():
    assert {c.engine.max_model_len for c in make_cells("+path=scripted", "isl=8,4000")} == {8192}
    short = make_cell("model.hf_config.max_position_embeddings=4096")
    assert short.engine.max_model_len == 4096


def test_given_values_win_over_defaults():
    cell = make_cell("isl=7", "measure_s=0", "engine.kv_pages=11", "threads=1", "timeout_s=1")
    assert (cell.isl, cell.measure_s, cell.engine.kv_pages, cell.engine.threads, cell.timeout_s) == (
        7,
        0.0,
        11,
        1,
        1.0,
    )


def test_exact_fit_is_allowed_and_one_more_is_not():
    assert make_cell("isl=63", "osl=1", "engine.kv_pages=1", "engine.max_model_len=64").isl == 63
    with pytest.raises(UserError, match="65 tokens, but max_model_len is 64"):
        make_cell("isl=64", "osl=1", "engine.max_model_len=64")
    with pytest.raises(UserError, match=r"kv_pages to 2 or more"):
        make_cell("isl=64", "osl=1", "engine.kv_pages=1")


@pytest.mark.parametrize(
    "words", [["request_rate=5", "concurrency=null"], ["request_rate=0.5", "burstiness=inf"]]
)
def test_open_loops(words):
    cell = make_cell(*words)
    assert cell.requested["request_rate"] == cell.config.request_rate
    if math.isinf(cell.config.burstiness):
        assert cell.requested["burstiness"] == "inf"  # a record holds no infinity


def test_checkpoint_folder_brings_its_own_configuration(tmp_path):
    own = dict(make_cell().engine.model.hf_config, vocab_size=111)
    (tmp_path / "config.json").write_text(json.dumps(own))
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "tokenizer.json").write_text("{}")
    cell = make_cell(f"checkpoint={tmp_path}")
    assert cell.model.vocab_size == 111
    assert cell.engine.model.tokenizer == str(tmp_path / "tokenizer.json")


# --- identities ---


def write_checkpoint(folder, header=b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', data=b"1234"):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(make_cell().engine.model.hf_config))
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    return folder


def test_a_checkpoint_is_what_is_in_it_not_where_it_lies(tmp_path, monkeypatch):
    here = make_cell(f"checkpoint={write_checkpoint(tmp_path / 'here')}")
    there = make_cell(f"checkpoint={write_checkpoint(tmp_path / 'there')}")
    assert here.cell_id == there.cell_id
    assert here.requested["checkpoint"] != there.requested["checkpoint"]
    monkeypatch.chdir(tmp_path)
    assert make_cell("checkpoint=here").cell_id == here.cell_id
    longer = write_checkpoint(tmp_path / "longer", data=b"12345678")
    other = write_checkpoint(
        tmp_path / "other", header=b'{"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    )
    ids = {make_cell(f"checkpoint={folder}").cell_id for folder in (longer, other)}
    assert len(ids | {here.cell_id, make_cell("checkpoint=dummy").cell_id}) == 4


def test_a_data_set_is_what_is_in_it_not_where_it_lies(tmp_path):
    def cell(name, text):
        (tmp_path / name).write_text(text)
        return make_cell("workload=dataset", f"workload.file={tmp_path / name}")

    one, same = cell("one.jsonl", '{"prompt_ids": [1]}\n'), cell("same.jsonl", '{"prompt_ids": [1]}\n')
    other = cell("other.jsonl", '{"prompt_ids": [2]}\n')
    assert one.cell_id == same.cell_id != other.cell_id
    assert one.requested["workload_file"] == str(tmp_path / "one.jsonl")


@pytest.mark.parametrize(
    "word",
    ["isl=7", "osl=7", "concurrency=3", "request_rate=3", "kv_dtype=fp8", "index_dtype=bf16", "dtype=float32",
     "seed=1", "model=tiny_glm", "num_prompts=9", "measure_s=1", "warmup_s=1", "burstiness=2",
     "checkpoint=dummy", "model.hf_config.index_topk=8"],
)  # fmt: skip
def test_cell_id_covers_what_is_compared(word):
    base, other = make_cell(), make_cell(word)
    assert other.cell_id != base.cell_id
    assert other.arm_id == base.arm_id


@pytest.mark.parametrize(
    "word", ["threads=2", "engine.kv_pages=9", "path.options.gap_ms=1", "debug.checks=true"]
)
def test_arm_id_covers_path_and_settings(word, monkeypatch):
    monkeypatch.setattr("harness.cell.usable_cores", lambda: 2)
    base, other = make_cell(), make_cell(word)
    assert other.arm_id != base.arm_id
    assert other.cell_id == base.cell_id


def test_path_and_revision_belong_to_the_arm():
    dsa, generic = make_cells("+path=dsa_mrv2,generic_mrv1")
    assert dsa.cell_id == generic.cell_id and dsa.arm_id != generic.arm_id
    assert make_cell(revision="r2").arm_id != make_cell(revision="r1").arm_id
    assert make_cell(revision="r2").cell_id == make_cell(revision="r1").cell_id


def test_timeout_changes_no_identity():
    base, other = make_cell(), make_cell("timeout_s=7", "request_timeout_s=9")
    assert (base.cell_id, base.arm_id, base.engine.identity()) == (
        other.cell_id,
        other.arm_id,
        other.engine.identity(),
    )


def test_folder_is_one_short_level_and_unique():
    """Known fault 095: model=org/name and many overrides; two cells that differ in the last one only."""
    long_name = "model.name=org/" + "very-long-name-" * 20
    words = [long_name, "isl=3", "osl=4", "seed=5", "path.options.gap_ms=1"]
    one, two = make_cell(*words, "num_prompts=1"), make_cell(*words, "num_prompts=2")
    for cell in (one, two):
        assert len(cell.folder) <= 80 and "/" not in cell.folder
        assert not set(cell.folder) & set("[]=, *?")
    assert one.folder != two.folder


def test_command_quotes_and_names_the_users_folder():
    cell = make_cell("workload.name='a b'")
    words = shlex.split(cell.command([Path("/tmp/my conf")]))
    assert words[:3] == ["python", "-m", "harness"] and words[-2:] == ["--config-dir", "/tmp/my conf"]
    assert "workload.name='a b'" in words


def test_no_path_says_which_there_are():
    with pytest.raises(UserError, match="dsa_mrv2, generic_mrv1, scripted"):
        validate_cell({"cmd": "run"}, ["dsa_mrv2", "generic_mrv1", "scripted"])


@pytest.mark.parametrize(("words", "concurrency"), [([], 1), (["request_rate=5"], None)])
def test_concurrency_follows_the_kind_of_load(words, concurrency):
    assert make_cell(*words).config.concurrency == concurrency
