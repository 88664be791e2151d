"""vLLM behind the calls of `main.py`: one engine in this process, driven a step at a time."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTED_VERSIONS = ("0.32.",)  # beginnings of the versions that this file was run with; it reaches into internals
NUM_ADAPTERS = 2  # the new ones are loaded before the old ones go

StepOutput = list[tuple[int, list[int], list[float], str | None, int]]


class Core:
    """One vLLM engine.

    Args:
        settings: ``model`` (directory or name), ``dtype``, ``context`` (tokens), ``max_concurrent``, ``seed``,
            ``tensor_parallel``, ``device_memory`` (share of a GPU), ``cache_bytes`` (of the KV cache, on a CPU),
            ``lora_rank`` (0 = none), ``spool`` (a directory), ``sleeps`` (whether it is to be put to sleep).

    Raises:
        ValueError: vLLM is not installed, not of a version that fits, or cannot run the model; one line.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        vllm = _import_vllm()
        from vllm.platforms import current_platform

        self.on_cpu = current_platform.is_cpu()
        self.spool = Path(settings["spool"])
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        self._params, self._lora_request = SamplingParams, LoRARequest
        config = _build_engine_args(settings, self.on_cpu).create_engine_config()
        if self.on_cpu:
            _validate_head_size(config.model_config)
        from vllm.v1.engine.llm_engine import LLMEngine

        self.engine = LLMEngine.from_vllm_config(config, disable_log_stats=True)
        self.adapters: Any = None  # the request that names those in use
        self._late: StepOutput = []  # of completions that went on while tokens were scored
        self.salt = "start"  # of the prefix cache: no key of other weights is ever found
        self._num_loads = 0
        self.about = {
            "vllm": vllm.__version__,
            "device": current_platform.device_name,
            "context": config.model_config.max_model_len,
            "vocabulary": config.model_config.get_vocab_size(),
            "lora_rank": settings["lora_rank"],
            "fingerprint": settings["fingerprint"],
        }
        self.score([[[1, 2, 3], 2]], 1.0)  # a model that starts may still fail at its first request

    @property
    def busy(self) -> bool:
        """Whether there is something to compute."""
        return bool(self._late or self.engine.has_unfinished_requests())

    def add(self, key: int, ids: list[int], sampling: dict[str, Any]) -> None:
        """Begin a completion. Raises `ValueError` where vLLM refuses it."""
        from vllm.sampling_params import RequestOutputKind

        kind = RequestOutputKind.DELTA if sampling.pop("stream") else RequestOutputKind.FINAL_ONLY
        self._add_request(str(key), ids, logprobs=0, output_kind=kind, **sampling)

    def abort(self, key: int) -> None:
        """End a completion that is not awaited any more."""
        self.engine.abort_request([str(key)])

    def step(self) -> StepOutput:
        """Run one forward pass; return for each completion with news its new ids, log-probabilities, and its end.

        The last item is the number of its prompt's tokens whose keys were in the cache.
        """
        late, self._late = self._late, []
        outputs = self.engine.step() if self.engine.has_unfinished_requests() else ()
        return late + [_unpack_output(output) for output in outputs]

    def load(self, path: Path, what: dict[str, Any]) -> dict[str, Any]:
        """Load the weights of a safetensors file: all, by the model's names, or adapters, by peft's."""
        self._num_loads += 1
        adapters = what.get("adapters")
        with tempfile.TemporaryDirectory(dir=self.spool) as name:  # other engines, and one before, have theirs there
            folder = Path(name)
            (folder / ("adapter_model.safetensors" if adapters else "model.safetensors")).symlink_to(path.resolve())
            if adapters:
                (folder / "adapter_config.json").write_text(json.dumps(adapters), encoding="utf-8")
                self._load_adapters(folder, what["version"])
            else:
                self.engine.collective_rpc(reload_from_folder, args=(str(folder),))
        self.salt = f"{what['version']}.{self._num_loads}"
        self.engine.reset_prefix_cache()  # the salt would do; what is never found again only takes room
        return {"version": what["version"]}

    def score(self, rows: list[list[Any]], temperature: float) -> list[list[float]]:
        """Score the tokens of each row from a place on, as the sampler would; completions under way go on meanwhile.

        Args:
            rows: ``[ids, start]`` each; the tokens from ``start`` on are scored.
            temperature: the distribution's.
        """
        for number, (ids, start) in enumerate(rows):
            for place in range(start, len(ids)):
                self._add_request(
                    f"{number}/{place}", ids[:place], max_tokens=1, temperature=temperature, seed=0,
                    logprob_token_ids=[ids[place]], logprobs=1,
                )  # fmt: skip
        found: dict[str, Any] = {}
        wanted = sum(len(ids) - start for ids, start in rows)
        while len(found) < wanted:
            for output in self.engine.step():
                if "/" in output.request_id:
                    found[output.request_id] = output.outputs[0].logprobs[0]
                else:
                    self._late.append(_unpack_output(output))
        return [
            [found[f"{number}/{place}"][ids[place]].logprob for place in range(start, len(ids))]
            for number, (ids, start) in enumerate(rows)
        ]

    def sleep(self) -> None:
        """Leave the device to others: the weights go to the host's memory, and the cache is given up."""
        self.engine.reset_prefix_cache()
        self.engine.sleep(level=1)

    def wake(self) -> None:
        """Take the device back; nothing happens to an engine that is awake."""
        if self.engine.is_sleeping():
            self.engine.wake_up()

    def close(self) -> None:
        """Let vLLM end its own processes."""
        self.engine.engine_core.shutdown()

    def _add_request(self, name: str, ids: list[int], **sampling: Any) -> None:
        params = self._params(detokenize=False, ignore_eos=True, **sampling)  # the stop ids say what ends a turn
        prompt = {"prompt_token_ids": ids, "cache_salt": self.salt}
        self.engine.add_request(name, prompt, params, lora_request=self.adapters)

    def _load_adapters(self, folder: Path, version: int) -> None:
        """New adapters under a name and a number of their own: under an old number the old ones would be served."""
        old, new = (
            self.adapters,
            self._lora_request(f"policy-{version}.{self._num_loads}", self._num_loads, str(folder)),
        )
        self.engine.add_lora(new)
        self.adapters = new
        if old is not None:
            self.engine.remove_lora(old.lora_int_id)


def _unpack_output(output: Any) -> tuple[int, list[int], list[float], str | None, int]:
    (completion,) = output.outputs
    ids = list(completion.token_ids)
    found = (completion.logprobs or [])[-len(ids) :] if ids else []
    logprobs = [at[token].logprob for token, at in zip(ids, found, strict=True)]
    reason = completion.finish_reason if output.finished else None
    return int(output.request_id), ids, logprobs, reason, output.num_cached_tokens or 0


def reload_from_folder(worker: Any, folder: str) -> None:
    """Replace the weights of one of vLLM's workers by those in a folder."""
    worker.reload_weights(weights_path=folder)
    model = worker.get_model()
    head = getattr(model, "lm_head", None)
    if head is not None and next(model.parameters()).device.type == "cpu":
        # On a CPU a head that is tied to the embeddings is a packed copy of them, which a reload leaves as it was: the
        # new model would speak through the old head, without a word.
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

        dispatch_cpu_unquantized_gemm(head, remove_weight=False)


def _import_vllm() -> Any:
    if importlib.util.find_spec("vllm") is None:
        raise ValueError(
            f"vLLM is not installed for {sys.executable}: run make vllm in a clone of Trailnotes, or name a Python "
            "that has it as engine.python"
        )
    try:
        import vllm
    except Exception as error:
        line = " ".join(str(error).split())
        raise ValueError(f"vLLM does not import in {sys.executable} ({line}): build it anew with make vllm") from error
    if not vllm.__version__.startswith(TESTED_VERSIONS):
        raise ValueError(
            f"vLLM {vllm.__version__} is installed for {sys.executable}, and Trailnotes was tested with "
            f"{TESTED_VERSIONS[0]}x: install that, or name another Python as engine.python"
        )
    return vllm


def _build_engine_args(settings: dict[str, Any], on_cpu: bool) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    options: dict[str, Any] = {}
    if on_cpu:  # blocks of 128, the default there, would never be shared by prompts that are shorter
        options = {"enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": settings["cache_bytes"]}
        options["distributed_executor_backend"] = "uni"
    else:
        options = {"gpu_memory_utilization": settings["device_memory"], "enable_sleep_mode": settings["sleeps"]}
    if settings["lora_rank"]:
        ranks = [rank for rank in (1, 8, 16, 32, 64, 128, 256, 320, 512) if rank >= settings["lora_rank"]]
        if not ranks:
            raise ValueError(f"model.lora.rank = {settings['lora_rank']}: vLLM has adapters of rank 512 at most")
        options |= {"enable_lora": True, "max_loras": NUM_ADAPTERS, "max_lora_rank": ranks[0]}
    return EngineArgs(
        model=settings["model"],
        trust_remote_code=False,
        dtype=settings["dtype"],
        max_model_len=settings["context"],
        max_num_seqs=settings["max_concurrent"],
        seed=settings["seed"],
        tensor_parallel_size=settings["tensor_parallel"],
        enable_prefix_caching=True,
        skip_tokenizer_init=True,  # token ids in, token ids out
        generation_config="vllm",  # or the model's own sampling settings would come in unasked
        logprobs_mode="processed_logprobs",  # at the temperature, of what is drawn from
        **options,
    )


def _validate_head_size(model_config: Any) -> None:
    """Refuse heads with which vLLM's attention on a CPU would start, and fail at the first request."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    size, known = model_config.get_head_size(), CPUAttentionBackend.get_supported_head_sizes()
    if size not in known:
        raise ValueError(
            f"the model's attention heads have {size} channels, and vLLM on a CPU knows "
            f'{", ".join(map(str, known))}: set engine.name = "hf"'
        )
