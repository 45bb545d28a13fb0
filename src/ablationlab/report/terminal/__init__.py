"""What a terminal shows: a study and its plan, an analysis, and a study on named hardware."""
