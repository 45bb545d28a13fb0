"""A play that nobody wrote: speakers, lines and words from a seeded generator, the same on every machine."""

from __future__ import annotations

import numpy as np

SYLLABLES = ("ba", "den", "lo", "mir", "sa", "tor", "wen", "ki", "ru", "fal", "es", "on", "ga", "thi", "ne", "ol")
NAMES = ("ABEL", "BRUNO", "CLARA", "DORIS", "EMIL", "FELIX", "GRETA", "HUGO", "IRENE", "JONAS", "KLARA", "LUISA")


def play(size: int = 60_000, seed: int = 5) -> str:
    rng = np.random.default_rng(seed)
    vocabulary = np.array(["".join(rng.choice(SYLLABLES, size=rng.integers(1, 4))) for _ in range(260)])
    weights = 1 / np.arange(4, 4 + len(vocabulary))
    weights /= weights.sum()
    text = "\n"
    while len(text) < size:
        text += f"{NAMES[rng.integers(len(NAMES))]}:\n"
        for _ in range(rng.integers(1, 5)):
            words = list(rng.choice(vocabulary, size=rng.integers(5, 9), p=weights))
            words[int(rng.integers(1, len(words) - 1))] += str(rng.choice([",", ";"]))
            text += " ".join(words).capitalize() + str(rng.choice([".", "?", "!"])) + "\n"
        text += "\n"
    return text
