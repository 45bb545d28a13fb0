"""From a study file to a sealed plan: variants, probes, loading, checks, the plan and the ledger. No torch.

`load_study` reads and checks a study file, `make_plan` lists its runs and what each costs, `seal_plan` writes plan.lock, and
`check_ledger` shows that the runs of a comparison differ in nothing but what their variants declare. A variant is a
table of overrides: of the study file, or one that every study knows (variants.toml).
"""
