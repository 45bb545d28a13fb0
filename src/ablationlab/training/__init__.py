"""The loop, stacks of runs, checkpoints."""
