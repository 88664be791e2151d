"""The files of a project on a host: each has its form, and the job of Slurm resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_file_has_the_form_that_the_host_wants(schema: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, *map(str, SCHEMAS[schema])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.long
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
