"""What archzoo refuses although transformers runs it, and why that is right."""

from __future__ import annotations

import re

from archzoo.errors import ArchzooError

REFUSALS: tuple[tuple[str, str], ...] = (
    (
        "attn_logit_softcapping|final_logit_softcapping|residual_multiplier|query_pre_attn_scalar|"
        "attention_multiplier|use_parallel_residual|rope_interleaved",
        "a field of another family: transformers ignores it, and whoever stated it expects otherwise",
    ),
    ("is_causal", "attention both ways: transformers ignores the field, others obey it"),
    ("rope_scaling|rope_parameters", "a rotary block with a type or a key that nothing here reads"),
    ("quantization_config|fp8", "no method is served yet; the weights of this file are plain"),
)
"""Pattern of the message, and the reason."""


def reason_of(error: ArchzooError) -> str | None:
    """Why it is right that archzoo refuses this; None where nobody said."""
    text = str(error)
    return next((reason for pattern, reason in REFUSALS if re.search(pattern, text)), None)
