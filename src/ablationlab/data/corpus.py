"""A corpus, tokenized and split: what batches are cut from.

Short texts are read and encoded here, whole. Prepared corpora, and mixtures of them, stay on disk: see `components.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ablationlab.core.errors import DataError
from ablationlab.data.components import Part, part_of, validation_bytes
from ablationlab.data.overlap import Side, overlap_of
from ablationlab.data.prepared import is_prepared
from ablationlab.data.sources import SOURCES, fetch
from ablationlab.data.tokenizers import END_OF_DOCUMENT, TOKENIZERS, Tokenizer
from ablationlab.data.tokens import Share, Span, Tokens, sample
from ablationlab.records.corpus import Component, Corpus
from ablationlab.records.settings import MIXTURE, DataConfig, looks_like_path
from ablationlab.records.storage import content_hash

#: Tokens of each part that are shown as text, at most, of a corpus that is not held in memory.
_READABLE = 2**20


@dataclass(frozen=True)
class TokenizedCorpus:
    """Training and validation tokens, with the record that identifies them.

    ``sources``: each file, or named text, or component, with the first training token that comes from it. ``ends``: for each
    component, where its documents end, counted from its own first token.
    """

    record: Corpus
    tokenizer: Tokenizer
    train: NDArray[np.int64] | Tokens
    validation: NDArray[np.int64]
    sources: tuple[tuple[str, int], ...] = (("text", 0),)
    ends: tuple[NDArray[np.int64], ...] = ()

    def readable(self) -> tuple[str, str]:
        """Training and validation part as text; of a prepared corpus the beginning of each, documents apart by a line; of a
        mixture the beginning of each component's.
        """
        if not isinstance(self.train, Tokens):
            return self.tokenizer.decode(self.train), self.tokenizer.decode(self.validation)
        held_out = [component.validation_tokens for component in self.record.components]
        shares = [Share(tokens / sum(held_out), tokens) for tokens in held_out]
        parts = sample(self.train, _READABLE), sample(Tokens([self.validation], shares), _READABLE)
        train, validation = (self.tokenizer.decode(part).replace(END_OF_DOCUMENT, "\n") for part in parts)
        return train, validation


def load_corpus(config: DataConfig) -> TokenizedCorpus:
    """Fetch or read, tokenize, and hold out the last share of the text."""
    if config.mixture is not None:
        return _joined(config, *mixture_parts(config))
    if is_prepared(Path(config.corpus)) or (config.corpus in SOURCES and SOURCES[config.corpus].documents is not None):
        return _joined(config, [part_of(config.corpus, 1.0, config)], ())
    text, source, sha256, parts = _read(config.corpus)
    tokenizer = TOKENIZERS[config.tokenizer].of(text)
    tokens = tokenizer.encode(text)
    cut = int(len(tokens) * (1 - config.validation))
    train, validation = tokens[:cut], tokens[cut:]
    record = Corpus(
        name=config.corpus,
        source=source,
        sha256=sha256,
        tokenizer=config.tokenizer,
        vocabulary=tokenizer.vocabulary,
        tokens_sha256=hashlib.sha256(tokens.astype("<i8").tobytes()).hexdigest(),
        train_tokens=len(train),
        validation_tokens=len(validation),
        validation_bytes=validation_bytes(tokenizer, validation),
        characters=tokenizer.characters,
    )
    sources, start = [], 0
    for (name, first), (_, end) in pairwise([*parts, ("", len(text))]):
        if start < len(train):
            sources.append((name, start))
        start += len(tokenizer.encode(text[first:end])) if len(parts) > 1 else len(tokens)
    return TokenizedCorpus(record, tokenizer, train, validation, tuple(sources))


def mixture_parts(
    config: DataConfig, *, processes: int = 1, report: Callable[[float], None] = lambda _: None
) -> tuple[list[Part], tuple[tuple[Span, ...], ...]]:
    """The components of a mixture, without the training text that must not be in it; and which text was left out of each."""
    assert config.mixture is not None
    parts = [part_of(name, weight, config) for name, weight in config.mixture.items()]
    _check_mixture(parts)
    if len(parts) < 2:
        return parts, ()
    sides = [Side(part.prepared, part.record.train_tokens) for part in parts]
    found = overlap_of(sides, processes=processes, report=report)
    parts = [
        replace(part, record=part.record.model_copy(update={"shared": shared}))
        for part, shared in zip(parts, found.components, strict=True)
    ]
    if config.overlap == "keep" or not any(found.spans):
        return parts, ()
    return [part.without(spans) for part, spans in zip(parts, found.spans, strict=True)], found.spans


def _check_mixture(parts: list[Part]) -> None:
    tokenizer = parts[0].tokenizer
    names = [part.record.name for part in parts]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"two components of the mixture are called {twice!r}; give their folders different names")
    strange = [part for part in parts if part.tokenizer.identity != tokenizer.identity]
    if strange:
        raise DataError(
            f"components {names[0]!r} and {strange[0].record.name!r} have different vocabularies, as texts of characters do; "
            "a mixture needs one vocabulary for all: data.tokenizer = 'gpt2' or 'byte'"
        )


def _joined(config: DataConfig, parts: list[Part], left_out: tuple[tuple[Span, ...], ...]) -> TokenizedCorpus:
    """Components one behind another, in the order of the study; their held-out parts likewise."""
    tokenizer, names = parts[0].tokenizer, [part.record.name for part in parts]
    total = sum(part.record.weight for part in parts)
    components = [part.record.model_copy(update={"weight": part.record.weight / total}) for part in parts]
    shares = [Share(component.weight, component.train_tokens) for component in components]
    validation = np.concatenate([part.validation for part in parts])
    single = components[0] if config.mixture is None else None
    what = [[one.weight, one.tokens_sha256, one.train_tokens] for one in components]
    record = Corpus(
        name=MIXTURE if single is None else config.corpus,
        source=" + ".join(f"{one.weight:.4g} {one.name}" for one in components) if single is None else single.source,
        sha256=content_hash([one.sha256 for one in components]) if single is None else single.sha256,
        tokenizer=config.tokenizer,
        vocabulary=tokenizer.vocabulary,
        tokens_sha256=content_hash([what, left_out] if left_out else what) if single is None else single.tokens_sha256,
        train_tokens=sum(share.tokens for share in shares),
        validation_tokens=len(validation),
        validation_bytes=validation_bytes(tokenizer, validation),
        characters=tokenizer.characters,
        components=tuple(components),
        overlap=config.overlap if len(parts) > 1 else None,
    )
    starts = np.cumsum([0, *(share.tokens for share in shares)]).tolist()
    return TokenizedCorpus(
        record,
        tokenizer,
        Tokens([piece for part in parts for piece in part.train.pieces], shares),
        validation,
        tuple(zip(names, starts, strict=False)),
        tuple(part.ends for part in parts),
    )


def check_length(corpus: Corpus, context: int) -> None:
    """Refuse a corpus whose training or validation part does not fill one context."""
    for part, tokens in (("training", corpus.train_tokens), ("validation", corpus.validation_tokens)):
        if tokens < context + 1:
            raise DataError(
                f"corpus {corpus.name!r}: its {part} part has {tokens} tokens, "
                f"but one context needs {context} + 1; use a longer text or a shorter model.context"
            )
    for component in corpus.components:
        if component.train_tokens < context + 1:
            raise DataError(
                f"component {component.name!r}: its training part has {component.train_tokens} tokens, and one context "
                f"needs {context} + 1; leave it out, or use a shorter model.context{_because(component)}"
            )


def _because(component: Component) -> str:
    gone = component.shared.tokens if component.shared is not None else 0
    return f" ({gone:,} tokens of it stand elsewhere in the mixture too)" if gone else ""


def _read(corpus: str) -> tuple[str, str, str, list[tuple[str, int]]]:
    """The text, where it is from, its hash, and its parts: each with its first character."""
    if looks_like_path(corpus):
        path = Path(corpus)
        files = _text_files(path)
        texts = [_utf8(file) for file in files]
        text = "\n".join(texts)
        origin = f"path {path}" if len(files) == 1 else f"path {path} ({len(files)} files)"
        firsts = np.cumsum([0, *(len(one) + 1 for one in texts[:-1])]).tolist()
        names = [file.name if file == path else file.relative_to(path).as_posix() for file in files]
        parts = list(zip(names, firsts, strict=True))
        return text, origin, hashlib.sha256(text.encode()).hexdigest(), parts
    source = SOURCES[corpus]
    origin = f"named source, canonical address {source.url}"
    return _utf8(fetch(source)), origin, source.sha256, [(corpus, 0)]


def _text_files(path: Path) -> list[Path]:
    if not path.exists():
        raise DataError(f"corpus {path}: no such file or folder")
    if path.is_file():
        return [path]
    files = sorted(file for file in path.rglob("*.txt") if file.is_file())
    if not files:
        raise DataError(f"corpus {path}: the folder holds no .txt file")
    return files


def _utf8(path: Path) -> str:
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise DataError(f"corpus {path}: not UTF-8 at byte {error.start}; convert it first") from error
    except OSError as error:
        raise DataError(f"corpus {path}: cannot be read ({error.strerror})") from error
    if not text:
        raise DataError(f"corpus {path}: the file is empty")
    return text
