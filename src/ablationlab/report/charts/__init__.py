"""Charts: one file per subject, each function from results to figures, none where there is nothing to draw.

`Figure` is a chart with its words and its rows. `report.figures` draws all of them, section by section.
"""
