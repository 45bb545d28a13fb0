"""Scores of trained runs."""

import os

# Clients of the data sets' hub read these when they are imported, which nothing in here is before this line.
if os.environ.get("ABLATIONLAB_OFFLINE"):
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
