"""lm-eval's view of an endpoint: generation with stop strings, log-likelihoods, BOS."""

import itertools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, processors

from harness.accuracy.child import check_sums
from harness.accuracy.model import EndpointLM, answer_text
from harness.accuracy.prompts import PromptEncoder, ids_hash, prompt_rules, takes_bos
from harness.accuracy.spec import PromptRules
from harness.client.answers import Answer, ask
from harness.client.endpoint import EngineDied
from paths.api import EventDetail, FinishReason, Request, SamplingParams, TokenLogprobs, UserError
from paths.models.byte_tokenizer import byte_tokenizer
from tests.accuracy.answering import AnsweringEndpoint
from tests.harness.cells import make_cell

BOS, EOS, OFFSET = 0, 1, 3  # bytes are 3 to 258


@pytest.fixture
def rules(tmp_path):
    file = tmp_path / "tokenizer.json"
    byte_tokenizer().save(str(file))
    return PromptRules(tokenizer=str(file), bos_id=None, prefix_id=BOS, vocab_size=259, max_length=64)


def asked(*arguments):
    return SimpleNamespace(args=arguments)


class ScoringEndpoint(AnsweringEndpoint):
    """Every token has probability 1/2 if it follows its predecessor in value, else 1/8."""

    def _events(self, request, ids, finish, detail):
        prompt = request.prompt_ids.tolist()
        scored = [None] + [self._token(*pair) for pair in itertools.pairwise(prompt)]
        detail = EventDetail(prompt_logprobs=tuple(scored))
        return super()._events(request, [prompt[-1]], FinishReason.LENGTH, detail)

    @staticmethod
    def _token(before, token):
        greedy = token == before + 1
        return TokenLogprobs(
            token_id=token,
            logprob=math.log(0.5 if greedy else 0.125),
            top_ids=np.array([before + 1], dtype=np.int32),
            top_logprobs=np.array([math.log(0.5)], dtype=np.float32),
        )


def test_generation_stops_at_the_first_stop_string_and_keeps_the_order(rules):
    endpoint = AnsweringEndpoint(rules, lambda question, _: f" {question}! STOP more END")
    model = EndpointLM(endpoint, PromptEncoder(rules), concurrency=3)
    options = {"until": ["END", "STOP"], "max_gen_toks": 40, "do_sample": False, "temperature": 0.7}
    texts = model.generate_until([asked(f"Question: {i}\nAnswer:", options) for i in range(7)])
    assert texts == [f" {i}! " for i in range(7)]
    assert endpoint.peak == 3
    params = endpoint.requests[0].params
    assert params == SamplingParams(max_tokens=40, temperature=0.0, stop=("END", "STOP"))
    assert len({request.request_id for request in endpoint.requests}) == 7


def test_a_task_that_does_not_say_gets_lm_evals_default_length(rules):
    endpoint = AnsweringEndpoint(rules, lambda question, _: "x")
    EndpointLM(endpoint, PromptEncoder(rules), concurrency=1).generate_until([asked("a", {})])
    assert endpoint.requests[0].params.max_tokens == 256


def test_sampling_is_passed_on(rules):
    endpoint = AnsweringEndpoint(rules, lambda question, _: "x")
    options = {"do_sample": True, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "until": []}
    EndpointLM(endpoint, PromptEncoder(rules), concurrency=1).generate_until([asked("a", options)])
    params = endpoint.requests[0].params
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.9, 7)


def test_loglikelihood_scores_the_continuation_alone(rules):
    model = EndpointLM(ScoringEndpoint(rules, lambda *_: "x"), PromptEncoder(rules), concurrency=2)
    results = model.loglikelihood([asked("ab", "cd"), asked("ab", "ce"), asked("zz", "abc")])
    half, eighth = math.log(0.5), math.log(0.125)
    assert [greedy for _, greedy in results] == [True, False, False]
    assert [value for value, _ in results] == pytest.approx([2 * half, half + eighth, eighth + 2 * half])


def test_a_text_without_context_stands_behind_the_prefix(rules):
    endpoint = ScoringEndpoint(rules, lambda *_: "x")
    model = EndpointLM(endpoint, PromptEncoder(rules), concurrency=1)
    ((value, _),) = model.loglikelihood([asked("", "ab")])
    assert endpoint.requests[0].prompt_ids.tolist() == [BOS, ord("a") + OFFSET, ord("b") + OFFSET]
    assert value == pytest.approx(math.log(0.125) + math.log(0.5))


@pytest.mark.parametrize("length", [0, 1, 61, 62, 63, 100, 200])
def test_rolling_scores_every_token_once(rules, length):
    endpoint = ScoringEndpoint(rules, lambda *_: "x")
    model = EndpointLM(endpoint, PromptEncoder(rules), concurrency=4)
    (value,) = model.loglikelihood_rolling([asked("a" * length)])
    assert value == pytest.approx(length * math.log(0.125))
    assert all(len(request.prompt_ids) < rules.max_length for request in endpoint.requests)


def test_an_engine_without_logprobs_is_said(rules):
    endpoint = AnsweringEndpoint(rules, lambda *_: RuntimeError("not supported"))
    model = EndpointLM(endpoint, PromptEncoder(rules), concurrency=1)
    with pytest.raises(ValueError, match="not supported"):
        model.loglikelihood([asked("a", "b")])


def test_an_answer_that_nobody_asked_for_is_the_engines_death(rules):
    class Confused(AnsweringEndpoint):
        def _events(self, request, *rest):
            return super()._events(Request(request_id=99, prompt_ids=None, params=request.params), *rest)

    request = Request(
        request_id=1, prompt_ids=np.array([5], dtype=np.int32), params=SamplingParams(max_tokens=1)
    )
    with pytest.raises(EngineDied, match="request 99, which is not running"):
        ask(Confused(rules, lambda *_: "x"), [request], concurrency=1, timeout_s=60)


def test_the_engines_own_cut_is_taken(rules):
    encoder = PromptEncoder(rules)
    ids = encoder.encode("12 Question: 5")
    assert answer_text(Answer(token_ids=ids, text="12 "), ("Question:",), encoder) == "12 "
    assert answer_text(Answer(token_ids=ids), ("Question:",), encoder) == "12 "
    assert answer_text(Answer(token_ids=ids, error="lost"), (), encoder) == ""


def test_rows_that_do_not_add_up_to_lm_evals_scores_are_an_error():
    right, wrong = ({"strict_correct": flag, "flexible_correct": True} for flag in (True, False))
    failed = {"strict_correct": None, "flexible_correct": None}
    check_sums({"strict-match": 0.25, "flexible-extract": 0.75}, [right, wrong, wrong, failed])
    with pytest.raises(ValueError, match=r"lm-eval's strict-match is 0.5, the questions add up to 0.25"):
        check_sums({"strict-match": 0.5, "flexible-extract": 0.75}, [right, wrong, wrong, failed])


# BOS


def with_bos(folder):
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", BOS)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_the_models_files_say_whether_a_prompt_begins_with_bos(tmp_path, rules):
    assert not takes_bos(tmp_path / "tokenizer.json", BOS)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True}))
    assert takes_bos(tmp_path / "tokenizer.json", BOS)
    file = with_bos(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}))
    assert not takes_bos(file, BOS)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert takes_bos(file, BOS)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        takes_bos(file, BOS)


def test_one_bos_and_never_two(tmp_path):
    file = with_bos(tmp_path)
    encoder = PromptEncoder(
        PromptRules(tokenizer=str(file), bos_id=BOS, prefix_id=BOS, vocab_size=259, max_length=64)
    )
    assert encoder.encode("a") == [BOS, ord("a") + OFFSET]
    assert encoder.encode("a", bos=False) == [ord("a") + OFFSET]
    assert encoder.encode("<bos>a")[:2] == [BOS, ord("<") + OFFSET]  # text, not the token
    encoder.tokenizer = SimpleNamespace(encode=lambda text: [BOS, 70])  # a template that emits it
    with pytest.raises(UserError, match="two BOS"):
        encoder.encode("a")


def test_a_tokenizer_of_another_model_is_refused(rules):
    small = PromptRules(tokenizer=rules.tokenizer, bos_id=None, prefix_id=0, vocab_size=50, max_length=64)
    with pytest.raises(UserError, match=r"the model knows 0\.\.49"):
        PromptEncoder(small).encode("a")


def test_the_rules_of_a_cell_come_from_its_model(tmp_path):
    rules = prompt_rules(make_cell().engine)
    assert (rules.bos_id, rules.prefix_id, rules.vocab_size, rules.max_length) == (None, BOS, 2048, 8192)
    assert Tokenizer.from_file(rules.tokenizer).get_vocab_size() <= 2048


def test_hashes_tell_prompts_apart():
    assert ids_hash([[1, 2], [3]]) != ids_hash([[1], [2, 3]]) != ids_hash([[1, 2, 3]])


def test_an_event_of_many_tokens_counts_its_drafts(rules):
    endpoint = AnsweringEndpoint(rules, lambda *_: "abcde")
    request = Request(
        request_id=1, prompt_ids=np.array([70], dtype=np.int32), params=SamplingParams(max_tokens=9)
    )
    (answer,) = ask(endpoint, [request], concurrency=1, timeout_s=60)
    assert (answer.verifications, answer.drafted, answer.accepted, answer.first_accepted) == (1, 3, 1, 1)
