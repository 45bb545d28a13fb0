"""report.html: one self-contained file that a double click opens, without a network.

`write_page` writes it. `asset`, `render`, `by_column` and `vega_bundle` serve the live page too.
"""
