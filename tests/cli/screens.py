"""Screens of ``list``, ``why`` and ``doctor`` over one fixed fake site; of ``preflight``.

Run as a script (``make screens``) to write the golden files and the pictures of them anew.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
PICTURES = HERE.parents[1] / "docs" / "screens"
WIDTHS = (80, 120)
PICTURED = {
    "list": "list",
    "why-skipped": "why FlaForCausalLM",
    "doctor-probe": "doctor --probe",
    "preflight": "preflight llama-70b --tp 8 --attn-dp 2 --boundaries",
    "preflight-survey": "preflight stated --tp 16 --pp 2 --batch 8 --memory 80GiB",
}
"""By screen, the command that draws it."""
ENVIRONMENT = {"ARCHZOO_DISABLED_MODEL_ARCHS": "OldForCausalLM"}

LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "max_position_embeddings": 8192,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}

# Names of nothing that exists, so that no screen depends on what is installed here.
_QUESTIONS = {
    "served": "GoodForCausalLM",
    "skipped": "FlaForCausalLM",
    "unknown": "GodoForCausalLM",
    "tombstone": "MistyForCausalLM",
    "conflict": "TwinForCausalLM",
    "disabled": "OldForCausalLM",
    "checkpoint": "checkpoint",
}


def draw(width: int) -> dict[str, str]:
    """Every screen at a width. The current folder must be empty, and is written to."""
    from archzoo.cli import doctor, doctor_text, listing, probing, why, why_text
    from archzoo.cli.question import read_question
    from archzoo.registry import Catalog
    from archzoo.settings import Settings

    if not os.path.exists("site"):
        _install_all()
    clean = {key: value for key, value in os.environ.items() if "ARCHZOO" not in key}
    clean = {key: value for key, value in clean.items() if not key.startswith("SGLANG")}
    clean["PYTHONPATH"] = os.path.abspath("site")
    path = [os.path.abspath("site"), *sys.path]
    with mock.patch.dict(os.environ, {**clean, **ENVIRONMENT}, clear=True):
        source = Catalog(["site"], settings=Settings.from_environ())
        screens = {"list": listing.as_text(source, listing.Filter(), width)}
        for name, asked in _QUESTIONS.items():
            found = why.answer(read_question(asked), source)
            screens[f"why-{name}"] = why_text.as_text(found, width)
        report = doctor.Report(_machine(), source)
        screens["doctor"] = doctor_text.as_text(report, width)
        with mock.patch.object(sys, "path", path):
            probes = probing.probe(probing.targets(source), 60.0)
        report = doctor.Report(_machine(), source, probes=probes)
        screens["doctor-probe"] = doctor_text.as_text(report, width)
    screens |= _preflights(width) | _surveys(width)
    return {name: _marked(text) for name, text in screens.items()}


def _preflights(width: int) -> dict[str, str]:
    """Plans of a configuration in the shape of Llama 3 70B."""
    from archzoo.cli import preflight, preflight_text
    from archzoo.parallel import Topology

    Path("llama-70b").mkdir(exist_ok=True)
    Path("llama-70b", "config.json").write_text(json.dumps(LLAMA_70B))
    asked = {
        "preflight": preflight.Options("llama-70b", Topology(tp=8, attn_dp=2)),
        "preflight-pipeline": preflight.Options(
            "llama-70b", Topology(tp=4, pp=2), rows=(2048,), plan="naive", link="pcie"
        ),
    }
    return {
        name: preflight_text.as_text(preflight.examine(options), width)
        for name, options in asked.items()
    }


def _surveys(width: int) -> dict[str, str]:
    """Headers of Llama 3 70B on 32 ranks, and of a damaged checkpoint of it."""
    from survey.stated import shapes, state

    from archzoo.cli import survey, survey_text
    from archzoo.parallel import Topology

    config = LLAMA_70B | {"head_dim": 128}
    whole = shapes(config)
    state(Path("stated"), whole, config)
    damaged = {name: shape for name, shape in whole.items() if ".7.mlp.up" not in name}
    damaged["model.layers.5.self_attn.o_proj.weight"] = (8192, 8191)
    damaged["model.layers.80.input_layernorm.weight"] = (8192,)
    for layer in range(80):
        damaged[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = (64,)
    state(Path("damaged"), damaged, config)
    topology = Topology(tp=16, pp=2)
    report = survey.examine(survey.Options("stated", topology, batch=8, memory=80 << 30))
    name = "model.layers.41.self_attn.qkv_proj.weight"
    refused = survey.examine(survey.Options("damaged", Topology(tp=2, pp=2), context=4096))
    small = survey.examine(survey.Options("stated", Topology(tp=4), memory=24 << 30))
    return {
        "preflight-survey": survey_text.as_text(report, width),
        "preflight-refused": survey_text.as_text(refused, width),
        "preflight-no-room": survey_text.as_text(small, width),
        "preflight-parameter": survey_text.explanation_text(report.explain(name), width),
        "preflight-tensor": survey_text.explanation_text(
            report.explain("model.layers.41.self_attn.k_proj.weight"), width
        ),
    }


def _marked(text: str) -> str:
    """Without what differs from machine to machine; markers are as long as what they replace."""
    text = text.replace(os.getcwd(), "")
    text = re.sub(r"((?:fingerprint|digest) +)[0-9a-f]{16}", r"\g<1>0123456789abcdef", text)
    return re.sub(r"^((?:ok|failed|skipped) +)\d\.\d\d ", r"\g<1>0.10 ", text, flags=re.M)


def _machine() -> object:
    from archzoo.cli.machine import Devices, Machine

    libraries: Mapping[str, str] = {
        "torch": "2.13.0",
        "transformers": "5.24.0",
        "safetensors": "0.8.0",
        "tokenizers": "0.23.3",
        "triton": "",
        "gguf": "0.19.0",
    }
    return Machine(
        python="3.12.9",
        executable="/opt/venv/bin/python",
        platform="Linux 6.8.0 x86_64",
        libraries=libraries,
        cpus=16,
        usable=8,
        threads={"OMP_NUM_THREADS": "8", "MKL_NUM_THREADS": ""},
        devices=Devices(("NVIDIA H200", "NVIDIA H200"), "/proc/driver/nvidia/gpus"),
        visible=None,
    )


def _install_all() -> None:
    """One plugin for each thing that a screen can show."""
    from registry.sites import Site

    site = Site(Path("site"))
    model = "print('hello')\nclass Good: pass\n"
    site.install(
        "zoo-good",
        {"GoodForCausalLM": "zoo_good:Good"},
        version="1.2",
        files={"zoo_good.py": model},
    )
    site.install(
        "zoo-fla",
        {"FlaForCausalLM": "zoo_fla.model:Fla [fla]"},
        requires=["flash-linear-attention>=0.4; extra == 'fla'"],
        extras=["fla"],
    )
    site.install("zoo-newer", {"NewerForCausalLM": "zoo_newer:Newer"}, requires=["archzoo>=7"])
    site.install("zoo-unreadable", {"UnreadableForCausalLM": "zoo unreadable"})
    site.install("zoo-old", {"OldForCausalLM": "zoo_old:Old"})
    site.install(
        "zoo-raising",
        {"RaisingForCausalLM": "zoo_raising:Raising"},
        files={"zoo_raising.py": "raise ValueError('boom 17')\n"},
    )
    site.install(
        "zoo-dying",
        {"DyingForCausalLM": "zoo_dying:Dying"},
        files={"zoo_dying.py": "import os\nos._exit(7)\n"},
    )
    for name in ("one", "two"):
        body = {f"zoo_{name}.py": "class Twin: pass\n"}
        site.install(f"zoo-{name}", {"TwinForCausalLM": f"zoo_{name}:Twin"}, files=body)
    site.install("zoo-tombs", {"MistyForCausalLM": "zoo_misty"}, group="archzoo.tombstones")
    site.install(
        "zoo-hooks",
        {"watch": "zoo_hooks"},
        group="archzoo.plugins",
        files={"zoo_hooks.py": "def archzoo_architectures():\n    return {}\n"},
    )
    typo = site.install("zoo-typo", {"TypoForCausalLM": "zoo_typo:Typo"}, group="archzoo.modles")
    assert typo.exists()
    os.mkdir("checkpoint")
    Path("checkpoint", "config.json").write_text(
        '{"architectures": ["NobodyForCausalLM", "GoodForCausalLM", "OldForCausalLM"],'
        ' "model_type": "good"}'
    )


def write_all() -> None:
    """Write golden files and pictures anew."""
    from rich.console import Console
    from rich.text import Text

    for folder in (GOLDEN, PICTURES):
        folder.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        with tempfile.TemporaryDirectory() as place:
            os.chdir(place)
            screens = draw(width)
            os.chdir(HERE)
        for name, text in screens.items():
            (GOLDEN / f"{name}-{width}.txt").write_text(f"{text}\n")
            if width == WIDTHS[0] and name in PICTURED:
                console = Console(record=True, width=width, file=io.StringIO())
                title = f"archzoo {PICTURED[name]}"
                console.print(Text(f"$ {title}\n{text}"), soft_wrap=True)
                picture = console.export_svg(title=title, unique_id=f"archzoo-{name}")
                (PICTURES / f"{name}.svg").write_text(picture)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    write_all()
