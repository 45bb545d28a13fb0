"""The old names of the reader, for the modules that have not been renamed yet."""

from ablationlab.records.results import Damage as Damage
from ablationlab.records.results import Results as Material
from ablationlab.records.results import Run as RunMaterial

__all__ = ["Damage", "Material", "RunMaterial"]
