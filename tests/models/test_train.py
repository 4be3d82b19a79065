"""The trainer: the exact architecture with gradients, its stages, its state, and its export."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import re
from decimal import Decimal

import pytest
import torch
from tokenizers import Tokenizer

from paths.api import ModelSource, UserError
from paths.generic_mrv1.model import GenericModel
from paths.models.config import ModelConfig, read_hf_config
from paths.models.train import documents, schedule
from paths.models.train.attention import alignment_loss, first_positions, selection
from paths.models.train.card import WAYS, write_card
from paths.models.train.decoder import first_draft_acceptance, greedy
from paths.models.train.documents import (
    COPY_WEIGHT,
    EQUATION,
    OPERATOR_WEIGHT,
    RESULT_WEIGHT,
    Document,
    DocumentStream,
    pack,
    prompt_text,
)
from paths.models.train.equations import equation
from paths.models.train.evaluate import evaluate, result
from paths.models.train.export import load_model, save_model
from paths.models.train.model import ALIGN, OFF, SELECT, SPARSE, Side, TrainedModel
from paths.models.train.moe import balance
from paths.models.train.optimizer import Optimizer, OptimizerOptions, orthogonalised
from paths.models.train.parameters import computed, initial_parameters, shapes
from paths.models.train.problems.describe import sha256
from paths.models.train.problems.draft import LARGEST, OPERATIONS
from paths.models.train.problems.names import PEOPLE
from paths.models.train.problems.stream import TRAIN, problem
from paths.models.train.problems.stream import test_set as held_out_problems
from paths.models.train.renaming import with_invented_names
from paths.models.train.tokenizer import BOS, EOS, build_tokenizer
from paths.models.train.trainer import Settings, Trainer
from paths.models.weights import load_weights
from tests.model_driver import CPU, ModelDriver, build_model, score
from tests.oracle import SIZES, YARN, oracle_logprobs

HF = SIZES | {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "vocab_size": 2048,
    "num_hidden_layers": 3,
    "rope_parameters": YARN,
    "max_position_embeddings": 1024,
}
CONFIG = ModelConfig.from_hf(HF)
STAGES = (
    schedule.Stage(
        name="dense", until=0.25, rates=(1.0, 0.5), rows=3, length=128, shots=(0, 0), indexing=OFF
    ),
    schedule.Stage(
        name="align", until=0.5, rates=(1.0, 0.5), rows=2, length=250, shots=(0, 1), mtp=1, indexing=ALIGN
    ),
    schedule.Stage(
        name="sparse", until=0.8, rates=(1.0, 0.5), rows=2, length=250, shots=(0, 1), indexing=SPARSE
    ),
    schedule.Stage(
        name="drafts",
        until=1.0,
        rates=(1.0, 0.5),
        rows=2,
        length=250,
        shots=(0, 1),
        mtp=3,
        frozen=True,
        indexing=SPARSE,
    ),
)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def new_trainer(tokenizer, folder, *, steps: int = 8, **changes) -> Trainer:
    settings = Settings(
        steps=steps,
        dtype=torch.float32,
        compiled=False,
        max_length=1024,
        evaluate_every=4,
        evaluate_problems=2,
        **changes,
    )
    return Trainer(HF, tokenizer, settings, folder)


@pytest.fixture(scope="module")
def trained(tokenizer, tmp_path_factory):
    """A small model after a few steps of every stage, exported in float32."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "STAGES", STAGES)
        patch.setattr(schedule, "WARM_UP_STEPS", 2)
        trainer = new_trainer(tokenizer, folder)
        trainer.run()
    generator = torch.Generator().manual_seed(0)
    for name, values in trainer.parameters.items():
        if "norm" in name or name.endswith("e_score_correction_bias"):
            values += 0.2 * torch.randn(values.shape, generator=generator)  # 8 steps leave these near 1 and 0
    save_model(folder, HF, trainer.parameters, dtype=torch.float32)
    return trainer


@pytest.fixture(scope="module")
def sequences(tokenizer):
    texts = [prompt_text(f"{i} and {i}?", [problem(TRAIN, seed=9, index=i)]) for i in range(2)]
    long = prompt_text("How many?", [problem(TRAIN, seed=9, index=i) for i in range(3)])
    return [tokenizer.encode(text).ids for text in (*texts, long)]


def logprobs(trainer: Trainer, tokens: list[int], *, dtype=torch.float32) -> torch.Tensor:
    """Of the trainer's own forward pass, `[T, V]`."""
    rows = pack([[Document(tokens, tokens, [0.0] * len(tokens))]], len(tokens))
    p = computed(trainer.parameters, dtype)
    sight = trainer.model.sight(rows.positions, rows.document)
    with torch.no_grad():
        hidden = trainer.model.hidden(p, rows.tokens, sight, SELECT, Side())
        return trainer.model.logits(p, hidden)[0].float().log_softmax(-1)


# -- the architecture


def test_logits_are_those_of_transformers(trained, sequences):
    transformers = pytest.importorskip("transformers")
    oracle = transformers.DeepseekV32ForCausalLM.from_pretrained(
        trained.folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    assert max(map(len, sequences)) > 4 * CONFIG.index_topk
    for tokens in sequences:
        assert (logprobs(trained, tokens) - oracle_logprobs(oracle, tokens)).abs().max() < 1e-4


def test_logits_are_those_of_the_generic_model(trained, sequences):
    source = ModelSource(name="trained", hf_config={}, checkpoint=str(trained.folder))
    config = ModelConfig.from_hf(read_hf_config(trained.folder))
    weights = load_weights(source, config, dtype=torch.float32, device=CPU)
    model = build_model(GenericModel, config, weights, max_model_len=512)
    scores = score(ModelDriver(model, config, max_len=512), sequences, chunk=64)
    for tokens, theirs in zip(sequences, scores, strict=True):
        assert (logprobs(trained, tokens) - theirs).abs().max() < 1e-4


def test_selection_matters_in_this_model(trained, sequences):
    """Else the two comparisons above would not see a fault of the indexer."""
    tokens = sequences[-1]
    swapped = dataclasses.replace(CONFIG, indexer_rope_interleave=True)
    faulty = new_trainer(trained.tokenizer, trained.folder)
    faulty.parameters, faulty.model = trained.parameters, TrainedModel(swapped, max_length=1024)
    assert (logprobs(trained, tokens) - logprobs(faulty, tokens)).abs().max() > 1e-2


def test_documents_of_one_row_do_not_see_each_other(trained, sequences):
    parts = [Document(tokens, tokens, [0.0] * len(tokens)) for tokens in sequences]
    length = sum(map(len, sequences)) + 7
    rows = pack([parts, parts[::-1]], length)
    p = computed(trained.parameters, torch.float32)
    sight = trained.model.sight(rows.positions, rows.document)
    with torch.no_grad():
        hidden = trained.model.hidden(p, rows.tokens, sight, SELECT, Side())
        together = trained.model.logits(p, hidden).float().log_softmax(-1)
    start = 0
    for tokens in sequences:
        alone = logprobs(trained, tokens)
        assert (together[0, start : start + len(tokens)] - alone).abs().max() < 1e-4
        start += len(tokens)


def test_rows_past_a_chunk_are_the_same_as_without_chunks(trained, sequences, monkeypatch):
    tokens = sequences[-1]
    assert len(tokens) > 192
    chunked = logprobs(trained, tokens)
    monkeypatch.setattr("paths.models.train.model.CHUNK", 10_000)
    assert (logprobs(trained, tokens) - chunked).abs().max() < 1e-4


def test_mtp_row_sees_the_next_token_and_the_normed_state(trained, sequences):
    """The layer by hand: embedding half first, positions unshifted, one norm before the head."""
    tokens, p = sequences[0], computed(trained.parameters, torch.float32)
    model, layer = trained.model, CONFIG.num_hidden_layers
    rows = pack([[Document(tokens, tokens, [0.0] * len(tokens))]], len(tokens))
    sight = model.sight(rows.positions, rows.document)
    following = rows.tokens.roll(-1, 1)
    with torch.no_grad():
        hidden = model.hidden(p, rows.tokens, sight, SELECT, Side())
        found = model.mtp(p, hidden, following, sight, SELECT, Side())

        def norm(x, name):
            gain = p[f"model.layers.{layer}.{name}.weight"]
            return torch.nn.functional.rms_norm(x, x.shape[-1:], gain, CONFIG.rms_norm_eps)

        embedded = norm(p["model.embed_tokens.weight"][following], "enorm")
        x = torch.cat([embedded, norm(hidden, "hnorm")], -1) @ p[f"model.layers.{layer}.eh_proj.weight"].T
        x = model.layer(p, layer, x, sight, SELECT, Side())
        assert torch.allclose(found, norm(x, "shared_head.norm"), atol=1e-5)


def test_greedy_decoding_with_caches_is_one_forward_pass_a_token(trained, sequences):
    p = computed(trained.parameters, torch.float32)
    for sparse in (False, True):
        outputs = greedy(trained.model, p, sequences, max_new=9, sparse=sparse)
        for tokens, output in zip(sequences, outputs, strict=True):
            assert output
            text = list(tokens)
            for token in output:
                if sparse:
                    assert logprobs(trained, text)[-1].argmax() == token
                text.append(token)
    accepted, total = first_draft_acceptance(trained.model, p, sequences, outputs, max_new=9, sparse=True)
    own = sum(min(len(output), 8) for output in outputs)  # of a cut one nobody knows what would follow
    assert total == own and 0 <= accepted <= total


# -- learning


def test_loss_falls_and_curve_is_written(trained):
    curve = json.loads((trained.folder / "curve.json").read_text())["curve"]
    assert [point["step"] for point in curve] == [4, 8]
    assert curve[-1]["loss"] < math.log(HF["vocab_size"]) - 0.5
    assert {"mtp_loss_3", "alignment", "exact_match_5", "acceptance"} <= set(curve[-1])


def test_a_resumed_run_ends_as_one_that_was_not_interrupted(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "STAGES", STAGES)
    whole = new_trainer(tokenizer, tmp_path / "whole", steps=4)
    stages = [schedule.stage_of(step, 4) for step in range(4)]
    for stage in stages:
        whole.train_step(stage)
    first = new_trainer(tokenizer, tmp_path / "parts", steps=4)
    for stage in stages[:2]:
        first.train_step(stage)
    first.save()
    second = new_trainer(tokenizer, tmp_path / "parts", steps=4)
    second.resume()
    for stage in stages[2:]:
        second.train_step(stage)
    assert (second.step, second.tokens, second.stream.index) == (4, whole.tokens, whole.stream.index)
    for name, values in whole.parameters.items():
        assert torch.equal(values, second.parameters[name]), name


def test_resume_without_a_state_is_refused(tokenizer, tmp_path):
    with pytest.raises(UserError, match="leave out --resume"):
        new_trainer(tokenizer, tmp_path).resume()


def test_the_alignment_teaches_the_indexer_alone(tokenizer, tmp_path):
    trainer = new_trainer(tokenizer, tmp_path)
    rows = trainer.stream.rows(count=1, length=200, shots=(0, 1))
    p = computed(trainer.parameters, torch.float32)
    side = Side()
    trainer.model.hidden(p, rows.tokens, trainer.model.sight(rows.positions, rows.document), ALIGN, side)
    torch.stack(side.alignment).sum().backward()
    taught = {name for name, leaf in p.items() if leaf.grad is not None and leaf.grad.abs().max() > 0}
    assert taught == {
        name
        for name in shapes(CONFIG, mtp_layers=0)
        if ".indexer." in name and not name.endswith("k_norm.bias")
    } | {name for name in taught if name.endswith("k_norm.bias")}
    assert any(name.endswith("wq_b.weight") for name in taught)


def test_main_loss_does_not_reach_the_indexer(tokenizer, tmp_path):
    trainer = new_trainer(tokenizer, tmp_path)
    rows = trainer.stream.rows(count=1, length=200, shots=(0, 1))
    p = computed(trainer.parameters, torch.float32)
    loss, _, _ = trainer.losses(p, rows, dataclasses.replace(STAGES[1], indexing=SELECT))
    loss.backward()
    missing = {name for name, leaf in p.items() if leaf.requires_grad and leaf.grad is None}
    assert missing == {name for name in p if ".indexer." in name}


def test_drafts_change_the_mtp_layer_alone(tokenizer, tmp_path):
    trainer = new_trainer(tokenizer, tmp_path)
    before = {name: values.clone() for name, values in trainer.parameters.items()}
    found = trainer.train_step(STAGES[-1])
    changed = {name for name, values in trainer.parameters.items() if not torch.equal(values, before[name])}
    assert changed and all(name.startswith(f"{trainer.model.mtp_prefix}.") for name in changed)
    assert {"loss", "mtp_loss_1", "mtp_loss_2", "mtp_loss_3"} <= set(found)


def test_the_next_draft_starts_from_the_state_of_the_last(tokenizer, tmp_path):
    """Draft 2 of row i is what draft 1's state there and the token two behind it give."""
    trainer = new_trainer(tokenizer, tmp_path)
    rows = trainer.stream.rows(count=1, length=120, shots=(0, 0))
    p, sight = computed(trainer.parameters, torch.float32), trainer.model.sight(rows.positions, rows.document)
    stage, tokens = dataclasses.replace(STAGES[-1], mtp=2, indexing=OFF), rows.tokens
    hidden = trainer.model.hidden(p, tokens, sight, OFF, Side())
    _, second = trainer._draft_losses(p, rows, sight, hidden, stage, Side())
    state = trainer.model.mtp(p, hidden, tokens.roll(-1, 1), sight, OFF, Side())
    logits = trainer.model.logits(p, trainer.model.mtp(p, state, tokens.roll(-2, 1), sight, OFF, Side()))
    total, weight = 0.0, 0.0
    for i in range(120 - 2):
        if rows.document[0, i] == rows.document[0, i + 2]:
            each = -logits[0, i].log_softmax(-1)[rows.targets[0, i + 2]]
            total += float(each.detach()) * float(rows.weights[0, i + 2])
            weight += float(rows.weights[0, i + 2])
    assert float(second.detach()) == pytest.approx(total / weight, rel=1e-4)


def test_alignment_loss_is_zero_where_the_indexer_agrees():
    torch.manual_seed(0)
    seen = torch.ones(1, 5, 5, dtype=torch.bool).tril()
    seen[0, 2] = False  # a row of padding
    attention = torch.rand(1, 2, 5, 5).masked_fill(~seen[:, None], 0.0)
    attention = attention / attention.sum(-1, keepdim=True).clamp_min(1e-9)
    target = attention.sum(1) / 2
    scores = target.clamp_min(1e-30).log() + 3.0
    assert alignment_loss(scores, seen, attention).abs() < 1e-5
    assert alignment_loss(torch.zeros_like(scores), seen, attention) > 0.05


def test_selection_keeps_the_largest_visible_scores():
    scores = torch.tensor([[[5.0, 1.0, 4.0, -torch.inf], [-1.0, -2.0, -torch.inf, -torch.inf]]])
    assert selection(scores, 2).int().tolist() == [[[1, 0, 1, 0], [1, 1, 0, 0]]]
    assert selection(scores, 4).int().tolist() == [[[1, 1, 1, 0], [1, 1, 0, 0]]]


def test_balance_raises_what_is_idle():
    parameters = {"bias": torch.zeros(3)}
    balance(parameters, {"bias": torch.tensor([9, 0, 3])}, speed=0.5)
    assert parameters["bias"].tolist() == [-0.5, 0.5, 0.5]


def test_orthogonalised_has_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((2, 40, 24), (3, 24, 40)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)).float())
        assert values.min() > 0.6 and values.max() < 1.3


def test_optimizer_skips_a_step_that_overflowed():
    parameters = {"a.weight": torch.ones(2, 2), "norm.weight": torch.ones(2)}
    before = {name: values.clone() for name, values in parameters.items()}
    optimizer = Optimizer(OptimizerOptions())
    bad = {name: torch.full_like(values, torch.nan) for name, values in parameters.items()}
    assert math.isnan(optimizer.step(parameters, bad, scale=1.0))
    assert all(torch.equal(parameters[name], before[name]) for name in before)
    good = {name: torch.ones_like(values) for name, values in parameters.items()}
    optimizer.step(parameters, good, scale=1.0)
    assert all((parameters[name] < before[name]).all() for name in before if name != "a.weight")
    assert not torch.equal(parameters["a.weight"], before["a.weight"])


def test_indexers_move_faster_by_their_factor():
    names = ("a.self_attn.q_a_proj.weight", "a.self_attn.indexer.wk.weight")
    start = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    moved = {}
    for factor in (1.0, 3.0):
        parameters = {name: start.clone() for name in names}
        optimizer = Optimizer(OptimizerOptions(indexer_factor=factor, weight_decay=0.0))
        optimizer.step(parameters, {name: start.clone() for name in names}, scale=1.0)
        moved[factor] = [float((parameters[name] - start).norm()) for name in names]
    assert moved[3.0][0] == pytest.approx(moved[1.0][0]) and moved[3.0][1] == pytest.approx(3 * moved[1.0][1])


def test_schedule_reaches_every_stage_and_decays():
    names = [schedule.stage_of(step, 1000).name for step in range(1000)]
    assert list(dict.fromkeys(names)) == [stage.name for stage in schedule.STAGES]
    assert schedule.STAGES[-1].until == 1.0 and schedule.STAGES[-1].indexing.select
    rates = [schedule.rate(step, 10_000) for step in range(10_000)]
    assert rates[0] < 0.1 and 0.95 < max(rates) <= 1.0
    begin = 0
    for stage in schedule.STAGES:
        end = int(stage.until * 10_000) - 1
        assert (rates[max(begin, 50)], rates[end]) == pytest.approx(stage.rates, abs=0.01), stage.name
        begin = end + 2


# -- documents and tokens


def test_tokenizer_round_trips_any_text(tokenizer):
    for text in (
        "Janet’s ducks lay 16 eggs, at $2 each: 48/2 = <<48/2=24>>24\n\n#### 1,234",
        "日本語 🙂\t\r\n  x",
        "",
    ):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() <= 2048
    assert [tokenizer.token_to_id(token) for token in ("<bos>", "<eos>", "<pad>")] == [0, 1, 2]


def test_digits_are_single_and_words_are_whole(tokenizer):
    tokens = tokenizer.encode("Then she has 4170 - 62 = 4108 apples left.").tokens
    assert [token for token in tokens if any(letter.isdigit() for letter in token)] == list("4170624108")
    assert {"Ġshe", "Ġapples", "Ġleft"} <= set(tokens)
    vocabulary = tokenizer.get_vocab()
    assert not [token for token in vocabulary if sum(letter.isdigit() for letter in token) and len(token) > 1]


def test_tokenizer_is_the_same_each_time(tokenizer):
    assert build_tokenizer().to_str() == tokenizer.to_str()
    assert Tokenizer.from_str(tokenizer.to_str()).encode("apples").ids == tokenizer.encode("apples").ids


def test_documents_are_tokens_of_the_prompt_text(tokenizer):
    """Example by example gives the same ids as the whole text at once, which is what an engine is sent."""
    stream = DocumentStream(tokenizer, seed=3)
    for shots in (0, 1, 5):
        start = stream.index
        document = stream.document(max_length=2000, shots=(shots, shots))
        used = [problem(TRAIN, seed=3, index=i) for i in range(start, stream.index)]
        assert len(used) == shots + 1
        text = f"{prompt_text(used[-1].question, used[:-1])} {used[-1].answer}"
        tokens = document.tokens[1:] if document.tokens[0] == BOS else document.tokens
        assert tokens == tokenizer.encode(text).ids
        assert document.targets.count(EOS) == shots + 1 and document.targets[-1] == EOS


def test_invented_names_replace_those_of_a_problem_and_nothing_else(tokenizer):
    names = {person.name for person in PEOPLE}
    for index in range(200):
        original = problem(TRAIN, seed=3, index=index)
        changed = with_invented_names(original, random.Random(index))
        before, after = (re.findall(r"\w+|\W+", p.question + p.answer) for p in (original, changed))
        assert len(before) == len(after)
        pairs = {(a, b) for a, b in zip(before, after, strict=True) if a != b}
        assert {a for a, _ in pairs} == names & set(before)
        assert len({b for _, b in pairs}) == len(pairs) and not names & set(after)
        assert (changed.value, changed.steps) == (original.value, original.steps)
    plain, with_names = (
        DocumentStream(tokenizer, seed=3).document(max_length=400, shots=(0, 0), invented=share)
        for share in (0.0, 1.0)
    )
    assert plain.tokens != with_names.tokens


def test_targets_of_answers_count_in_full(tokenizer):
    document = DocumentStream(tokenizer, seed=3, question_weight=0.25).document(max_length=900, shots=(2, 2))
    text = [t for t, w in zip(document.targets, document.weights, strict=True) if w >= 1.0]
    shown = tokenizer.decode([EOS if t == EOS else t for t in text], skip_special_tokens=False)
    assert shown.count("<eos>") == 3 and shown.count("####") == 3 and "Question" not in shown
    assert set(document.weights) == {0.0, 0.25, 1.0, RESULT_WEIGHT, OPERATOR_WEIGHT}
    for i, target in enumerate(document.targets[:-1]):
        assert document.weights[i] == 0.0 or target in (document.tokens[i + 1], EOS)


def test_rows_are_filled_and_positions_restart(tokenizer):
    stream = DocumentStream(tokenizer, seed=4)
    rows = stream.rows(count=20, length=192, shots=(0, 1))
    assert rows.tokens.shape == (20, 192) and rows.num_tokens > 0.8 * 20 * 192
    for row in range(20):
        for number in rows.document[row].unique().tolist():
            if number:
                where = rows.document[row] == number
                assert rows.positions[row][where].tolist() == list(range(int(where.sum())))
        assert rows.weights[row][rows.document[row] == 0].sum() == 0


def test_the_pieces_of_a_name_that_came_before_count_more(tokenizer):
    document = DocumentStream(tokenizer, seed=1)._problem(
        dataclasses.replace(
            problem(TRAIN, seed=1, index=0),
            question="Brosyl has 4 pens. Then Brosyl gets 2 more than Taxee. Then she stops.",
            answer="Brosyl has 4 pens.\n#### 4",
        )
    )
    counted = [t for t, w in zip(document.targets, document.weights, strict=True) if w == COPY_WEIGHT]
    assert tokenizer.decode(counted).split() == ["Brosyl", "Brosyl"]
    assert len(document.tokens) == len(document.targets) == len(document.weights)


def test_a_drill_is_equations_whose_results_count(tokenizer, monkeypatch):
    monkeypatch.setattr(documents, "HARD_SHARE", 0.0)
    stream = DocumentStream(tokenizer, seed=1)
    document = stream.document(max_length=400, shots=(0, 0), drills=1.0)
    text = tokenizer.decode(document.tokens)
    lines = text.splitlines()
    answers = "".join(problem(TRAIN, seed=1, index=i).answer for i in range(stream.index))
    assert len(lines) >= stream.index > 1
    assert all(line.strip(" .") in answers for line in lines)
    counted = [
        target for target, weight in zip(document.targets, document.weights, strict=True) if weight == 1.0
    ]
    results = "".join(line.partition("=")[2] + "\n" for line in lines)
    assert tokenizer.decode(counted).replace(" ", "") == results.replace(" ", "")
    assert document.targets[:-1] == document.tokens[1:]
    assert len(stream.document(max_length=20, shots=(0, 0), drills=1.0).tokens) == 20


def test_hard_equations_are_right_and_written_like_those_of_answers(tokenizer, monkeypatch):
    rng = random.Random(0)
    for _ in range(500):
        text = equation(rng)
        assert EQUATION.fullmatch(text), text
        left, operator, right, _, result = text.split()
        assert OPERATIONS[operator](Decimal(left), Decimal(right)) == Decimal(result)
        assert 0 < Decimal(result) <= LARGEST
    monkeypatch.setattr(documents, "HARD_SHARE", 1.0)
    stream = DocumentStream(tokenizer, seed=1)
    lines = tokenizer.decode(stream.document(max_length=400, shots=(0, 0), drills=1.0).tokens).splitlines()
    answers = "".join(problem(TRAIN, seed=1, index=i).answer for i in range(stream.index))
    assert not all(line.strip(" .") in answers for line in lines)


def test_results_and_operators_of_an_answer_count_more(tokenizer):
    document = DocumentStream(tokenizer, seed=1).document(max_length=400, shots=(0, 0))

    def heavy(wanted):
        pairs = zip(document.targets, document.weights, strict=True)
        return tokenizer.decode([target for target, weight in pairs if weight == wanted]).replace(" ", "")

    steps = problem(TRAIN, seed=1, index=0).steps
    assert heavy(RESULT_WEIGHT) == "".join(str(step.result) for step in steps)
    assert heavy(OPERATOR_WEIGHT) == "".join(step.operator for step in steps)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a 3\n#### 12.50", "12.50"),
        ("#### 7\n\nQuestion: x #### 8", "7"),
        ("nothing", None),
        ("#### -3", "-3"),
    ],
)
def test_result_of_an_answer(text, value):
    assert result(text) == value


def test_evaluation_counts_exact_matches(trained):
    p = computed(trained.parameters, torch.float32)
    score = evaluate(
        trained.model, p, trained.tokenizer, shots=1, number=3, sparse=True, mtp=True, final=True
    )
    assert score.total == len(score.answers) == 3 and 0.0 <= score.exact_match <= 1.0 and score.drafted > 0
    perfect = dataclasses.replace(score, right=3)
    assert perfect.as_point()["exact_match_1"] == 1.0


def test_a_broken_indexer_sees_the_first_visible_positions():
    scores = torch.tensor([[[-torch.inf, 5.0, 1.0, 2.0], [-torch.inf, 5.0, -torch.inf, -torch.inf]]])
    seen = [[[False, True, True, False], [False, True, False, False]]]
    assert first_positions(scores, 2).tolist() == seen


def test_the_card_holds_what_was_measured(trained, tmp_path):
    save_model(tmp_path, HF, trained.parameters, dtype=torch.bfloat16)
    trained.tokenizer.save(str(tmp_path / "tokenizer.json"))
    run = json.loads((trained.folder / "curve.json").read_text())
    text = write_card(tmp_path, run=run, number=2).read_text()
    assert (tmp_path / "README.md").read_text() == text
    rows = [line for line in text.splitlines() if line.startswith(tuple(f"| {way} |" for way in WAYS))]
    assert len(rows) == len(WAYS) and all("(0.000 – 0.658)" in row for row in rows), "Wilson of 0 in 2"
    assert sum(line.startswith(("| 4 |", "| 8 |")) for line in text.splitlines()) == 2
    assert sha256(held_out_problems()) in text and "{" not in text


# -- export


def test_export_keeps_every_tensor(trained, tmp_path):
    save_model(tmp_path, HF, trained.parameters, dtype=torch.bfloat16)
    loaded = load_model(tmp_path, CONFIG)
    assert set(loaded) == set(trained.parameters) == set(initial_parameters(CONFIG, seed=0))
    for name, values in trained.parameters.items():
        exact = values if name.endswith("e_score_correction_bias") else values.bfloat16().float()
        assert torch.equal(loaded[name], exact), name
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation["eos_token_id"] == EOS
