"""Charts: each file one subject, each function from material to figures, empty where there is nothing to draw."""
