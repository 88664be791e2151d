"""An agent's side of a session: where its model is, which task it has, and how it went."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from trailnotes.errors import ConfigError, SessionOver
from trailnotes.storage.files import parse_json

TIMEOUT_S = 30.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy does not reach this machine


class AgentSession:
    """A session of an agent with a gateway.

    Attributes:
        base_url: address for a client of OpenAI's API; the model is "trailnotes".
        api_key: for that client.
        task: the task: "id", and what the list of tasks says besides.
    """

    model = "trailnotes"

    def __init__(self, url: str, task: Mapping[str, Any] | None = None, token: str = "") -> None:
        self.url, self._token = url.rstrip("/"), token
        self.base_url, self.api_key = f"{self.url}/v1", token or self.model
        self.task = dict(task if task is not None else _send("GET", self.url, None, token))

    def report(
        self, score: float | None = None, *, success: bool | None = None, done: bool = True, **more: Any
    ) -> None:
        """Report how it went; the first report that is `done` ends the episode.

        Args:
            score: so far; None: as before.
            success: whether the goal is reached; None: whether `score` is `max_score`.
            done: False while the agent goes on.
            more: `max_score` (default 1), `reward` since the last report (default the gain in score), `text` that
                there was to see at the end.

        Raises:
            SessionOver: it has ended before, by a report or by the run.
            ConfigError: the gateway refuses the report, has not kept it, or cannot be reached.
        """
        report = {"score": score, "success": success, "done": done, **more}
        _send("POST", f"{self.url}/report", report, self._token)


def session(task: str = "", *, gateway: str = "", token: str = "") -> AgentSession:
    """Return the session of this process, or open one at a gateway.

    Args:
        task: id of the task, at a gateway that serves; "" for an agent that `trailnotes train` has started.
        gateway: address that `trailnotes gateway` has printed.
        token: of a gateway that other machines reach.

    Raises:
        ConfigError: no gateway has started this process, and none is named; or it cannot be reached.
    """
    if gateway:
        opened = _send("POST", f"{gateway.rstrip('/')}/sessions", {"task": task}, token)
        return AgentSession(gateway.rstrip("/") + opened["path"], {"id": task}, token)
    if not (url := os.environ.get("TRAILNOTES_SESSION", "")):
        raise ConfigError("no gateway has started this process: name one, session(TASK, gateway='http://...')")
    return AgentSession(url, parse_json(os.environ["TRAILNOTES_TASK"]))


def _send(method: str, url: str, body: Mapping[str, Any] | None, token: str) -> Any:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"a gateway has an address that begins with http://, not {url[:80]!r}")
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {token}"} if token else {})}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 (checked above)
    try:
        with _DIRECT.open(request, timeout=TIMEOUT_S) as answer:
            return parse_json(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            refusal = error.read().decode(errors="replace")
        text = parse_json(refusal)["error"]["message"] if refusal.startswith('{"error"') else refusal[:200]
        if error.code in {404, 409}:
            raise SessionOver(text) from None
        raise ConfigError(f"the gateway refused it: {text}") from None
    except (OSError, http.client.HTTPException) as error:
        raise ConfigError(f"the gateway at {url} cannot be reached ({error})") from None
