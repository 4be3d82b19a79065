"""Stop strings, and the detokenizer under them, on a byte-level tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

import paths.models
from paths.api import FinishReason
from paths.tokenizer import IncrementalDetokenizer, load_tokenizer
from tests.engine.mock import RUNNERS, finish_of, make_engine, request, run_until_idle, tokens_of

TOKENIZER = Path(paths.models.__path__[0]) / "checkpoints" / "tiny_glm" / "tokenizer.json"


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(TOKENIZER)


@pytest.mark.parametrize("text", ["", "plain", "Zürich – 12 €", "日本語", "👩‍🚀 ok", "tab\tnewline\n"])
def test_byte_tokens_round_trip_and_stream_whole_characters(tokenizer, text):
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    detokenizer = IncrementalDetokenizer(tokenizer)
    pieces = [detokenizer.append([i]) for i in ids]
    assert "".join(pieces) == detokenizer.text == text
    assert all("\ufffd" not in piece for piece in pieces)


def test_the_name_of_a_special_token_in_a_prompt_is_text(tokenizer):
    assert tokenizer.encode("<eos>") == tokenizer.encode("<") + tokenizer.encode("eos>")


def test_an_unfinished_character_appears_only_when_flushed(tokenizer):
    detokenizer = IncrementalDetokenizer(tokenizer)
    ids = tokenizer.encode("a€")
    assert detokenizer.append(ids[:3]) == ""
    assert detokenizer.flush().startswith("a")


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("output", "stop", "text", "tokens", "reason"),
    [
        ("HELLO WORLD", ("LL",), "HE", 4, FinishReason.STOP),
        ("HELLO WORLD", ("WORLD", "O"), "HELL", 5, FinishReason.STOP),
        ("HELLO WORLD", ("xyz",), "HELLO WORLD", 11, FinishReason.LENGTH),
        ("5 € each", ("€",), "5 ", 5, FinishReason.STOP),
        ("LAST", ("T",), "LAS", 4, FinishReason.STOP),
    ],
)
def test_stop_string_cuts_the_text_and_ends_the_request(
    tokenizer, runner, output, stop, text, tokens, reason
):
    engine = make_engine(runner, tokenizer=tokenizer)
    forced = tokenizer.encode(output)
    engine.add(request(1, [9, 9], max_tokens=len(forced), forced_ids=forced, stop=stop))
    events = run_until_idle(engine)[1]
    assert tokens_of(events) == forced[:tokens]
    assert finish_of(events) is reason
    assert events[-1].detail.text == text


@pytest.mark.parametrize("runner", RUNNERS)
def test_stop_string_before_min_tokens_is_passed_over(tokenizer, runner):
    engine = make_engine(runner, tokenizer=tokenizer)
    forced = tokenizer.encode("AB AB")
    engine.add(request(1, [9], max_tokens=5, min_tokens=4, forced_ids=forced, stop=("AB",)))
    events = run_until_idle(engine)[1]
    assert len(tokens_of(events)) == 5
    assert events[-1].detail.text == "AB "
