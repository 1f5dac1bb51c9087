"""Arguments and options that several commands have, and the words that some of them take."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class DType(StrEnum):
    """Number formats a model can run in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT64 = "float64"


class Link(StrEnum):
    """Links between ranks whose costs are known by default."""

    NVLINK = "nvlink"
    PCIE = "pcie"
    ETHERNET = "ethernet"
    GLOO = "gloo"


class PlanMode(StrEnum):
    """Ways of choosing collectives between stages."""

    CHEAPEST = "cheapest"
    NAIVE = "naive"


Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="Checkpoint directory, .safetensors or .gguf file, or hub id (owner/name).",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
Offline = Annotated[bool, typer.Option("--offline", help="Never ask the hub.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
PromptText = Annotated[str | None, typer.Option("--prompt", metavar="TEXT", help="The prompt.")]
Plan = Annotated[
    PlanMode, typer.Option(help="How collectives are chosen: by cost, or always all-reduces.")
]
Stages = Annotated[int, typer.Option(min=1, help="Pipeline stages, of --tp ranks each.")]
Groups = Annotated[
    int, typer.Option(min=1, help="Attention groups of a stage, each with its own requests.")
]
Experts = Annotated[
    int, typer.Option("--ep", min=1, help="Parts of a stage that whole experts are dealt to.")
]
Architecture = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Serves the checkpoint, whatever its config states.",
        show_default=False,
    ),
]
IgnoreField = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Field of config.json to read as if it were not stated; repeatable.",
        show_default=False,
    ),
]
OwnDType = Annotated[
    DType | None, typer.Option(help="Of the weights.", show_default="the checkpoint's")
]
DPHead = Annotated[
    bool,
    typer.Option("--dp-lm-head", help="Split the head over each attention group, not all ranks."),
]
Quantization = Annotated[
    str | None,
    typer.Option(
        metavar="none",
        help="none: the weights are plain, whatever the config says.",
        show_default="the config's",
    ),
]
NoCheckValues = Annotated[
    bool,
    typer.Option("--no-check-values", help="Take weights with NaN or infinities as they are."),
]
DraftPath = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Checkpoint of a draft model, which proposes tokens; the output stays the same.",
        show_default=False,
    ),
]
DraftTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens the draft proposes at once.", show_default="4"),
]
TokenIds = Annotated[
    str | None,
    typer.Option(metavar="1,2,3", help="The prompt as token ids; needs no tokenizer."),
]
