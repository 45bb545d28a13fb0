"""Attacks on the whole program, with counts: `make torture`, or `python -m benchmarks.torture.studies N`."""
