"""A corpus, tokenized and split into training and held-out text: what batches are drawn from.

A short text is read and tokenized here, in memory. A prepared corpus, or a mixture of them, stays on disk; a named corpus
with documents is prepared in the cache when it is first used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ablationlab.core.errors import DataError
from ablationlab.core.format import count, number
from ablationlab.core.paths import did_you_mean_beside
from ablationlab.data.documents import open_documents
from ablationlab.data.overlap import SplitCorpus, find_overlap
from ablationlab.data.prepare import SHARD_TOKENS, prepare
from ablationlab.data.prepared import Prepared, PrepareSettings, cached_folder, is_prepared, open_prepared
from ablationlab.data.sources import SOURCES, fetch
from ablationlab.data.tokenizers import END_OF_DOCUMENT, TOKENIZERS, Tokenizer
from ablationlab.data.tokens import Share, Span, Tokens, sample
from ablationlab.records.plan import Component, Corpus
from ablationlab.records.settings import MIXTURE, DataConfig, looks_like_path
from ablationlab.records.storage import content_hash

#: At most this many tokens of each part are decoded for reading, if a corpus is not in memory.
_READABLE = 2**20
#: The held-out part is read over and over, so it is kept in memory and may not be longer than this.
LONGEST_VALIDATION = 2**26
#: Files and folders in a folder of texts: looking through more takes so long that it seems to hang.
MOST_ENTRIES = 100_000


@dataclass(frozen=True)
class TokenizedCorpus:
    """Training and validation tokens, with the record that identifies them.

    ``sources``: each file, named text or component, with the first training token that comes from it. ``ends``: for each
    component, where its documents end, counted from its own first token.
    """

    record: Corpus
    tokenizer: Tokenizer
    train: NDArray[np.int64] | Tokens
    validation: NDArray[np.int64]
    sources: tuple[tuple[str, int], ...] = (("text", 0),)
    ends: tuple[NDArray[np.int64], ...] = ()

    def readable(self) -> tuple[str, str]:
        """Training and validation part as text: of a prepared corpus the beginning of each part, of a mixture the beginning
        of each component's.
        """
        if not isinstance(self.train, Tokens):
            return self.tokenizer.decode(self.train), self.tokenizer.decode(self.validation)
        held_out = [component.validation_tokens for component in self.record.components]
        shares = [Share(tokens / sum(held_out), tokens) for tokens in held_out]
        parts = sample(self.train, _READABLE), sample(Tokens([self.validation], shares), _READABLE)
        train, validation = (self.tokenizer.decode(part).replace(END_OF_DOCUMENT, "\n") for part in parts)
        return train, validation


@dataclass(frozen=True)
class TokenizedComponent:
    """One prepared corpus of a mixture, or the only one: its record, its training tokens on disk, its held-out tokens in
    memory, and where its documents end.
    """

    record: Component
    tokenizer: Tokenizer
    train: Tokens
    validation: NDArray[np.int64]
    ends: NDArray[np.int64]
    prepared: Prepared

    def without(self, spans: Sequence[Span]) -> TokenizedComponent:
        """The same component without these spans of its training text; nothing is read."""
        if not spans:
            return self
        starts, stops = np.array(spans, dtype=np.int64).T
        edges = [0, *np.stack([starts, stops], axis=1).ravel().tolist(), len(self.train)]
        kept = [self.train.part(edges[place], edges[place + 1]) for place in range(0, len(edges), 2)]
        # A document is removed if its last token is.
        before = np.searchsorted(starts, self.ends, side="left")
        removed = np.concatenate([[0], np.cumsum(stops - starts)])
        inside = self.ends <= np.concatenate([[0], stops])[before]
        ends = (self.ends - removed[before])[~inside]
        train = Tokens([piece for part in kept for piece in part.pieces])
        documents = int(np.searchsorted(ends, len(train), side="right"))
        record = self.record.model_copy(update={"train_tokens": len(train), "train_documents": documents})
        return replace(self, record=record, train=train, ends=ends)


def load_corpus(config: DataConfig) -> TokenizedCorpus:
    """Download or read the text, tokenize it, and hold out its last part."""
    if config.mixture is not None:
        return _join(config, *load_mixture(config))
    if is_prepared(Path(config.corpus)) or (config.corpus in SOURCES and SOURCES[config.corpus].documents is not None):
        return _join(config, [load_component(config.corpus, 1.0, config)], ())
    text, source, sha256, parts = _read(config.corpus)
    tokenizer = TOKENIZERS[config.tokenizer].of(text)
    # Cut between characters, so that the held-out text is the same whatever the tokenizer.
    cut = int(len(text) * (1 - config.validation))
    train, validation = tokenizer.encode(text[:cut]), tokenizer.encode(text[cut:])
    tokens = np.concatenate([train, validation])
    record = Corpus(
        name=corpus_name(config.corpus),
        source=source,
        sha256=sha256,
        tokenizer=config.tokenizer,
        vocabulary=tokenizer.vocabulary,
        tokens_sha256=hashlib.sha256(tokens.astype("<i8").tobytes()).hexdigest(),
        train_tokens=len(train),
        validation_tokens=len(validation),
        validation_bytes=_validation_bytes(tokenizer, validation),
        characters=tokenizer.characters,
    )
    sources, start = [], 0
    for (name, first), (_, end) in pairwise([*parts, ("", len(text))]):
        if start < len(train):
            sources.append((name, start))
        start += len(tokenizer.encode(text[first:end])) if len(parts) > 1 else len(tokens)
    return TokenizedCorpus(record, tokenizer, train, validation, tuple(sources))


def load_mixture(
    config: DataConfig, *, processes: int = 1, report: Callable[[float], None] = lambda _: None
) -> tuple[list[TokenizedComponent], tuple[tuple[Span, ...], ...]]:
    """The components of a mixture without the training text that overlaps, and the spans that were left out of each."""
    assert config.mixture is not None
    components = [load_component(name, weight, config) for name, weight in config.mixture.items()]
    _check_mixture(components)
    if len(components) < 2:
        return components, ()
    split = [SplitCorpus(component.prepared, component.record.train_tokens) for component in components]
    overlap = find_overlap(split, processes=processes, report=report)
    components = [
        replace(component, record=component.record.model_copy(update={"shared": shared}))
        for component, shared in zip(components, overlap.components, strict=True)
    ]
    if config.overlap == "keep" or not any(overlap.spans):
        return components, ()
    kept = [component.without(spans) for component, spans in zip(components, overlap.spans, strict=True)]
    return kept, overlap.spans


def _check_mixture(components: list[TokenizedComponent]) -> None:
    tokenizer = components[0].tokenizer
    names = [component.record.name for component in components]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"two components of the mixture are called {twice!r}; give their folders different names")
    different = [component for component in components if component.tokenizer.identity != tokenizer.identity]
    if different:
        raise DataError(
            f"components {names[0]!r} and {different[0].record.name!r} have different vocabularies, as the char tokenizer "
            "gives each text its own; a mixture needs one vocabulary: data.tokenizer = 'gpt2' or 'byte'"
        )


def _join(
    config: DataConfig, parts: list[TokenizedComponent], left_out: tuple[tuple[Span, ...], ...]
) -> TokenizedCorpus:
    """Components one after another, in the order of the study; their held-out parts likewise."""
    tokenizer, names = parts[0].tokenizer, [part.record.name for part in parts]
    total = sum(part.record.weight for part in parts)
    components = [part.record.model_copy(update={"weight": part.record.weight / total}) for part in parts]
    shares = [Share(component.weight, component.train_tokens) for component in components]
    validation = np.concatenate([part.validation for part in parts])
    if config.mixture is None:
        (single,) = components
        name, source = corpus_name(config.corpus), single.source
        sha256, tokens_sha256 = single.sha256, single.tokens_sha256
    else:
        name = MIXTURE
        source = " + ".join(f"{component.weight:.4g} {component.name}" for component in components)
        sha256 = content_hash([component.sha256 for component in components])
        identity = [[component.weight, component.tokens_sha256, component.train_tokens] for component in components]
        tokens_sha256 = content_hash([identity, left_out] if left_out else identity)
    record = Corpus(
        name=name,
        source=source,
        sha256=sha256,
        tokenizer=config.tokenizer,
        vocabulary=tokenizer.vocabulary,
        tokens_sha256=tokens_sha256,
        train_tokens=sum(share.tokens for share in shares),
        validation_tokens=len(validation),
        validation_bytes=_validation_bytes(tokenizer, validation),
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
            shared = component.shared.tokens if component.shared is not None else 0
            reason = f" ({count(shared)} of its tokens are elsewhere in the mixture too)" if shared else ""
            raise DataError(
                f"component {component.name!r}: its training part has {component.train_tokens} tokens, and one context "
                f"needs {context} + 1; leave it out, or use a shorter model.context{reason}"
            )


def cache_settings(tokenizer: str) -> PrepareSettings:
    """How a named corpus is prepared for the cache."""
    return PrepareSettings(tokenizer=tokenizer, shard_tokens=SHARD_TOKENS)


def load_component(corpus: str, weight: float, config: DataConfig) -> TokenizedComponent:
    """A component by name or prepared folder, split as the study says."""
    prepared = _open(corpus, config.tokenizer)
    manifest = prepared.manifest
    if manifest.tokenizer.name != config.tokenizer:
        raise DataError(
            f"corpus {corpus}: it was prepared with the {manifest.tokenizer.name} tokenizer, but the study says "
            f"data.tokenizer = {config.tokenizer!r}; set it to {manifest.tokenizer.name!r}, or prepare the corpus again"
        )
    cut = prepared.cut(config.validation)
    held_out = manifest.tokens - cut
    if held_out > LONGEST_VALIDATION:
        raise DataError(
            f"corpus {corpus}: data.validation = {config.validation} holds out {count(held_out)} tokens, and every run is "
            f"validated on all of them; at most {count(LONGEST_VALIDATION)} are allowed: use "
            f"{number(0.95 * LONGEST_VALIDATION / manifest.tokens, 2)} or less"  # also after rounding to two digits
        )
    tokenizer = manifest.tokenizer.make()
    validation = prepared.tokens[cut : manifest.tokens]
    inside = int(np.searchsorted(prepared.ends, cut, side="right"))
    record = Component(
        name=corpus_name(corpus),
        source=manifest.source,
        weight=weight,
        sha256=manifest.text_sha256,
        tokens_sha256=manifest.tokens_sha256,
        documents=manifest.documents,
        train_documents=inside,
        train_tokens=cut,
        validation_tokens=held_out,
        validation_bytes=_validation_bytes(tokenizer, validation),
        held_out="documents" if inside and int(prepared.ends[inside - 1]) == cut else "tokens",
        duplicates=manifest.duplicates.rate if manifest.duplicates.exact or manifest.duplicates.near else None,
    )
    return TokenizedComponent(record, tokenizer, prepared.tokens.part(0, cut), validation, prepared.ends, prepared)


def _validation_bytes(tokenizer: Tokenizer, validation: NDArray[np.int64]) -> int:
    """Bytes of text that are predicted: all but those of the first token, which is only ever context."""
    return int(tokenizer.byte_lengths[validation[1:]].sum())


def corpus_name(corpus: str) -> str:
    """What records call a corpus: of one given by path, the name of its file or folder, and nothing of where it lies."""
    return Path(corpus).name if looks_like_path(corpus) else corpus


def _open(corpus: str, tokenizer: str) -> Prepared:
    if looks_like_path(corpus):
        path = Path(corpus)
        if not is_prepared(path):
            problem = "no such folder" if not path.exists() else "not a prepared corpus (it has no manifest.json)"
            raise DataError(f"corpus {path}: {problem}; make one with: ablationlab data prepare INPUT --out {path}")
        return open_prepared(path)
    source, settings = SOURCES[corpus], cache_settings(tokenizer)
    folder = cached_folder(source, settings)
    if not is_prepared(folder):
        prepare(open_documents(corpus), settings, folder)
    prepared = open_prepared(folder)
    if source.text_sha256 not in (None, prepared.manifest.text_sha256):
        raise DataError(f"{folder}: its documents are not those that {corpus!r} stands for; remove the folder")
    return prepared


def _read(corpus: str) -> tuple[str, str, str, list[tuple[str, int]]]:
    """The text, where it is from, its hash, and its parts, each with its first character."""
    if looks_like_path(corpus):
        path = Path(corpus)
        files = _text_files(path)
        texts = [_utf8(file) for file in files]
        text = "\n".join(texts)
        origin = "a file" if path.is_file() else f"a folder of {len(files)} files"
        firsts = np.cumsum([0, *(len(part) + 1 for part in texts[:-1])]).tolist()
        names = [file.name if file == path else file.relative_to(path).as_posix() for file in files]
        parts = list(zip(names, firsts, strict=True))
        return text, origin, hashlib.sha256(text.encode()).hexdigest(), parts
    source = SOURCES[corpus]
    if source.make is not None:
        text = source.make()
        if not isinstance(text, str) or not text:
            wrong = "an empty one" if text == "" else type(text).__name__
            raise DataError(f"corpus {corpus!r} of the study's own code must return a text, not {wrong}")
        return text, "the study's own code", hashlib.sha256(text.encode()).hexdigest(), [(corpus, 0)]
    origin = f"named source, canonical address {source.url}"
    return _utf8(fetch(source)), origin, source.sha256, [(corpus, 0)]


def _text_files(path: Path) -> list[Path]:
    if not path.exists():
        raise DataError(f"corpus {path}: no such file or folder{did_you_mean_beside(path)}")
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"corpus {path}: is neither a file nor a folder")
    entries = list(islice(path.rglob("*"), MOST_ENTRIES + 1))
    if len(entries) > MOST_ENTRIES:
        raise DataError(
            f"corpus {path}: the folder holds more than {count(MOST_ENTRIES)} files and folders; name one that holds only "
            "the texts, or join them"
        )
    files = sorted(file for file in entries if file.name.endswith(".txt") and file.is_file())
    if not files:
        raise DataError(f"corpus {path}: the folder has no .txt file")
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
