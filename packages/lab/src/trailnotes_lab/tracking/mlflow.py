"""MLflow: where ``MLFLOW_TRACKING_URI`` says, by default its local store, ``mlflow.db`` in the working directory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping

from mlflow.entities import Metric, Param, RunStatus
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS

from trailnotes.storage.files import parse_json
from trailnotes_lab.tracking.base import PROJECT, About, Table

# By default it tries for many minutes to reach a server that is away.
HTTP_DEFAULTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
MOST_PARAMS, LONGEST_PARAM = 100, 6000  # in one request, letters of each: MLflow's limits
MOST_METRICS = 1000


class MLflow:
    """One run of MLflow. Server, key and experiment are those of its own environment variables."""

    def __init__(self, about: About) -> None:
        for name, value in HTTP_DEFAULTS.items():
            os.environ.setdefault(name, value)
        self._client = MlflowClient()
        self.id = self._find_run(about.id) or self._create_run(about)
        self._client.update_run(self.id, status=RunStatus.to_string(RunStatus.RUNNING))
        self._client.log_dict(self.id, dict(about.settings), "config.json")

    def curves(self, iteration: int, values: Mapping[str, float]) -> None:
        now = time.time_ns() // 1_000_000
        metrics = [Metric(name, value, now, iteration) for name, value in values.items()]
        for first in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self.id, metrics=metrics[first : first + MOST_METRICS])

    def text(self, iteration: int, name: str, text: str) -> None:
        self._client.log_text(self.id, text, f"{name}/{iteration:06d}.txt")

    def table(self, name: str, table: Table) -> None:
        """Write a file that MLflow shows as a table; its own `log_table` needs pandas, and adds to the last one."""
        file = f"{name}.json"
        self._client.log_dict(self.id, {"columns": table.columns, "data": table.rows}, file)
        tables = parse_json(self._client.get_run(self.id).data.tags.get(MLFLOW_LOGGED_ARTIFACTS, "[]"))
        if (entry := {"path": file, "type": "table"}) not in tables:
            self._client.set_tag(self.id, MLFLOW_LOGGED_ARTIFACTS, json.dumps([*tables, entry]))

    def close(self, *, finished: bool) -> None:
        ended = RunStatus.FINISHED if finished else RunStatus.KILLED
        self._client.set_terminated(self.id, RunStatus.to_string(ended))

    def _find_run(self, run_id: str) -> str:
        try:
            return str(self._client.get_run(run_id).info.run_id) if run_id else ""
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return ""

    def _create_run(self, about: About) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment else self._client.create_experiment(name)
        run_id = str(self._client.create_run(place, run_name=about.name).info.run_id)
        params = [Param(key, str(value)[:LONGEST_PARAM]) for key, value in about.settings.items()]
        for first in range(0, len(params), MOST_PARAMS):  # once: MLflow does not let them change
            self._client.log_batch(run_id, params=params[first : first + MOST_PARAMS])
        return run_id
