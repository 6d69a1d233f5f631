"""A decoder of any architecture, computed by transformers' own module, under the interface of ours.

Its parameters have transformers' names, after `theirs.`, and its files are read and written under them.

Shape suffixes: B batch, T tokens, C width, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.kernels.cross_entropy import IGNORED
from models.presets import ForeignShape, Recompute
from models.pretrained import StoredWeights, context_of, extend, load_config, stored_tensors, weights_for
from models.transformer import Decoder, Head, keeping_products

PREFIX = "theirs."


class UnknownPartsError(ValueError):
    """A module of transformers without the parts that a training needs. The message says which."""


Adapt = Callable[[Any], None]  # puts an adapter's layers into a module of transformers
WRAPPED = ".base_layer."  # PEFT's layer around one of the model's


def foreign_shape(folder: Path, adapt: Adapt | None = None) -> ForeignShape:
    """The shape of a model of transformers, from its config and the headers of its weights. Its sizes are those after
    `adapt`.

    Raises UnknownPartsError for one without a list of layers, and for one whose files have fixed numbers beside its
    parameters, under other names than transformers'.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping

    theirs = _empty_module(load_config(folder))
    sizes = {name: tuple(parameter.shape) for name, parameter in theirs.named_parameters()}
    converted = bool(get_model_conversion_mapping(theirs, add_legacy=False))
    by_name = not converted and sizes.keys() <= stored_tensors(folder).keys()
    if not by_name and (fixed := _fixed(theirs)):
        raise UnknownPartsError(f"{theirs.config.model_type} has {fixed[0]}, a fixed tensor that its files convert")
    return _shape(theirs, adapt, by_name=by_name)


def foreign_shape_of(config: Any, adapt: Adapt | None = None) -> ForeignShape:
    """The shape of a model with a config of transformers, after `adapt`, as far as its files don't matter. Raises
    UnknownPartsError for one without a list of layers."""
    return _shape(_empty_module(config), adapt, by_name=True)


def _shape(theirs: Any, adapt: Adapt | None, *, by_name: bool) -> ForeignShape:
    if adapt is not None:
        with torch.device("meta"):
            adapt(theirs)
    sizes = {name: tuple(parameter.shape) for name, parameter in theirs.named_parameters()}
    return ForeignShape(
        family=theirs.config.model_type,
        depth=len(_layers(theirs)),
        context=context_of(theirs.config),
        vocab_size=theirs.config.get_text_config().vocab_size,
        plain_head=_has_plain_head(theirs),
        by_name=by_name,
        sizes={PREFIX + name: size for name, size in sizes.items()},
    )


def is_added(name: str) -> bool:
    """Whether a parameter is an adapter's, which the model's files don't have."""
    return ".lora_" in name


def check_positions(base: Any, shape: ForeignShape) -> None:
    """Raises UnknownPartsError unless a config like `base`, but with the rotary positions that the shape has, can be
    loaded again, and gives its module other frequencies."""
    from huggingface_hub.errors import StrictDataclassError

    def frequencies(config: Any) -> list[list[float]]:
        with torch.device("meta"):
            theirs = _module(config)
        rotary = [one for name, one in theirs.named_modules() if name.rpartition(".")[2].startswith("rotary")]
        if not rotary:
            raise UnknownPartsError(f"{base.model_type} has no part that computes rotary positions")
        return [buffer.tolist() for buffer in type(rotary[0])(config).buffers()]

    longer = extend(copy.deepcopy(base), shape.context, shape.rope_parameters)
    try:
        again = type(base).from_dict(longer.to_dict())
    except (StrictDataclassError, ValueError, KeyError, TypeError) as error:
        said = str(error).rpartition("\n")[2].strip()
        raise UnknownPartsError(f"the config of a {base.model_type} doesn't take it ({said})") from error
    if again.rope_parameters != longer.rope_parameters:
        raise UnknownPartsError(f"the config of a {base.model_type} makes {again.rope_parameters} of it")
    if frequencies(base) == frequencies(longer):
        raise UnknownPartsError(f"{base.model_type} computes the same positions whatever its config says")


def foreign_weights(folder: Path, shape: ForeignShape) -> Iterator[tuple[str, Tensor]]:
    """The parameters by name, tied ones once, from the files of a model and in float32. They are read one at a time, or
    as many as the files have for one of the module's. Those of an adapter are left out."""
    names = {name.removeprefix(PREFIX).replace(WRAPPED, "."): name for name in shape.sizes}
    if not shape.by_name:
        for name, value in weights_for(_empty_module(load_config(folder)), folder):
            if adapted := names.pop(name, None):  # not a fixed tensor
                yield adapted, value.float()
        if lacking := [name for name, adapted in names.items() if not is_added(adapted)]:
            raise UnknownPartsError(f"its files lack {lacking[0]}")
        return
    stored = StoredWeights(folder)
    for name, adapted in names.items():
        if not is_added(adapted):
            yield adapted, torch.from_numpy(stored[name])


class ForeignDecoder(Decoder):
    """transformers' module for the model in a folder, with weights to be filled in."""

    recompute: Recompute = "none"

    def __init__(self, source: Any, shape: ForeignShape, adapt: Adapt | None = None) -> None:
        """`source` is the folder, or a config of transformers for a module without files."""
        super().__init__()
        self.shape: ForeignShape = shape
        self.folder = source
        self.theirs = _module(self._config(source) if isinstance(source, Path) else source)
        if adapt is not None:
            adapt(self.theirs)
        self.head.z_loss, self.head.record = 0.0, None
        if shape.plain_head:
            self.head.__class__ = _LossHead  # the same layer with another forward pass
        for block in self.blocks:  # inside an engine's hooks, as in our own blocks
            block.forward = partial(self._run, block.forward)

    @property
    def blocks(self) -> nn.ModuleList:  # type: ignore[override]
        """The layers."""
        return _layers(self.theirs)

    @property
    def head(self) -> Any:
        """The output layer."""
        return self.theirs.get_output_embeddings()

    def forward(self, ids_BT: Tensor, targets_BT: Tensor | None = None, positions_BT: Tensor | None = None) -> Tensor:
        """As `Transformer.forward`, but with the documents of a row never isolated. Raises ValueError for positions,
        and for more tokens than the context."""
        if positions_BT is not None or ids_BT.shape[1] > self.shape.context:
            raise ValueError(f"it takes {self.shape.context} tokens at most, and no positions")
        if targets_BT is None or not self.shape.plain_head:
            logits_BTV: Tensor = self.theirs(input_ids=ids_BT, use_cache=False).logits
            return logits_BTV if targets_BT is None else _loss(logits_BTV, targets_BT, self.head)
        self.head.targets_BT = targets_BT
        loss: Tensor = self.theirs(input_ids=ids_BT, use_cache=False).logits
        self.head.targets_BT = None
        return loss

    def last_logits(self, ids_BT: Tensor) -> Tensor:
        return self(ids_BT)[:, -1]

    @torch.no_grad()
    def restore(self) -> None:
        """Tie parameters and compute buffers, such as rotary frequencies, which `to_empty` left undefined, as
        transformers does for a model that it loads."""
        self.theirs.tie_weights(recompute_mapping=False)
        for parameter in self.theirs.parameters():
            parameter._is_hf_initialized = True  # else it is drawn at random
        self.theirs.initialize_weights()
        fixed, stored = _fixed(self.theirs), StoredWeights(self.folder)
        for name in fixed:
            self.theirs.get_buffer(name).copy_(torch.from_numpy(stored[name]))

    def to_save(self) -> Any:
        """transformers' module with its config as it was, but for a longer context."""
        self.theirs.config = self._config(self.folder)
        self.theirs.config.dtype = torch.float32
        return self.theirs

    def _config(self, folder: Path) -> Any:
        return extend(load_config(folder), self.shape.context, self.shape.rope_parameters)

    def _run(self, whole: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A block's forward pass, with its activations as `recompute` says."""
        if self.recompute == "none" or not torch.is_grad_enabled():
            return whole(*args, **kwargs)
        how: dict[str, Any] = {"context_fn": keeping_products} if self.recompute == "selective" else {}
        return checkpoint(whole, *args, use_reentrant=False, **how, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ForeignDecoder:
        """Buffers keep their type when an engine stores weights in 16 bits: rotary frequencies would be rounded."""
        kept = dict(self.named_buffers())
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in self.named_buffers():
            if buffer.dtype != kept[name].dtype:
                owner, _, last = name.rpartition(".")
                setattr(self.get_submodule(owner), last, kept[name].to(buffer.device))
        return self


class _LossHead(Head):
    """The output layer of a module that passes no targets to it: they are set before."""

    targets_BT: Tensor | None = None

    def forward(self, x_BTC: Tensor, targets_BT: Tensor | None = None) -> Tensor:
        return super().forward(x_BTC, self.targets_BT)


def _module(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)


def _empty_module(config: Any) -> Any:
    with torch.device("meta"):
        return _module(config)


def _fixed(theirs: Any) -> list[str]:
    """The buffers that are stored with the parameters."""
    return [name for name in theirs.state_dict() if name in dict(theirs.named_buffers())]


def _layers(theirs: Any) -> nn.ModuleList:
    depth = theirs.config.get_text_config().num_hidden_layers
    for module in theirs.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            return module
    raise UnknownPartsError(f"{theirs.config.model_type} lacks a list of its {depth} layers")


def _has_plain_head(theirs: Any) -> bool:
    """Whether the logits are what a linear layer without bias returns, untouched, for a module on the meta device."""
    from transformers.modeling_outputs import BaseModelOutput

    class _Hidden(BaseModelOutput):
        def __getattr__(self, name: str) -> None:
            """Other outputs, which some architectures read."""

    head = theirs.get_output_embeddings()
    if type(head) is not nn.Linear or head.bias is not None:
        return False
    hidden_BTC = torch.empty(1, 2, head.in_features, device="meta")
    theirs.base_model.forward = lambda *args, **kwargs: _Hidden(last_hidden_state=hidden_BTC)
    returned: list[tuple[Tensor, int]] = []
    handle = head.register_forward_hook(lambda module, inputs, output: returned.append((output, output._version)))
    with torch.no_grad():
        logits_BTV = theirs(input_ids=torch.zeros(1, 2, dtype=torch.int64, device="meta"), use_cache=False).logits
    handle.remove()
    del theirs.base_model.forward
    return any(logits_BTV is one and logits_BTV._version == version for one, version in returned)


def _loss(logits_BTV: Tensor, targets_BT: Tensor, head: Any) -> Tensor:
    """The mean cross-entropy as `Head` returns and records it, with the gradient of z_loss × log² Z beside its own."""
    logits_BTV, kept_BT = logits_BTV.float(), targets_BT != IGNORED
    logz_BT = logits_BTV.logsumexp(-1)
    target_BT = logits_BTV.gather(-1, targets_BT.clamp(min=0)[..., None])[..., 0]
    share_BT = kept_BT / kept_BT.sum().clamp(min=1)
    if head.record is not None and not torch.is_grad_enabled():
        best_BT = target_BT == logits_BTV.amax(-1)
        head.record.append(torch.stack((logz_BT - target_BT, best_BT.float()), dim=-1).flatten(0, 1))
    besides = (head.z_loss * logz_BT.square() * share_BT).sum()
    return ((logz_BT - target_BT) * share_BT).sum() + besides - besides.detach()
