"""From a study file to a sealed plan: variants, loading, checks, ledger, status."""
