"""report.html: one self-contained file that a double click opens, without a network; and the page of `watch`."""
