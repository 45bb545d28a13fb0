from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablationlab.data.tokenizers import TOKENIZERS, CharTokenizer
from ablationlab.errors import DataError, UnknownNameError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)


@given(TEXTS)
def test_decoding_gives_back_every_text(text):
    tokenizer = CharTokenizer.of(text)
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert tokens.dtype == np.int64
    assert tokens.shape == (len(text),)


@given(TEXTS)
def test_ids_are_ranks_of_the_code_points(text):
    tokenizer = CharTokenizer.of(text)
    ranks = {character: rank for rank, character in enumerate(sorted(set(text)))}
    assert tokenizer.vocabulary == len(ranks)
    assert tokenizer.characters == "".join(ranks)
    assert tokenizer.encode(text).tolist() == [ranks[character] for character in text]


@given(TEXTS, st.characters(exclude_categories=["Cs"]))
def test_a_strange_character_is_named(text, character):
    tokenizer = CharTokenizer.of(text)
    if character in text:
        assert tokenizer.decode(tokenizer.encode(character)) == character
    else:
        with pytest.raises(DataError) as caught:
            tokenizer.encode(text + character + text)
        assert str(caught.value).startswith(f"character {character!r} is not in the vocabulary of")


def test_a_tokenizer_is_rebuilt_from_its_characters():
    tokenizer = CharTokenizer.of("hello, wörld 🙂")
    again = CharTokenizer(tokenizer.characters)
    assert again.encode("wörld 🙂").tolist() == tokenizer.encode("wörld 🙂").tolist()


def test_an_empty_text_is_no_tokens():
    assert CharTokenizer.of("ab").encode("").shape == (0,)
    assert CharTokenizer.of("ab").decode(np.array([], dtype=np.int64)) == ""


def test_the_registry_knows_char_and_suggests_it():
    assert TOKENIZERS["char"] is CharTokenizer
    with pytest.raises(UnknownNameError, match="did you mean 'char'"):
        TOKENIZERS["chars"]
