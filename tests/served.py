"""A real OpenAI-compatible server: our small start model behind `transformers serve`, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trailnotes.config.builtin import BUILTIN

MODEL = "waymarks-start"
START = 120.0  # seconds; 8 on an idle machine
# What the server finds an answer by: it has its own idea of the chat format of this architecture.
TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {"content": {"close": ["<|end|>"], "content": "text"}},
}
MORTAL = (  # ends with its parent, however that ends
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9)\n"
    "os.getppid() == int(sys.argv[1]) or sys.exit()\n"
    "sys.argv = ['transformers', *sys.argv[2:]]\n"
    "from transformers.cli.transformers import main; main()"
)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve `MODEL` until the end of the block; yields the address of the API. `folder` holds model and log."""
    model = shutil.copytree(BUILTIN / MODEL, folder / MODEL)
    _change(model / "tokenizer_config.json", response_template=TEMPLATE)
    _change(model / "generation_config.json", do_sample=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = ["serve", MODEL, "--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]
    env = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_HOME": str(folder / "hub")}
    log = folder / "server.log"
    with log.open("wb") as output:
        command = [sys.executable, "-c", MORTAL, str(os.getpid()), *words]
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output)
    try:
        _wait(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                assert answer.status == 200
                return
        except (urllib.error.URLError, OSError):
            alive = process.poll() is None and time.monotonic() < until
            assert alive, f"the server did not start: {log.read_text()[-2000:]}"
            time.sleep(0.1)


def _change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
