"""A text that need not be here: enough of its record to plan, from what the study declares. Nothing is tokenized."""

from __future__ import annotations

from dataclasses import dataclass

from ablationlab.data.corpus import load_corpus
from ablationlab.data.tokenizers import TOKENIZERS
from ablationlab.records.corpus import Corpus
from ablationlab.records.settings import DataConfig, Study, steps_of

#: Vocabularies that do not depend on the text.
VOCABULARIES = {"gpt2": 50257, "byte": 257}


@dataclass(frozen=True)
class Declared:
    """A corpus as the study speaks of it, and in words where its size comes from."""

    record: Corpus
    basis: str


def declared_corpus(study: Study) -> Declared:
    """The record of the study's text.

    A character vocabulary is that of the text, so the text is read (such texts are small). Of any other the study's own
    budget is the size: as many training tokens as the longest run is fed, read once, and the held-out share beside them.
    """
    vocabulary = study.model.vocabulary or VOCABULARIES.get(study.data.tokenizer)
    TOKENIZERS[study.data.tokenizer]  # an unknown one is refused by name
    if vocabulary is None:
        found = load_corpus(study.data).record
        return Declared(found, f"{found.train_tokens:,} training tokens, counted")
    longest = max(
        steps_of(model, training) * training.batch * model.context
        for model, training in (study.in_regime(name) for name in study.regime_names())
    )
    held_out = max(int(longest * study.data.validation / (1 - study.data.validation)), study.model.context + 1)
    record = Corpus(
        name=_name(study.data),
        source="declared",
        sha256="",
        tokenizer=study.data.tokenizer,
        vocabulary=vocabulary,
        tokens_sha256="",
        train_tokens=max(longest, study.model.context + 1),
        validation_tokens=held_out,
        validation_bytes=0,
    )
    return Declared(record, f"{longest:,} training tokens assumed, one pass over the longest run; not looked at")


def _name(data: DataConfig) -> str:
    return data.corpus.rstrip("/").rpartition("/")[2] or data.corpus
