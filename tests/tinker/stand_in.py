"""A small server of the Tinker API: torch and peft on one tiny model, as a process of its own.

    python tests/tinker/stand_in.py --model DIR --root DIR --port 0 --dialect documented

It prints its process and its port; without options it forks such a server for each line of its input, a JSON list of
options, in a twentieth of the time. Sessions, models and checkpoints are files under `--root`: after a kill a new start
knows them, but has no model loaded. `documented` does what the hosted service documents, `skyrl` what skyrl-tx 0.3.0
does.

    GET /counts   requests by path; tokens forwarded, trained, prefilled and sampled
    POST /faults  {"path": "asample", "times": 2, "status": 429}   two requests of that path are refused
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import io
import json
import os
import signal
import socket
import sys
import tarfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import uvicorn
from stand_in_engine import Body, Engine, RefusedError
from stand_in_wire import MEDIA_TYPE, decode_pass, encode_answer
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

API = "/api/v1"
WAIT = 5.0  # seconds until a future that is not ready is a 408
PASSES = {"forward", "forward_backward"}


@dataclass(eq=False)
class Task:
    """A request that is to be computed."""

    name: str
    model_id: str
    work: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)


class Worker:
    """One thread that does what is submitted, in that order; skyrl-tx has an order of its own."""

    def __init__(self, skyrl: bool) -> None:
        self.take = self.take_waiting if skyrl else self.take_first
        self.pool = ThreadPoolExecutor(1)
        self.pending: list[Task] = []

    def submit(self, task: Task) -> Future[Any]:
        self.pending.append(task)
        self.pool.submit(self.run)
        return task.future

    def run(self) -> None:
        for task in self.take():
            self.pending.remove(task)
            try:
                task.future.set_result(task.work())
            except Exception as error:  # noqa: BLE001 - whatever failed, the client is told
                task.future.set_exception(error)
        if self.pending:
            self.pool.submit(self.run)

    def take_first(self) -> list[Task]:
        return self.pending[:1]

    def take_waiting(self) -> list[Task]:
        """Take all that waits: passes, samples, the rest. A pass waits for the step before it, no step for a pass."""
        barred: set[str] = set()
        rounds: dict[str, list[Task]] = {"forward_backward": [], "forward": [], "asample": [], "": []}
        for task in list(self.pending):
            if task.name in PASSES and task.model_id in barred:
                continue
            rounds[task.name if task.name in rounds else ""].append(task)
            if task.name in {"optim_step", "load_weights"}:
                barred.add(task.model_id)
        return [task for tasks in rounds.values() for task in tasks]


class Server:
    """The protocol."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.skyrl = options.dialect == "skyrl"
        self.engine = Engine(options.model, self.skyrl)
        self.worker = Worker(self.skyrl)
        self.futures: dict[str, Future[Body]] = {}
        self.requests: Counter[str] = Counter()
        self.faults: list[Body] = []
        self.file = options.root / "state.json"
        empty: Body = {"sessions": [], "models": {}, "samplers": {}}
        self.state: Body = json.loads(self.file.read_text()) if self.file.exists() else empty

    def keep(self) -> None:
        """Write what a new start is to know."""
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(self.state))
        part.rename(self.file)

    def submit(self, body: Body, work: Callable[[], Body], **more: Any) -> Body:
        number = uuid4().hex
        self.futures[number] = self.worker.submit(Task(body["name"], body.get("model_id", ""), work))
        return {"request_id": number} | more

    def find_model(self, model_id: str) -> Body:
        if model_id not in self.state["models"]:
            raise RefusedError(404, "Model not found")
        model: Body = self.state["models"][model_id]
        return model

    def find_checkpoint(self, uri: str) -> Path:
        path = self.locate(uri)
        if not path.exists():
            raise RefusedError(404, f"Checkpoint not found: {uri}")
        return path

    def locate(self, uri: str) -> Path:
        """Return where a checkpoint lies: ``tinker://MODEL/weights/NAME``; of skyrl-tx also ``tinker://MODEL/NAME``."""
        model_id, *kinds, name = uri.removeprefix("tinker://").split("/")
        kind = kinds[0] if kinds else "sampler_weights"
        return Path(self.options.root, model_id, kind, f"{name}.safetensors" if kind == "weights" else name)

    # POST /api/v1/NAME

    def post_create_session(self, body: Body) -> Body:
        session = f"session_{uuid4().hex[:8]}"
        self.state["sessions"].append(session)
        self.keep()
        return {"type": "create_session", "session_id": session}

    def post_session_heartbeat(self, body: Body) -> Body:
        if body["session_id"] not in self.state["sessions"]:
            raise RefusedError(404, "Session not found")
        return {"type": "session_heartbeat"}

    def post_client_config(self, body: Body) -> Body:
        return {"parallel_fwdbwd_chunks": False}

    def post_telemetry(self, body: Body) -> Body:
        return {"status": "accepted"}

    def post_create_model(self, body: Body) -> Body:
        self.post_session_heartbeat(body)
        if body["base_model"] != self.options.model and not self.skyrl:
            raise RefusedError(400, f"Unknown base model {body['base_model']}")
        model_id = f"model_{uuid4().hex[:8]}"
        self.state["models"][model_id] = {"base_model": body["base_model"], "lora_config": body["lora_config"]}
        self.keep()
        return self.submit(body, partial(self.engine.create, model_id, body["lora_config"]), model_id=model_id)

    def post_unload_model(self, body: Body) -> Body:
        return self.submit(body, partial(self.engine.unload, body["model_id"]), model_id=body["model_id"])

    def post_get_info(self, body: Body) -> Body:
        data = {"model_name": self.find_model(body["model_id"])["base_model"]}
        return {"model_id": body["model_id"], "model_data": data}

    def post_weights_info(self, body: Body) -> Body:
        self.find_checkpoint(body["tinker_path"])
        model = self.find_model(body["tinker_path"].removeprefix("tinker://").split("/")[0])
        lora = model["lora_config"]
        flags = {} if self.skyrl else {name: value for name, value in lora.items() if name.startswith("train_")}
        return {"base_model": model["base_model"], "is_lora": True, "lora_rank": lora["rank"]} | flags

    def post_forward(self, body: Body) -> Body:
        return self.submit(body, partial(self.engine.run_pass, body["model_id"], body["forward_input"], False))

    def post_forward_backward(self, body: Body) -> Body:
        batch, backward = body["forward_backward_input"], not body.get("forward_only")
        return self.submit(body, partial(self.engine.run_pass, body["model_id"], batch, backward))

    def post_optim_step(self, body: Body) -> Body:
        return self.submit(body, partial(self.engine.step, body["model_id"], body["adam_params"]))

    def post_save_weights(self, body: Body) -> Body:
        uri = f"tinker://{body['model_id']}/weights/{body['path']}"
        return self.submit_save(body, self.engine.save, body["model_id"], uri, {"path": uri, "type": "save_weights"})

    def post_save_weights_for_sampler(self, body: Body) -> Body:
        if not body.get("ttl_seconds"):
            raise RefusedError(400, "weights that only sample would be kept, and billed, for ever")
        model_id, name = body["model_id"], body["path"]
        uri = f"tinker://{model_id}/sampler_weights/{name}"
        shown = f"tinker://{model_id}/{name}" if self.skyrl else uri
        answer = {"path": shown, "sampling_session_id": None, "type": "save_weights_for_sampler"}
        return self.submit_save(body, self.engine.save_adapter, model_id, uri, answer)

    def submit_save(self, body: Body, save: Callable[[str, Path], None], model_id: str, uri: str, answer: Body) -> Body:
        path = self.locate(uri)
        if self.skyrl and path.exists():
            raise RefusedError(500, "Internal Server Error")  # it fails on its way to a 409

        def work() -> Body:
            save(model_id, path)
            return answer

        return self.submit(body, work)

    def post_load_weights(self, body: Body) -> Body:
        path = self.find_checkpoint(body["path"])
        if path.is_dir():
            raise RefusedError(400, "weights for sampling are no training state")
        return self.submit(body, partial(self.engine.load, body["model_id"], path, body.get("optimizer", False)))

    def post_create_sampling_session(self, body: Body) -> Body:
        self.post_session_heartbeat(body)
        if body.get("model_path") and not self.skyrl:
            self.find_checkpoint(body["model_path"])
        sampler = f"sampling_{uuid4().hex[:8]}"
        self.state["samplers"][sampler] = {"base_model": self.options.model} | body
        self.keep()
        return {"type": "create_sampling_session", "sampling_session_id": sampler}

    def post_asample(self, body: Body) -> Body:
        if body["sampling_session_id"] not in self.state["samplers"]:
            raise RefusedError(404, "Sampling session not found")
        source, path = self.state["samplers"][body["sampling_session_id"]], None
        if source.get("model_path"):
            path = self.find_checkpoint(source["model_path"])
        elif source["base_model"] != self.options.model:
            raise RefusedError(400, f"Unknown base model {source['base_model']}")
        names = [uuid4().hex]  # later SDKs ask for it
        return self.submit(body, partial(self.engine.sample, path, body), sample_sequence_ids=names)

    # everything else

    async def post(self, request: Request) -> Response:
        name = request.path_params["name"].replace("/", "_")
        operation = getattr(self, f"post_{name}", None)
        if operation is None or (self.skyrl and name == "client_config"):
            raise RefusedError(404, "Not Found")
        is_json = request.headers.get("Content-Type") != MEDIA_TYPE
        body = await request.json() if is_json else decode_pass(await request.body())
        if "model_id" in body:
            self.find_model(body["model_id"])
        return JSONResponse(operation(body | {"name": name}))

    async def retrieve_future(self, request: Request) -> Response:
        future = self.futures.get((await request.json())["request_id"])
        if future is None:
            raise RefusedError(404, "Future not found")
        try:
            answer = await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), WAIT)
            message = encode_answer(answer) if request.headers.get("Accept") == MEDIA_TYPE else None
            return JSONResponse(answer) if message is None else Response(message, media_type=MEDIA_TYPE)
        except TimeoutError:
            return JSONResponse({"detail": "Timeout waiting for result", "queue_state": "active"}, 408)
        except Exception as error:  # noqa: BLE001 - whatever failed, the client is told
            if self.skyrl:
                return JSONResponse({"detail": str(error)}, 400)
            category = "user" if isinstance(error, RefusedError) else "server"
            return JSONResponse({"error": str(error), "category": category})

    async def get(self, request: Request) -> Response:
        supported = {"model_name": self.options.model, "max_context_length": self.engine.max_tokens}
        answers: dict[str, Body] = {
            f"{API}/healthz": {"status": "ok"},
            f"{API}/get_server_capabilities": {"supported_models": [supported]},
            "/counts": {"requests": self.requests, "tokens": self.engine.tokens},
        } | ({"/openapi.json": {"info": {"title": "Tinker API Mock"}}} if self.skyrl else {})
        if request.url.path not in answers:
            raise RefusedError(404, "Not Found")
        return JSONResponse(answers[request.url.path])

    async def checkpoint(self, request: Request) -> Response:
        """Redirect to an archive, or send it; that of skyrl-tx is asked by the bare name."""
        model_id, name, action = (request.path_params.get(key, "") for key in ("model", "name", "action"))
        if self.skyrl and "/" in name:
            raise RefusedError(404, "Not Found")
        path = self.find_checkpoint(f"tinker://{model_id}/{name}")
        if action == "archive":
            return RedirectResponse(str(request.url).removesuffix("archive") + "download", 302)
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            tar.add(path, arcname="")
        return Response(archive.getvalue(), media_type="application/octet-stream")

    async def add_fault(self, request: Request) -> Response:
        self.faults.append({"times": 1} | await request.json())
        return JSONResponse({})

    async def guard(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Count the request, look at its key, and let it meet the fault that waits for it."""
        name = request.url.path.removeprefix(f"{API}/")
        if request.url.path.startswith(API):
            self.requests[name] += 1
            if self.options.key and request.headers.get("X-API-Key") != self.options.key:
                return JSONResponse({"detail": "Invalid API key"}, 401)
            if fault := next((each for each in self.faults if each["path"] == name and each["times"] > 0), None):
                fault["times"] -= 1
                return JSONResponse({"detail": "a fault"}, fault["status"])
        return await call_next(request)


async def refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return JSONResponse({"detail": str(error)}, error.status)


def build(server: Server) -> Starlette:
    checkpoint = f"{API}/training_runs/{{model}}/checkpoints/{{name:path}}"
    routes = [
        Route(f"{API}/retrieve_future", server.retrieve_future, methods=["POST"]),
        Route("/faults", server.add_fault, methods=["POST"]),
        Route(f"{checkpoint}/{{action:str}}", server.checkpoint, methods=["GET"]),
        Route(f"{API}/{{name:path}}", server.post, methods=["POST"]),
        Route("/{name:path}", server.get, methods=["GET"]),
    ]
    guard = Middleware(BaseHTTPMiddleware, dispatch=server.guard)
    return Starlette(routes=routes, middleware=[guard], exception_handlers={RefusedError: refuse})


def serve(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--dialect", choices=["documented", "skyrl"], default="documented")
    parser.add_argument("--key", default="", help="refuse every other X-API-Key")
    options = parser.parse_args(words)
    options.root.mkdir(parents=True, exist_ok=True)
    app = build(Server(options))
    with socket.create_server(("127.0.0.1", options.port)) as listener:
        print(os.getpid(), listener.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


def main() -> None:
    """Serve what the command line names; without one, fork a server for each line of the standard input."""
    end_with_parent()
    if sys.argv[1:]:
        return serve(sys.argv[1:])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            end_with_parent()
            try:
                serve(json.loads(line))
            finally:
                print("0 0", flush=True)  # read only where the server did not start
                os._exit(1)
    return None


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    main()
