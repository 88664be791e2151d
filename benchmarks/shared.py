"""What the benchmarks share: a random model and its words, arguments, child processes, tables. Measures nothing."""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from trailnotes.reporting.tables import print_untruncated

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
QWEN_SHAPES = {  # of Qwen2.5, billions: layers, width, of the feed-forward layers, heads, of keys, vocabulary
    0.5: (24, 896, 4864, 14, 2, 151936),
    1.5: (28, 1536, 8960, 12, 2, 151936),
    3: (36, 2048, 11008, 16, 2, 151936),
    7: (28, 3584, 18944, 28, 4, 152064),
    14: (48, 5120, 13824, 40, 8, 152064),
    32: (64, 5120, 27648, 40, 8, 152064),
}
LARGEST_TIED = 3  # billions, whose output embedding is the input's
SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]

console = Console()


# --- model; torch is imported only where there is one


def make_tokenizer(vocab_size: int) -> Any:
    """One token for each word `w0`, `w1`, ..."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = SPECIAL + [f"w{index}" for index in range(vocab_size - len(SPECIAL))]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=SPECIAL[0], eos_token=SPECIAL[1], additional_special_tokens=SPECIAL[2:]
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def save_shape(shape: tuple[int, ...], folder: Path, *, tied: bool) -> Path:
    """The config.json of a model, and no weights."""
    from transformers import Qwen2Config

    layers, hidden, intermediate, heads, kv_heads, vocabulary = shape
    Qwen2Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=tied,
        max_position_embeddings=1 << 15, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def make_model(vocab_size: int, hidden_size: int, num_layers: int, *, heads: int = 4, **options: Any) -> Any:
    """A random Qwen2; `options` are of its config."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=heads,
        tie_word_embeddings=True,
        **{"num_key_value_heads": heads, "intermediate_size": 4 * hidden_size, **options},
    )
    return Qwen2ForCausalLM(config).eval()


# --- measuring


def peak_mb() -> float:
    """The most memory that this process has held so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident_mb(what: str, pid: int | None = None) -> float:
    """VmRSS or VmHWM of a process, by default this one, in MiB."""
    text = Path(f"/proc/{pid or 'self'}/status").read_text(encoding="utf-8")
    found = re.search(rf"{what}:\s+(\d+) kB", text)
    assert found
    return int(found[1]) / 1024


def cpu_seconds(pid: int = 0) -> float:
    """CPU seconds of a process so far, its ended threads among them; 0 is this one (Linux, see clock_getcpuclockid)."""
    return time.clock_gettime(~pid << 3 | 2)


def in_a_process(file: str, *arguments: str) -> dict[str, Any]:
    """What the benchmark `file` prints as its last line, called again with `arguments`."""
    done = subprocess.run([sys.executable, file, *arguments], capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


# --- arguments and results


def make_parser(doc: str | None, quick: str) -> argparse.ArgumentParser:
    """A parser of --json and --quick."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result here")
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *,
    left: Collection[str] | None = None,
) -> None:  # fmt: skip
    """Print a table; the columns in `left`, or else the first, are set to the left."""
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="left" if column in (columns[:1] if left is None else left) else "right")
    for row in rows:
        table.add_row(*row)
    print_untruncated(table)


def finish(result: dict[str, Any], report: Callable[[dict[str, Any]], None], file: Path | None) -> None:
    """Print the result, and write it to `file` if there is one."""
    report(result)
    if file:
        file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
