"""What a model is asked: the task suite, benchmarks and task files, without torch and without a model."""
