"""What everything else builds on. No torch.

`errors` has the exceptions that a user can meet and `problems` turns pydantic's errors into them; `registry` maps names to
things; `lazy` imports names on first use; `seeding` names random streams; `processes` is the worker pool; `format` prints
numbers.
"""
