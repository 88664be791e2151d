"""One tree of validated settings. Its defaults are the settled choices of the method; presets hold the paper's.

Each key carries its meaning and, where it has one, its source. Reading TOML and command-line overrides, and
printing the tree, is `configio.py`. Impossible combinations are refused here, before anything is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from trailnotes.config.methods import method_of, names
from trailnotes.errors import ConfigError

PAPER = "EMPO2, arXiv 2602.23008"
RELEASE = "EMPO2 release 0b40cb72"
OPENAI = "openai:"  # before a model's name, as `model.path`: the model of that name at the endpoint


def key(default: Any, doc: str, source: str = "", **limits: Any) -> Any:
    """A setting: its default, its meaning, and where the value comes from."""
    extra: dict[str, Any] | None = {"source": source} if source else None
    if callable(default):
        return Field(default_factory=default, description=doc, json_schema_extra=extra, **limits)
    return Field(default, description=doc, json_schema_extra=extra, **limits)


class Section(BaseModel):
    """Base of all sections: frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class RunConfig(Section):
    """The run as a whole."""

    name: str = key("run", "name of the run, kept with every tip that it writes")
    seed: int = key(0, "seed of every source of randomness", ge=0)
    deterministic: bool = key(True, "gather all live episodes before each batch: bit-reproducible on one machine")
    threads: int = key(1, "torch threads; 0 leaves torch's default (many threads slow a tiny model down)", ge=0)
    tensorboard: bool = key(False, "also write TensorBoard event files")


class LoraConfig(Section):
    """Low-rank adapters through peft."""

    enabled: bool = key(False, "train adapters instead of all weights")
    rank: int = key(16, "rank of the adapters", ge=1)
    alpha: float = key(32.0, "scale of the adapters is alpha / rank", gt=0)
    dropout: float = key(0.0, "dropout inside the adapters", ge=0, lt=1)
    target_modules: tuple[str, ...] | None = key(None, "module names; none means all linear layers but the head")


class ModelConfig(Section):
    """The language model that acts and learns."""

    path: str = key(
        "",
        "directory or hub name of a causal LM of transformers; openai:NAME is the model NAME of the [endpoint]; "
        "random plays without any model",
    )
    device: str = key("auto", "cpu, cuda, cuda:0, ...; auto takes a GPU where there is one")
    dtype: Literal["float32", "bfloat16"] = key("float32", "type of weights and activations")
    gradient_checkpointing: bool = key(False, "recompute activations in the backward pass: less memory, more time")
    lora: LoraConfig = key(LoraConfig, "low-rank adapters")


class EndpointConfig(Section):
    """An OpenAI-compatible server, for `model.path = "openai:NAME"`. The key comes from the environment alone."""

    base_url: str = key("https://api.openai.com/v1", "address of the API, up to and including its version")
    api_key_env: str = key("OPENAI_API_KEY", "environment variable that holds the key; local servers need none")
    concurrency: int = key(8, "requests under way at a time", ge=1)
    timeout: float = key(120.0, "seconds that one request may take", gt=0)
    max_retries: int = key(6, "tries after the first, on 429, 5xx, timeouts and broken answers", ge=0)
    context_tokens: int = key(32768, "tokens that prompt and completion may have together", ge=8)
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = key(
        "max_tokens", "what the server calls its limit; newer OpenAI models want max_completion_tokens"
    )
    send_seed: bool = key(True, "send the seed of each completion, which some servers honour")
    omit: tuple[Literal["temperature", "top_p", "stop"], ...] = key(
        (), "parameters that are not sent, for models that refuse them; answers are cut at stop strings all the same"
    )
    price_input: float = key(0.0, "price of a million prompt tokens, in your currency", ge=0)
    price_output: float = key(0.0, "price of a million completion tokens", ge=0)
    max_cost: float = key(0.0, "stop cleanly before the spending of a run passes this; 0 = no limit", ge=0)
    max_tokens_total: int = key(0, "stop cleanly before prompt and completion tokens pass this; 0 = no limit", ge=0)
    log_prompts: bool = key(False, "keep what was sent and answered in requests.jsonl of the run")


class EnvConfig(Section):
    """The environment and the processes that run it."""

    name: str = key("waymarks", "built-in name, entry point, or module:Class")
    options: dict[str, Any] = key(dict, "keyword arguments of the environment")
    num_workers: int = key(2, "worker processes; 0 runs the environments in this process", ge=0)
    max_envs: int = key(0, "environments (and so episodes) alive at a time; 0 = as many as there are episodes", ge=0)
    timeout: float = key(60.0, "seconds that one call may take before its worker is killed and replaced", gt=0)
    max_replacements: int = key(2, "how often a failed episode is tried afresh before its group is dropped", ge=0)


class RolloutConfig(Section):
    """How episodes are played."""

    num_tasks: int = key(8, "B, tasks in an iteration", ge=1)
    group_size: int = key(8, "N, trajectories of each task", PAPER, ge=1)
    max_steps: int = key(30, "steps in an episode at most", PAPER, ge=1)
    temperature: float = key(1.0, "sampling temperature while training", PAPER, gt=0)
    top_p: float = key(1.0, "nucleus; refused in training, where log-probabilities must be the sampler's", gt=0, le=1)
    top_k: int = key(0, "0 = off; refused in training", ge=0)
    style: Literal["full", "terse"] = key("full", "wording of all prompts: full for real models, terse for tiny ones")
    max_action_tokens: int = key(32, "tokens of one action", PAPER, ge=1)
    max_context_tokens: int = key(4500, "tokens of a whole episode, prompt and actions together", PAPER, ge=8)
    max_observation_tokens: int = key(1024, "longer observations are cut, and marked where", ge=4)
    stop: tuple[str, ...] = key(("\n",), "text that ends an action (besides the model's end token)")
    action_format: Literal["line", "tags"] = key(
        "line", "line: the first non-blank line is the action; tags: what stands between <action> and </action>"
    )
    show_actions: bool = key(False, "list the admissible actions in each turn, where the environment offers them")
    briefing: tuple[Literal["action_formats", "inventory", "focus"], ...] | None = key(
        None, "facts of the environment's briefing that open the first prompt; none = all in full style, [] in terse"
    )
    num_examples: int = key(0, "worked examples in the first prompt at most, of those in the briefing", ge=0)
    system_prompt: str | None = key(None, "replaces the environment-neutral instruction; '' for none")


class MemoryConfig(Section):
    """The store of tips."""

    embedder: str = key("hashing", "hashing (no dependency), minilm (extra embed), or a sentence-transformers name")
    capacity: int = key(1000, "tips per namespace; the oldest goes first", PAPER, ge=1)
    top_k: int = key(10, "tips shown at most", PAPER, ge=0)
    threshold: float = key(0.5, "cosine similarity below which a tip is no candidate; -1 = none", PAPER, ge=-1, le=1)
    query: Literal["state", "conversation"] = key(
        "state", "what is embedded: the task and newest observation, or the whole tip-free conversation (paper)"
    )
    entries: Literal["episode", "step"] = key("episode", "one entry an episode, or one for each step (release)")
    duplicates: Literal["reject", "count"] = key(
        "count", "the same text again in a namespace: reject it (paper), or count it as support and keep the best score"
    )
    order: tuple[Literal["score", "support", "recency", "similarity"], ...] = key(
        ("score", "support", "recency"), "order of the candidates; the paper has the score alone"
    )
    max_tip_tokens: int = key(64, "a shown tip is cut here", ge=4)
    max_write_tokens: int = key(128, "decoding limit when a tip is written (release: 512)", RELEASE, ge=1)
    write_temperature: float = key(1.0, "sampling temperature when a tip is written", ge=0)
    show_score: bool = key(True, "show each tip with the score of its episode")
    repeat_shown: bool = key(False, "show a tip again that an earlier turn of the episode already holds")


class AlgorithmConfig(Section):
    """Which method, and its named options."""

    name: str = key("empo2", "the method, as its page in docs/algorithms is called; or module:NAME of your own")
    normalize_std: bool = key(True, "divide group-relative advantages by the group's standard deviation")
    p_memory: float = key(0.25, "p, share of rollouts that act with tips", PAPER, ge=0, le=1)
    q_off_policy: float = key(
        2 / 3, "q, share of the rollouts with tips that are trained without them", PAPER, ge=0, le=1
    )
    mode_unit: Literal["iteration", "trajectory"] = key(
        "trajectory", "unit of the draw: the whole batch (paper), or the members of each group (mixed groups)"
    )
    draw: Literal["stratified", "independent"] = key(
        "stratified", "mixed groups: round(p N) members act with tips, or each member draws for itself"
    )
    old_logprobs: Literal["acting", "tip_free"] = key(
        "acting", "off-policy denominator: under the context acted on, or under the tip-free one", PAPER
    )
    intrinsic: Literal["none", "tips", "states", "counts", "rnd"] = key(
        "none",
        "novelty reward: 1/n with n = 1 + tips retrieved (tips, release), similar states seen (states, paper) or "
        "visits of this very state (counts); or the error of Random Network Distillation (rnd)",
    )
    beta: float = key(1.0, "weight of the novelty reward in the return", ge=0)
    novelty_threshold: float = key(
        0.9, "states: cosine similarity from which two states count as the same", ge=-1, le=1
    )
    dynamic_sampling: int = key(
        0, "rounds that replace groups of equal returns by freshly played ones; 0 = off", "DAPO, arXiv 2503.14476", ge=0
    )
    invalid_penalty: float = key(
        0.0, "taken off for each action that cannot be read or that the environment does not admit", ge=0
    )
    invalid: Literal["format", "inadmissible"] = key(
        "format", "what counts as invalid: an unreadable answer (release of GiGPO), or also an inadmissible action"
    )
    penalty_stage: Literal["before", "after"] = key(
        "before", "the penalty is part of what advantages are made of (release of GiGPO), or taken off them"
    )

    @field_validator("name")
    @classmethod
    def refuse_unknown(cls, name: str) -> str:
        """Refuse a name that no method has."""
        method_of(name)
        return name


GIGPO = "GiGPO, arXiv 2505.10978"


class GigpoConfig(Section):
    """GiGPO and HGPO: step advantages among the visits of one state in a group, besides those of whole episodes."""

    omega: float = key(1.0, "weight of the step advantages; 0 is GRPO", GIGPO, ge=0)
    gamma: float = key(0.95, "discount of the return from each step on", GIGPO, gt=0, le=1)
    norm: Literal["mean", "mean_std"] = key("mean", "take off the mean, or divide by the deviation too", GIGPO)
    statistics: Literal["trajectories", "steps"] = key(
        "trajectories", "unit of the episode statistics: one value an episode (paper), or one a step (release)"
    )
    ddof: Literal[0, 1] = key(1, "of the standard deviation: 1 in the release; HGPO's levels always have 0")
    std_floor: float = key(0.0, "no group is divided by less than this", ge=0)
    similarity: float = key(
        1.0, "observations this similar (difflib ratio) share a state; 1 = only equal ones", GIGPO, gt=0, le=1
    )
    dedup: bool = key(False, "count a state once for each episode, by its first visit, in the step statistics")
    hierarchical: bool = key(False, "HGPO: group by the last k observations, k = 1..history + 1")
    history: int = key(2, "HGPO: K, observations of context before the newest", ge=0)
    alpha: float = key(1.0, "HGPO: level k weighs (k + 1)^alpha", ge=0)
    base_group: bool = key(False, "HGPO: the episode advantage takes part as level 0")


class ReflexionConfig(Section):
    """Reflexion: plans written after failures, per task."""

    window: int = key(3, "reflections shown, the newest ones", "Reflexion, arXiv 2303.11366", ge=1)
    max_write_tokens: int = key(256, "decoding limit of a reflection", "Reflexion release 218cf0e", ge=1)
    temperature: float = key(0.0, "sampling temperature of the reflector", "Reflexion release 218cf0e", ge=0)
    max_shown_tokens: int = key(128, "a shown reflection is cut here", ge=4)
    replay_last: bool = key(False, "play solved tasks again in the last trial, so that it is one attempt at each")


REMEMBERER = "REMEMBERER, arXiv 2306.07929"


class RemembererConfig(Section):
    """REMEMBERER: a table of (task, observation, action) and its value, shown as examples with advice."""

    epochs: int = key(3, "passes over the training tasks that fill the table", "Rememberer release 552cb62", ge=0)
    num_tasks: int = key(0, "training tasks, at even distances in train.split; 0 = all (release: 10)", ge=0)
    group_size: int = key(1, "episodes of each training task in an epoch", ge=1)
    examples: int = key(2, "records shown", "Rememberer release 552cb62", ge=0)
    n_step: int = key(0, "rewards before the bootstrap; 0 = Monte Carlo, as the released launchers", REMEMBERER, ge=0)
    gamma: float = key(1.0, "discount", "Rememberer release 552cb62", gt=0, le=1)
    lr: float = key(0.0, "constant learning rate; 0 = 1/N, N the updates of the entry", REMEMBERER, ge=0, le=1)
    double_q: bool = key(False, "two tables, each bootstrapped from the other", "Rememberer release 552cb62")
    task_weight: float = key(0.5, "lambda, weight of the task in the similarity", REMEMBERER, ge=0, le=1)
    task_similarity: Literal["embedding", "words", "equal"] = key("embedding", "how two tasks are compared")
    observation_similarity: Literal["embedding", "words", "lines"] = key(
        "words",
        "how two observations are compared: embeddings, shared words, or the longest common subsequence of lines",
    )
    record_capacity: int = key(500, "records (task, observation)", "Rememberer release 552cb62", ge=1)
    action_capacity: int = key(20, "actions of a record", "Rememberer release 552cb62", ge=1)
    good: float = key(0.0, "an action is encouraged if its value is above this", ge=-1e9)
    bad: float = key(0.0, "actions up to this value are discouraged, the worst first; not above good", ge=-1e9)
    random_advice: bool = key(True, "where no action is good, encourage an untried admissible one at random")
    history: int = key(5, "last actions shown", "Rememberer release 552cb62", ge=0)
    max_write_tokens: int = key(100, "decoding limit of an answer", "Rememberer release 552cb62", ge=1)
    temperature: float = key(0.1, "sampling temperature", "Rememberer release 552cb62", ge=0)

    @model_validator(mode="after")
    def refuse_overlap(self) -> Self:
        """Refuse thresholds by which the same action would be encouraged and discouraged."""
        if self.good < self.bad:
            raise ValueError("rememberer.good must not be below rememberer.bad: an action would be both")
        return self


RETROSPEX = "Retrospex, arXiv 2505.11807"


class RetrospexConfig(Section):
    """Retrospex: an offline critic that rescores what the policy proposes."""

    data: tuple[str, ...] = key((), "run directories whose trajectories.jsonl train the critic")
    critic: str = key("", "a critic trained before, instead of data")
    reward: Literal["raw", "spread"] = key(
        "raw", "rewards as the environment gave them, or the return spread evenly over the steps (WebShop)"
    )
    failure: Literal["raw", "floor0", "last_positive"] = key(
        "raw", "a negative final score: as it is, as 0, or as the last positive one (release)"
    )
    embed_size: int = key(64, "width of the token embedding", "Retrospex release 6d169a4", ge=1)
    hidden_size: int = key(128, "width of each field's encoder", "Retrospex release 6d169a4", ge=1)
    encoder: Literal["gru", "embedding"] = key("gru", "one GRU a field (release), or memory.embedder's vectors")
    expectile: float = key(0.7, "tau of the value loss", RETROSPEX, gt=0, lt=1)
    gamma: float = key(0.99, "discount", RETROSPEX, gt=0, le=1)
    target_rate: float = key(0.005, "share of the critic that enters its target after each step", ge=0, le=1)
    lr: float = key(1e-4, "learning rate of the critic's Adam", "Retrospex release 6d169a4", gt=0)
    batch_size: int = key(128, "transitions in a step", "Retrospex release 6d169a4", ge=1)
    epochs: int = key(20, "passes over the transitions", "Retrospex release 6d169a4", ge=1)
    held_out: float = key(0.2, "share of the tasks kept apart to measure the critic", ge=0, lt=1)
    candidates: int = key(4, "k, actions that the policy proposes", "Retrospex release 6d169a4", ge=1)
    temperature: float = key(0.9, "sampling temperature of the candidates", "Retrospex release 6d169a4", gt=0)
    top_p: float = key(0.95, "nucleus of the candidates", "Retrospex release 6d169a4", gt=0, le=1)
    decay: float = key(0.97, "d: the policy weighs max(floor, d^t) at step t", RETROSPEX, gt=0, le=1)
    first_step: Literal[0, 1] = key(
        0, "t of the first action: 0, where the policy decides alone, or 1 (ALFWorld)", "Retrospex release 6d169a4"
    )
    floor: float = key(0.6, "b: the policy's least weight", RETROSPEX, ge=0, le=1)
    score_clip: float = key(0.0, "largest advantage Q - V that counts, either way; 0 = no limit", ge=0)
    heuristics: tuple[Literal["recent_actions", "focus_named"], ...] = key(
        (), "rules of the release, off by default: no action of the last three; focus on what the task names only"
    )


class ArchiveConfig(Section):
    """Go-Explore's first phase: promising states that episodes return to before they explore."""

    share: float = key(0.0, "share of the plain members that start from a kept state; 0 = off", ge=0, le=1)
    capacity: int = key(64, "states kept for each task", ge=1)
    max_depth: int = key(0, "actions that a kept state may be away from the start; 0 = any", ge=0)


class LossConfig(Section):
    """The clipped surrogate and what is added to it."""

    clip_low: float = key(0.2, "ratio is clipped below 1 - this", PAPER, gt=0, lt=1)
    clip_high: float = key(0.3, "ratio is clipped above 1 + this", PAPER, gt=0)
    dual_clip: float = key(10.0, "c, bound of the loss for negative advantages; 0 = off", PAPER, ge=0)
    kl: float = key(0.0, "coefficient of the k3 KL to the start model, under the row's own context", PAPER, ge=0)
    mask_logprob: float | None = key(-5.0, "off-policy tokens with a log-probability below this are masked; none = off")
    mask_unit: Literal["token", "response"] = key("token", "mask the token (ours), or its whole response (release)")
    mask_kl: bool = key(True, "leave masked tokens out of the KL too; if not, it pulls them back to the start model")
    aggregation: Literal["token", "sequence"] = key("token", "mean over tokens, or mean over rows of row means")
    shaping: Literal["none", "luffy"] = key(
        "none", "off-policy rows: the clipped surrogate, or LUFFY's f(x) = x / (x + 0.1) of the ratio, unclipped"
    )
    drop_zero_advantage: bool = key(True, "leave rows whose advantage is zero out of the update, of KL too")


class OptimConfig(Section):
    """The optimiser and how a batch is cut."""

    lr: float = key(1e-6, "learning rate of AdamW", PAPER, gt=0)
    lr_decay: float = key(0.0, "last share of the run over which the learning rate falls linearly to 0", ge=0, le=1)
    weight_decay: float = key(0.0, "decoupled weight decay", ge=0)
    betas: tuple[float, float] = key((0.9, 0.999), "AdamW's moment decays")
    grad_clip: float = key(1.0, "largest gradient norm; 0 = off", ge=0)
    epochs: int = key(1, "passes over each batch", ge=1)
    minibatch: int = key(16, "trajectories in a mini-batch (one optimiser step); 0 = the whole batch", PAPER, ge=0)
    microbatch_tokens: int = key(8192, "padded tokens in one forward pass; does not change the update", ge=1)
    rows: Literal["auto", "step"] = key("auto", "one row an episode where prompts extend each other, or one a step")
    logprob_chunk: int = key(1024, "positions whose logits exist at the same time", ge=1)


class TrainConfig(Section):
    """How long, how often saved, how often looked at."""

    iterations: int = key(100, "iterations at most", ge=1)
    max_env_steps: int = key(0, "stop at this many environment steps; 0 = never", ge=0)
    max_tokens: int = key(0, "stop at this many generated tokens, actions and notes; 0 = never", ge=0)
    save_every: int = key(10, "iterations between checkpoints", ge=1)
    keep_last: int = key(2, "checkpoints kept besides the best", ge=1)
    eval_every: int = key(0, "iterations between validations without memory; 0 = never", ge=0)
    split: str = key("train", "split of the training tasks")
    validation_split: str = key(
        "validation", "held-out variations that choose the best checkpoint; never the test split"
    )

    def share(self, spent: Mapping[str, float]) -> float:
        """How far a run is by the nearest of its limits; 1 and more is done. `spent`: the counters of a checkpoint."""
        limits = {"iteration": self.iterations, "env_steps": self.max_env_steps, "tokens_generated": self.max_tokens}
        return max(spent.get(name, 0) / most for name, most in limits.items() if most)


class EvalConfig(Section):
    """A fixed panel of tasks."""

    split: str = key("test", "split of the panel")
    num_tasks: int = key(0, "tasks of the panel; 0 = all of the split", ge=0)
    num_samples: int = key(1, "episodes for each task, each with its own sampling seed", ge=1)
    temperature: float = key(0.4, "sampling temperature", PAPER, ge=0)
    memory: bool = key(False, "act with the run's memory")
    trials: int = key(10, "adapt: trials after trial 0, which acts without memory", PAPER, ge=0)
    metric: Literal["success", "return"] = key("success", "what tables and curves show")
    confidence: float = key(0.95, "level of the intervals", gt=0, lt=1)


class WarmstartConfig(Section):
    """A start model without any download, or plain SFT of a pretrained one."""

    demonstrations: str = key("", "JSONL of conversations for plain SFT; '' = the environment's scripted episodes")
    hidden_size: int = key(96, "width of the small model", ge=8)
    num_layers: int = key(3, "layers of the small model", ge=1)
    num_heads: int = key(4, "attention heads of the small model", ge=1)
    steps: int = key(4000, "optimiser steps", ge=1)
    batch_size: int = key(64, "episodes in a step", ge=1)
    lr: float = key(1e-3, "peak learning rate, with warm-up and cosine decay", gt=0)
    num_tips: int = key(4, "tips shown at most in demonstrations", ge=0)
    obey: float = key(0.4, "share of the demonstrations that act on a right tip", ge=0, le=1)
    read: float = key(
        0.5, "share of the others that explore: read the note (waymarks), or wander (scienceworld)", ge=0, le=1
    )
    sizes: float = key(0.0, "waymarks: share of the games whose number of moves or boxes is drawn too", ge=0, le=1)
    scores: float = key(1.0, "waymarks: share of the episodes whose tips show a score (memory.show_score)", ge=0, le=1)
    plans: float = key(0.0, "waymarks: share of requests and of tips that are of plans (reflexion)", ge=0, le=1)
    advice: float = key(0.0, "waymarks: share of the demonstrations that answer with advice (rememberer)", ge=0, le=1)
    variations: int = key(40, "scienceworld: training variations of each task that are recorded", ge=1)
    vocab_size: int = key(1024, "size of the small model's vocabulary", ge=300)


class Config(Section):
    """Everything that a run depends on."""

    preset: Literal["", "paper-scienceworld", "paper-webshop"] = key("", "published settings under the keys given here")
    run: RunConfig = key(RunConfig, "the run as a whole")
    model: ModelConfig = key(ModelConfig, "the language model")
    endpoint: EndpointConfig = key(EndpointConfig, "an OpenAI-compatible server that acts")
    env: EnvConfig = key(EnvConfig, "the environment")
    rollout: RolloutConfig = key(RolloutConfig, "how episodes are played")
    memory: MemoryConfig = key(MemoryConfig, "the store of tips")
    algorithm: AlgorithmConfig = key(AlgorithmConfig, "the method")
    gigpo: GigpoConfig = key(GigpoConfig, "GiGPO and HGPO")
    archive: ArchiveConfig = key(ArchiveConfig, "states to return to")
    reflexion: ReflexionConfig = key(ReflexionConfig, "Reflexion")
    rememberer: RemembererConfig = key(RemembererConfig, "REMEMBERER")
    retrospex: RetrospexConfig = key(RetrospexConfig, "Retrospex")
    loss: LossConfig = key(LossConfig, "the loss")
    optim: OptimConfig = key(OptimConfig, "the optimiser")
    train: TrainConfig = key(TrainConfig, "length and rhythm of training")
    eval: EvalConfig = key(EvalConfig, "the panel")
    warmstart: WarmstartConfig = key(WarmstartConfig, "the start model")

    @model_validator(mode="after")
    def refuse_impossible(self) -> Self:
        """Refuse combinations that would only fail, or mislead, later."""
        algorithm, rollout = self.algorithm, self.rollout
        method = method_of(algorithm.name)
        if rollout.group_size < 2 and algorithm.normalize_std:
            raise ValueError("rollout.group_size = 1 has no group to be relative to: set rollout.group_size >= 2")
        if algorithm.intrinsic == "tips" and algorithm.mode_unit == "trajectory":
            raise ValueError(
                'algorithm.intrinsic = "tips" pays only members that act with tips, which biases mixed groups: '
                'set algorithm.intrinsic = "states", or algorithm.mode_unit = "iteration"'
            )
        mixed = algorithm.name == "empo2" and algorithm.mode_unit == "trajectory" and algorithm.draw == "stratified"
        if mixed and algorithm.p_memory and not round(algorithm.p_memory * rollout.group_size):
            raise ValueError(
                f"algorithm.p_memory = {algorithm.p_memory:g} of rollout.group_size = {rollout.group_size} rounds to "
                'no member with tips: raise either, or set algorithm.draw = "independent"'
            )
        if 0 < self.loss.dual_clip <= 1:
            raise ValueError("loss.dual_clip up to 1 flattens every negative advantage: set it above 1, or 0 for none")
        if method.trains and not method.memory and algorithm.intrinsic == "tips":
            raise ValueError(f'{algorithm.name} retrieves no tips: set algorithm.intrinsic = "states" or "none"')
        if algorithm.dynamic_sampling and algorithm.intrinsic != "none":
            raise ValueError(
                "algorithm.dynamic_sampling replaces groups of equal returns, but with a novelty reward they teach "
                'something: set algorithm.dynamic_sampling = 0 or algorithm.intrinsic = "none"'
            )
        if self.archive.share:
            self._refuse_archive(rollout.group_size - (round(algorithm.p_memory * rollout.group_size) if mixed else 0))
        if rollout.max_action_tokens >= rollout.max_context_tokens:
            raise ValueError("rollout.max_action_tokens must be smaller than rollout.max_context_tokens")
        if self.train.split == self.train.validation_split and self.train.eval_every:
            raise ValueError("train.validation_split must differ from train.split, or the best checkpoint is a memory")
        return self

    def _refuse_archive(self, num_plain: int) -> None:
        """Refuse an archive that nobody would use, or that would leave a member without any to be compared with."""
        if not method_of(self.algorithm.name).trains:
            raise ValueError(f"{self.algorithm.name} trains nothing from kept states: set archive.share = 0")
        if self.algorithm.dynamic_sampling:
            raise ValueError("archive.share splits groups that algorithm.dynamic_sampling would replace: set one to 0")
        returning = round(self.archive.share * num_plain)
        if returning < 2:
            raise ValueError(
                f"archive.share = {self.archive.share:g} of {num_plain} plain members rounds to {returning}, and at "
                "least 2 must return together to be compared: raise archive.share or rollout.group_size"
            )

    def refuse_training(self) -> Self:
        """Refuse what is fine for acting but wrong for training. Called by `train` before anything is built."""
        if not method_of(self.algorithm.name).trains:
            raise ConfigError(
                f"{self.algorithm.name} changes no weights: use `trailnotes adapt --method {self.algorithm.name}`, or "
                f"train one of {', '.join(names(trains=True))}"
            )
        if self.model.path == "random":
            raise ConfigError('model.path = "random" is no model and learns nothing: name a model')
        if self.model.path.startswith(OPENAI):
            raise ConfigError(
                f"model.path = {self.model.path!r} cannot be trained: an OpenAI-compatible server returns no token "
                "ids, and its weights are not ours to change; name a model directory or hub name, or `trailnotes adapt`"
            )
        if self.rollout.top_p < 1 or self.rollout.top_k:
            raise ConfigError(
                "training needs the log-probabilities of the distribution sampled from: "
                "set rollout.top_p = 1 and rollout.top_k = 0"
            )
        if self.rollout.group_size < 2:
            raise ConfigError("training compares the members of a group: set rollout.group_size to 2 or more")
        if not self.model.path:
            raise ConfigError("model.path is empty: name a model directory (trailnotes warmstart makes a small one)")
        return self
