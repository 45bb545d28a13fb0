"""The GPT, for many runs at once.

`gpt` is the one forward pass, `parts` what a block is made of, `attention` the ways to attend; `weights` and `parameters` say
what there is to train, without torch. `ops` has the memory-bound steps in plain torch and `kernels/` their twins for a GPU;
`machine` chooses the device, without torch where that is a CPU; `device` prepares it, moves numbers to it and back, and
records CUDA graphs; `dropout` and `optimizers` do what their names say.
"""
