from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from ablationlab.core.errors import DataError, UnknownNameError
from ablationlab.data.sources import GPT2_BPE
from ablationlab.data.tokenizers import (
    TOKEN_CLASSES,
    TOKENIZERS,
    ByteTokenizer,
    CharTokenizer,
    token_class,
    token_classes,
)

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


GPT2_TEXTS = [
    "The   quick\tbrown fox's tail\n\n jumped over 12,345 lazy dogs -- didn't it?\n",
    "Köln, naïve, 東京, \u00a0emoji 🙂🙃 and \r\n line ends   ",
    "<|endoftext|> in a text is no end of a document",
    " = Title = \n \n body . 3 @.@ 5 %\n",
    "",
]


@pytest.fixture(scope="module")
def reference() -> Callable[..., list[int]]:
    """GPT-2's BPE from its definition (Sennrich et al. 2016; Radford et al. 2019), in plain Python."""
    merges_file, vocabulary_file = (GPT2_BPE.fetch(member) for member in GPT2_BPE.members)
    vocabulary = json.loads(vocabulary_file.read_text(encoding="utf-8"))
    pairs = [tuple(line.split()) for line in merges_file.read_text(encoding="utf-8").splitlines()[1:] if line]
    rank = {pair: number for number, pair in enumerate(pairs)}
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that are written as themselves
    letters = {byte: chr(byte) for byte in shown}
    letters |= {byte: chr(256 + n) for n, byte in enumerate(byte for byte in range(256) if byte not in letters)}
    words = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")

    def encode(text: str, merges: int = len(pairs)) -> list[int]:
        found = []
        for word in words.findall(text):
            parts = [letters[byte] for byte in word.encode()]
            while len(parts) > 1:
                best = min(pairwise(parts), key=lambda pair: rank.get(pair, len(rank)))
                if rank.get(best, len(rank)) >= merges:
                    break
                merged, place = [], 0
                while place < len(parts):
                    both = tuple(parts[place : place + 2]) == best
                    merged.append("".join(best) if both else parts[place])
                    place += 2 if both else 1
                parts = merged
            found += [vocabulary[part] for part in parts]
        return found

    return encode


@pytest.mark.parametrize("text", GPT2_TEXTS)
def test_gpt2_agrees_with_its_definition_and_gives_back_every_text(text, reference):
    tokenizer = TOKENIZERS["gpt2"].of("")
    tokens = tokenizer.encode(text)
    assert tokens.tolist() == reference(text)
    assert tokenizer.end_of_document not in tokens
    assert tokenizer.decode(tokens) == text


@pytest.mark.parametrize("text", GPT2_TEXTS)
def test_a_small_vocabulary_has_gpt2_s_first_merges(text, reference):
    tokenizer = TOKENIZERS["gpt2-4096"].of("")
    tokens = tokenizer.encode(text)
    assert tokens.tolist() == reference(text, 4096 - 257)
    assert tokenizer.end_of_document == 4095 not in tokens
    assert tokenizer.decode(tokens) == text
    assert tokenizer.decode(np.append(tokens, 4095)) == text + "<|endoftext|>"
    assert tokenizer.identity != TOKENIZERS["gpt2"].of("").identity


@pytest.mark.parametrize("name", ["gpt2", "gpt2-4096", "byte", "char"])
@pytest.mark.parametrize("text", GPT2_TEXTS[:4])
def test_byte_lengths_add_up_to_the_text_wherever_it_is_cut(name, text):
    tokenizer = TOKENIZERS[name].of(text)
    tokens, lengths = tokenizer.encode(text), tokenizer.byte_lengths
    assert len(lengths) == tokenizer.vocabulary
    assert lengths[tokens].sum() == len(text.encode())
    if tokenizer.end_of_document is not None:
        assert lengths[tokenizer.end_of_document] == 0


@given(TEXTS)
def test_bytes_are_the_bytes_of_the_text(text):
    tokenizer = TOKENIZERS["byte"].of("")
    tokens = tokenizer.encode(text)
    assert bytes(tokens.astype(np.uint8)) == text.encode()
    assert tokenizer.decode(tokens) == text
    assert tokenizer.decode(np.append(tokens, 256)) == text + "<|endoftext|>"
    assert tokenizer.vocabulary == 257


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("alphabetic", ("a", " the", "é", "'s", "3rd")),
        ("numeric", ("7", " 12", "½", "²", "3.")),
        ("punctuation", (".", "->", "\ufffd", "")),
        ("whitespace", ("\n", "  ", "\u00a0")),
    ],
)
def test_the_class_of_a_token_follows_its_characters(name, texts):
    assert [token_class(text) for text in texts] == [name] * len(texts)


def test_the_end_of_a_document_is_a_class_of_its_own():
    classes = token_classes(ByteTokenizer())
    assert TOKEN_CLASSES[classes[256]] == "end-of-document"
    assert [TOKEN_CLASSES[classes[byte]] for byte in b"a7.\n"] == ["alphabetic", "numeric", "punctuation", "whitespace"]
    assert TOKEN_CLASSES[classes[0xC3]] == "punctuation"  # half a character
