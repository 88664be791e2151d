"""The files of a project on a host: each has its form, and says what the repository says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted(set((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")) - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"})
ITERATIONS = 12
SCHEMAS = {
    "github-workflows": WORKFLOWS,
    "github-issue-forms": FORMS,
    "github-issue-config": [ROOT / ".github/ISSUE_TEMPLATE/config.yml"],
    "dependabot": [ROOT / ".github/dependabot.yml"],
    "compose-spec": [ROOT / "compose.yml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}


def read_yaml(path: Path) -> dict[Any, Any]:
    parsed: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return parsed


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_file_has_the_form_that_the_host_wants(schema: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, *map(str, SCHEMAS[schema])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_read_and_each_job_ends(path: Path) -> None:
    text, workflow = path.read_text(encoding="utf-8"), read_yaml(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["group"]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {*re.findall(r"\bmake ([\w-]+)", re.sub("#.*|apt-get.*", "", text))} <= {*targets}
    for action in re.findall(r"uses: (.*)", text):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action), f"{action}: name the commit, and its version"
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 90
        if "id-token" in job.get("permissions", {}):
            assert (path.stem, name) in {("release", "publish"), ("docs", "deploy")}


def test_the_container_has_the_versions_of_the_makefile() -> None:
    made, image = ((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "Dockerfile"))
    assert re.findall(r"TORCH=(torch==[\d.]+)", image) == re.findall(r"^TORCH := (.*)", made, re.MULTILINE)
    assert re.findall(r"VLLM=vllm(==[\d.]+)", image) == re.findall(r"^VLLM \?= .*\)(==[\d.]+)$", made, re.MULTILINE)
    extras = {
        name: tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for name, folder in (("EXTRAS", "."), ("WORLDS", "packages/worlds"))
    }
    for name, wanted in re.findall(r"^ARG (EXTRAS|WORLDS)=(.*)", image, re.MULTILINE):
        assert {*wanted.split(",")} <= {*extras[name]}
    for line in re.findall(r"^COPY (?!--from|\. \.)(.*) \S+$", image, re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split())
    stages = re.findall(r"^FROM .* AS (\S+)", image, re.MULTILINE)
    assert json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())["build"]["target"] in stages
    assert read_yaml(ROOT / "compose.yml")["x-trailnotes"]["build"]["target"] in stages


def test_nothing_in_compose_listens_beyond_this_machine() -> None:
    for service in read_yaml(ROOT / "compose.yml")["services"].values():
        assert service["network_mode"] == "host"
        assert "ports" not in service
        words = service["command"]
        assert words[0] in {"view", "memory"} or words[words.index("--host") + 1] == "127.0.0.1"


def test_a_job_of_slurm_resumes_where_it_was_told_to_stop(start_model: Path, tmp_path: Path) -> None:
    """The script as it is, with `scontrol` and `trailnotes` on the path that record, and are, the real thing."""
    scripts = tmp_path / "bin"
    scripts.mkdir()
    (scripts / "scontrol").write_text('#!/bin/sh\necho "$@" >> requeued\n')
    (scripts / "trailnotes").write_text(f'#!/bin/sh\nexec {sys.executable} -m trailnotes "$@"\n')
    for script in scripts.iterdir():
        script.chmod(0o755)
    settings = {
        "env.name": "waymarks-simulator", "model.device": "cpu", "run.threads": 1, "env.num_workers": 0,
        "rollout.num_tasks": 2, "rollout.group_size": 4, "rollout.max_steps": 2, "rollout.max_context_tokens": 256,
        "rollout.max_action_tokens": 4, "rollout.max_observation_tokens": 64, "rollout.style": "terse",
        "memory.max_write_tokens": 6, "train.iterations": ITERATIONS, "train.max_env_steps": 0, "train.save_every": 1,
    }  # fmt: skip
    words = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    (tmp_path / "own.toml").touch()
    env = os.environ | {"PATH": f"{scripts}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "2"}
    command = ["bash", str(ROOT / "examples/slurm.sbatch"), "own.toml", "run", "--model.path", str(start_model), *words]
    metrics = tmp_path / "run/metrics.jsonl"
    with (tmp_path / "log").open("wb") as log:
        job = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=log)
    while job.poll() is None and not (metrics.exists() and metrics.read_bytes()):
        time.sleep(0.05)
    job.send_signal(signal.SIGUSR1)
    assert job.wait() == 143, (tmp_path / "log").read_text()
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    assert len(metrics.read_bytes().splitlines()) < ITERATIONS
    subprocess.run(command, cwd=tmp_path, env=env, check=True)
    assert [json.loads(line)["iteration"] for line in metrics.read_text().splitlines()] == [*range(ITERATIONS)]
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"  # nothing is left to do
