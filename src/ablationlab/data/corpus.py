"""A corpus, tokenized and split: what batches are cut from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ablationlab.config import DataConfig
from ablationlab.data.sources import SOURCES, fetch, looks_like_path
from ablationlab.data.tokenizers import TOKENIZERS, Tokenizer
from ablationlab.errors import DataError
from ablationlab.records import Corpus


@dataclass(frozen=True)
class TokenizedCorpus:
    """Training and validation tokens, with the record that identifies them.

    ``sources``: each file, or the named text, with the first training token that comes from it.
    """

    record: Corpus
    tokenizer: Tokenizer
    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    sources: tuple[tuple[str, int], ...] = (("text", 0),)


def load_corpus(config: DataConfig) -> TokenizedCorpus:
    """Fetch or read, tokenize, and hold out the last share of the text."""
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
        # The first token of the split is only ever context, so its bytes are not predicted.
        validation_bytes=len(tokenizer.decode(validation[1:]).encode()),
        characters=tokenizer.characters,
    )
    sources, start = [], 0
    for (name, first), (_, end) in pairwise([*parts, ("", len(text))]):
        if start < len(train):
            sources.append((name, start))
        start += len(tokenizer.encode(text[first:end])) if len(parts) > 1 else len(tokens)
    return TokenizedCorpus(record, tokenizer, train, validation, tuple(sources))


def check_length(corpus: Corpus, context: int) -> None:
    """Refuse a corpus whose training or validation part does not fill one context."""
    for part, tokens in (("training", corpus.train_tokens), ("validation", corpus.validation_tokens)):
        if tokens < context + 1:
            raise DataError(
                f"corpus {corpus.name!r}: its {part} part has {tokens} tokens, "
                f"but one context needs {context} + 1; use a longer text or a shorter model.context"
            )


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
