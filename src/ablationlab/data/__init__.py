"""Corpora (sources, checksums), tokenizers, batches."""
