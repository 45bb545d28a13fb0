"""From a study file to a sealed plan: variants, probes, loading, checks, the plan and the ledger. No torch.

`load_study` reads and checks a study file, `make_plan` lists its runs and what each costs, `seal_plan` writes plan.lock, and
`check_ledger` shows that the runs of a comparison differ in nothing but what their variants declare. A variant is a
table of overrides: of the study file, or one that every study knows (variants.toml).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablationlab.core.lazy import lazy_exports

if TYPE_CHECKING:
    from ablationlab.study.ledger import check_ledger
    from ablationlab.study.load import load_study, parse_study
    from ablationlab.study.places import default_folder
    from ablationlab.study.plan import make_plan, open_plan, plan_drift, seal_plan
    from ablationlab.study.probes import PROBES, Probe
    from ablationlab.study.variants import VARIANTS, Variant, variants_of

__getattr__ = lazy_exports(__name__)
