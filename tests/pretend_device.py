"""A pretend accelerator, `torch.device("pretend")`: it computes on the CPU and refuses what CUDA refuses.

A tensor of the device holds a tensor of the CPU. torch raises an error, as on CUDA, where an operation mixes the two,
where an index, an output or a random generator is on the wrong device, and at `.numpy()`. So a machine without a GPU
finds the line that forgets to move a tensor. The device shows nothing of kernels, nccl, streams or memory: `make gpu`
tests these on a card.

Importing this module registers the device. torch can neither undo that nor do it after the first backward pass of a
process, so `test_pretend_device.py` starts a process for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "pretend"
CPU = torch.device("cpu")
aten = torch.ops.aten
WAITS: Counter[str] = Counter()  # operations so far at which the host would wait for a GPU

# CUDA copies between devices, takes indices from the CPU, and takes a number that is a CPU tensor without dimensions.
COPIES = {"aten::copy_", "aten::_to_copy"}
INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
WITH_NUMBERS = INDEXED | {"aten::fill_", "aten::masked_fill", "aten::masked_fill_"}  # all pointwise operations besides
# Operations that make a tensor of no other one, and of which no other operation is composed.
MAKERS = ("empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step", "eye", "eye.m",
          "randperm", "randperm.generator", "scalar_tensor")  # fmt: skip


class _Backend(_DummyBackendModule):
    """The module that torch wants of a device; its random numbers come from the generator of the CPU."""

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
DEVICE = torch.device(NAME, 0)


class PretendTensor(Tensor):
    """A tensor of the pretend device; `held` is a tensor of the CPU with its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Self:
        with torch.inference_mode(held.is_inference()):  # a view of an ordinary tensor is ordinary in that mode, too
            made: Self = Tensor._make_wrapper_subclass(
                cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=DEVICE
            )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return compute(operation, args, kwargs or {})

    def __repr__(self) -> str:
        return f"{self.held!r} on {DEVICE}"

    @property
    def data(self) -> Tensor:
        return Tensor.data.__get__(self)

    @data.setter
    def data(self, other: Tensor) -> None:
        """Take over the numbers of another tensor; torch knows nothing of `held`."""
        if other.device != DEVICE:
            raise RuntimeError(f"incompatible tensor type: {other.device} instead of {DEVICE}")
        Tensor.data.__set__(self, other)
        self.held = other.held

    def tolist(self) -> Any:
        WAITS["tolist"] += 1
        return self.held.tolist()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> Any:
        """transformers finds tied weights by their storage."""
        return self.held.untyped_storage()

    # By these two methods torch knows that it must swap the whole parameter when a model moves to the device.

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: Mapping[str, Tensor], context: None, size: object, stride: object) -> PretendTensor:
        return PretendTensor(inner["held"])


def compute(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operation on the held tensors, unless CUDA would refuse it; the results are on the device.

    Raises:
        RuntimeError: see `refuse_mixed`.
    """
    if is_composed(operation):  # torch takes these apart itself, but not in inference mode
        return operation.decompose(*args, **kwargs)
    refuse_mixed(operation, args, kwargs)
    count_wait(operation, args, kwargs)
    moved = {"device": CPU} if "device" in kwargs else {}
    found = operation(*unwrap(args), **{name: unwrap(value) for name, value in kwargs.items()} | moved)
    if operation._schema.is_mutable:
        return written_by(operation, args, kwargs)
    return found if kwargs.get("device") == CPU else wrap(found)


def count_wait(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Count what reads from the device; copies to it count unless they are told not to block, as on CUDA."""
    name = operation._schema.name.removeprefix("aten::")
    reads = name == "_local_scalar_dense" or (name == "_to_copy" and kwargs.get("device") == CPU)
    sends = name == "_to_copy" and not isinstance(args[0], PretendTensor) and not kwargs.get("non_blocking")
    if reads or sends:
        WAITS[name] += 1


def unwrap(value: Any) -> Any:
    """The held tensor, or the held tensors of a sequence; anything else as it is."""
    if isinstance(value, PretendTensor):
        return value.held
    return type(value)(map(unwrap, value)) if isinstance(value, list | tuple) else value


def wrap(value: Any) -> Any:
    """The tensor, or the tensors of a sequence, on the device; anything else as it is."""
    if isinstance(value, Tensor):
        return PretendTensor(value)
    return type(value)(map(wrap, value)) if isinstance(value, list | tuple) else value


def written_by(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The arguments that an operation writes to, as far as it returns them."""
    written = [value for argument, value in bind(operation, args, kwargs) if is_written(argument)]
    for tensor in tensors_in(written):
        if tensor.shape != unwrap(tensor).shape:
            raise NotImplementedError(f"{operation} changes a shape in place, which PretendTensor does not follow")
    returned = written[: len(operation._schema.returns)]
    return returned[0] if len(returned) == 1 else tuple(returned) or None


def refuse_mixed(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a tensor or a random generator of the wrong device.

    Raises:
        RuntimeError: CUDA would raise it, too.
    """
    name = operation._schema.name
    if name in COPIES:
        return
    found: list[Tensor] = []
    for argument, value in bind(operation, args, kwargs):
        if argument.name == "generator" and value is not None and value.device.type != NAME:
            raise RuntimeError(f"Expected a {NAME!r} device type for generator but found {value.device.type!r}")
        if argument.name == "indices" and name in INDEXED and isinstance(args[0], PretendTensor):
            continue
        takes_number = takes_numbers(operation) and not is_written(argument)
        found += [each for each in tensors_in(value) if each.device != CPU or each.dim() or not takes_number]
    if len({tensor.device for tensor in found}) > 1:
        places = ", ".join(f"{tuple(tensor.shape)} on {tensor.device}" for tensor in found)
        raise RuntimeError(f"Expected all tensors to be on the same device, but {operation} got {places}")


def bind(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Each argument of the operation's schema that was given, with its value."""
    for place, argument in enumerate(arguments_of(operation)):
        if place < len(args):
            yield argument, args[place]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensor, or the tensors of a sequence."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)


@cache
def arguments_of(operation: Any) -> Sequence[Any]:
    return tuple(operation._schema.arguments)


def is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


@cache
def is_composed(operation: Any) -> bool:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(operation.name(), "CompositeImplicitAutograd") and not has_kernel(operation.name(), "CPU")


@cache
def takes_numbers(operation: Any) -> bool:
    name = operation._schema.name
    return torch.Tag.pointwise in operation.tags or name in WITH_NUMBERS or name.startswith("aten::_foreach")


# -- operations for which torch asks the device before it looks at the class of a tensor


def _make(operation: Any, *args: Any, **kwargs: Any) -> Tensor:
    refuse_mixed(operation, args, kwargs)
    return PretendTensor(operation(*args, **kwargs | {"device": CPU, "pin_memory": None}))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    if source.device != target.device and not non_blocking:
        WAITS["copy"] += 1
    unwrap(target).copy_(unwrap(source))
    return target


def _silu_backward(gradient: Tensor, given: Tensor) -> Tensor:
    """torch would compose it of others, with other last bits than on the CPU and on CUDA."""
    return compute(aten.silu_backward.default, (gradient, given), {})


_LIBRARY = torch.library.Library("aten", "IMPL")  # what it registers lasts as long as it does
_LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")
_LIBRARY.impl("silu_backward", _silu_backward, "PrivateUse1")
for maker in MAKERS:
    packet, _, overload = maker.partition(".")
    _LIBRARY.impl(maker, partial(_make, getattr(getattr(aten, packet), overload or "default")), "PrivateUse1")
