"""A server of the Tinker API: its connection, waits with a limit, and errors in one line.

The official SDK sends the requests and repeats what failed on the way. It waits for ever where a server dies, so every
wait here has a limit, and meanwhile asks whether the server is alive.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any, BinaryIO, Final

from trailnotes.config.model_schema import TINKER_KEY_VARIABLE, LearnerConfig
from trailnotes.errors import ConfigError, MissingExtraError, ServerError, TrailnotesError, format_install_command
from trailnotes.storage.files import parse_json
from trailnotes.web.faults import compute_wait, extract_error_text, is_context_overflow, is_retryable, parse_retry_after
from trailnotes.web.ledger import TokenLedger
from trailnotes.web.wire import redact_key

os.environ.setdefault("TINKER_TELEMETRY", "0")  # it would send the text of errors, which may quote a user's data
try:
    import httpx
    import tinker
except ModuleNotFoundError as missing:
    raise MissingExtraError(f"{missing.name} is not installed: {format_install_command('tinker')}") from missing

for _name in ("tinker", "httpx"):  # they tell every request and every try, and a progress bar is being drawn
    logging.getLogger(_name).setLevel(logging.ERROR)

HOSTED_URL: Final = "https://tinker.thinkingmachines.dev/services/tinker-prod"
NO_KEY: Final = "tml-none"  # for a server of one's own that wants none: the SDK insists on this form
SKYRL_TITLE: Final = "Tinker API Mock"  # of its schema, from tx 0.1 to skyrl of August 2026
ALIVE_EVERY: Final = 5.0  # seconds of silence before a server is asked whether it lives
MAX_TRIES: Final = 5  # of a request that the SDK does not send
NUM_SILENT: Final = 3  # times in a row that it may leave this unanswered
WEIGHTS_TTL: Final = 14 * 24 * 3600  # seconds that a server may keep weights that only sample


@dataclass(frozen=True, slots=True)
class Dialect:
    """What servers of the API do differently; by default, what it documents."""

    averages_rows: bool = False  # a row's loss is divided by its length, and gradients by the rows of a step
    clips_gradients: bool = True  # knows `grad_clip_norm`
    clips_ratios: bool = True  # "ppo" takes thresholds other than 0.8 and 1.2
    samples_from_training: bool = False  # sampling from saved weights puts them where training goes on
    names_kind: bool = True  # the id of a checkpoint's archive begins with its kind
    keeps_order: bool = True  # does a step after all passes, and before all, that were submitted before and after it


DOCUMENTED: Final = Dialect()
SKYRL: Final = Dialect(
    averages_rows=True, clips_gradients=False, clips_ratios=False, samples_from_training=True, names_kind=False,
    keeps_order=False,
)  # fmt: skip


class TinkerServer:
    """A session with a server of the Tinker API, with the address, the limits and the prices of `config`.

    The key is in the environment variable TINKER_API_KEY; `ledger` is the file of `TokenLedger`.
    """

    def __init__(self, config: LearnerConfig, ledger: Path | None = None) -> None:
        self.config = config
        self.url = (config.url or HOSTED_URL).rstrip("/")
        self._key = load_tinker_key(config)
        self._headers = {"X-API-Key": self._key}
        self.ledger = TokenLedger(config, ledger)
        self._lock = Lock()
        self._checked, self._alive = -math.inf, True  # when the server was last asked whether it lives, and the answer
        self._require_alive()
        self.dialect = self._find_dialect()
        self.service: Any = self.call(
            lambda: tinker.ServiceClient(base_url=self.url, api_key=self._key), "opening a session"
        )

    def list_models(self) -> dict[str, int | None]:
        """Map the names of the base models that the server has to their context length, None where it tells none."""
        answer = self._get("/api/v1/get_server_capabilities", "listing its models")
        listed = parse_json(redact_key(self._key, answer.text))["supported_models"]
        return {str(each["model_name"]): each.get("max_context_length") for each in listed}

    def require_model(self, name: str, num_tokens: int) -> None:
        if name not in (offered := self.list_models()):
            raise ConfigError(
                f"{self.url} has no model {name!r}: set model.path to one of {', '.join([*offered][:20])}"
                + (", ... (trailnotes models lists all)" if len(offered) > 20 else "")
            )
        if (most := offered[name]) and most < num_tokens:
            raise ConfigError(f"{name} holds {most:,} tokens at {self.url}: lower rollout.max_context_tokens, which is "
                              f"{num_tokens:,}")  # fmt: skip

    def call(self, function: Callable[[], Any], doing: str) -> Any:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                value = function()  # a future in the SDK's later versions
                future.set_result(value.result() if hasattr(value, "result") else value)
            except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
                future.set_exception(error)

        Thread(target=run, daemon=True).start()  # the SDK warns of calls that block the thread of an event loop
        return self.wait(future, doing)

    def wait(self, future: Any, doing: str) -> Any:
        """Wait for a future of the SDK, or of a thread, for `learner.timeout` seconds at most.

        Raises `ServerError` where the server is gone, refuses, or has not answered in time; `doing` is for its text.
        """
        waited: Future[Any] = future if isinstance(future, Future) else future.future()
        began, silent = time.monotonic(), 0
        while not concurrent.futures.wait({waited}, ALIVE_EVERY).done:
            silent = self._check_deadline(began, silent, doing)
        return self._read(waited, doing)

    async def wait_async(self, future: Any, doing: str) -> Any:
        waited = asyncio.wrap_future(future if isinstance(future, Future) else future.future())
        waited.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # this task may be cancelled
        began, silent = time.monotonic(), 0
        while not (await asyncio.wait({waited}, timeout=ALIVE_EVERY))[0]:
            silent = await asyncio.to_thread(self._check_deadline, began, silent, doing)
        return self._read(waited, doing)

    def release(self, model_id: str) -> None:
        """Unload adapters, which take room at a server of one's own; the SDK has no public function for it."""
        if self.config.url:
            body = {"model_id": model_id, "type": "unload_model"}
            with suppress(httpx.HTTPError):  # it frees them by itself some minutes after a session has ended
                httpx.post(f"{self.url}/api/v1/unload_model", json=body, headers=self._headers, timeout=ALIVE_EVERY)

    def download_archive(self, run: str, name: str, file: BinaryIO, most: int) -> None:
        """Download the archive of weights that the server keeps for sampling into `file`, `most` bytes at most.

        Later SDKs have no function for it. The server's key goes to no other host.
        """
        kind = "sampler_weights/" if self.dialect.names_kind else ""
        answer = self._get(f"/api/v1/training_runs/{run}/checkpoints/{kind}{name}/archive", "asking for the adapters")
        try:
            link = answer.url.join(answer.headers.get("location", ""))
            own = (link.scheme, link.host, link.port) == (answer.url.scheme, answer.url.host, answer.url.port)
            with httpx.stream("GET", link, headers=self._headers if own else {}, timeout=self.config.timeout) as stream:
                stream.raise_for_status()
                for piece in stream.iter_bytes():
                    file.write(piece)
                    if file.tell() > most:
                        raise ServerError(f"{self.url} sends adapters of more than {most:,} bytes: is the rank right?")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerError(f"{self.url} does not give the adapters: {self._clean(error)}") from None

    def _get(self, path: str, doing: str) -> httpx.Response:
        for tries in range(1, MAX_TRIES + 1):
            try:
                answer = httpx.get(f"{self.url}{path}", headers=self._headers, timeout=self.config.timeout)
            except httpx.HTTPError as error:
                raise ServerError(f"{self.url} failed while {doing}: {self._clean(error)}") from None
            if tries == MAX_TRIES or not is_retryable(answer.status_code, None):
                break
            time.sleep(compute_wait(tries, parse_retry_after(answer.headers), answer.status_code))
        if answer.status_code in {401, 403}:
            raise self._explain_key(answer.status_code, answer.text)
        if answer.is_error:
            raise ServerError(f"{self.url} answers {answer.status_code} while {doing}")
        return answer

    def _find_dialect(self) -> Dialect:
        with suppress(httpx.HTTPError, ValueError, LookupError, TypeError):  # the API requires no schema of a server
            if self.config.url:
                title = httpx.get(f"{self.url}/openapi.json", timeout=ALIVE_EVERY).json()["info"]["title"]
                return SKYRL if title == SKYRL_TITLE else DOCUMENTED
        return DOCUMENTED

    def _read(self, ended: Any, doing: str) -> Any:
        try:
            return ended.result()
        except TimeoutError:
            raise self._explain_timeout(doing) from None
        except Exception as error:
            raise self._explain(error, doing) from error

    def _check_deadline(self, began: float, silent: int, doing: str) -> int:
        if time.monotonic() - began > self.config.timeout:
            raise self._explain_timeout(doing)
        if self._is_alive():
            return 0
        if silent + 1 >= NUM_SILENT:
            raise ServerError(f"{self.url} is gone while {doing}: start it again, and the same command resumes at the "
                              "last checkpoint")  # fmt: skip
        return silent + 1

    def _is_alive(self) -> bool:
        with self._lock:  # of many requests that wait, one asks
            if time.monotonic() - self._checked > ALIVE_EVERY / 2:
                try:
                    self._alive = self._get_health().status_code < 500  # one that is busy is alive
                except httpx.HTTPError:
                    self._alive = False
                self._checked = time.monotonic()
            return self._alive

    def _get_health(self) -> httpx.Response:
        return httpx.get(f"{self.url}/api/v1/healthz", headers=self._headers, timeout=ALIVE_EVERY)

    def _require_alive(self) -> None:
        try:
            answer = self._get_health()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerError(
                f"no server answers at {self.url} ({self._clean(error)}): start the server there, or set learner.url "
                "to its address; '' is the hosted service"
            ) from None
        if answer.status_code in {401, 403}:
            raise self._explain_key(answer.status_code)
        if answer.status_code == 404:
            raise ServerError(f"{self.url} is no server of the Tinker API (it does not know /api/v1/healthz): set "
                              "learner.url to one, without any path")  # fmt: skip

    def _explain_timeout(self, doing: str) -> ServerError:
        return ServerError(
            f"{self.url} has not answered for {self.config.timeout:g} s while {doing}: see whether it is stuck, or "
            "raise learner.timeout, with --allow-change learner.timeout; the run resumes at the last checkpoint"
        )

    def _explain_key(self, status: int, body: object = "") -> ServerError:
        text = redact_key(self._key, extract_error_text(body))
        return ServerError(
            f"{self.url} answers {status} ({text}): export {TINKER_KEY_VARIABLE} with a key that it takes"
        )

    def _explain(self, error: Exception, doing: str) -> Exception:
        if isinstance(error, TrailnotesError):
            return error
        cause = next((e for e in (error, error.__cause__) if isinstance(e, tinker.APIStatusError)), None)
        if cause is None:
            happened, text = "failed", self._clean(error).partition(" for self.")[0]  # then the SDK's own fields
        elif cause.status_code in {401, 403}:
            return self._explain_key(cause.status_code, cause.body)
        else:
            happened = f"answers {cause.status_code}"
            text = redact_key(self._key, extract_error_text(cause.body))
        fix, lost = "run the same command again, which resumes at the last checkpoint", False
        if "not loaded" in text or "not found" in text.lower():
            fix, lost = f"it has lost what this run keeps there (was it restarted?): {fix}", True
        elif "Maximum number of LoRA adapters" in text:
            fix = "it frees those of a lost run after some minutes; wait, or start it with room for more adapters"
        elif cause is not None and cause.status_code == 402:
            fix = f"the account has nothing left to spend: top it up, and {fix}"
        elif cause is not None and is_context_overflow(cause.body):
            fix = "lower rollout.max_context_tokens to what the model holds"
        return ServerError(f"{self.url} {happened} while {doing}: {text}; {fix}", lost=lost)

    def _clean(self, error: BaseException) -> str:
        return redact_key(self._key, " ".join(str(error).split()) or type(error).__name__)[:300]


def load_tinker_key(config: LearnerConfig) -> str:
    """Load the key of the service, `NO_KEY` for a server that has none; raises `ConfigError` where it is missing."""
    key = os.environ.get(TINKER_KEY_VARIABLE, "").strip()
    if not key and config.url:
        return NO_KEY
    if not key:
        raise ConfigError(
            f"the hosted Tinker service wants a key: export {TINKER_KEY_VARIABLE}=tml-..., or name a server of your "
            "own in learner.url"
        )
    if not key.startswith(("tml-", "eyJ")) or not key.isascii() or any(map(str.isspace, key)):
        raise ConfigError(
            f"the environment variable {TINKER_KEY_VARIABLE} holds no key: those of the API begin with tml-"
        )
    return key
