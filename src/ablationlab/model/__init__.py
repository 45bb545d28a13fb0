"""The GPT for many runs at once: parameters, forward pass, kernels, optimizers."""
