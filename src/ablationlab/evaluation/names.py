"""Names that may stand for tasks, known without loading anything heavy."""

from __future__ import annotations

#: All tasks that are built from the held-out text.
SUITE_GROUP = "suite"
#: All real benchmarks that are read from local files.
BENCHMARK_GROUP = "benchmarks"
#: Before a name: the harness's own task with its own data source, which needs the internet.
STOCK = "harness:"
