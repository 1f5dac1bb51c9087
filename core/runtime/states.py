"""AuxStates: the part of ``Model`` that gives hidden states beside logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from ..models import states_for_draft
from .prompted import PromptedModel
from .prompts import chunk_of, is_batch
from .scoring import PromptOutput, prompt_outputs


class AuxStates(PromptedModel):
    """A loaded model's hidden states; see PromptedModel."""

    def set_aux_layers(self, indices: Sequence[int]) -> None:
        """Hidden states that ``forward`` gives, on every rank; under torchrun every process calls.

        Args:
            indices: 0 is the embedding, i the output of layer i - 1, the number of layers the last
                output before the final norm. In the order in which they are wanted; () for none.

        Raises:
            BoundaryError: an index that no layer has, or one twice.
            InputError: a draft reads others for requests under way.
        """
        self.engine.set_aux_layers(indices)

    def set_eagle3_layers_to_capture(self, ids: Sequence[int] | None = None) -> None:
        """Give the states that an EAGLE-3 draft reads.

        Args:
            ids: an id i is the output of layer i, state i + 1 of ``set_aux_layers``; None for
                states 2, n//2 and n - 3 of n layers. States come in layer order.

        Raises:
            BoundaryError: an id that is no layer or comes twice, or a model too small for None.
            InputError: as ``set_aux_layers``.
        """
        self.set_aux_layers(states_for_draft(ids, self.config.num_hidden_layers))

    def set_dflash_layers_to_capture(self, ids: Sequence[int] | None = None) -> None:
        """Give the states that a DFlash draft reads; as ``set_eagle3_layers_to_capture``.

        Args:
            ids: as there.

        Raises:
            BoundaryError, InputError: as there.
        """
        self.set_eagle3_layers_to_capture(ids)

    @overload
    def forward(self, ids: Sequence[int], *, chunk_size: int | None = None) -> PromptOutput: ...
    @overload
    def forward(
        self, ids: Sequence[Sequence[int]], *, chunk_size: int | None = None
    ) -> list[PromptOutput]: ...
    def forward(
        self, ids: Sequence[int] | Sequence[Sequence[int]], *, chunk_size: int | None = None
    ) -> PromptOutput | list[PromptOutput]:
        """Logits of every position, and the hidden states of ``set_aux_layers``, of one forward.

        Args:
            ids: token ids of one prompt, or a list of prompts. No tokens give no rows.
            chunk_size: compute in chunks of so many tokens over cached keys and values.

        Returns:
            ``.logits`` as of ``logits``, ``.aux_hidden_states`` (T, D) each, in the order asked for
            and the model's dtype; a list for a list.

        Raises:
            InputError, CapacityError: as ``logits``.
        """
        self._require("logits")
        chunk = chunk_of(chunk_size)
        many = is_batch(ids)
        prompts = [self._ids(one) for one in ids] if many else [self._ids(ids)]
        found = prompt_outputs(self.engine, prompts, chunk)
        return found if many else found[0]
