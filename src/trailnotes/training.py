"""Former name of `trailnotes.runs.iteration`, which methods outside the package may import."""

import sys
import warnings

from trailnotes.runs import iteration

sys.modules["trailnotes.training.iteration"] = iteration
warnings.warn("trailnotes.training.iteration has become trailnotes.runs.iteration", FutureWarning, stacklevel=2)
