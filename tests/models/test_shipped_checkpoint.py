"""The shipped weights in transformers and in our engines: the same greedy answers, up to ties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open
from tokenizers import Tokenizer

from paths.api import EngineConfig, ModelSource, Request, SamplingParams
from paths.built_in import BuiltInPath
from paths.models.config import ModelConfig, read_hf_config
from tests.command_line import REPOSITORY
from tests.engine.mock import run_until_idle, tokens_of
from tests.models.hf_configs import hf
from tests.oracle import oracle_logprobs
from tests.shipped import FOLDER, prompts

TIE = 1e-4
PROBLEMS, SHOTS, LONGEST = 30, 5, 120
MOST_PARTINGS = 1


def test_the_configuration_of_the_model_is_that_of_its_files():
    shipped = read_hf_config(FOLDER)
    assert ModelConfig.from_hf(hf("tiny_v32")) == ModelConfig.from_hf(shipped)
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    assert tokenizer.get_vocab_size() <= shipped["vocab_size"]
    special = [tokenizer.token_to_id(name) for name in ("<bos>", "<eos>", "<pad>")]
    assert special == [shipped[f"{name}_token_id"] for name in ("bos", "eos", "pad")]


def test_it_is_small_in_bf16_and_has_its_mtp_layer():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 25e6
    with safe_open(FOLDER / "model.safetensors", "pt") as weights:
        dtypes = {name: weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    assert "model.layers.4.eh_proj.weight" in dtypes
    bias = "e_score_correction_bias"
    assert all(dtype == ("F32" if name.endswith(bias) else "BF16") for name, dtype in dtypes.items())


@pytest.fixture(scope="module")
def questions() -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in prompts(PROBLEMS, shots=SHOTS)]


@pytest.fixture(scope="module")
def oracle():
    transformers = pytest.importorskip("transformers", reason="transformers is the oracle")
    model, loaded = transformers.DeepseekV32ForCausalLM.from_pretrained(
        FOLDER, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not loaded["missing_keys"] and not loaded["mismatched_keys"]
    assert all(name.startswith("model.layers.4.") for name in loaded["unexpected_keys"]), "the MTP layer"
    return model.eval()


def answers_of(path: str, questions: list[list[int]]) -> list[list[int]]:
    """Greedy, all at once, up to the end of the text."""
    conf = yaml.safe_load((REPOSITORY / "conf" / "path" / f"{path}.yaml").read_text(encoding="utf-8"))
    engine = BuiltInPath().start(
        EngineConfig(
            path=path,
            impl=conf["impl"],
            model=ModelSource(name="tiny_v32", hf_config=read_hf_config(FOLDER), checkpoint=str(FOLDER)),
            options=conf["options"],
            dtype="float32",
            max_num_seqs=PROBLEMS,
            max_num_batched_tokens=2048,
            max_model_len=2048,
            kv_pages=600,
        )
    )
    engine.warm_up()
    for number, ids in enumerate(questions):
        engine.add(
            Request(
                request_id=number,
                prompt_ids=np.array(ids, dtype=np.int32),
                params=SamplingParams(max_tokens=LONGEST),
            )
        )
    events = run_until_idle(engine)
    return [tokens_of(events[number]) for number in range(len(questions))]


@pytest.mark.slow
@pytest.mark.no_poison
@pytest.mark.parametrize("path", ["dsa_mrv2", "generic_mrv1"])
def test_greedy_answers_are_those_of_transformers(path, questions, oracle):
    """One forward pass over prompt and answer: until the first difference both saw the same tokens."""
    assert min(map(len, questions)) > 2 * oracle.config.index_topk
    partings = []
    for number, (ids, answer) in enumerate(zip(questions, answers_of(path, questions), strict=True)):
        assert answer, f"question {number} has no answer"
        logprobs = oracle_logprobs(oracle, [*ids, *answer[:-1]])[len(ids) - 1 :]
        differs = (logprobs.argmax(-1) != torch.tensor(answer)).nonzero()
        if len(differs):
            best, second = logprobs[int(differs[0])].topk(2).values.tolist()
            partings.append((number, int(differs[0]), best - second))
    assert all(margin < TIE for _, _, margin in partings), partings
    assert len(partings) <= MOST_PARTINGS
