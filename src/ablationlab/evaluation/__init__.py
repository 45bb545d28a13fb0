"""Scores of trained runs."""
