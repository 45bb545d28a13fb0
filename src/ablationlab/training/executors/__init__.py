"""Where runs are trained. An executor is a function of a `Job` that sends `Event`s; all of them train a stack the same way.

`job` has what they share, `local` uses processes of this machine, `ray_cluster` the workers of a Ray cluster, and
`torchrun` spreads each run over processes.
"""
