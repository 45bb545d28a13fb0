"""The instrument examined: replication of published results, error rates, cost on other hardware."""
