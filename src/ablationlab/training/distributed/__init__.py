"""One run over several processes: who takes part, the model in pieces, checkpoints in shards."""
