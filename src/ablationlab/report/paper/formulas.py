"""The formulas of the methods, for Typst and for LaTeX."""

from __future__ import annotations

FORMULAS = {
    "layernorm": (
        '$"LN"(x) = (x - "mean"(x)) \\/ sqrt("var"(x) + epsilon) dot.o g + b$',
        r"$\mathrm{LN}(x) = (x - \mathrm{mean}(x)) / \sqrt{\mathrm{var}(x) + \epsilon} \odot g + b$",
    ),
    "rmsnorm": (
        '$"RMSNorm"(x) = x \\/ sqrt("mean"(x^2) + epsilon) dot.o g$',
        r"$\mathrm{RMSNorm}(x) = x / \sqrt{\mathrm{mean}(x^2) + \epsilon} \odot g$",
    ),
    "residual": ("$sqrt(2 L)$", r"$\sqrt{2L}$"),
    "blocks": ("$L$", "$L$"),
    "width": ("$d$", "$d$"),
    "beta": ("$beta$", r"$\beta$"),
    "epsilon": ("$epsilon$", r"$\epsilon$"),
    "d_z": ("$d_z$", "$d_z$"),
}
