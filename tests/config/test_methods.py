"""Methods by name: the registry, what follows from it, and methods that are somebody's own."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

import trailnotes
from small import small_config
from tinyrun import episodes, equal_weights, metrics, tiny_config
from trailnotes.algorithms.grpo import grpo
from trailnotes.commands import main
from trailnotes.config import methods
from trailnotes.config.former import LAB_KEYS
from trailnotes.config.methods import (
    ENTRY_POINTS,
    LAB_METHODS,
    Method,
    find_method,
    find_modules,
    list_names,
    loaded,
    register,
    resolve_method,
)
from trailnotes.config.schema import Config, full_config_type
from trailnotes.config.toml import flatten_config, load_config, to_toml
from trailnotes.errors import ConfigError
from trailnotes_lab.compare import run_comparison
from trailnotes_lab.compare.picture import assign_colours

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("methods_as_before")
OWN_METHODS = """
from trailnotes.algorithms.grpo import grpo
from trailnotes.algorithms.naive import naive
from trailnotes.config.methods import Method
from trailnotes.config.refusals import require_own_tips
from trailnotes.config.section import Section, key

class OwnConfig(Section):
    weight: float = key(1.0, "a weight")

async def ours(iteration):
    iteration.add_metrics("own", {"weight": iteration.config.section(OwnConfig).weight})
    await grpo(iteration)

OURS = Method("ours", "our GRPO", ours, trains=True, sections={"own": OwnConfig})
PANEL = Method("panel", "our panel", naive, trains=False, validate=require_own_tips)
"""


@pytest.mark.parametrize("method", [find_method(name) for name in list_names()], ids=list_names())
def test_every_method_is_at_home_and_has_its_page(method: Method) -> None:
    assert method.load().__name__ == method.name.replace("-", "_")
    pages = ROOT / "docs/algorithms"
    shared = (pages / "memories.md").read_text(encoding="utf-8")
    assert (pages / f"{method.name}.md").is_file() or f"| `{method.name}` |" in shared


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("grop", "no method is called 'grop': did you mean grpo"),
        ("magic", "no method is called 'magic': choose one of ace, .*, or module:NAME of your own"),
        ("no_such_module:OWN", "no_such_module:OWN cannot be imported as a method: ModuleNotFoundError: No module"),
        ("test_methods:ROOT", "test_methods:ROOT is not a Method"),
        ("broken_method:OWN", "broken_method:OWN cannot be imported as a method: SyntaxError: "),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(
    name: str, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_method.py").write_text("OWN = (")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=answer):
        resolve_method(name)
    if ":" not in name:
        with pytest.raises(ConfigError, match=f"command line: algorithm.name = .*{answer}"):
            load_config(None, ["--algorithm.name", name])


def test_a_panel_that_a_method_cannot_play_is_refused_at_once() -> None:
    panels = [(name, "show_tips", "other") for name in ("ace", "clin", "reasoningbank", "rememberer", "retrospex")]
    for name, key, value in [*panels, ("training-free-grpo", "num_samples", 1), ("reflexion", "num_samples", 2)]:
        with pytest.raises(ConfigError, match=rf"{name} .*: set eval\.{key}"):
            small_config(algorithm={"name": name}, eval={key: value}).validate_method()


def test_an_entry_point_names_a_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sold_methods.py").write_text(f"{OWN_METHODS}\nMETHOD = OURS\n")
    folder = tmp_path / "sold-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: sold\nVersion: 1.0\n")
    names = "ours = sold_methods\ngrpo = sold_methods\ntorn = no_such_module\n"
    (folder / "entry_points.txt").write_text(f"[trailnotes.methods]\n{names}")
    monkeypatch.syspath_prepend(tmp_path)
    find_modules.cache_clear()
    loaded.pop("ours", None)
    assert "ours" in list_names()
    assert "sold_methods" not in sys.modules, "not before a config names it"
    assert load_config(None, ["--algorithm.name", "ours", "--own.weight", "2"]).own.weight == 2
    assert load_config(None, ["--reflexion.max_write_tokens", "9", "--empo2.p_memory", "0.5"])
    assert [record.levelname for record in caplog.records] == ["WARNING"], "a broken package costs its method alone"
    assert resolve_method("ours").label == "our GRPO"
    assert resolve_method("grpo").load() is grpo, "a method of the package stays"
    with pytest.raises(ConfigError, match="torn cannot be loaded from no_such_module: ModuleNotFoundError"):
        resolve_method("torn")
    with pytest.raises(ConfigError, match="called 'ours' already"):
        register(Method("ours", "another", grpo, trains=True))


def replace_lab(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    """Offer `points` instead of the methods of trailnotes-lab."""
    others = [point for point in entry_points(group=ENTRY_POINTS) if point.name not in LAB_METHODS]
    monkeypatch.setattr(methods, "entry_points", lambda group: [*others, *points] if group == ENTRY_POINTS else [])
    find_modules.cache_clear()
    for name in LAB_METHODS:
        loaded.pop(name, None)


FORMER_SECTIONS = """
[rememberer]
epochs = 3
lr = 0.0
task_similarity = "embedding"
[retrospex]
data = []
decay = 0.97
encoder = "gru"
"""


def read_config_beside_former_sections(folder: Path) -> Config:
    (folder / "config.toml").write_text(f'algorithm.name = "grpo"\noptim.lr = 0.5\n{FORMER_SECTIONS}')
    return load_config(folder / "config.toml")


def test_sections_of_the_lab_are_read_with_it(tmp_path: Path) -> None:
    config = read_config_beside_former_sections(tmp_path)
    assert (config.optim.lr, config.rememberer.epochs, config.retrospex.data) == (0.5, 3, ())


@pytest.mark.parametrize("has_entry_points", [False, True])
def test_default_sections_of_the_lab_are_dropped_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_entry_points: bool
) -> None:
    """Where it is not installed, and where its modules are gone."""
    names = LAB_METHODS if has_entry_points else ()
    replace_lab(monkeypatch, *(EntryPoint(name, f"no_such_lab.{name}", ENTRY_POINTS) for name in names))
    config = read_config_beside_former_sections(tmp_path)
    assert config == load_config(None, ["--algorithm.name", "grpo", "--optim.lr", "0.5"])
    assert not {*LAB_METHODS} & {*type(config).model_fields}
    with pytest.raises(ConfigError, match=r"retrospex\.epochs is a setting of trailnotes-lab: pip install"):
        load_config(None, ["--retrospex.epochs", "2"])
    if not has_entry_points:
        with pytest.raises(ConfigError, match="trailnotes-lab: pip install trailnotes-lab"):
            load_config(None, ["--algorithm.name", "rememberer"])


def test_former_defaults_of_the_lab_are_its_defaults() -> None:
    defaults = flatten_config(full_config_type()())
    theirs = {name: value for name, value in defaults.items() if name.partition(".")[0] in LAB_METHODS}
    assert theirs == {name: tuple(value) if value == [] else value for name, value in LAB_KEYS.items()}


def test_a_registered_method_trains_like_any_other(start_model: Path, tmp_path: Path) -> None:
    register(Method("own", "our own", grpo, trains=True, colour="#123456"))
    for name in ("own", "grpo"):
        trailnotes.train(tiny_config(start_model, algorithm={"name": name}), tmp_path / name)
    own, known = tmp_path / "own", tmp_path / "grpo"
    assert equal_weights(own, known)
    assert (metrics(own), episodes(own)) == (metrics(known), episodes(known))
    assert not (own / "memory.db").exists()
    assert assign_colours(["our own"]) == {"our own": "#123456"}


PLAN = """
[compare]
name = "own"
config = "base.toml"
seeds = [0]

[budget]
env_steps = 16

[methods."own_methods:OURS"]

[methods."own_methods:PANEL"]
"""


def test_a_method_brings_its_section_to_the_command_line_and_on_resume(
    start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_methods.py").write_text(OWN_METHODS)
    (tmp_path / "base.toml").write_text(to_toml(tiny_config(start_model)))

    def run_in_a_new_process(*words: str) -> int:  # as far as the registry goes
        loaded.pop("own_methods:OURS", None)
        sys.modules.pop("own_methods", None)
        return main([*words])

    words = ["train", "base.toml", "--run-dir", "run", "--allow-change", "train.iterations",
             "--algorithm.name", "own_methods:OURS"]  # fmt: skip
    for iterations in "12":
        assert run_in_a_new_process(*words, "--own.weight", "2", "--train.iterations", iterations) == 0
    assert [line["own/weight"] for line in metrics(Path("run"))] == [2, 2]
    assert run_in_a_new_process("diagnose", "run") == 0
    assert "own_methods" not in sys.modules, "what only looks imports nothing"
    assert run_in_a_new_process("eval", "run", "--eval.num_tasks", "1") == 0
    tips = ("adapt", "run", "--out", "run/adapt", "--trials", "1", "--eval.num_tasks", "1")
    assert run_in_a_new_process(*tips) == 0
    loaded.pop("own_methods:OURS")
    for settings in ("config.toml", "eval/eval.toml"):  # of a method that is not the user's, so without its section
        assert load_config(f"run/adapt/{settings}", trusted=settings == "config.toml").algorithm.name == "empo2-tips"
    assert run_in_a_new_process(*tips[:3], "run") == 2
    assert "give a directory inside, --out run/adapt" in capsys.readouterr().err
    assert run_in_a_new_process(*words, "--own.wieght", "2") == 2
    assert "section [own] has no key 'wieght': did you mean own.weight?" in capsys.readouterr().err
    assert "[own]\nweight = 1.0" in to_toml(load_config("base.toml", ["--algorithm.name", "own_methods:OURS"]))
    panel = ("adapt", "random", "--config", "base.toml", "--method", "own_methods:PANEL", "--out", "panel")
    assert run_in_a_new_process(*panel, "--eval.show_tips", "empty") == 2
    assert 'own_methods:PANEL shows no tips: set eval.show_tips = "own"' in capsys.readouterr().err


def test_methods_named_by_module_are_compared_with_no_other_edit(
    start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is a process of its own, in the working directory that holds the module."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_methods.py").write_text(OWN_METHODS)
    (tmp_path / "base.toml").write_text(to_toml(small_config(model={"path": str(start_model)})))
    (tmp_path / "plan.toml").write_text(PLAN)
    summary = run_comparison(tmp_path / "plan.toml", out=tmp_path / "out")
    assert [(line.label, line.missing) for line in summary.lines] == [("our GRPO", {}), ("our panel", {})]
