"""The emblem of a variant: one colour and one shape, the same in every chart of every study that has it.

Colours come in pairs, for light and for dark ground. They keep away from the two hues of answers, stand out from either
ground, and a colour-blind eye tells the first six apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ablationlab.records.verdict import Answer

#: (light, dark). The first is the baseline's: it is grey, the changes have colours.
HUES: Final = (
    ("#3d4148", "#c9ccd1"),
    ("#7a45c0", "#bb98f2"),
    ("#0a7d6f", "#4fc7b3"),
    ("#a8650a", "#e3a646"),
    ("#930f4f", "#ff5c9e"),
    ("#3f5f0e", "#b8dc4a"),
    ("#7d5442", "#cf9d86"),
    ("#2f3fa0", "#7f8dff"),
    ("#17748f", "#6fd0f5"),
    ("#b03cc0", "#f3c4f8"),
    ("#26803a", "#72d47c"),
    ("#6a1f26", "#d97777"),
    ("#857400", "#efe06a"),
    ("#6c6090", "#8f86b8"),
)
#: What surrounds a mark, as pairs too.
PAPER: Final = ("#fdfcfa", "#131518")
INK: Final = ("#1b1c1f", "#eceae5")
QUIET: Final = ("#575c64", "#b0b4bb")
#: Answers have two hues; signs tell them apart without.
BETTER: Final = ("#0a5fae", "#74b4f4")
WORSE: Final = ("#bd3a14", "#ff8d61")
HUE_OF: Final[Mapping[Answer, tuple[str, str]]] = {
    Answer.BETTER: BETTER,
    Answer.MORE_STABLE: BETTER,
    Answer.WORSE: WORSE,
    Answer.UNSTABLE: WORSE,
}

#: Marks around the origin, of about the same area. The baseline is a ring.
SHAPES: Final[Mapping[str, str]] = {
    "circle": "M-5.6 0a5.6 5.6 0 1 0 11.2 0a5.6 5.6 0 1 0 -11.2 0Z",
    "diamond": "M0-7 7 0 0 7-7 0Z",
    "square": "M-5-5H5V5H-5Z",
    "triangle": "M0-6.5 6.5 5H-6.5Z",
    "down": "M0 6.5 6.5-5H-6.5Z",
    "cross": "M-2-6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z",
    "left": "M-6.5 0 5-6.5V6.5Z",
    "right": "M6.5 0-5-6.5V6.5Z",
}
RING: Final = "ring"
_SHAPES: Final = tuple(SHAPES)

#: Variants that studies share: the hue and the shape that they always have.
KNOWN: Final[Mapping[str, tuple[int, str]]] = {
    "layernorm": (1, "circle"),
    "rmsnorm": (2, "diamond"),
    "muon": (3, "square"),
    "rotary": (4, "circle"),
    "stable-decay": (5, "diamond"),
    "relu2": (6, "triangle"),
    "swiglu": (7, "square"),
    "qk-norm": (8, "down"),
    "zero-init": (9, "circle"),
    "parallel": (10, "triangle"),
    "untied-head": (11, "cross"),
    "soft-cap": (12, "diamond"),
    "z-loss": (13, "square"),
    "rms-blocks": (2, "left"),
    "no-biases": (1, "right"),
    "layernorm-token": (7, "circle"),
    "rmsnorm-token": (10, "diamond"),
    "layernorm-nobias": (9, "triangle"),
    "rmsnorm-nogain": (8, "diamond"),
    "center-only": (6, "square"),
    "sqrt-d": (3, "triangle"),
    "sqrt-d-scale": (3, "down"),
    "gradient-shrink": (4, "cross"),
    "token-init-1": (5, "square"),
    "untied": (11, "square"),
    "gelu": (1, "square"),
    "geglu": (4, "triangle"),
}


@dataclass(frozen=True)
class Emblem:
    """*hue*: its place in `HUES`; *shape*: of `SHAPES`, or `RING`."""

    hue: int
    shape: str

    @property
    def css(self) -> str:
        """The colour on a page, whose style sheet has both themes."""
        return f"var(--h{self.hue})"

    def colour(self, *, dark: bool = False) -> str:
        return HUES[self.hue][dark]


BASELINE: Final = Emblem(0, RING)


def emblems(variants: Iterable[str], baseline: str) -> dict[str, Emblem]:
    """An emblem for each variant of a study: no two alike, no colour twice while there are others.

    What `KNOWN` does not name has the hue that follows from its name. A hue that is taken moves the later variant.
    """
    names = [name for name in dict.fromkeys(variants) if name != baseline]
    found = {baseline: BASELINE}
    for name in sorted(names, key=lambda name: name not in KNOWN):
        hue, shape = KNOWN.get(name) or _wanted(name)
        taken = {emblem.hue for emblem in found.values()}
        if len(taken) < len(HUES):
            hue = next(h for h in _from(hue) if h not in taken)
            found[name] = Emblem(hue, shape)
        else:
            other = (Emblem(h, s) for s in _turned(shape) for h in _from(hue))
            found[name] = next((emblem for emblem in other if emblem not in found.values()), Emblem(hue, shape))
    return {name: found[name] for name in dict.fromkeys((*variants, baseline))}


def _wanted(name: str) -> tuple[int, str]:
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    return 1 + number % (len(HUES) - 1), _SHAPES[number // len(HUES) % len(_SHAPES)]


def _from(hue: int) -> list[int]:
    """Every hue of a change, from this one on."""
    return [1 + (hue - 1 + step) % (len(HUES) - 1) for step in range(len(HUES) - 1)]


def _turned(shape: str) -> list[str]:
    place = _SHAPES.index(shape)
    return [*_SHAPES[place:], *_SHAPES[:place]]
