"""What the corpora of a mixture have in common, for the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from ablationlab.records.corpus import Corpus


def shared_text(corpus: Corpus) -> str:
    """A line for a mixture: what its components have in common; nothing for other texts."""
    looked = [(part, part.shared) for part in corpus.components if part.shared is not None]
    if not looked:
        return ""
    leaked, repeated, tokens = (
        sum(getattr(shared, field) for _, shared in looked) for field in ("leaked", "repeated", "tokens")
    )
    removed = corpus.overlap == "remove-from-training"
    what = f"{'left out of' if removed else 'kept in'} training" if tokens else "nothing to leave out of training"
    seen = ", ".join(
        f"{shared.seen_without if removed else shared.seen:.2%} of {part.name}'s" for part, shared in looked
    )
    return (
        f"Shared text: {leaked:,} training documents that are held out elsewhere, {repeated:,} that a smaller component "
        f"has too ({tokens:,} tokens): {what}. Held-out words seen in training, in runs of 13: {seen}.\n"
    )


def overlap_table(corpus: Corpus) -> Table:
    """Each component: its training documents that stand elsewhere too, and how much of its held-out text was seen."""
    made = Table(title=Text("Shared text"), title_justify="left", title_style="bold", box=None, pad_edge=False)
    made.add_column(Text("component"), overflow="fold")
    for column in (
        "documents",
        "leaked: exact",
        "near",
        "contained",
        "repeated: exact",
        "near",
        "tokens",
        "seen",
        "after",
    ):
        made.add_column(Text(column), justify="right")
    for part in corpus.components:
        if (shared := part.shared) is not None:
            counts = (
                part.documents,
                shared.leaked_exact,
                shared.leaked_near,
                shared.leaked_contained,
                shared.repeated_exact,
                shared.repeated_near,
                shared.tokens,
            )
            shares = (f"{shared.seen:.3%}", f"{shared.seen_without:.3%}")
            made.add_row(Text(part.name), *(Text(f"{count:,}") for count in counts), *map(Text, shares))
    return made
