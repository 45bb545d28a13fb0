"""Triton kernels for a CUDA stack: what torch would do in several passes over memory, in one.

Each has a plain twin in `ablationlab.model.ops`, which is what the CPU runs and what the kernels are tested against (under
Triton's interpreter on a CPU, and on a GPU). None uses atomics: the same inputs give the same bits. Shapes: R runs, N rows of
a run (batch x time), D columns; per-run vectors are views into the flat parameter buffer, so their run stride is passed in.
"""
