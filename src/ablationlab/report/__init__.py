"""Records, analysis and verdict to what people read: a page, a paper, figures and tables. No torch."""
