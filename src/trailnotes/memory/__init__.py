"""Tips that outlive the episode, retrieved by what they are about.

Rules (`tips`, `scope`, `tip_stats`, `sessions`, `controls`), store (`schema`, `store`, `owner`), search (`retrieval`,
`remote`, `index`), and share (`tipfile`, `exchange`, `merging`, `mcp`, `langgraph`); `base` is the contract.
"""

from trailnotes.memory.base import Memory
from trailnotes.memory.exchange import reembed
from trailnotes.memory.retrieval import Embedder, embedder_of, make_embedder
from trailnotes.memory.tips import TipMemory, clean_tip, open_memory, tips_of

__all__ = [
    "Embedder", "Memory", "TipMemory", "clean_tip", "embedder_of", "make_embedder", "open_memory", "reembed", "tips_of",
]  # fmt: skip
