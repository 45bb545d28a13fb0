"""Text, from its source to batches of tokens. No torch.

`sources` and `formats` download named texts; `documents` reads them and files of your own; `tokenizers`, `prepare` and
`prepared` turn them into tokens on disk; `duplicates` and `overlap` find text that occurs twice; `corpus` splits it into
training and held-out text; `tokens` and `batches` draw from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablationlab.core.lazy import lazy_exports

if TYPE_CHECKING:
    from ablationlab.data.batches import DataOrderHash, batch_offsets, validation_windows
    from ablationlab.data.corpus import TokenizedCorpus, load_corpus
    from ablationlab.data.documents import open_documents
    from ablationlab.data.overlap import find_overlap
    from ablationlab.data.prepared import open_prepared
    from ablationlab.data.sources import SOURCES, fetch
    from ablationlab.data.tokenizers import TOKENIZERS, Tokenizer

__getattr__ = lazy_exports(__name__)
