"""What is on disk: settings, plan, runs, evaluations, analysis and verdict, and how to read and write them."""
