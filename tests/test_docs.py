"""What the pages say is so: links lead somewhere, examples run, every metric and every key is explained."""

from __future__ import annotations

import json
import pkgutil
import re
import runpy
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import pytest

import trailnotes
from adaptrun import Guesser, adapt_by
from tinker_servers import Forks, StandIn
from tiny import group, step, trajectory
from trailnotes.commands import TABLE
from trailnotes.config.builtin import BUILTIN
from trailnotes.config.former import REMOVED_KEYS
from trailnotes.config.schema import EndpointConfig, full_config_type
from trailnotes.config.toml import collect_fields, load_config
from trailnotes.policies.openai import AnswerCache
from trailnotes.policies.vllm import server
from trailnotes.types import MODES, Observation, RowRole, Task
from trailnotes_lab.methods.retrospex import decision_metrics

ROOT = Path(__file__).parents[1]
PAGE_MAKERS = runpy.run_path(str(ROOT / "docs/pages.py"))
GENERATED = {
    ROOT / "docs/config.md": PAGE_MAKERS["render_config_page"],
    ROOT / "docs/cli.md": partial(PAGE_MAKERS["render_cli_page"], TABLE),
    ROOT / "docs/metrics.md": PAGE_MAKERS["render_metrics_page"],
}
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("packages/*/README.md")]
PAGES = sorted(page for page in PAGES if page not in GENERATED)
REPOSITORY = "https://github.com/trailnotes/trailnotes/blob/main/"  # what the site does not hold: code, examples
SECTIONS = "|".join(sorted({name.partition(".")[0] for name in collect_fields(full_config_type()) if "." in name}))
OPTIONS_OF_ENV = "env.options."


def words(path: Path) -> str:
    return GENERATED[path]() if path in GENERATED else path.read_text(encoding="utf-8")


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", words(path), re.DOTALL | re.MULTILINE)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", words(path), flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# -- pages


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", words(page)):
        inside = target.startswith(REPOSITORY)
        if target.startswith(("http://", "https://")) and not inside:
            continue
        name, _, anchor = target.removeprefix(REPOSITORY).partition("#")
        file = ((ROOT if inside else page.parent) / name).resolve() if name else page
        assert file in GENERATED or file.exists(), f"{named(page)} links to {target}: there is no such file"
        assert not anchor or file.suffix == ".py" or anchor in anchors(file), (
            f"{named(page)} links to {target}: there is no such heading"
        )


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_blank_lines_part_tables_and_lists_from_text(page: Path) -> None:
    """Without one, the text after a table is its last row, and a sentence that wraps at "2." begins a list."""
    text = re.sub(r"^```.*?^```", "", words(page), flags=re.DOTALL | re.MULTILINE)
    assert not re.findall(r"^\|.*\n(?=[^|\n]).*", text, re.MULTILINE)
    assert not re.findall(r"^[A-Za-z`*].*\n\d+\.(?= |\n).*", text, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_keys_named_in_pages_exist(page: Path) -> None:
    known = {*collect_fields(full_config_type())} | ({*REMOVED_KEYS} if page.name == "CHANGELOG.md" else set())
    sections = {name.rpartition(".")[0] for name in known}
    for name in re.findall(rf"`((?:{SECTIONS})(?:\.[a-z_]+)+)(?: = [^`]*)?`", words(page)):
        if not name.startswith(OPTIONS_OF_ENV) and not name.endswith((".db", ".json")):
            assert name in known or name in sections, f"{named(page)} names {name}"
    for section, more in re.findall(rf"`({SECTIONS})\.[a-z_]+`((?:,? (?:and |or )?`[a-z_]+`)+)", words(page)):
        for key in re.findall(r"[a-z_]{2,}", re.sub(r"\b(?:and|or)\b", "", more)):
            assert f"{section}.{key}" in known or key in sections, (
                f"{named(page)} lists {key} among the keys of {section}"
            )


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_modules_named_in_pages_exist(page: Path) -> None:
    for name in set(re.findall(r"`(trailnotes\.\w[\w.]*)", words(page))):
        pkgutil.resolve_name(name)


# -- examples and metrics


@pytest.mark.usefixtures("same_threads")
def test_the_examples_of_extending_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shown_only = ("from trailnotes.errors import EnvError", "from trailnotes.envs import check_env")
    own = [block for block in blocks(ROOT / "docs/extending.md", "python") if not block.startswith(shown_only)]
    assert len(own) == 3
    names: dict[str, Any] = {}
    for block in own:
        exec(compile(block, "extending.md", "exec"), names)
    stats, shown, *_ = capsys.readouterr().out.splitlines()
    assert json.loads(stats.replace("'", '"'))["support"] == 4  # two tasks, twice
    assert shown == "['west']"


def test_the_loop_of_the_memory_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (loop,) = blocks(ROOT / "docs/memory.md", "python")
    for _ in range(2):  # what the first wrote, the second reads
        exec(compile(loop, "memory.md", "exec"), {})
    assert capsys.readouterr().out == "the left door leads back (score 0 of 1)\n"


class Verbosity:
    """Pays for long actions, so that the members of a group differ."""

    @staticmethod
    def tasks(split: str) -> list[Task]:
        first = ("train", "validation", "test", "new").index(split) * 2
        return [Task(f"{split}-{i}", "test_docs:Verbosity", i, split) for i in range(first, first + 2)]

    def reset(self, task: Task) -> Observation:
        return Observation("say something.", instruction=task.id)

    def step(self, action: str) -> Observation:
        return Observation("thank you.", reward=float(len(action)), terminated=True, success=len(action) > 10)

    def close(self) -> None:
        pass


KEPT = (  # a row of each role, and each of its terms
    "--algorithm.anchor_tips 1 --algorithm.anchor_reading 1 --rehearsal.imitate 0.1 --empo2.author_credit 1 "
    "--memory.distilled 0.5"
)
ENGINE = "--loss.mismatch truncate --loss.observations 0.1"


@cache
def explained() -> set[str]:
    return set(re.findall(r"^\| `([\w/]+)` \|", words(ROOT / "docs/metrics.md"), re.MULTILINE))


def generalize(name: str) -> str:
    """A metric as the page names it: once for all modes, roles and trials."""
    name = re.sub(r"/trial_\d+$", "/trial_K", re.sub(rf"/(?:{'|'.join(MODES)})$", "/MODE", name))
    return re.sub(
        rf"_(?:{'|'.join(get_args(RowRole))})$", "_ROLE", re.sub(r"^(lamer/success)/\d$", r"\1/EPISODE", name)
    )


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_metrics_named_in_pages_are_explained(page: Path) -> None:
    known = explained()
    groups = "|".join({name.partition("/")[0] for name in known if "/" in name})
    written = {generalize(name) for name in re.findall(rf"`((?:{groups})/\w[\w/]*)`", words(page))}
    assert written <= known, f"{named(page)} names {sorted(written - known)}"


@pytest.fixture
def tinker_server(tmp_path: Path) -> Iterator[StandIn]:
    forks = Forks()
    server = StandIn("documented", BUILTIN / "waymarks-start", tmp_path / "server", forks=forks)
    server.start()
    yield server
    server.close()
    forks.process.kill()
    forks.process.communicate()


@pytest.mark.usefixtures("same_threads")
def test_every_metric_that_is_written_is_explained_and_the_other_way_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tinker_server: StandIn
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(server, "PROGRAM", ROOT / "tests/causal.py")
    settings = (
        "--env.name test_docs:Verbosity --env.num_workers 0 --model.path builtin:waymarks-start --train.iterations 2 "
        "--train.eval_every 1 --rollout.num_tasks 2 --rollout.group_size 4 --rollout.style terse "
        "--rollout.max_action_tokens 8 --rollout.max_context_tokens 512 --empo2.p_memory 0.5 "
        "--empo2.q_off_policy 0.5 --loss.kl 0.05 --memory.max_write_tokens 8"
    )
    rehearsed = tmp_path / "rehearsed.jsonl"
    rehearsed.write_text('{"messages": [{"role": "user", "content": "say"}, {"role": "assistant", "content": "go"}]}\n')
    for name, more in (
        ("empo2", f"--algorithm.intrinsic states {KEPT} --rehearsal.path {rehearsed}"),
        ("gigpo", "--algorithm.dynamic_sampling 1"),
        ("opsd", ""),
        ("opid", ""),
        ("ucob", ""),
        ("lamer", ""),
        ("grpo", f"--rollout.max_async_iterations 1 --engine.name vllm --engine.python {sys.executable} {ENGINE}"),
        ("rloo", f"--learner.name tinker --learner.url {tinker_server.url} --model.path {tinker_server.model}"),
    ):
        config = load_config(None, f"{settings} --algorithm.name {name} {more}".split())
        trailnotes.train(config, tmp_path / "runs" / name)
    for name, sections in (("reflexion", {}), ("clin", {}), ("rememberer", {"rememberer": {"epochs": 0}})):
        adapt_by(Guesser(), name, tmp_path / "runs" / name, **sections)
    lines = [json.loads(line) for file in tmp_path.glob("runs/*/metrics.jsonl") for line in words(file).splitlines()]
    decision = {"task": "task", "member": 0, "step": 0, "actions": ["go"], "sampled": [1], "chosen": 0, "favourite": 0}
    lines.append(decision_metrics([decision], [group(trajectory([step([1], [2])]))]))
    lines.append(AnswerCache(None, EndpointConfig()).metrics())
    assert {generalize(name) for line in lines for name in line} == explained()
    assert any(line.get("update/optimizer_steps") for line in lines)  # the tables speak of updates that happened
