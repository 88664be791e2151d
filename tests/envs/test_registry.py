"""Names of environments, their options, and errors for wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import odd_envs
from trailnotes.envs import ENVS, list_env_tasks, load_env_class, make_env
from trailnotes.errors import ConfigError, EnvError, MissingExtraError, format_install_command


def test_an_entry_point_names_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "puppets-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: puppets\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[trailnotes.envs]\npuppet = odd_envs:Puppet [strings]\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_env_class("puppet") is odd_envs.Puppet
    with pytest.raises(ConfigError, match="did you mean puppet"):
        load_env_class("pupet")


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("waymark", {}, "did you mean waymarks"),
        ("xyzzy", {}, "known: alfworld, gateway"),
        ("no_such_module:Env", {}, "no_such_module.*in the folder of its file"),
        ("lock.py", {}, "did you mean lock:Lock"),
        ("./sub/lock.py", {}, "did you mean sub.lock:Chest"),
        ("lock.Lok", {}, "did you mean lock:Lok"),
        ("odd_envs.py:Puppet", {}, "odd_envs.py"),
        ("odd_envs:Pupet", {}, "'Pupet'"),
        ("odd_envs:", {}, "module:Class"),
        ("odd_envs:Puppet", {"greting": "hi"}, "env.options.greting: .*did you mean greeting"),
        ("odd_envs:Puppet", {"zzz": 1}, "known: greeting, num"),
        ("odd_envs:Deadly", {}, "env.options.tally is missing"),
        ("lock:Lake", {}, 'Gymnasium.*env.options.id = "lock:NAME-v0"'),
    ],
)
def test_wrong_names_and_options_are_refused_with_the_nearest(
    name: str, options: dict[str, Any], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "lock.py").write_text("class Lock:\n    pass\nclass Core:\n    __module__ = 'gymnasium.core'\n"
                                      "class Lake(Core):\n    pass\n")  # fmt: skip
    (tmp_path / "sub/lock.py").write_text("class Chest:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=key):
        make_env(name, **options)


def test_failing_tasks_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "class Env:\n    @staticmethod\n    def tasks(split):\n        return {}[split]\nclass Bare:\n    pass\n"
    source += "class Ids(Env):\n    @staticmethod\n    def tasks(split):\n        return ['one']\n"
    (tmp_path / "task_env.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for name, split, options, error, message in (
        ("task_env:Env", "train", {}, EnvError, r"tasks\('train'\) of task_env:Env raised KeyError"),
        ("task_env:Bare", "train", {}, ConfigError, "give Bare a static method tasks"),
        ("task_env:Ids", "train", {}, ConfigError, r"tasks\('train'\) must list Task values"),
        ("odd_envs:Puppet", "summer", {}, ConfigError, "no split 'summer'"),
        ("odd_envs:Puppet", "train", {"nun": 3}, ConfigError, r"env\.options\.nun"),
    ):
        with pytest.raises(error, match=message):
            list_env_tasks(name, split, options)


@pytest.mark.parametrize(
    "source",
    [
        "import no_such_package",
        "class Env:\n    def __init__(self):\n        import no_such_package",
        "class Env:\n    @staticmethod\n    def tasks(split):\n        import no_such_package",
    ],
)
def test_a_missing_package_of_a_built_in_names_the_extra(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"lacking{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(ENVS, "textworld", f"{name}:Env")
    use = (lambda: list_env_tasks("textworld", "train")) if "tasks" in source else (lambda: make_env("textworld"))
    with pytest.raises(MissingExtraError) as caught:
        use()
    assert str(caught.value) == (
        f"env.name = 'textworld' needs the package 'no_such_package': {format_install_command('textworld')}"
    )
