"""Mixture of experts: the router, the experts, and the exchange of rows between ranks.

::

    rows ─ TopKRouter ─ expert ids, weights ┐
      └──────────────────────────────────── Experts ─ sum over the experts here, partial over ``moe``

Where every rank of a stage has all rows, each computes what its experts give, and the sum over the
stage completes it. Where whole experts are dealt to ranks (``ep``) and attention groups have rows of
their own (``attn_dp``), rows are exchanged: each goes to the ranks that hold its experts, and what
these give comes back.
"""

from .exchange import RowExchange
from .experts import Experts
from .reference import reference_experts
from .router import Routes, TopKRouter

__all__ = ["Experts", "Routes", "RowExchange", "TopKRouter", "reference_experts"]
