"""One run over several processes, by DDP or FSDP2.

`ranks` are the processes and how they communicate, `modules` the model as torch modules that can be sharded, `stack` what the
training loop drives in every process, `shards` the checkpoints of all ranks.
"""
