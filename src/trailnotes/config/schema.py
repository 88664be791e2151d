"""One tree of validated settings. Defaults are this package's choices; presets hold the paper's.

Each key has its meaning and, where it has one, its source. `toml.py` reads files and command lines. Combinations that
cannot work are refused here, before anything is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from itertools import chain
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import GetCoreSchemaHandler, create_model, model_validator
from pydantic_core import CoreSchema, core_schema

from trailnotes.config.former import rename_keys
from trailnotes.config.methods import Method, find_method, is_known, list_sections, resolve_method
from trailnotes.config.methods_schema import OFF_POLICY, AlgorithmConfig, Empo2Config, RehearsalConfig
from trailnotes.config.model_schema import (
    TINKER,
    VLLM,
    ClusterConfig,
    EndpointConfig,
    EngineConfig,
    LearnerConfig,
    ModelConfig,
)
from trailnotes.config.refusals import Refusals, refuse_by_method, refuse_combinations, refuse_places, refuse_training
from trailnotes.config.section import PAPER, RELEASE, Section, Table, Text, key, require_secret_free_url
from trailnotes.errors import ConfigError

S = TypeVar("S", bound=Section)
ActionFormat = Literal["line", "tags", "react"]
PromptName = Literal["task", "observation", "notes", "request"]
Aggregation = Literal["token", "sequence", "constant"]
EMBEDDER_KEY_VARIABLE = "TRAILNOTES_EMBEDDER_KEY"  # the variable for an address that `embedder` names itself
WORDED_HERE = "env.name != gateway"  # what keys need to have an effect; agents word their own turns
MAX_REQUESTED_WORDS = 100  # of a tip, by the paper's request
TOKENS_PER_WORD = 1.5  # English prose takes 1.2 to 1.4 in a vocabulary of a hundred thousand; names take more


class RunConfig(Section):
    """The run as a whole."""

    name: str = key("run", "name of the run, kept with every tip that it writes")
    seed: int = key(0, "seed of every source of randomness", ge=0)
    deterministic: bool = key(True, "gather all live episodes before each batch: bit-reproducible on one machine")
    threads: int = key(1, "torch threads; 0 leaves torch's default (many threads slow a tiny model down)", ge=0)
    trackers: tuple[str, ...] = key(
        (), "services that show the run as well: tensorboard, wandb, mlflow, trackio, or module:Class of your own"
    )


class EnvConfig(Section):
    """The environment and the processes that run it."""

    name: str = key("waymarks", "a name that `trailnotes envs list` knows, or module:Class of your own")
    options: Table = key(dict, "keyword arguments of the environment")
    num_workers: int = key(2, "worker processes; 0 = in this process, which an environment's crash ends", ge=0)
    max_envs: int = key(0, "episodes alive and tips being written at a time; 0 = as many as there are", ge=0)
    timeout: float = key(
        60.0, "seconds that one call may take before its worker is killed and replaced", gt=0,
        needs="env.num_workers or env.name = gateway")  # fmt: skip


class RolloutConfig(Section):
    """How episodes are played."""

    top_p: ClassVar[float] = 1.0  # nucleus; Retrospex samples candidates by another

    num_tasks: int = key(8, "B, tasks in an iteration", ge=1)
    group_size: int = key(8, "N, trajectories of each task", PAPER, ge=1)
    max_steps: int = key(30, "steps in an episode at most", PAPER, ge=1)
    temperature: float = key(1.0, "sampling temperature while training", PAPER, gt=0)
    style: Literal["full", "terse"] = key("full", "wording of all prompts: full for real models, terse for tiny ones")
    max_action_tokens: int = key(32, "tokens of one action", PAPER, ge=1)
    max_context_tokens: int = key(4500, "tokens of a whole episode, prompt and actions together", PAPER, ge=8)
    max_observation_tokens: int = key(1024, "longer observations are cut, and marked where", ge=4)
    stop: tuple[Text, ...] = key(("\n",), "text that ends an action (besides the model's end token)")
    action_format: ActionFormat = key(
        "line", "the first non-blank line; what <action> tags hold; or what follows Action: after a thought (ReAct, "
        "2210.03629), which takes rollout.stop = [] and more rollout.max_action_tokens")  # fmt: skip
    show_actions: bool = key(
        False, "list the admissible actions in each turn, where the environment offers them", needs=WORDED_HERE
    )
    briefing: tuple[Literal["action_formats", "inventory", "focus"], ...] | None = key(
        None, "facts of the environment's briefing that open the first prompt; none = all in full style, [] in terse",
        needs=WORDED_HERE)  # fmt: skip
    num_examples: int = key(
        0, "worked examples in the first prompt at most, of those in the briefing", ge=0, needs=WORDED_HERE
    )
    example_turns: tuple[tuple[str, str], ...] = key(
        (), "turns of an example that every conversation begins with: what was seen, written as turns are, and the "
        "answer to it; for models that copy a form and follow no description of it", needs=WORDED_HERE)  # fmt: skip
    prompts: dict[PromptName, str] = key(
        dict, "texts of your own instead of the package's: of the line with the task and of that with an observation, "
        "around {text}; over the notes; of the request for a note, with {score}, {max_score}, {words}")  # fmt: skip
    system_prompt: str | None = key(
        None, "replaces the environment-neutral instruction; '' for none", needs=WORDED_HERE
    )
    max_async_iterations: int = key(
        0, "iterations that may be played while earlier ones are learned from; 0 = none, and every token is of the "
        "newest weights; up to 1 repeats bit for bit, unless resumed (newer weights play the next iteration), "
        "and but for what memory.distilled, memory.order by ucb or worth, or a memory.retire by readers changes "
        "meanwhile; memory.order by gain then counts no reader", ge=0)  # fmt: skip


class MemoryConfig(Section):
    """The store of tips."""

    distilled_readers: ClassVar[int] = 4  # successful readers that a tip needs for `distilled`
    shared_split: ClassVar[str] = "train"  # wider scopes: games of all splits may read its tips

    embedder: Text = key(
        "hashing", "hashing (no dependency), minilm (extra embed), a sentence-transformers name, or openai:NAME, the "
        "model NAME of the [endpoint]; openai:NAME@URL is that of another server")  # fmt: skip
    capacity: int = key(1000, "most enabled tips of a task, or of a wider scope, in each split", PAPER, ge=1)
    retire: Literal["oldest", "least_used", "least_worth"] = key(
        "oldest", "tips evicted above the capacity: the oldest (paper), those with the fewest readers, or those of the "
        "least worth")  # fmt: skip
    distilled: float = key(
        0.0, "retire a tip once the policy repeats its readers' actions without it with at least this relative "
        "probability; 0 = never (empo2). With rollout.max_async_iterations, timing decides which tips the next batch "
        "still finds", ge=0, le=1)  # fmt: skip
    scope: Literal["task", "family", "env", "all"] = key(
        "task", "tasks whose tips an episode reads: its own (paper) or more"
    )
    retrieval: Literal["dense", "sparse", "hybrid"] = key("dense", "cosine of vectors (paper), BM25, or ranks by both")
    top_k: int = key(10, "most tips in a turn", PAPER, ge=0)
    threshold: float = key(
        0.5, "cosine similarity below which a tip is not a candidate; -1 = none", PAPER,
        ge=-1, le=1, needs="memory.retrieval = dense|hybrid")  # fmt: skip
    query: Literal["state", "conversation"] = key(
        "state", "text searched for: task and newest observation, or all (paper)"
    )
    entries: Literal["episode", "step", "final"] = key(
        "episode", "entries for each tip: one, one per step under the key of its state, or one per step all under the "
        "key of the final state (release)")  # fmt: skip
    duplicates: Literal["reject", "count", "exact"] = key(
        "count", "a tip written again: rejected (paper), raises its support, or rejected only where action and score "
        "are equal, too (release)")  # fmt: skip
    order: tuple[Literal["gain", "score", "support", "recency", "oldest", "similarity", "ucb", "worth"], ...] = key(
        ("gain", "score", "support", "recency"), "order of the candidates (paper: the score), the newest first where "
        "all else is equal; oldest: the oldest first (release, after the score); ucb: by the return of "
        "their readers; worth: by that return less that of group members who did not read them; gain: by the most that "
        "this is likely to be, and a tip is withheld where that is below 0. Beyond the scope task "
        "similarity comes first, unless it is named")  # fmt: skip
    ucb: float = key(
        1.0, "order by ucb: weight of the bonus for tips with few readers",
        "arXiv 2603.08561", ge=0, needs="memory.order = ucb")  # fmt: skip
    max_tip_tokens: int = key(160, "a tip is cut here; less than 150 asks for tips of fewer words", ge=4)
    max_write_tokens: int = key(192, "decoding limit when a tip is written (release: 512)", RELEASE, ge=1)
    write_temperature: float = key(1.0, "sampling temperature when a tip is written", ge=0)
    show_score: bool = key(True, "show each tip with the score of its episode")
    leave_room: bool = key(True, "show only tips that leave room for the turns left, each as long as those so far")
    repeat_shown: bool = key(False, "show a tip again that an earlier turn of the episode already holds")

    @model_validator(mode="after")
    def validate_embedder(self) -> Self:
        require_secret_free_url("memory.embedder", self.embedder, EMBEDDER_KEY_VARIABLE)
        return self

    def with_embedder(self, embedder: str = "") -> Self:
        """Return the settings of a possibly untrusted run, with the embedder that its reader names.

        A run directory may come from a stranger: it decides eviction and order of tips, but never which model is
        loaded, which server is asked, or with which key.
        """
        return self.model_copy(update={"embedder": embedder or MemoryConfig().embedder})

    @property
    def ranking(self) -> tuple[str, ...]:
        """Return the order of candidates; beyond the task similarity comes first, unless it is placed already."""
        if self.scope == "task" or "similarity" in self.order:
            return self.order
        return ("similarity", *self.order)

    @property
    def is_ranked_by_feedback(self) -> bool:
        """Tell whether readers' results decide which tips appear or stay."""
        return not {"ucb", "worth"}.isdisjoint(self.ranking) or self.retire in {"least_used", "least_worth"}

    @property
    def requested_words(self) -> int:
        """Return the word limit of a tip: 100 (paper), or fewer if fewer can be written and read in full."""
        return max(1, min(MAX_REQUESTED_WORDS, int(min(self.max_tip_tokens, self.max_write_tokens) / TOKENS_PER_WORD)))


class LossConfig(Section):
    """The clipped surrogate and what is added to it."""

    clip_low: float = key(0.2, "ratio is clipped below 1 - this", PAPER, gt=0, le=1)
    clip_high: float = key(0.3, "ratio is clipped above 1 + this", PAPER, gt=0)
    dual_clip: float = key(
        10.0, "c, bound of the loss for negative advantages; 0 = off", PAPER, ge=0,
        needs="loss.objective = ppo|gspo|dppo")  # fmt: skip
    kl: float = key(0.0, "coefficient of the k3 KL to the reference model, under the row's own context", PAPER, ge=0)
    mask_logprob: float | None = key(
        -5.0, "off-policy tokens with a log-probability below this are masked; none = off", needs=OFF_POLICY
    )
    mask_unit: Literal["token", "response"] = key(
        "token", "mask the token (ours), or its whole response (release)", needs="loss.mask_logprob"
    )
    mask_kl: bool = key(
        True, "leave masked tokens out of the KL, which would pull them back to the reference model", needs="loss.kl"
    )
    aggregation: Aggregation = key(
        "token", "average losses over tokens, over rows of row means, or over rows of sums over constant_length (Dr. "
        "GRPO, 2503.20783)")  # fmt: skip
    constant_length: int = key(
        512, "constant: tokens that each row counts as, whatever it has", ge=1, needs="loss.aggregation = constant"
    )
    objective: Literal["ppo", "gspo", "gmpo", "cispo", "dppo"] = key(
        "ppo", "PPO's clip of token ratios; of the row's mean ratio (GSPO, 2507.18071); a geometric mean of clipped "
        "ones (GMPO, 2507.20673); a bounded weight without clip (CISPO, 2506.13585); a bound on how far a probability "
        "moves (DPPO, 2602.04879). See docs/algorithms/losses.md for the bounds to take")  # fmt: skip
    max_negative_kl: float | None = key(
        None, "tokens with a negative advantage teach nothing in rows whose mean log(pi_old / pi) is above this "
        "(DeepSeek-V3.2); none = off", gt=0)  # fmt: skip
    observations: float = key(
        0.0, "weight of the likelihood of what the environment answered, in contexts without tips (ECHO, as in "
        "prime-rl); 0 = off", ge=0, needs="optim.rows = auto")  # fmt: skip
    mismatch: Literal["none", "truncate", "mask"] = key(
        "none", "where another program samples: weigh tokens by the learner's probability over the engine's, under the "
        "prompt that was acted on, by the product over its episode; up to 3, or not at all above it (TRL 1.16, verl)",
        needs=f"{VLLM} or {TINKER}")  # fmt: skip
    shaping: Literal["none", "luffy"] = key(
        "none", "off-policy rows: the clipped surrogate, or LUFFY's x / (x + 0.1)", needs=OFF_POLICY
    )
    drop_negative_off_policy: bool = key(
        False, "leave off-policy rows with a negative advantage out of the update: a reader who failed after its tip "
        "says nothing against the tip", needs=OFF_POLICY)  # fmt: skip
    drop_zero_advantage: bool = key(True, "leave rows without advantage out of the update, and of the KL")

    @property
    def is_plain_ppo(self) -> bool:
        """Tell whether the loss of an on-policy row is PPO's clip alone, which servers compute themselves."""
        other = self.objective != "ppo" or self.aggregation == "constant" or self.max_negative_kl is not None
        return not (other or self.dual_clip or self.kl)


class OptimConfig(Section):
    """The optimizer and how a batch is cut."""

    lr: float = key(1e-6, "learning rate of AdamW", PAPER, gt=0)
    lr_decay: float = key(0.0, "last share of the run over which the learning rate falls linearly to 0", ge=0, le=1)
    grad_clip: float = key(1.0, "largest gradient norm; 0 = off", ge=0)
    epochs: int = key(1, "passes over each batch", ge=1)
    weight_decay: float = key(0.0, "decoupled weight decay of AdamW (release: .01, verl's default)", RELEASE, ge=0)
    minibatch: int = key(16, "trajectories in a mini-batch (one optimizer step); 0 = the whole batch", PAPER, ge=0)
    minibatch_unit: Literal["trajectory", "row"] = key(
        "trajectory", "what optim.minibatch counts: trajectories, or rows, with optim.rows = step those of turns "
        "(release)", RELEASE)  # fmt: skip
    microbatch_tokens: int = key(
        8192, "padded tokens in one forward pass; does not change the update. 0 = on a GPU as many as fit by the "
        "memory estimate, else 8192", ge=0)  # fmt: skip
    rows: Literal["auto", "step"] = key("auto", "one row an episode where prompts extend each other, or one a step")
    logprob_chunk: int = key(1024, "positions whose logits exist at the same time", ge=1)

    @property
    def pass_tokens(self) -> int:
        """Padded tokens in one forward pass, where no memory estimate says how many."""
        return self.microbatch_tokens or 8192


class TrainConfig(Section):
    """Length of training, and how often it saves and evaluates."""

    iterations: int = key(100, "iterations at most", ge=1)
    max_env_steps: int = key(0, "stop at this many environment steps; 0 = never", ge=0)
    max_tokens: int = key(0, "stop at this many generated tokens, actions and tips; 0 = never", ge=0)
    save_every: int = key(10, "iterations between checkpoints", ge=1)
    keep_last: int = key(2, "checkpoints kept besides the best", ge=1)
    keep_optimizer: bool = key(True, "keep the optimizer's state at the end, without which training cannot go on")
    eval_every: int = key(0, "iterations between validations without memory; 0 = never", ge=0)
    split: str = key("train", "split of the training tasks")
    num_tasks: int = key(0, "how many of them, evenly spaced; 0 = all. Tips are read when a task comes again", ge=0)
    validation_split: str = key(
        "validation", "held-out variations that choose the best checkpoint; never the test", needs="train.eval_every"
    )

    def compute_progress(self, spent: Mapping[str, float]) -> float:
        """Compute the used share of the nearest limit, 1 and more at its end; `spent`: a checkpoint's counters."""
        limits = {"iteration": self.iterations, "env_steps": self.max_env_steps, "tokens_generated": self.max_tokens}
        return max(spent.get(name, 0) / most for name, most in limits.items() if most)


class EvalConfig(Section):
    """A fixed panel of tasks."""

    split: str = key("test", "split of the panel; '' = none, where training may use every game")
    num_tasks: int = key(0, "tasks of the panel; 0 = all of the split", ge=0)
    num_samples: int = key(1, "episodes for each task, each with its own sampling seed", ge=1)
    temperature: float = key(0.4, "sampling temperature", PAPER, ge=0)
    show_tips: Literal["own", "other", "empty"] = key("own", "algorithm.show_tips for panels with tips or with plans")
    warmup_split: str = key(
        "", "empo2-tips: before trial 0 games of this split are played and written about, whose tips memory.scope may "
        "find; '' = none")  # fmt: skip
    warmup_tasks: int = key(0, "how many of them, evenly spaced; 0 = all of the split", ge=0, needs="eval.warmup_split")
    trials: int = key(10, "adapt: trials after trial 0, which acts without memory", PAPER, ge=0)
    metric: Literal["success", "return"] = key("success", "what tables and curves show")


class WarmstartConfig(Section):
    """A start model without any download, or plain SFT of a pretrained one."""

    demonstrations: str = key("", "JSONL of conversations for plain SFT; '' = the environment's scripted episodes")
    hidden_size: int = key(96, "width of the small model", ge=8)
    num_layers: int = key(3, "layers of the small model", ge=1)
    num_heads: int = key(4, "attention heads of the small model", ge=1)
    steps: int = key(4000, "optimizer steps", ge=1)
    save_every: int = key(500, "optimizer steps between checkpoints; 0 = only at a stop and at the end", ge=0)
    batch_size: int = key(64, "episodes in a step; optim.microbatch_tokens of them at a time", ge=1)
    lr: float = key(1e-3, "peak learning rate, with warm-up and cosine decay", gt=0)
    num_tips: int = key(4, "most tips in a demonstration", ge=0)
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
    variations: int = key(
        40, "training variations of each task that are recorded (scienceworld, alfworld and others)", ge=1
    )
    lossless_vocab: bool = key(
        False, "a vocabulary whose texts come out as they went in, for names of letters and digits; if not, words and "
        "digits get blanks before them, and are the same tokens everywhere")  # fmt: skip
    copying: bool = key(
        False, "put heads that copy into the random weights of the small model (of two layers or more): it says names "
        "that it has never seen after a tenth of the steps")  # fmt: skip
    p_full_loss: float = key(
        0.0, "share of the conversations of which every token is learned, the observations too: a model that begins "
        "from nothing learns to copy sooner", ge=0, le=1)  # fmt: skip
    vocab_size: int = key(1024, "size of the small model's vocabulary", ge=300)


class Config(Section):
    """Everything that a run depends on.

    A config also has the sections of its method, and those of other methods that were given to it: `Config(...)` makes
    an instance of `config_type(...)`. Read them by `section`.
    """

    preset: Literal[
        "", "paper-scienceworld", "paper-webshop", "paper-scienceworld-lora", "paper-webshop-lora",
        "paper-scienceworld-8gpu", "paper-webshop-8gpu", "release-scienceworld", "release-webshop",
    ] = key(
        "", "published settings under the keys given here, of the paper or of its release's code; -lora trains "
        "adapters instead of all weights, -8gpu all weights on eight devices"
    )  # fmt: skip
    run: RunConfig = key(RunConfig, "the run as a whole")
    model: ModelConfig = key(ModelConfig, "the language model")
    endpoint: EndpointConfig = key(
        EndpointConfig, "an OpenAI-compatible server that acts",
        needs="model.path = openai:* or memory.embedder = openai:* or algorithm.author = openai:*")  # fmt: skip
    engine: EngineConfig = key(
        EngineConfig, "what samples, where the model is one of transformers", needs="model.path != openai:*|random"
    )
    learner: LearnerConfig = key(LearnerConfig, "where the update runs")
    cluster: ClusterConfig = key(ClusterConfig, "several machines", needs="cluster.address")
    env: EnvConfig = key(EnvConfig, "the environment")
    rollout: RolloutConfig = key(RolloutConfig, "how episodes are played")
    memory: MemoryConfig = key(MemoryConfig, "the store of tips")
    algorithm: AlgorithmConfig = key(AlgorithmConfig, "the method")
    rehearsal: RehearsalConfig = key(RehearsalConfig, "what is rehearsed")
    loss: LossConfig = key(LossConfig, "the loss")
    optim: OptimConfig = key(OptimConfig, "the optimizer")
    train: TrainConfig = key(TrainConfig, "length and rhythm of training")
    eval: EvalConfig = key(EvalConfig, "the panel")
    warmstart: WarmstartConfig = key(WarmstartConfig, "the start model")

    def __new__(cls, **sections: Any) -> Self:
        """Choose the class by the sections."""
        return super().__new__(config_type(rename_keys(sections)) if cls is Config else cls)  # type: ignore[return-value]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accept former keys from Python. JSON comes from `resolve_config`, which has renamed them."""
        schema = handler(source)
        if cls.__base__ is Section:  # the sections choose the class
            return core_schema.no_info_plain_validator_function(lambda values: Config(**values))
        renaming = core_schema.no_info_before_validator_function(rename_keys, schema)
        return core_schema.json_or_python_schema(json_schema=schema, python_schema=renaming)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the sections, since the class is made of them."""
        return partial(Config, **vars(self)), ()

    def section(self, kind: type[S]) -> S:
        """Return the section of a method; its defaults if this config is of another method and does not set it."""
        return next((value for value in vars(self).values() if type(value) is kind), None) or kind()

    @model_validator(mode="after")
    def validate_combinations(self) -> Self:
        _refuse(chain(refuse_places(self), refuse_combinations(self)))
        if is_known(self.algorithm.name):  # module:NAME is asked when it is run: reading settings does not import it
            self.validate_method(adapts=False)
        return self

    def validate_method(self, *, adapts: bool = True) -> Method:
        """Return the method; raises `ConfigError` for settings that it cannot follow.

        What a method that trains nothing needs counts where it `adapts`: an evaluation may read the same settings, and
        `adapt --method` may name another method.
        """
        method = resolve_method(self.algorithm.name)
        _refuse(refuse_by_method(self, method, self.section(Empo2Config)))
        if method.validate and (method.trains or adapts):
            method.validate(self)
        return method

    @property
    def has_shared_gpu(self) -> bool:
        """Tell whether vLLM engines run on the learner's GPU."""
        engine = self.engine
        return engine.name == "vllm" and not (engine.urls or engine.devices or self.cluster.address)

    @property
    def is_hosted(self) -> bool:
        """Tell whether a server of the Tinker API trains and samples."""
        return self.learner.name == "tinker"

    @property
    def has_other_sampler(self) -> bool:
        """Tell whether another program than the learner's samples, so that their log-probabilities may differ."""
        return self.engine.name == "vllm" or self.is_hosted

    @property
    def has_reference_model(self) -> bool:
        """Tell whether the learner needs the start model as KL anchor or teacher."""
        method = find_method(self.algorithm.name)
        needed = method.needs_initial_model is not None and method.needs_initial_model(self)
        return bool(self.loss.kl) or self.has_anchor_rows or needed

    @property
    def has_frozen_author(self) -> bool:
        """Tell whether the start model writes the tips."""
        return self.algorithm.author == "start" and resolve_method(self.algorithm.name).writes_tips

    @property
    def has_separate_author(self) -> bool:
        """Tell whether that author is loaded as a model of its own; adapters and vLLM are reset instead."""
        return self.has_frozen_author and self.engine.name == "hf" and not (self.model.lora.enabled or self.is_hosted)

    @property
    def distils_tips(self) -> bool:
        """Tell whether members that acted with tips are trained without them."""
        empo2 = self.section(Empo2Config)
        return bool(self.algorithm.name == "empo2" and empo2.p_memory and empo2.q_off_policy)

    @property
    def has_anchor_rows(self) -> bool:
        """Tell whether rows besides episodes are anchored to the start model, by whole distributions."""
        algorithm, rehearsal = self.algorithm, self.rehearsal
        writing = algorithm.anchor_tips and algorithm.author in ("policy", "start")
        reading = algorithm.anchor_reading and self.distils_tips
        rehearsed = (rehearsal.path or rehearsal.split) and rehearsal.hold
        method = resolve_method(algorithm.name)
        if method.anchors_rows and method.anchors_rows(self):
            return True
        return bool(writing or reading or rehearsed) and method.writes_tips

    def validate_training(self) -> Self:
        _refuse(refuse_training(self, self.validate_method(), self.section(Empo2Config)))
        return self


def _refuse(refusals: Refusals) -> None:
    if text := next((text for is_refused, text in refusals if is_refused), ""):
        raise ConfigError(text)


def config_type(*trees: Mapping[str, Any], trusted: bool = True) -> type[Config]:
    """Make the class of a config: with the sections of the method that the last tree names, and of others that are set.

    Args:
        trees: sections by name, as files, command lines and `Config(...)` give them; not validated yet.
        trusted: whether to import the module that `algorithm.name` names where a section may be of its method.
    """
    name = find_method_name(*trees)
    kinds = dict(find_method(name).sections)
    if unknown := {*chain(*trees)} - kinds.keys() - Config.model_fields.keys():
        if trusted and ":" in name and unknown - list_sections().keys():
            kinds |= resolve_method(name).sections
        kinds |= {name: kind for name, kind in list_sections().items() if any(name in tree for tree in trees)}
    return _extend_config(tuple(kinds.items()))


def find_method_name(*trees: Mapping[str, Any]) -> str:
    """Find the `algorithm.name` that counts, that of the last tree which sets it."""
    algorithms = [tree["algorithm"] for tree in trees if "algorithm" in tree]
    names = [each["name"] if isinstance(each, Mapping) and "name" in each else getattr(each, "name", None)
             for each in algorithms]  # fmt: skip
    return next((name for name in reversed(names) if isinstance(name, str)), AlgorithmConfig().name)


def full_config_type() -> type[Config]:
    """Make the class with the sections of all methods."""
    return _extend_config(tuple(list_sections().items()))


@cache
def _extend_config(kinds: tuple[tuple[str, type[Section]], ...]) -> type[Config]:
    fields: dict[str, Any] = {name: (kind, key(kind, (kind.__doc__ or "").partition("\n")[0])) for name, kind in kinds}
    return create_model("Config", __base__=Config, __module__=__name__, **fields)
