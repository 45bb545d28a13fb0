"""The text that a study trains on, as plan and runs record it: the corpus, its components, what a run was fed of each."""

from __future__ import annotations

from typing import Literal

from ablationlab.records.schema import Part


class Shared(Part):
    """What a component has in common with its mixture; documents and tokens are of its training text.

    ``leaked``: also held-out text, of any component. ``repeated``: also training text, of a smaller component. ``seen``:
    share of the words of its held-out text that are in a run of 13 which training text of any component has too;
    ``seen_without``: with the documents counted here left out of it.
    """

    leaked_exact: int
    leaked_near: int
    leaked_contained: int
    repeated_exact: int
    repeated_near: int
    tokens: int
    seen: float
    seen_without: float

    @property
    def leaked(self) -> int:
        """Documents."""
        return self.leaked_exact + self.leaked_near + self.leaked_contained

    @property
    def repeated(self) -> int:
        """Documents."""
        return self.repeated_exact + self.repeated_near


class Component(Part):
    """One prepared corpus of a mixture, or the only one. ``weight``: the probability that a sample comes from it."""

    name: str
    source: str
    weight: float
    sha256: str
    tokens_sha256: str
    documents: int
    train_documents: int
    train_tokens: int
    validation_tokens: int
    validation_bytes: int
    held_out: Literal["documents", "tokens"]  # cut between two documents, or inside one
    duplicates: float | None = None  # share of its documents removed as duplicates; None: none was looked for
    shared: Shared | None = None  # None: not looked for


class Corpus(Part):
    """The text that was used, and what it became."""

    name: str
    source: str
    sha256: str
    tokenizer: str
    vocabulary: int
    tokens_sha256: str
    train_tokens: int
    validation_tokens: int
    validation_bytes: int
    characters: str | None = None  # a character tokenizer's vocabulary, in the order of its ids
    components: tuple[Component, ...] = ()  # of prepared corpora, in the order in which their tokens stand
    overlap: Literal["remove-from-training", "keep"] | None = None  # what became of text that components share


class Fed(Part):
    """What a run was fed of one component: samples, the tokens they predict (no padding: all count), ends of documents
    among those, and its share of all samples.
    """

    name: str
    samples: int
    tokens: int
    ends_of_documents: int | None
    share: float
