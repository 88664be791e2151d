"""Tips that outlive the episode, retrieved by what they are about.

Rules: `tips`, `tip_stats`, `controls`, and the contract in `base`. Store: `schema`, `scope`, `store`. Search:
`retrieval`, `index`. Share: `tipfile`, `exchange`, `mcp`, `langgraph`.
"""

from trailnotes.memory.base import Memory
from trailnotes.memory.exchange import reembed
from trailnotes.memory.retrieval import Embedder, make_config_embedder, make_embedder
from trailnotes.memory.tips import TipMemory, clean_tip, open_memory

__all__ = [
    "Embedder", "Memory", "TipMemory", "clean_tip", "make_config_embedder", "make_embedder", "open_memory", "reembed",
]  # fmt: skip
