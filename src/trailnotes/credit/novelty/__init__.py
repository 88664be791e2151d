"""How new a state is: the intrinsic reward of every step. The state of a step is the observation acted on, s_t.

What an estimator remembers is arrays and JSON values, so a checkpoint holds it without pickle.
"""

from trailnotes.credit.novelty.counting import RetrievedTips, StateCounter, VisitCounter, state_hash
from trailnotes.credit.novelty.distillation import RandomNetworkDistillation
from trailnotes.credit.novelty.service import Novelty

__all__ = ["Novelty", "RandomNetworkDistillation", "RetrievedTips", "StateCounter", "VisitCounter", "state_hash"]
