"""Reranking: how a language model is asked whether a document answers a query."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reranking:
    """The prompt a reranker was trained on, and the two tokens it answers with.

    Args:
        template: with ``{instruction}``, ``{query}`` and ``{document}``.
        instruction: the task, where the caller states none.
        yes, no: answers, each one token.
    """

    template: str
    instruction: str
    yes: str = "yes"
    no: str = "no"

    def prompt(self, query: str, document: str, instruction: str | None = None) -> str:
        """The text to be judged; braces in the caller's texts are nothing special."""
        task = self.instruction if instruction is None else instruction
        return self.template.format(instruction=task, query=query, document=document)
