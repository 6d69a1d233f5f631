"""The memory of a training step of any module, by running it on tensors that have no memory.

torch's fake tensors have only shapes and types, so a step of 135M parameters takes a second. Every storage that an
operator makes counts for as long as it lives. Workspaces of kernels don't count. Products in 16 bits are those of
autocast on a CPU, whose operators save the same tensors as a GPU's.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from models.activations import Activations, Numbers
from models.foreign import Adapt, ForeignDecoder, foreign_shape_of
from models.presets import ForeignShape, Recompute, UntracedError

Mark = Callable[[ForeignDecoder], None]  # sets which parameters require gradients


class Allocations(TorchDispatchMode):
    """`with Allocations() as made:` counts the bytes of all storages that operators make: `now`, and at the `peak`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        self.peak = max(self.peak, self.now)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:  # otherwise a view, or changed in place
            self._known.add(key)
            self.now += size
            weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


@contextmanager
def without_memory() -> Iterator[Allocations]:
    """A context in which tensors have no memory, and what they would take is counted. What torch logs of an operation
    that can't be run so, with its trace, is in the error too, and warnings are those of transformers about itself."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.disabled
    log.disabled = True
    try:
        with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True), Allocations() as made:
            warnings.simplefilter("ignore", FutureWarning)
            yield made
    finally:
        log.disabled = before


def traced_step(made: Allocations, model: nn.Module, loss_of: Callable[[], Tensor]) -> Activations:
    """The memory of a forward and a backward pass of `model`, beside its weights and the sums of their gradients."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    held = made.peak = made.now
    loss = loss_of()
    kept, forward = made.now - held, made.peak - held
    made.peak = made.now
    loss.backward()
    return Activations(kept, forward - kept, max(0, made.peak - held - kept))


@dataclass(frozen=True)
class TracedShape(ForeignShape):
    """A foreign shape with the config that it was read from, to trace its steps. `adapt` puts an adapter's layers into
    its module, and `mark` sets which parameters are trained."""

    config: Any = field(default=None, compare=False, repr=False)
    adapt: Adapt | None = field(default=None, compare=False, repr=False)
    mark: Mark | None = field(default=None, compare=False, repr=False)
    _known: dict[tuple[Numbers, int, Recompute], Activations] = field(default_factory=dict, init=False, compare=False)

    @classmethod
    def of(cls, config: Any, adapt: Adapt | None = None, **settings: Any) -> Self:
        """The shape of a model with this config of transformers. Raises UnknownPartsError, and what `adapt` does."""
        shape = foreign_shape_of(config, adapt)
        known = {name: getattr(shape, name) for name in ForeignShape.__dataclass_fields__}
        return cls(**known, config=config, adapt=adapt, **settings)

    @property
    def spread(self) -> float:
        """Bytes of the heap for a byte of tensors that come and go, of which it makes many small ones."""
        return 1.36 if self.adapt is None else 1.5

    @property
    def learned(self) -> int:
        """Numbers in the parameters that are trained."""
        return sum(parameter.numel() for parameter in self._module().parameters() if parameter.requires_grad)

    def step(self, form: Numbers, micro_batch: int, recompute: Recompute) -> Activations:
        """The memory of a step of `micro_batch` sequences of the whole context. Traced once.

        Raises UntracedError for a module that reads numbers to decide what it computes.
        """
        known = form, micro_batch, recompute
        if known not in self._known:
            try:
                self._known[known] = self._trace(*known)
            except (RuntimeError, NotImplementedError, TypeError, AttributeError, ValueError) as error:
                raise UntracedError(f"{self.family} can't be traced: {_first_line(error).rstrip('.')}") from error
        return self._known[known]

    def _trace(self, form: Numbers, micro_batch: int, recompute: Recompute) -> Activations:
        with without_memory() as made, one_text_in_a_row():
            model = filled(self._module())
            model.recompute = recompute
            if form.product == 2 and not form.autocast:
                model = model.to(torch.bfloat16)
            ids_BT = torch.zeros(micro_batch, self.context, dtype=torch.int64)
            return traced_step(made, model, lambda: _loss(model, ids_BT, form))

    def _module(self) -> Any:
        """The module on the meta device, as PEFT moves an adapter's layers there, and can't outside."""
        with torch.device("meta"):
            model = ForeignDecoder(self.config, self, self.adapt).train()
        if self.mark is not None:
            self.mark(model)
        return model


def filled(model: nn.Module) -> Any:
    """The model, with tensors of the present mode in the place of those on the meta device."""
    known: dict[int, nn.Parameter] = {}  # tied ones are one
    for part in model.modules():
        for name, value in part._parameters.items():
            if value is not None and id(value) not in known:
                known[id(value)] = nn.Parameter(
                    torch.empty(value.shape, dtype=value.dtype), requires_grad=value.requires_grad
                )
            part._parameters[name] = None if value is None else known[id(value)]
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else torch.empty(buffer.shape, dtype=buffer.dtype)
    return model


@contextmanager
def one_text_in_a_row() -> Iterator[None]:
    """transformers reads positions to find texts that begin inside a row. Without numbers to read it would make a mask,
    which a row of one text doesn't need."""
    from transformers import masking_utils

    finds = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda *args, **kwargs: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = finds


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _loss(model: nn.Module, ids_BT: Tensor, form: Numbers) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16) if form.autocast else nullcontext():
        loss: Tensor = model(ids_BT, ids_BT)
    return loss
