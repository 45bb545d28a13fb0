"""Published figures held against ours: tables, comparison, record. No torch."""

from ablationlab.instrument.replication.compare import replicate
from ablationlab.instrument.replication.library import check_study, load_table, names, study_path, table_path
from ablationlab.instrument.replication.schema import PublishedTable
from ablationlab.records.replication import DirectionPart, FigurePart, Replication

__all__ = [
    "DirectionPart",
    "FigurePart",
    "PublishedTable",
    "Replication",
    "check_study",
    "load_table",
    "names",
    "replicate",
    "study_path",
    "table_path",
]
