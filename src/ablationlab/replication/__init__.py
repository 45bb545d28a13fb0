"""Published figures held against ours: tables, comparison, record. No torch."""

from ablationlab.replication.compare import replicate
from ablationlab.replication.library import check_study, load_table, names, study_path, table_path
from ablationlab.replication.records import DirectionPart, FigurePart, Replication
from ablationlab.replication.schema import PublishedTable

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
