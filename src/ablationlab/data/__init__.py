"""Text, from its source to batches of tokens. No torch.

`sources` and `formats` download named texts; `documents` reads them and files of your own; `tokenizers`, `prepare` and
`prepared` turn them into tokens on disk; `duplicates` and `overlap` find text that occurs twice; `corpus` splits it into
training and held-out text; `tokens` and `batches` draw from it.

The names below are imported when they are first used, so that importing one module stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ablationlab.data.batches import DataOrderHash, batch_offsets, validation_windows
    from ablationlab.data.corpus import TokenizedCorpus, load_corpus
    from ablationlab.data.documents import open_documents
    from ablationlab.data.overlap import find_overlap
    from ablationlab.data.prepared import open_prepared
    from ablationlab.data.sources import SOURCES, fetch
    from ablationlab.data.tokenizers import TOKENIZERS, Tokenizer

_HOME = {
    "DataOrderHash": "batches",
    "SOURCES": "sources",
    "TOKENIZERS": "tokenizers",
    "TokenizedCorpus": "corpus",
    "Tokenizer": "tokenizers",
    "batch_offsets": "batches",
    "fetch": "sources",
    "find_overlap": "overlap",
    "load_corpus": "corpus",
    "open_documents": "documents",
    "open_prepared": "prepared",
    "validation_windows": "batches",
}
__all__ = [
    "SOURCES",
    "TOKENIZERS",
    "DataOrderHash",
    "TokenizedCorpus",
    "Tokenizer",
    "batch_offsets",
    "fetch",
    "find_overlap",
    "load_corpus",
    "open_documents",
    "open_prepared",
    "validation_windows",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"ablationlab.data.{_HOME[name]}"), name)
    raise AttributeError(f"module 'ablationlab.data' has no attribute {name!r}")
