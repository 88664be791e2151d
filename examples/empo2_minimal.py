"""EMPO2 with mixed groups, whole, in one file: read it top to bottom before you read the package.

    python examples/empo2_minimal.py

A model of 0.5 million parameters learns two mazes of 2,187 routes and two vaults of 3,024 ways to open them. Looking up
the rule ends the episode, so only a tip carries it to the next one. On one thread of a busy CPU the script prints

     25  won without tips 0.79, with 0.69  trained 56  loss -0.007   185 s

    unseen variations  without tips  with own tips, trial 2, 3, 4
    before                     0.00  0.64  0.91  0.97
    after                      0.93  0.56  0.54  0.54

With P_TIPS = 0, which is GRPO, no episode is won and nothing learned. Training has hurt how the model writes and uses
tips; docs/algorithms/empo2.md explains why, and what the package does about it.
"""

from __future__ import annotations

import copy
import random
import re
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy, pad
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from trailnotes.envs.waymarks import spec

MODEL = Path(spec.__file__).parents[2] / "builtin/waymarks-start"
FAMILIES = ("route", "amber"), ("route", "birch"), ("keys", "granite"), ("keys", "hazel")  # two mazes, two vaults

NUM_TASKS, GROUP_SIZE = 8, 8  # an iteration plays so many tasks, each so many times
P_TIPS = 0.25  # share of a group that acts with tips; 0 is GRPO
Q_OFF_POLICY = 2 / 3  # share of those whose tips are taken out before training
TOP_K = 4  # tips shown
ACTION_TOKENS, TIP_TOKENS = 8, 16  # sampled at most
EPOCHS, LR, GRAD_CLIP = 8, 2e-4, 1.0
CLIP_LOW, CLIP_HIGH, DUAL_CLIP = 0.2, 0.3, 10.0
KL = 0.05  # to the initial model
SEED, ITERATIONS = 0, 25
MASK_LOGPROB = -float("inf")  # off-policy tokens below it contribute nothing; the paper's mask would be -5

tokenizer = AutoTokenizer.from_pretrained(MODEL, trust_remote_code=False)
END, PAD = tokenizer.eos_token_id, tokenizer.pad_token_id
Tip = tuple[str, float]  # its text, the best score of an episode that it was written after
Memory = dict[spec.GameSpec, dict[str, tuple[float, int]]]  # task -> text -> that score, how often it was written


@dataclass
class Episode:
    """One attempt at a game. Both of its contexts, with tips and without, are rendered from these segments."""

    game: spec.GameSpec
    tips: list[Tip] = field(default_factory=list)  # shown in the first turn
    off_policy: bool = False  # train it without the tips that it acted on
    observations: list[str] = field(default_factory=list)  # T + 1
    actions: list[list[int]] = field(default_factory=list)  # T, as sampled token ids; nothing re-tokenises them

    def __post_init__(self) -> None:
        self.scene = spec.make_first_scene(self.game)
        self.observations.append(self.scene.text)

    def act(self, token_ids: list[int]) -> None:
        """Take the action that the policy sampled."""
        command = " ".join(re.findall("[a-z]+", tokenizer.decode(token_ids, skip_special_tokens=True).lower()))
        self.scene = spec.advance_scene(self.scene, command)
        self.actions.append(token_ids)
        self.observations.append(self.scene.text)

    @property
    def done(self) -> bool:
        """Tell whether the game is won, lost or out of steps."""
        return self.scene.won or self.scene.lost or len(self.actions) >= self.game.max_steps


@cache
def encode_turn(text: str) -> list[int]:
    """Encode one user turn, ready for the answer. This chat template never rewrites a turn, so turns add up."""
    turn = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)


def render(episode: Episode, tips: list[Tip], request: str | None = None) -> tuple[list[int], list[int]]:
    """Render a context: its token ids, and 1 for each token that the policy sampled.

    It ends with the last action (a training row), or with the newest observation and a `request` (a prompt).
    """
    notes = ["notes :", *(f'- " {text} " {score:g} / 1' for text, score in tips)] if tips else []
    first = "\n".join([spec.instruction_text(episode.game), *notes, episode.observations[0]])
    texts = [first, *episode.observations[1:]][: len(episode.actions) + (request is not None)]
    if request is not None:
        texts[-1] += request
    ids, sampled = [], []
    for text, action in zip_longest(texts, episode.actions, fillvalue=()):
        turn = encode_turn(text) if not ids or ids[-1] == END else [END, *encode_turn(text)]
        ids += [*turn, *action]
        sampled += [0] * len(turn) + [1] * len(action)
    return ids, sampled


@torch.no_grad()
def generate(model: nn.Module, prompts: list[list[int]], max_tokens: int, temperature: float) -> list[list[int]]:
    """Sample an answer to each prompt; the end token is part of it."""
    ids = pad_sequence([torch.tensor(prompt) for prompt in prompts], True, PAD, "left")
    attention = pad_sequence([torch.ones(len(prompt)) for prompt in prompts], True, 0, "left")
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "max_new_tokens": max_tokens}
    answers = model.generate(ids, attention_mask=attention, **sampling)[:, ids.shape[1] :].tolist()
    return [answer[: answer.index(END) + 1] if END in answer else answer for answer in answers]


def play(model: nn.Module, episodes: list[Episode], temperature: float = 1.0) -> None:
    """Play all episodes to their ends, together; each acts on the context that shows its tips."""
    while live := [episode for episode in episodes if not episode.done]:
        prompts = [render(episode, episode.tips, request="")[0] for episode in live]
        for episode, action in zip(live, generate(model, prompts, ACTION_TOKENS, temperature), strict=True):
            episode.act(action)


def write_tips(model: nn.Module, episodes: list[Episode], memory: Memory) -> None:
    """Have the policy write one tip about each episode, from its context without tips; store it with the score."""
    prompts = [render(e, [], request=f"\nscore {e.scene.won:g} / 1 . note ?")[0] for e in episodes]
    for episode, answer in zip(episodes, generate(model, prompts, TIP_TOKENS, 1.0), strict=True):
        text = " ".join(tokenizer.decode(answer, skip_special_tokens=True).replace('"', "'").split())
        if any(map(str.isalnum, text)):
            score, support = memory[episode.game].pop(text, (0.0, 0))  # re-inserted, so the newest comes last
            memory[episode.game][text] = max(score, float(episode.scene.won)), support + 1


def retrieve(memory: Memory, game: spec.GameSpec) -> list[Tip]:
    """Find the best tips of a task: by score, then support, then recency."""
    return [(text, best) for text, (best, _) in sorted(memory[game].items(), key=lambda item: item[1])[::-1][:TOP_K]]


def group_advantages(returns: list[float]) -> list[float]:
    """Compare each return with its group: (R - mean) / (std + 1e-6); a group of equal returns gets zeros."""
    groups = torch.tensor(returns, dtype=torch.float64).view(-1, GROUP_SIZE)
    return ((groups - groups.mean(1, True)) / (groups.std(1, keepdim=True) + 1e-6)).flatten().tolist()


def make_rows(episodes: list[Episode]) -> list[Tensor]:
    """Turn groups into rows: ids, mask, advantages, off_policy; [] if no advantage differs from zero."""
    rows, advantages = [], group_advantages([float(episode.scene.won) for episode in episodes])
    for episode, advantage in zip(episodes, advantages, strict=True):
        if advantage:  # on-policy with the prompt that was seen, off-policy with the tips taken out of it
            ids, sampled = render(episode, [] if episode.off_policy else episode.tips)
            rows.append((ids, sampled, [advantage], [episode.off_policy and bool(episode.tips)]))
    return [pad_sequence([torch.tensor(value) for value in column], True) for column in zip(*rows, strict=True)]


def score_tokens(model: nn.Module, ids: Tensor) -> Tensor:  # (B, T) -> (B, T)
    """Compute the log-probability of each token given those before it; padding on the right needs no mask."""
    logits = model(ids[:, :-1]).logits
    return pad(-cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none"), (1, 0))


def compute_loss(
    logprobs: Tensor, old: Tensor, initial: Tensor, mask: Tensor, advantages: Tensor, off_policy: Tensor
) -> Tensor:  # of (B, T) each, but advantages and off_policy, which are (B, 1)
    """Compute the clipped policy loss plus the KL (k3) to the initial model, as a mean over the sampled tokens."""
    logprobs, old, initial = logprobs * mask, old * mask, initial * mask
    ratio = torch.exp(logprobs - old)
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantages)
    loss = torch.where(advantages < 0, torch.minimum(loss, -DUAL_CLIP * advantages), loss)
    loss = loss + KL * (torch.exp(initial - logprobs) - (initial - logprobs) - 1)
    kept = mask.bool() & ~(off_policy & (logprobs < MASK_LOGPROB))
    return (loss * kept).sum() / kept.sum()


def update(model: nn.Module, initial: nn.Module, optimizer: optim.Optimizer, rows: list[Tensor]) -> float:
    """Take `EPOCHS` steps on one batch; returns the loss before the last of them.

    The old policy scores the rows before the first step: with tips those that keep them, without tips those that lost
    them (the paper's 4.2). So every ratio begins at 1.
    """
    ids, *rest = rows
    with torch.no_grad():
        old, start = score_tokens(model, ids), score_tokens(initial, ids)
    for _ in range(EPOCHS):
        loss = compute_loss(score_tokens(model, ids), old, start, *rest)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        optimizer.step()
    return loss.item()


def make_games(split: str, num_variations: int) -> list[spec.GameSpec]:
    """Make variations of all families; those of a family share its hidden rule, and nothing else."""
    return [
        spec.make_spec(kind, name, spec.draw_family_rule(kind, name), spec.stable_seed(0, kind, name, split, i))
        for kind, name in FAMILIES
        for i in range(num_variations)
    ]


def success_rate(episodes: list[Episode]) -> float:
    """Compute the share of episodes that end in success."""
    return sum(episode.scene.won for episode in episodes) / max(1, len(episodes))


def evaluate(model: nn.Module, games: list[spec.GameSpec], trials: int = 4) -> list[float]:
    """Measure success in each of several trials: without tips in the first, then with the model's own tips."""
    memory, success = defaultdict(dict), []
    for _ in range(trials):
        episodes = [Episode(game, retrieve(memory, game)) for game in games]
        play(model, episodes, temperature=0.4)
        write_tips(model, episodes, memory)
        success.append(success_rate(episodes))
    return success


def main() -> None:
    """Train the model, and print what it learns."""
    torch.manual_seed(SEED)
    rng, started = random.Random(SEED), time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(MODEL, trust_remote_code=False).eval()
    initial = copy.deepcopy(model)
    optimizer = optim.AdamW(model.parameters(), LR, weight_decay=0.0)
    train, test = make_games("train", 5), make_games("test", 20)
    before, memory = evaluate(model, test), defaultdict(dict)
    for iteration in range(1, ITERATIONS + 1):
        episodes = []
        for game in rng.sample(train, NUM_TASKS):  # mixed groups: some members act with tips, the others without
            tips, num_readers = retrieve(memory, game), round(P_TIPS * GROUP_SIZE)
            episodes += [Episode(game, tips, rng.random() < Q_OFF_POLICY) for _ in range(num_readers)]
            episodes += [Episode(game) for _ in range(GROUP_SIZE - num_readers)]
        play(model, episodes)
        write_tips(model, episodes, memory)
        rows = make_rows(episodes)
        loss = update(model, initial, optimizer, rows) if rows else 0.0
        plain, readers = [e for e in episodes if not e.tips], [e for e in episodes if e.tips]
        shares = f"won without tips {success_rate(plain):.2f}, with {success_rate(readers):.2f}"
        trained, seconds = len(rows[0]) if rows else 0, time.perf_counter() - started
        print(f"{iteration:3d}  {shares}  trained {trained:2d}  loss {loss:+.3f}  {seconds:4.0f} s", flush=True)
    print("\nunseen variations  without tips  with own tips, trial 2, 3, 4")
    for name, (first, *later) in (("before", before), ("after", evaluate(model, test))):
        print(f"{name:17s}  {first:12.2f}  {'  '.join(f'{share:.2f}' for share in later)}")


if __name__ == "__main__":
    main()
