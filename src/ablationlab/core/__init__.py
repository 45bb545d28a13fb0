"""What everything else stands on: errors, registries, random streams, worker processes, number formats."""
