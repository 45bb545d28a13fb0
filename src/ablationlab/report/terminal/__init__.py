"""What the command line prints: tables and sentences for rich, each from a plan, results or an analysis."""
