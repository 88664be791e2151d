"""Publication on the Hugging Face hub: the model of a run and files of tips, each with a card that explains it.

The token is that of `huggingface_hub` (``hf auth login``, or HF_TOKEN); nothing here reads or prints it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from trailnotes.config.builtin import BUILTIN_PREFIX
from trailnotes.config.methods import get_label
from trailnotes.config.model_schema import LOCAL_PREFIXES
from trailnotes.config.schema import Config
from trailnotes.config.toml import RUNTIME_KEYS, diff_configs, flatten_config, format_toml_value, is_within
from trailnotes.errors import ConfigError, PolicyError
from trailnotes.memory.tipfile import write_tips
from trailnotes.runs.load_policy import EvaluatedModel
from trailnotes.storage.checkpoint import read_json, write_json
from trailnotes.storage.files import read_jsonl, write_text_atomic
from trailnotes.types import Tip

CARD = "README.md"
TIPS = "tips.jsonl"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_SECRET = re.compile(  # a key of the well-known kinds, or an address with a password
    r"\b(?:(?:sk|pk|rk)-[\w-]{16}|(?:hf|gh[opsu]|gsk|xai)_\w{16}|AKIA\w{16}|eyJ[\w-]+\.eyJ)|://[^\s/@]*:[^\s/@]*@"
)
_ABSOLUTE_PATH = re.compile(r'"[/~][^"]*"')
_LOCAL_KEYS = (*RUNTIME_KEYS, "run.trackers", "model.device", "model.base")  # of the author's machine


def write_model_card(folder: Path, repo: str, subject: EvaluatedModel, base: str = "", licence: str = "") -> None:
    """Write the card of an exported model into its `folder`, from the run that trained it.

    Args:
        folder: the exported model.
        repo: its OWNER/NAME on the hub.
        subject: the checkpoint that it was copied from.
        base: hub name of the adapters' base; by default the one that they name.
        licence: identifier of a licence as the hub spells it; "" states none.

    Raises:
        ConfigError: there is no run, the adapters' base is a directory, or the card would hold a secret.
    """
    from huggingface_hub import ModelCardData

    config = subject.trained
    if config is None:
        raise ConfigError("a model card tells of the run that trained the model: name a run directory or a checkpoint")
    source, settings = Path(subject.model) / "adapter_config.json", folder / "adapter_config.json"
    named = base or (str(read_json(source)["base_model_name_or_path"]) if source.is_file() else config.model.path)
    on_hub = bool(_HUB_NAME.fullmatch(named)) and not named.startswith(LOCAL_PREFIXES) and not Path(named).exists()
    if settings.is_file():
        if not on_hub:
            raise ConfigError(f"the base of these adapters is {named}, a directory of this machine: name it on the hub "
                              "by --base OWNER/NAME, or publish one model by --merge")  # fmt: skip
        write_json(settings, read_json(settings) | {"base_model_name_or_path": named})
    is_builtin = config.model.path.startswith(BUILTIN_PREFIX)
    initial = config.model.path if is_builtin else named if on_hub else ""
    lora = ["lora", f"base_model:adapter:{named}"] if settings.is_file() else []
    facts = ModelCardData(
        library_name="peft" if lora else "transformers", pipeline_tag="text-generation", license=licence or None,
        base_model=named if on_hub else None, tags=["trailnotes", "agents", config.env.name, *lora],
    )  # fmt: skip
    run = Path(subject.model).parents[2]
    about = read_json(run / "run.json")
    versions = ", ".join(f"{name} {version}" for name, version in about["starts"][-1]["packages"].items())
    data = json.dumps(about["environment"]) if "environment" in about else ""
    rows = {
        "method": f"{get_label(config.algorithm.name)} (`{config.algorithm.name}`)",
        "environment": f"`{config.env.name}`, split `{config.train.split}`",
        "initial model": f"`{initial}`" if initial else "one that is not on the hub",
        "trained for": f"{subject.spent.get('iteration', 0):,} iterations, {subject.spent.get('env_steps', 0):,} "
        f"environment steps, {subject.spent.get('tokens_generated', 0):,} generated tokens; seed {config.run.seed}",
        **({"data of the environment": f"`{_hide_paths(data)}`"} if data else {}),
        "versions": versions,
    }
    changed = [name for name in diff_configs(Config(), config) if not is_within(name, _LOCAL_KEYS)]
    values = flatten_config(config) | {"model.path": initial or "PATH OF THE INITIAL MODEL"}
    lines = [
        f"# {repo.partition('/')[2]}", "",
        "A language model that acts in a text environment, trained by Trailnotes.", "",
        *_format_rows(rows), "", "## Success", "", *_describe_evaluations(run, Path(subject.model)), "",
        "## Reproduce", "", "Save these settings as `config.toml`:", "",
        "```toml", *(f"{name} = {_hide_paths(format_toml_value(values[name]))}" for name in changed), "```", "",
        "```", "trailnotes train config.toml --run-dir runs/again",
        f"trailnotes eval {repo} --config config.toml", "```",
    ]  # fmt: skip
    _write_card(folder, facts, lines)


def write_tips_and_card(folder: Path, repo: str, file: Path, licence: str = "") -> None:
    """Write the tips of an exported `file`, without paths of this machine, and their card into a `folder`.

    Raises:
        ConfigError: a tip holds what looks like a secret; the text names the ids.
    """
    from huggingface_hub import DatasetCardData

    header, *records = read_jsonl(file)
    read = [Tip(**record) for record in records]
    tips = [replace(tip, model=tip.run) if tip.model.startswith(("/", "~")) else tip for tip in read]
    texts = {tip.id: "\n".join(value for value in asdict(tip).values() if isinstance(value, str)) for tip in tips}
    if found := [tip_id for tip_id, text in texts.items() if _SECRET.search(text)]:
        raise ConfigError(f"tips {', '.join(map(str, found[:10]))} hold what looks like a key or a password, and "
                          "nothing was published: `trailnotes memory edit` or `delete` mends them")  # fmt: skip
    write_tips(folder / TIPS, tips, memory=header["memory"])
    rows = {
        "a tip": "its text, task, score, author and date, and what the author saw last (`key`)",
        "tips": f"{len(tips):,}, of which {sum(tip.enabled for tip in tips):,} are enabled",
        "tasks": f"{len({tip.namespace for tip in tips}):,}",
    }
    for name, title in {"model": "written by", "run": "in the run"}.items():
        most = Counter(getattr(tip, name) for tip in tips).most_common(10)
        rows[title] = ", ".join(f"`{value}` ({number:,})" for value, number in most)
    lines = [
        f"# {repo.partition('/')[2]}", "",
        "Tips that language models wrote for their own later attempts in text environments.", "",
        *_format_rows(rows), "", "A tip tells an agent what to do. Read them before you let one follow them.", "",
        "```", f"trailnotes memory import runs/mine {TIPS}", "```",
    ]  # fmt: skip
    _write_card(folder, DatasetCardData(license=licence or None, tags=["trailnotes", "agents"]), lines)


def list_files(folder: Path) -> list[str]:
    """List what would be published: a line for each file, with its size, and then the card."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sizes = [f"{path.stat().st_size:>15,}  {path.relative_to(folder)}" for path in files]
    return [*sizes, "", (folder / CARD).read_text(encoding="utf-8")]


def require_repository_name(name: str) -> None:
    """Refuse a name that the hub takes for no OWNER/NAME."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented there

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ConfigError(f"{name!r} names no repository: write OWNER/NAME ({error})") from error
    if "/" not in name:
        raise ConfigError(f"{name!r} names no repository: write OWNER/NAME")


def publish(folder: Path, repo: str, kind: Literal["model", "dataset"], *, private: bool = False) -> str:
    """Upload a folder as one commit, to a new repository or on top of what one holds; return its address.

    Raises:
        ConfigError: the repository is public against `private`, or keeps weights of another model.
        PolicyError: the hub refuses, or cannot be reached.
    """
    from huggingface_hub import HfApi, errors

    api = HfApi()
    unreachable: Any = (errors.OfflineModeIsEnabled, *errors.HfHubHTTPError.__bases__)  # of its client, httpx or httpx2
    try:
        url = api.create_repo(repo, repo_type=kind, private=private or None, exist_ok=True)
        if private and not api.repo_info(repo, repo_type=kind).private:
            raise ConfigError(f"{url} is public: leave --private out, or change that on its page first")
        weights = re.compile(r".*(\.safetensors|\.safetensors\.index\.json|\.bin)|adapter_config\.json")
        own = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
        for name in api.list_repo_files(repo, repo_type=kind):
            if weights.fullmatch(name) and name not in own:
                raise ConfigError(f"{url} holds {name}, which belongs to another model: name another repository, or "
                                  "delete it there first")  # fmt: skip
        api.upload_folder(repo_id=repo, repo_type=kind, folder_path=folder, commit_message="Upload by trailnotes")
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        fix = "try again"
        if status in {401, 403}:
            fix = "log in (hf auth login), or set HF_TOKEN to a token that may write"
        raise PolicyError(f"the hub refuses {repo} (status {status}): {fix}") from error
    except (*unreachable, OSError, RuntimeError) as error:
        cause = f": {error.__cause__}" if error.__cause__ else ""  # of one file
        raise PolicyError(f"{repo} was not published: {' '.join(f'{error}{cause}'.split())}") from error
    return str(url)


def _write_card(folder: Path, facts: Any, lines: Sequence[str]) -> None:
    text = "\n".join(["---", facts.to_yaml(), "---", "", *lines]) + "\n"
    if _SECRET.search(text):
        raise ConfigError("the card would hold what looks like a key or a password: nothing was published")
    write_text_atomic(folder / CARD, text)


def _format_rows(rows: Mapping[str, str]) -> list[str]:
    cells = {name: value.replace("|", "\\|") for name, value in rows.items()}
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in cells.items())]


def _describe_evaluations(run: Path, model: Path) -> list[str]:
    """Copy the tables of this checkpoint's evaluations inside the run, each with its panel."""
    lines: list[str] = []
    for file in sorted(run.glob("*/panel.json")):
        table, panel = file.with_name("table.md"), read_json(file)
        if not table.is_file() or Path(panel["model"]).parts[-2:] != model.parts[-2:]:
            continue
        digest = hashlib.sha256(json.dumps(panel["tasks"]).encode()).hexdigest()[:16]
        games = f"{len(panel['tasks'])} tasks of `{panel['env']}`, split `{panel['split']}`"
        lines += [
            table.read_text(encoding="utf-8"),
            f"Panel: {games}, sha256 of their ids {digest}; episodes of each: {panel['num_samples']}.", "",
        ]  # fmt: skip
    return lines or ["No evaluation of this checkpoint is in its run (`trailnotes eval RUN --out RUN/eval` makes one)."]


def _hide_paths(text: str) -> str:
    """Replace each quoted absolute path by "PATH"."""
    return _ABSOLUTE_PATH.sub('"PATH"', text)
