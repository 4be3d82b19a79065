"""`python -m paths.models.train`, and the size of what it exports."""

from __future__ import annotations

import json

import pytest
import torch

from paths.api import ModelSource
from paths.models.config import ModelConfig, read_hf_config
from paths.models.train.__main__ import main
from paths.models.train.problems.describe import describe, json_lines
from paths.models.train.problems.stream import test_set as held_out_problems
from paths.models.train.schedule import STAGES
from paths.models.train.tokenizer import build_tokenizer
from paths.models.train.trainer import Settings, Trainer
from paths.models.weights import load_weights
from tests.model_driver import CPU
from tests.models.hf_configs import hf


def test_describe_prints_the_distribution(capsys):
    assert main(["describe"]) == 0
    assert capsys.readouterr().out == describe()


def test_problems_are_json_lines(tmp_path):
    assert main(["problems", str(tmp_path / "test.jsonl")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
    assert len(rows) == 500 and set(rows[0]) == {"question", "answer"}
    assert json_lines(held_out_problems()) == (tmp_path / "test.jsonl").read_text()


def test_run_without_a_state_to_resume_says_what_to_do(tmp_path, capsys):
    assert main(["run", str(tmp_path / "new"), "--steps", "1", "--resume"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "leave out --resume" in error


def test_a_new_run_does_not_replace_the_state_of_another(tmp_path, capsys):
    (tmp_path / "state.pt").write_bytes(b"hours of work")
    assert main(["run", str(tmp_path), "--steps", "1"]) == 2
    assert "add --resume" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]


def test_export_of_the_shipped_size(tmp_path):
    """tiny_v32 as configured: below 25 MB, loadable, with the MTP layer beside the main ones."""
    trainer = Trainer(hf("tiny_v32"), build_tokenizer(), Settings(steps=1, compiled=False), tmp_path / "run")
    trainer.save()
    trainer.tokenizer.save(str(trainer.folder / "tokenizer.json"))
    folder = tmp_path / "exported"
    assert main(["export", str(trainer.folder), str(folder)]) == 0
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert {path.name for path in folder.iterdir()} == names
    assert sum(path.stat().st_size for path in folder.iterdir()) < 25_000_000
    exported = read_hf_config(folder)
    assert exported["num_nextn_predict_layers"] == 1
    config = ModelConfig.from_hf(exported)
    assert config == ModelConfig.from_hf(hf("tiny_v32"))
    source = ModelSource(name="tiny_v32", hf_config={}, checkpoint=str(folder))
    weights = load_weights(source, config, dtype=torch.float32, device=CPU)
    embedded = trainer.parameters["model.embed_tokens.weight"].bfloat16().float()
    assert torch.equal(weights.embed_tokens, embedded)


@pytest.mark.slow
@pytest.mark.no_poison  # the compiler makes tensors of its own
@pytest.mark.parametrize("stage", [STAGES[1], STAGES[3]], ids=lambda stage: stage.name)
def test_compiled_losses_are_those_of_eager_code(stage, tmp_path):
    tokenizer = build_tokenizer()
    losses = []
    for compiled in (False, True):
        settings = Settings(steps=1, dtype=torch.float32, compiled=compiled)
        losses.append(Trainer(hf("tiny_v32"), tokenizer, settings, tmp_path).train_step(stage))
    eager, fused = losses
    assert eager.keys() == fused.keys()
    for name, value in eager.items():
        assert fused[name] == pytest.approx(value, rel=1e-3), name
