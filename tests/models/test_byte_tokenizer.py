"""The tokenizer of tiny_glm: 256 bytes and three special tokens."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

import paths
from paths.models.byte_tokenizer import NUM_TOKENS, SPECIAL_TOKENS, byte_tokenizer

SHIPPED = Path(paths.__file__).parent / "models" / "checkpoints" / "tiny_glm" / "tokenizer.json"


def test_shipped_file_is_what_the_generator_writes():
    shipped = Tokenizer.from_file(str(SHIPPED))
    assert shipped.to_str() == byte_tokenizer().to_str()
    assert shipped.get_vocab_size() == NUM_TOKENS == 259
    assert [shipped.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2]


@given(st.text())
def test_any_text_round_trips_byte_by_byte(text):
    tokenizer = byte_tokenizer()
    tokenizer.encode_special_tokens = True  # text that spells a special token is text
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == [byte + 3 for byte in text.encode()]
    assert tokenizer.decode(ids) == text


def test_special_tokens_are_left_out_of_text():
    tokenizer = byte_tokenizer()
    assert tokenizer.decode([0, 3 + ord("a"), 1]) == "a"
    assert tokenizer.decode([3 + ord("a"), 1], skip_special_tokens=False) == "a<eos>"
