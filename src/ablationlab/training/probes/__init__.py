"""Probes: diagnostics that look inside training and never change it.

`stack_probes` runs those that are due and writes what they read; `snapshot` is what a probe sees and gives back. One file per
subject: `optimizer`, `embedding`, `activations`, `gradient_bound`, `data_order`. Every probe is declared in `study.probes`.
"""
