"""Where runs run."""
