"""One prepared corpus as a part of what a study trains on: found, or prepared on first use, verified, and split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ablationlab.core.errors import DataError
from ablationlab.data.inputs import input_of
from ablationlab.data.manifest import Settings
from ablationlab.data.prepare import SHARD_TOKENS, prepare
from ablationlab.data.prepared import Prepared, cached_folder, is_prepared, open_prepared
from ablationlab.data.sources import SOURCES
from ablationlab.data.tokenizers import Tokenizer
from ablationlab.data.tokens import Span, Tokens
from ablationlab.records.corpus import Component
from ablationlab.records.settings import DataConfig, looks_like_path

#: The held-out part is read over and over, so it is kept in memory, and may not be longer than this.
LONGEST_VALIDATION = 2**26


@dataclass(frozen=True)
class Part:
    """A component: its record, its training tokens on disk, its held-out tokens in memory, and the ends of its documents."""

    record: Component
    tokenizer: Tokenizer
    train: Tokens
    validation: NDArray[np.int64]
    ends: NDArray[np.int64]
    prepared: Prepared

    def without(self, spans: Sequence[Span]) -> Part:
        """The same, with these parts of its training text left out; nothing is read."""
        if not spans:
            return self
        starts, stops = np.array(spans, dtype=np.int64).T
        edges = [0, *np.stack([starts, stops], axis=1).ravel().tolist(), len(self.train)]
        kept = [self.train.part(edges[place], edges[place + 1]) for place in range(0, len(edges), 2)]
        # A document is gone if its last token is.
        before = np.searchsorted(starts, self.ends, side="left")
        gone = np.concatenate([[0], np.cumsum(stops - starts)])
        inside = self.ends <= np.concatenate([[0], stops])[before]
        ends = (self.ends - gone[before])[~inside]
        train = Tokens([piece for part in kept for piece in part.pieces])
        documents = int(np.searchsorted(ends, len(train), side="right"))
        record = self.record.model_copy(update={"train_tokens": len(train), "train_documents": documents})
        return replace(self, record=record, train=train, ends=ends)


def cache_settings(tokenizer: str) -> Settings:
    """How a named corpus is prepared for the cache."""
    return Settings(tokenizer=tokenizer, shard_tokens=SHARD_TOKENS)


def part_of(corpus: str, weight: float, config: DataConfig) -> Part:
    """A component by name or prepared folder, split as the study says."""
    found = _open(corpus, config.tokenizer)
    manifest = found.manifest
    if manifest.tokenizer.name != config.tokenizer:
        raise DataError(
            f"corpus {corpus}: it was prepared with the {manifest.tokenizer.name} tokenizer, but the study says "
            f"data.tokenizer = {config.tokenizer!r}; set it to {manifest.tokenizer.name!r}, or prepare the corpus again"
        )
    cut = found.cut(config.validation)
    held_out = manifest.tokens - cut
    if held_out > LONGEST_VALIDATION:
        raise DataError(
            f"corpus {corpus}: data.validation = {config.validation} holds out {held_out:,} tokens, and every run is "
            f"validated on all of them; at most {LONGEST_VALIDATION:,} are allowed: use "
            f"{LONGEST_VALIDATION / manifest.tokens:.2g} or less"
        )
    tokenizer = manifest.tokenizer.make()
    validation = found.tokens[cut : manifest.tokens]
    inside = int(np.searchsorted(found.ends, cut, side="right"))
    record = Component(
        name=Path(corpus).name if looks_like_path(corpus) else corpus,
        source=manifest.source,
        weight=weight,
        sha256=manifest.text_sha256,
        tokens_sha256=manifest.tokens_sha256,
        documents=manifest.documents,
        train_documents=inside,
        train_tokens=cut,
        validation_tokens=held_out,
        validation_bytes=validation_bytes(tokenizer, validation),
        held_out="documents" if inside and int(found.ends[inside - 1]) == cut else "tokens",
        duplicates=manifest.duplicates.rate if manifest.duplicates.exact or manifest.duplicates.near else None,
    )
    return Part(record, tokenizer, found.tokens.part(0, cut), validation, found.ends, found)


def validation_bytes(tokenizer: Tokenizer, validation: NDArray[np.int64]) -> int:
    """Bytes of text that are predicted: the first token of the split is only ever context, so its bytes are not."""
    return int(tokenizer.byte_lengths[validation[1:]].sum())


def _open(corpus: str, tokenizer: str) -> Prepared:
    if looks_like_path(corpus):
        path = Path(corpus)
        if not is_prepared(path):
            found = "no such folder" if not path.exists() else "no prepared corpus (it has no manifest.json)"
            raise DataError(f"corpus {path}: {found}; make one with: ablationlab data prepare INPUT --out {path}")
        return open_prepared(path)
    source, settings = SOURCES[corpus], cache_settings(tokenizer)
    folder = cached_folder(source, settings)
    if not is_prepared(folder):
        prepare(input_of(corpus), settings, folder)
    prepared = open_prepared(folder)
    if source.text_sha256 not in (None, prepared.manifest.text_sha256):
        raise DataError(f"{folder}: its documents are not those that {corpus!r} stands for; remove the folder")
    return prepared
