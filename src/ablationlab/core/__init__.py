"""What everything else builds on. No torch.

`errors` has the exceptions that a user can meet and `problems` turns pydantic's errors into them; `registry` maps names to
things; `lazy` imports names on first use; `seeding` names random streams; `processes` has the worker pool and threads; `code`
runs a study's own files; `energy` reads what devices report; `format` prints numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablationlab.core.lazy import lazy_exports

if TYPE_CHECKING:
    from ablationlab.core.energy import EnergyMeter
    from ablationlab.core.errors import AblationLabError
    from ablationlab.core.processes import Pool, in_threads
    from ablationlab.core.registry import Registry
    from ablationlab.core.seeding import stream

__getattr__ = lazy_exports(__name__)
