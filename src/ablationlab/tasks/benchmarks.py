"""Real benchmarks without the internet: the harness's stock tasks over local files.

The data are validation splits. A fixed part of each, every n-th item, is set aside for few-shot examples and never scored;
the rest is. Columns that differ from what the stock task expects are mapped. Everything else is the stock definition,
which the YAML file written here includes; further templates change the prompt alone.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablationlab.core.errors import DataError
from ablationlab.data.sources import BENCHMARK_MEMBERS, BENCHMARKS, cache_folder
from ablationlab.records.storage import content_hash, replace, sha256_file

VERSION = "2"
#: The shortest context that these prompts make sense in.
SHORTEST_CONTEXT = 512
#: The largest share of characters that a vocabulary may lack.
MOST_UNKNOWN = 0.01
#: Items set aside for examples: so many, or a tenth where that is fewer.
RESERVED = 50


@dataclass(frozen=True)
class Benchmark:
    """A stock task: its definition in the harness, how its rows are mapped, and its templates (as overrides of it)."""

    name: str
    definition: str
    meaning: str
    templates: dict[str, dict[str, Any]] = field(default_factory=lambda: {"stock": {}})
    mapped: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    split: str = "validation"


def _boolq(row: dict[str, Any]) -> dict[str, Any]:
    return {"question": row["question"], "passage": row["passage"], "label": int(row["answer"])}


def _lambada(row: dict[str, Any]) -> dict[str, Any]:
    request = row["request"]
    return {"text": request["context"] + request["continuation"]}


_HELLASWAG = {
    "stock": {},
    "goes-on": {"doc_to_text": "How does this go on?\n{{query}}"},
    "beginning": {"doc_to_text": "Beginning: {{query}}\nThe most likely ending:"},
}
_RTE = {
    "stock": {},
    "follows": {
        "doc_to_text": '{{sentence1}}\nDoes it follow that "{{sentence2}}"? Yes or no?\nAnswer:',
        "doc_to_choice": ["yes", "no"],
    },
    "claim": {
        "doc_to_text": "Text: {{sentence1}}\nClaim: {{sentence2}}\nThe text makes the claim",
        "doc_to_choice": ["true", "false"],
    },
}
_CHOICE = {"doc_to_choice": "{{[choice1, choice2]}}", "doc_to_target": "label"}
_COPA = {
    "stock": {},
    "what": {
        "doc_to_text": "{{premise}}\nWhat was the {{question}}?\nAnswer:",
        **_CHOICE,
    },
    "line": {
        "doc_to_text": "{{'Why did this happen:' if question == 'cause' else 'What did this lead to:'}} {{premise}}\nIt was:",
        **_CHOICE,
    },
}
_OPTION = {
    "doc_to_choice": "{{[option1, option2]}}",
    "doc_to_target": "{{(answer | int) - 1}}",
}
_WINOGRANDE = {
    "stock": {},
    "blank": {"doc_to_text": "{{sentence}}\nThe blank stands for", **_OPTION},
    "who": {"doc_to_text": "Fill in the blank: {{sentence}}\nAnswer:", **_OPTION},
}
CATALOGUE = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("hellaswag", "hellaswag/hellaswag.yaml", "the likely end of a short scene", _HELLASWAG),
        Benchmark("piqa", "piqa/piqa.yaml", "the sensible way to do a thing"),
        Benchmark("arc_easy", "arc/arc_easy.yaml", "easy science questions"),
        Benchmark("arc_challenge", "arc/arc_challenge.yaml", "hard science questions"),
        Benchmark("winogrande", "winogrande/default.yaml", "who or what is meant", _WINOGRANDE),
        Benchmark("copa", "super_glue/copa/default.yaml", "cause or effect", _COPA),
        Benchmark("sciq", "sciq/sciq.yaml", "science questions with a text"),
        Benchmark("openbookqa", "openbookqa/openbookqa.yaml", "elementary science"),
        Benchmark("boolq", "super_glue/boolq/default.yaml", "yes or no, from a passage", mapped=_boolq),
        Benchmark("rte", "glue/rte/default.yaml", "whether a sentence follows from another", _RTE),
        Benchmark("sst2", "glue/sst2/default.yaml", "positive or negative"),
        Benchmark(
            "lambada_openai",
            "lambada/lambada_openai.yaml",
            "the last word of a passage",
            mapped=_lambada,
            split="test",
        ),
    )
}


def check_context(name: str, context: int) -> None:
    """`DataError` if a context is too short for these prompts."""
    if context < SHORTEST_CONTEXT:
        raise DataError(
            f"benchmark {name!r} needs a context of at least {SHORTEST_CONTEXT} tokens, and these models have "
            f"{context}: most prompts would be cut, so that no score would mean what its name says. Use the task suite "
            "(tasks: suite), or train with a longer model.context"
        )


def local_files(benchmark: Benchmark, limit: int | None = None) -> tuple[Path, Path]:
    """(scored items, items set aside) as Arrow files in the cache."""
    member = BENCHMARK_MEMBERS[benchmark.name]
    folder = cache_folder() / "benchmarks" / f"{benchmark.name}-{BENCHMARKS.members[member][:12]}-{VERSION}"
    name = "scored.arrow" if limit is None else f"scored-{limit}.arrow"
    scored, reserved = folder / name, folder / "reserved.arrow"
    if not (scored.exists() and reserved.exists()):
        rows = _rows(BENCHMARKS.fetch(member))
        if benchmark.mapped is not None:
            rows = [benchmark.mapped(row) for row in rows]
        aside = set(range(0, len(rows), max(10, len(rows) // RESERVED)))
        kept = [row for number, row in enumerate(rows) if number not in aside]
        _write(reserved, [row for number, row in enumerate(rows) if number in aside])
        _write(scored, kept[:limit])
    return scored, reserved


def _rows(path: Path) -> list[dict[str, Any]]:
    if path.name.endswith(".jsonl.gz"):
        return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    import pyarrow as pa

    table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa

    table = pa.Table.from_pylist(rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    replace(path, sink.getvalue().to_pybytes())


def write_benchmark(benchmark: Benchmark, template: str, fewshot: int, limit: int | None) -> tuple[Path, str, str]:
    """The YAML file of a benchmark under one template, the task's name in it, and the hash of all that it stands for.

    It names files of this machine, so it lies beside them in the cache and not among the records.
    """
    import lm_eval

    if template not in benchmark.templates:
        known = ", ".join(benchmark.templates)
        raise DataError(f"benchmark {benchmark.name!r} has no template {template!r}; it has {known}")
    stock = Path(lm_eval.__file__).parent / "tasks" / benchmark.definition
    scored, reserved = local_files(benchmark, limit)
    name = f"ablationlab_{benchmark.name}_{template}_{fewshot}shot"
    body: dict[str, Any] = {
        "include": str(stock),
        "task": name,
        "dataset_path": "arrow",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {"validation": str(scored), "train": str(reserved)}},
        "training_split": "train",
        "validation_split": "validation",
        "test_split": "validation" if benchmark.split == "test" else None,
        "fewshot_split": "train",
        "num_fewshot": fewshot,
        **benchmark.templates[template],
    }
    parts = {path.name: sha256_file(path) for path in sorted(stock.parent.glob("*")) if path.suffix in (".yaml", ".py")}
    identity = {key: value for key, value in body.items() if key not in ("include", "dataset_kwargs")}
    digest = content_hash([VERSION, identity, parts, sha256_file(scored), sha256_file(reserved)])
    path = scored.with_name(f"{template}-{fewshot}shot-{digest[:12]}.yaml")
    replace(path, (json.dumps(body, indent=1) + "\n").encode())
    return path, name, digest
