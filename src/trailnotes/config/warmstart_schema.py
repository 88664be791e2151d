"""Settings of start models."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from trailnotes.config.section import Section, key


class WarmstartConfig(Section):
    """A start model without any download, or plain SFT of a pretrained one."""

    demonstrations: str = key("", "JSONL of conversations for plain SFT; '' = the environment's scripted episodes")
    hidden_size: int = key(96, "width of the small model", ge=8)
    num_layers: int = key(3, "layers of the small model", ge=1)
    num_heads: int = key(4, "attention heads of the small model", ge=1)
    steps: int = key(4000, "optimiser steps", ge=1)
    save_every: int = key(500, "optimiser steps between checkpoints; 0 = only when it is asked to stop", ge=0)
    batch_size: int = key(64, "episodes in a step; optim.microbatch_tokens of them at a time", ge=1)
    lr: float = key(1e-3, "peak learning rate, with warm-up and cosine decay", gt=0)
    num_tips: int = key(4, "tips shown at most in demonstrations", ge=0)
    p_follow_tip: float = key(0.4, "share of the demonstrations that act on a right tip", ge=0, le=1)
    p_explore: float = key(
        0.5, "share of the others that explore: read the archive (waymarks), wander (scienceworld, textworld-express), "
        "or act carelessly (webshop, wikihow)", ge=0, le=1)  # fmt: skip
    sizes: float = key(0.0, "waymarks: share of the games whose number of moves or boxes is drawn too", ge=0, le=1)
    scores: float = key(1.0, "waymarks: share of the episodes whose tips show a score (memory.show_score)", ge=0, le=1)
    plans: float = key(0.0, "waymarks: share of requests and of tips that are of plans (reflexion)", ge=0, le=1)
    advice: float = key(0.0, "share of demonstrations that answer with advice (waymarks, webshop, wikihow)", ge=0, le=1)
    write: float = key(0.0, "webshop: share of demonstrations that only write about a careless episode", ge=0, le=1)
    wrong_notes: float = key(0.0, "waymarks: share of written tips that are of another rule: a bad writer", ge=0, le=1)
    variations: int = key(40, "scienceworld: training variations of each task that are recorded", ge=1)
    lossless_vocab: bool = key(
        False, "a vocabulary whose texts come out as they went in, for names of letters and digits; if not, words and "
        "digits get blanks before them, and are the same tokens wherever they stand")  # fmt: skip
    copying: bool = key(
        False, "put heads that copy into the random weights of the small model (of two layers or more): it says names "
        "that it has never seen after a tenth of the steps")  # fmt: skip
    p_full_loss: float = key(
        0.0, "share of the conversations of which every token is learned, what is shown as well: a model that begins "
        "from nothing learns to copy sooner", ge=0, le=1)  # fmt: skip
    vocab_size: int = key(1024, "size of the small model's vocabulary", ge=300)

    @model_validator(mode="after")
    def validate_shares(self) -> Self:
        """Refuse shares of the demonstrations that sum to more than 1."""
        if self.advice + self.write > 1:
            raise ValueError(
                "warmstart.advice and warmstart.write are shares of one whole: set them to 1 together at most"
            )
        return self

    @model_validator(mode="after")
    def validate_num_layers(self) -> Self:
        """Refuse copying heads without a layer below them."""
        if self.copying and self.num_layers == 1:
            raise ValueError("warmstart.copying takes two layers: set warmstart.num_layers to 2 or more")
        return self
