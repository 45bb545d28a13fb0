"""Training, from a sealed plan to results.

`stack` trains several runs in lockstep and `loop` drives it: steps, records, checkpoints, results. `executors/` decide where
the loop runs, `distributed/` spreads one run over several processes, `probes/` look inside. `run_state` and
`checkpoints` write a run's files; `perplexity` validates; `export` writes a trained run for other tools.
"""
