"""Seconds of one GRPO step (rollout and update), against TRL's `GRPOTrainer` on the same work.

Both sides have the same random model, prompts, group size, completion length, rewards, optimizer and one optimizer
step on the whole batch, on the same number of threads. Before the clock starts, both losses are computed on one
batch with the same advantages and denominators (settings alike: token mean, clip .2/.3, two-sided clip 10), and so
are their gradients. Our update computes the prompt of a group once (`learner.packed = "shared"`), or with `--padded` in
every member, as TRL does. TRL is needed for this benchmark alone: `pip install trl`.

    python benchmarks/step.py --json step.json
"""

from __future__ import annotations

import asyncio
import copy
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from shared import SPECIAL, console, finish, make_model, make_parser, make_tokenizer, print_table
from transformers import TrainerCallback

from trailnotes.config.schema import LossConfig, OptimConfig
from trailnotes.learner.credit.episodes import group_relative
from trailnotes.learner.learner import Learner
from trailnotes.learner.samples import PackingMode, build_samples
from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.types import Message, Observation, Sample, Sampling, Step, Task, Trajectory, TrajectoryGroup

FLOOR = 2.0
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Workload:
    """What both sides do."""

    hidden_size: int = 128
    num_layers: int = 4
    vocab_size: int = 2048
    prompts: int = 4
    group_size: int = 8
    prompt_tokens: int = 64
    completion_tokens: int = 32
    steps: int = 8  # timed
    lr: float = 1e-5
    packing: PackingMode = "shared"  # of the rows of our update: the prompt of a group is computed once


QUICK = Workload(num_layers=2, steps=3)


def model_of(load: Workload) -> Any:
    """The model that either side trains."""
    return make_model(
        load.vocab_size, load.hidden_size, load.num_layers, bos_token_id=None, pad_token_id=0, eos_token_id=1
    )


def make_prompts(load: Workload) -> list[str]:
    """Random words; lengths vary by a third around the mean."""
    rng, third = random.Random(0), load.prompt_tokens // 3
    return [
        " ".join(
            f"w{rng.randrange(load.vocab_size - len(SPECIAL))}"
            for _ in range(load.prompt_tokens + rng.randint(-third, third))
        )
        for _ in range(load.prompts)
    ]


def reward(token_ids: Sequence[int]) -> float:
    """The share of even tokens."""
    return sum(i % 2 == 0 for i in token_ids) / max(len(token_ids), 1)


class Ours:
    """GRPO on single-turn prompts, through the same parts as any training run."""

    def __init__(self, model: Any, tokenizer: Any, load: Workload) -> None:
        self.load, self.prompts = load, make_prompts(load)
        self.policy = HFPolicy(model, tokenizer)
        optim = OptimConfig(lr=load.lr, minibatch=0, microbatch_tokens=2048)
        self.learner = Learner(model, optim, LossConfig())
        self.learner.packing = load.packing
        self.count = 0

    async def _episode(self, task: Task, prompt: str, member: int) -> Trajectory:
        name = f"{task.id}-{member}"
        sampling = Sampling(max_tokens=self.load.completion_tokens, seed=hash((self.count, name)) % 2**31)
        self.policy.open_episode(name)
        completion = await self.policy.generate([Message("user", prompt)], sampling, name)
        self.policy.close_episode(name)
        score = reward(completion.token_ids)
        step = Step(Observation(prompt), (), completion, completion.prompt_ids, completion.text, score)
        return Trajectory(task, (step,), Observation("", terminated=True), "terminated", False, score, member=member)

    async def _rollout(self) -> list[TrajectoryGroup]:
        tasks = [Task(f"prompt-{i}", "prompts") for i in range(self.load.prompts)]
        episodes = [
            self._episode(task, prompt, member)
            for task, prompt in zip(tasks, self.prompts, strict=True)
            for member in range(self.load.group_size)
        ]
        done, size = await asyncio.gather(*episodes), self.load.group_size
        return [TrajectoryGroup(task, tuple(done[i * size : (i + 1) * size])) for i, task in enumerate(tasks)]

    def rollout(self) -> list[Sample]:
        """Sample all groups; returns the rows."""
        groups = asyncio.run(self._rollout())
        advantages = [group_relative([t.episode_return for t in g.trajectories]).tolist() for g in groups]
        return build_samples(groups, advantages)

    def step(self) -> tuple[float, float]:
        """One step; returns seconds of rollout and update."""
        start = time.perf_counter()
        samples = self.rollout()
        middle = time.perf_counter()
        self.learner.update(samples)
        self.policy.bump_version()
        self.count += 1
        return middle - start, time.perf_counter() - middle


class Turns(TrainerCallback):
    """Times TRL's steps, and takes one of ours after each, so that both meet the same machine."""

    def __init__(self, ours: Ours) -> None:
        self.ours, self.start = ours, 0.0
        self.seconds: list[tuple[float, float, float]] = []  # TRL's step, our rollout, our update

    def on_step_begin(self, *_arguments: Any, **_options: Any) -> None:
        """Start the clock; prompts, completions, rewards, loss and optimizer all come after this."""
        self.start = time.perf_counter()

    def on_step_end(self, *_arguments: Any, **_options: Any) -> None:
        """Stop the clock, and step ours."""
        seconds = time.perf_counter() - self.start
        self.seconds.append((seconds, *self.ours.step()))


def make_trainer(model: Any, tokenizer: Any, load: Workload, directory: str, turns: Turns) -> Any:
    """TRL's trainer with settings alike."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    batch = load.prompts * load.group_size
    settings = GRPOConfig(
        output_dir=directory,
        per_device_train_batch_size=batch,
        num_generations=load.group_size,
        max_completion_length=load.completion_tokens,
        max_steps=load.steps + 2,
        learning_rate=load.lr,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.3,
        delta=10.0,
        loss_type="bnpo",
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        disable_tqdm=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
    )
    prompts = [{"prompt": [{"role": "user", "content": prompt}]} for prompt in make_prompts(load)]
    return GRPOTrainer(
        model=model,
        reward_funcs=lambda completion_ids, **_: [reward(ids) for ids in completion_ids],
        args=settings,
        train_dataset=Dataset.from_list(prompts),
        processing_class=tokenizer,
        callbacks=[turns],
    )


def trl_batch(samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """Rows of one completion each as TRL wants them: prompts padded on the left, completions on the right."""
    starts = [sample.loss_mask.index(1) for sample in samples]
    width, length = max(starts), max(len(s.token_ids) - n for s, n in zip(samples, starts, strict=True))

    def padded(rows: list[Sequence[float]], size: int, left: bool) -> torch.Tensor:
        blanks = [[0] * (size - len(row)) for row in rows]
        return torch.tensor([[*b, *r] if left else [*r, *b] for b, r in zip(blanks, rows, strict=True)])

    prompts = [s.token_ids[:n] for s, n in zip(samples, starts, strict=True)]
    completions = [s.token_ids[n:] for s, n in zip(samples, starts, strict=True)]
    old = [s.behavior_logprobs[n:] for s, n in zip(samples, starts, strict=True)]
    mask = padded([[1] * len(c) for c in completions], length, False)
    return {
        "prompt_ids": padded(prompts, width, True),
        "prompt_mask": padded([[1] * len(p) for p in prompts], width, True),
        "completion_ids": padded(completions, length, False),
        "completion_mask": mask,
        "old_per_token_logps": padded(old, length, False),
        "advantages": torch.tensor([s.advantages[n] for s, n in zip(samples, starts, strict=True)]),
        "num_items_in_batch": mask.sum(),
    }


def compare_losses(ours: Ours, trainer: Any) -> dict[str, float]:
    """Loss and gradient norm of either side on one batch whose ratios are spread around 1."""
    rng = random.Random(0)
    samples = [
        replace(
            s,
            behavior_logprobs=tuple(
                p + m * rng.gauss(0, 0.3) for p, m in zip(s.behavior_logprobs, s.loss_mask, strict=True)
            ),
        )
        for s in ours.rollout()
    ]
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer._compute_loss(trainer.model, trl_batch(samples))  # noqa: SLF001 - TRL offers the loss of a given batch no other way
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in trainer.model.parameters()])
    trainer.model.zero_grad()
    optim = OptimConfig(lr=1e-9, minibatch=0)
    learner = Learner(copy.deepcopy(ours.policy.model), optim, LossConfig(drop_zero_advantage=False))
    learner.packing = ours.load.packing
    metrics = learner.update(samples)
    return {
        "loss_trl": float(loss),
        "loss_trailnotes": metrics["policy_loss"],
        "grad_norm_trl": float(norm),
        "grad_norm_trailnotes": metrics["grad_norm"],
    }


def measure(load: Workload) -> dict[str, Any]:
    """The losses, and then the steps of either side."""
    tokenizer = make_tokenizer(load.vocab_size)
    ours = Ours(model_of(load), tokenizer, load)
    turns = Turns(ours)
    with tempfile.TemporaryDirectory() as directory:
        trainer = make_trainer(model_of(load), tokenizer, load, directory, turns)
        losses = compare_losses(ours, trainer)
        trainer.train()
    timed = turns.seconds[2:]  # the first two warm up
    seconds = statistics.median(row[0] for row in timed), statistics.median(row[1] + row[2] for row in timed)
    return {
        "ratio": seconds[0] / seconds[1],
        "floor": FLOOR,
        "equal": abs(losses["loss_trl"] - losses["loss_trailnotes"]) <= TOLERANCE,
        **losses,
        "rows": [
            {"side": "TRL GRPOTrainer", "seconds": seconds[0]},
            {
                "side": "trailnotes",
                "seconds": seconds[1],
                "rollout": statistics.median(row[1] for row in timed),
                "update": statistics.median(row[2] for row in timed),
            },
        ],
        "parameters": sum(p.numel() for p in ours.policy.model.parameters()),
        "threads": torch.get_num_threads(),
        "workload": vars(load),
    }


def report(result: dict[str, Any]) -> None:
    """Print the table."""
    load = result["workload"]
    parts = ("seconds", "rollout", "update")
    print_table(
        f"one GRPO step: {load['prompts']} prompts x {load['group_size']} completions of {load['completion_tokens']} "
        f"tokens, {result['parameters'] / 1e6:.1f}M parameters, {result['threads']} threads",
        ("side", *parts),
        ([row["side"], *(f"{row[name]:.3f}" if name in row else "" for name in parts)] for row in result["rows"]),
    )
    console.print(
        f"ratio {result['ratio']:.2f} (floor {result['floor']:g}); loss of one batch: TRL {result['loss_trl']:.6f}, "
        f"trailnotes {result['loss_trailnotes']:.6f}; gradient norm: {result['grad_norm_trl']:.6f}, "
        f"{result['grad_norm_trailnotes']:.6f}; equal to {TOLERANCE:g}: {result['equal']}"
    )


def main() -> None:
    """Parse the arguments, measure, print, and write."""
    parser = make_parser(__doc__, quick="a smaller model and fewer steps")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--padded", action="store_true", help="our update computes each row for itself")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TRL's and its dependencies'
        load = QUICK if arguments.quick else Workload()
        result = measure(replace(load, packing="padded") if arguments.padded else load)
    finish(result, report, arguments.json)


if __name__ == "__main__":
    main()
