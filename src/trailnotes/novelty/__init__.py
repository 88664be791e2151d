"""How new a state is: the intrinsic reward of every step. The state of a step is the observation acted on, s_t.

What an estimator remembers is arrays and JSON values, so a checkpoint holds it without pickle.
"""

from trailnotes.novelty.counting import RetrievedTips, StateCounter, VisitCounter, state_hash
from trailnotes.novelty.distillation import RandomNetworkDistillation
from trailnotes.novelty.service import Novelty

__all__ = ["Novelty", "RandomNetworkDistillation", "RetrievedTips", "StateCounter", "VisitCounter", "state_hash"]
