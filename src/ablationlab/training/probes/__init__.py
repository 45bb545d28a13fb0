"""Diagnostics that watch training from inside: catalog, snapshot, records, and one file a subject."""
