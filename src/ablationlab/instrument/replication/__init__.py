"""Published figures compared with ours: the table files, the comparison, its words. No torch."""

from ablationlab.instrument.replication.compare import replicate
from ablationlab.instrument.replication.published_table import (
    PublishedTable,
    check_study,
    load_table,
    names,
    study_path,
    table_path,
)
from ablationlab.records.replication import ReplicatedFigure, Replication
