"""What archzoo refuses although transformers runs it, and why that is right."""

from __future__ import annotations

import re

from archzoo.errors import ArchzooError

REFUSALS: tuple[tuple[str, str], ...] = ()
"""Pattern of the message, and the reason."""


def reason_of(error: ArchzooError) -> str | None:
    """Why it is right that archzoo refuses this; None where nobody said."""
    text = str(error)
    return next((reason for pattern, reason in REFUSALS if re.search(pattern, text)), None)
