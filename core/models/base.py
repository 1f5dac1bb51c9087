"""DecoderBase: a decoder, its pooler and its weights behind one frozen forward."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from ..boundary import StageFacts, declare_head
from ..config import LLAMA_LIKE, ConfigAdapter, ModelConfig
from ..errors import InputError, WeightError
from ..forward import AttentionBackend, AttentionSpec, ForwardBatch, PoolingRequest
from ..layers import BuildContext, LogitsProcessorOutput, Pooler, PoolingType, RadixAttention
from ..parallel import Elsewhere, ShardedParameter
from ..weights import (
    STANDARD_EXPERT_MAPPING,
    STANDARD_GATE_UP_MAPPING,
    STANDARD_NESTING,
    STANDARD_QKV_MAPPING,
    STANDARD_SKIPS,
    STANDARD_SPELLINGS,
    AutoWeightsLoader,
    Filling,
    NameRules,
    Partial,
    Progress,
    UpdateMode,
    WeightReport,
    Weights,
    WeightState,
)
from ..weights.completion import has_method
from .capturing import states_for_draft
from .decoder import DecoderLayer, DecoderModel
from .hand_off import PPProxyTensors
from .names import name_map
from .reranking import Reranking
from .rows import picked_rows
from .structure import check_structure

M = TypeVar("M", bound=nn.Module)


class DecoderBase(nn.Module):
    """What every served decoder has; a kind of model adds its head.

    The kinds are ``CausalLM``, ``EmbeddingModel`` and ``SequenceClassifier``. A plugin extends one
    of them and sets ``layer``, and where its family differs from Llama, ``adapter`` and
    ``name_rules``; a subclass inherits its parents' name rules.

    Args:
        config: the normalised configuration.
        ctx: topology, dtype, device, quantization.
        prefix: dotted path of this module in a larger one.

    Attributes:
        layer: the decoder layer.
        adapter: how the family spells and defaults its configuration.
        name_rules: by checkpoint format, the rules this class adds to its parents'.
        pooling: rows that make a vector under ``get_embedding``.
        kind: what a model of this kind is, for messages.
        serves: names of the calls of ``Model`` that it answers.
        reranking: the prompt for ``Model.rerank``, of a family that has one.
        step_token: token that ends a step of a solution, of a process reward model.
    """

    layer: ClassVar[type[DecoderLayer]]
    adapter: ClassVar[ConfigAdapter] = LLAMA_LIKE
    name_rules: ClassVar[Mapping[str, NameRules]] = {
        "hf": NameRules(
            skips=STANDARD_SKIPS,
            stacking=STANDARD_QKV_MAPPING + STANDARD_GATE_UP_MAPPING,
            experts=STANDARD_EXPERT_MAPPING,
            spellings=STANDARD_SPELLINGS,
            nesting=STANDARD_NESTING,
        )
    }
    pooling: ClassVar[PoolingType] = PoolingType.LAST
    kind: ClassVar[str]
    serves: ClassVar[tuple[str, ...]]
    reranking: ClassVar[Reranking | None] = None
    step_token: ClassVar[str | None] = None

    def __init__(self, config: ModelConfig, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        self.config, self.dtype, self.prefix = config, ctx.dtype, prefix
        where, head = child_prefix(prefix, "model"), self.head_facts(ctx)
        self.model = DecoderModel(config, self.layer, head, ctx=ctx, prefix=where)
        self.pooler = Pooler(self.pooling)
        self._aux_layers: tuple[int, ...] = ()

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        batch: ForwardBatch,
        input_embeds: Tensor | None = None,
        get_embedding: bool = False,
        pp_proxy_tensors: Mapping[str, Tensor] | None = None,
    ) -> LogitsProcessorOutput | PPProxyTensors:
        """One forward of this pipeline stage.

        Args:
            input_ids: (T,) token ids; None with ``input_embeds``, and unread past the first stage.
            positions: (T,) position of each row in its sequence.
            batch: the facts of this forward.
            input_embeds: (T, D) instead of ids.
            get_embedding: pooled rows of the requests that end here instead of logits: vectors,
                or the scores of a classifier.
            pp_proxy_tensors: what the stage before returned; None on the first stage.

        Returns:
            Logits of the rows ``batch.outputs`` asks for, or pooled rows; on a stage that is not
            the last one, what the next stage takes as ``pp_proxy_tensors``.

        Raises:
            InputError: logits asked of a model without a language-model head, pooling without
                requests, proxies given to a first stage or missing on a later one.
            SpoiltWeightsError: writing the weights ended half-way.
            UnloadedWeightsError: nobody filled them; see ``weights_ready``.
        """
        self.weight_state.require()
        if get_embedding:
            self._check_pooling(batch)
        picked = self._picked(batch, positions, get_embedding)
        found = self.model(input_ids, positions, batch, input_embeds, pp_proxy_tensors, picked)
        if isinstance(found, PPProxyTensors):
            return found
        if get_embedding:
            output = LogitsProcessorOutput(pooled=self._pool(found.rows[found.own], batch))
        else:
            output = self._logits(found.rows, found.own, batch)
        real = slice(batch.num_real)
        output.aux_hidden_states = tuple(found.aux[index][real] for index in self._aux_layers)
        return output

    def set_aux_layers(self, indices: Sequence[int]) -> None:
        """Hidden states that forwards give beside their output, as ``aux_hidden_states``.

        Args:
            indices: 0 is the embedding, i the output of layer i - 1, the number of layers the last
                output before the final norm. In the order in which they are wanted; () for none.

        Raises:
            BoundaryError: an index that no layer has, or one twice.
        """
        self.model.stack.capture(indices)
        self._aux_layers = tuple(indices)

    @property
    def weight_state(self) -> WeightState:
        """Which weights it holds, and whether they are whole; ``model`` refuses by it."""
        return self.model.weight_state

    @weight_state.setter
    def weight_state(self, state: WeightState) -> None:
        self.model.weight_state = state

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """What ``set_aux_layers`` was given last."""
        return self._aux_layers

    def set_eagle3_layers_to_capture(self, ids: Sequence[int] | None = None) -> None:
        """Give the states that an EAGLE-3 draft reads; see ``states_for_draft``."""
        self.set_aux_layers(states_for_draft(ids, self.config.num_hidden_layers))

    def set_dflash_layers_to_capture(self, ids: Sequence[int] | None = None) -> None:
        """Give the states that a DFlash draft reads; see ``states_for_draft``."""
        self.set_eagle3_layers_to_capture(ids)

    @classmethod
    def head_facts(cls, ctx: BuildContext) -> StageFacts:
        """What the head declares: which rows it multiplies."""
        return declare_head(rows="attn")

    @classmethod
    def require(cls, call: str) -> None:
        """Refuse what this kind of model cannot answer.

        Args:
            call: a method of ``Model``.

        Raises:
            InputError: it is none of ``serves``.
        """
        if call not in cls.serves:
            raise cls._refusal(call)

    @property
    def pooled_width(self) -> int:
        """Numbers in a pooled row."""
        return self.config.hidden_size

    def embed(self, input_ids: Tensor) -> Tensor:
        """(T,) ids to (T, D) embeddings, complete on every rank.

        Raises:
            SpoiltWeightsError, UnloadedWeightsError: as ``forward``.
        """
        return self.model.embed(input_ids)

    def attention_layers(self) -> Iterator[RadixAttention]:
        """Every attention of this rank, in layer order."""
        return (module for module in self.modules() if isinstance(module, RadixAttention))

    def attention_specs(self) -> list[AttentionSpec]:
        """What a backend must serve; known before weights are loaded."""
        return [layer.spec for layer in self.attention_layers()]

    def bind(self, backend: AttentionBackend) -> None:
        """Give every attention layer the backend's handle for it."""
        handles = backend.bind(self.attention_specs())
        for layer in self.attention_layers():
            layer.kv = handles.get(layer.spec.layer_id)

    @property
    def ties(self) -> Mapping[str, str]:
        """Tied parameter -> the parameter whose values it has, be they on this stage or not."""
        return {}

    def on_last_stage(self, name: str, make: Callable[[str], M]) -> M | Elsewhere:
        """A head: made with its dotted path where the final norm is, else a placeholder.

        Args:
            name: attribute that will hold it.
            make: called with the path.
        """
        prefix = child_prefix(self.prefix, name)
        stage = self.model.stage
        return make(prefix) if stage.is_last else Elsewhere(prefix, stage)

    def load_weights(
        self,
        weights: Weights,
        fmt: str = "hf",
        progress: Progress | None = None,
        *,
        check_values: bool = True,
    ) -> WeightReport:
        """Fill this rank's parameters, strictly.

        Args:
            weights: an open source, or (name, tensor) pairs with checkpoint names.
            fmt: how the names are spelled, ``hf`` or ``gguf``.
            progress: called with (bytes done, bytes to do).
            check_values: look at every value for NaN and infinity, not only at a few rows.

        Raises:
            CoverageError: anything missing, left over, doubled, of another shape, or of values
                that no model has.
        """
        self.check_structure()
        filling = self.loader(fmt).prepare(weights, check_values=check_values)
        return self.fill(filling, fmt, progress)

    def prepare_update(
        self,
        weights: Weights,
        fmt: str = "hf",
        mode: UpdateMode = "partial",
        *,
        allow_partial_stacks: bool = False,
        check_values: bool = True,
    ) -> Filling:
        """Check an update of this rank against names, shapes, dtypes and values; write nothing.

        Args:
            weights, fmt, check_values: as in ``load_weights``.
            mode: ``partial`` leaves parameters without a tensor as they are, ``full`` wants all.
            allow_partial_stacks: parts of a stacked parameter may come without the others.

        Raises:
            CoverageError: as ``load_weights``; and half a stacked parameter, or a tied head alone.
            SpoiltWeightsError, UnloadedWeightsError: a partial update of weights that are not whole.
        """
        partial: Partial | None = None
        if mode == "partial":
            self.weight_state.require()
            stored = frozenset(self.weight_state.names.values())
            partial = Partial(allow_partial_stacks, stored)
        filling = self.loader(fmt).prepare(weights, partial=partial, check_values=check_values)
        filling.scan()
        return filling

    def fill(
        self, filling: Filling, fmt: str = "hf", progress: Progress | None = None
    ) -> WeightReport:
        """Write what was prepared for this rank; an error leaves it refusing to serve.

        Args:
            filling: of ``prepare_update``, or of a loader over this module.
            fmt, progress: as in ``load_weights``.

        Raises:
            CoverageError, WeightError: as ``Filling.write`` and ``check_weights``.
        """
        try:
            report = filling.write(progress)
            self.check_weights()
        except BaseException as error:
            self.weight_state = self.weight_state.spoilt(error)
            raise
        self.weight_state = self.weight_state.after(filling, fmt)
        if report.warning:
            warnings.warn(report.warning, stacklevel=3)
        return report

    def check_structure(self) -> None:
        """Refuse what was built, where it is not what the module tree shows; see ``structure``.

        Raises:
            ShapeError, BoundaryError: which module, with its path.
        """
        check_structure(self)

    def weights_ready(self) -> None:
        """Say that every parameter was filled by other means than ``load_weights``.

        Whoever copies values in by a loop of its own calls it afterwards; until then ``forward``
        refuses. ``load_state_dict`` and a loader of this module do it themselves. What was derived
        from older values is made again.

        Raises:
            WeightError: a parameter is on ``meta``, where values that are copied into it vanish: the
                module was built there, or has run and packed its weights, which are plain again
                when this is raised; or as ``check_weights``.
        """
        on_meta = [name for name, each in self.named_parameters() if each.is_meta]
        self._restore_plain()
        if on_meta:
            error = WeightError(
                f"{on_meta[0]} and {len(on_meta) - 1} more were on the meta device, where values "
                "copied into them vanish; move a module that was built there with "
                "to_empty(device=…); the weights of one that has run were packed, and are plain "
                "again now: fill it once more, then call weights_ready() again"
            )
            if self.weight_state.loaded:
                self.weight_state = self.weight_state.spoilt(error)
            raise error
        self.check_structure()
        self.check_weights()
        for module in filter(has_method, self.modules()):
            method: Any = module.quant_method
            method.process_weights_after_loading(module)
        self.weight_state = self.weight_state.filled()

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As torch's; a state of every parameter makes the module ready to compute."""
        ready = self.weight_state.loaded
        self._restore_plain()
        try:
            with self._specs_kept():
                found = super().load_state_dict(state_dict, strict, assign)
        except BaseException as error:
            self.weight_state = self.weight_state.spoilt(error)
            raise
        if ready or not found.missing_keys:
            self.weights_ready()
        return found

    def to_empty(self, *, device: torch.device | str | int | None, recurse: bool = True) -> Self:
        """As torch's; the parameters have no values any more."""
        self.weight_state = self.weight_state.emptied()
        with self._specs_kept():
            return super().to_empty(device=device, recurse=recurse)

    def check_weights(self) -> None:
        """Refuse weights that are all there and contradict each other; plain ones never do.

        Raises:
            WeightError: which.
        """
        return

    @contextmanager
    def _specs_kept(self) -> Iterator[None]:
        """Parameters that torch replaces keep their shard specs, and those of one name theirs."""
        held = [
            (module, name, parameter)
            for module in self.modules()
            for name, parameter in module.named_parameters(recurse=False)
        ]
        yield
        fresh: dict[nn.Parameter, nn.Parameter] = {}
        for module, name, old in held:
            new = module.get_parameter(name)
            if new is not old and isinstance(old, ShardedParameter):
                new = fresh.setdefault(old, ShardedParameter(new.data, old.shard_spec))
                module.register_parameter(name, new)

    def _restore_plain(self) -> None:
        """Give every module whose weights were packed its plain ones back."""
        for module in filter(has_method, self.modules()):
            method: Any = module.quant_method
            method.restore_weights_before_loading(module)

    def untie(self) -> None:
        """Give a tied head storage of its own, with the same values; nothing where none is tied."""
        return

    def loader(self, fmt: str = "hf") -> AutoWeightsLoader:
        """What fills this rank's parameters from names in that spelling, or plans to."""
        return AutoWeightsLoader(self, name_map=name_map(type(self), fmt), ties=self.ties)

    def _logits(self, rows: Tensor, own: slice, batch: ForwardBatch) -> LogitsProcessorOutput:
        """Logits of the picked rows; only a language-model head gives them."""
        raise self._refusal("logits")

    @classmethod
    def _refusal(cls, call: str) -> InputError:
        answers = ", ".join(f"{each}()" for each in cls.serves)
        return InputError(f"{cls.__name__} is {cls.kind}; it answers {answers}, not {call}()")

    def _check_pooling(self, batch: ForwardBatch) -> None:
        """Refuse on every stage alike what the last one could not pool."""
        if batch.requests is None or batch.outputs.pooling is None:
            raise InputError(
                "get_embedding needs batch.requests and batch.outputs.pooling: which requests "
                "end in this forward"
            )
        self.pooler.check(batch.requests, batch.outputs.pooling.requests)

    def _picked(self, batch: ForwardBatch, positions: Tensor, pooled: bool) -> Tensor | None:
        """Rows that leave the model; None for all real ones."""
        if not pooled:
            real = positions.shape[0] if batch.num_real is None else batch.num_real
            return picked_rows(batch.outputs, real, positions.device)
        assert batch.requests is not None and batch.outputs.pooling is not None
        index = self.pooler.index(batch.requests, batch.outputs.pooling.requests)
        if index is None:
            return None
        return torch.tensor(index, dtype=torch.int64, device=positions.device)

    def _pool(self, rows: Tensor, batch: ForwardBatch) -> Tensor:
        """What leaves the model for the picked rows of this attention group."""
        requests, wanted = batch.requests, batch.outputs.pooling
        assert requests is not None and wanted is not None
        if self.pooler.index(requests, wanted.requests) is None:
            rows = self.pooler.rows(rows, requests, wanted.requests, wanted.skip_rows)
        return self._pooled(rows, wanted)

    def _pooled(self, rows: Tensor, wanted: PoolingRequest) -> Tensor:
        """(P, D) rows of the requests that end here to what leaves the model: vectors."""
        return self.pooler.vectors(rows, wanted)


def child_prefix(prefix: str, name: str) -> str:
    """Dotted path of a child module."""
    return f"{prefix}.{name}" if prefix else name
