"""What is on disk, typed: study, plan, runs, evaluations, analysis, verdict; how they are read and written. No torch.

`Results.open(path)` and its `Run` are the one reader of a results folder. A file is a `Record`, written whole and never
overwritten (storage.py); docs/records.md explains the folder. Nothing here consults a registry to read
results: plan.lock carries every variant's declaration and every metric's definition.
"""
