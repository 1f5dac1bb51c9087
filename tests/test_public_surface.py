"""What other programs may rely on; names are added, never taken away."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module

import pytest

import archzoo

PACKAGES = {
    "archzoo": {"BuildContext", "Model", "ModelConfig", "Topology", "build", "load"}
    | {"load_weights", "resolve", "__version__"},
    "archzoo.attention": {"AttentionBackend", "AttentionSpec", "AttentionType", "make_backend"}
    | {"LayerKV", "TorchAttention", "reference_attention"},
    "archzoo.boundary": {"AddNorm", "ResidualStream", "StageBoundary"},
    "archzoo.config": {"ConfigAdapter", "ConfigLedger", "LLAMA_LIKE", "ModelConfig", "RopeConfig"}
    | {"read_config"},
    "archzoo.forward": {"ForwardBatch", "ForwardMode", "KVCacheLayout", "KVPool", "OutputRows"}
    | {"AttentionSpec", "LogprobRequest", "PoolingRequest", "RequestRows", "TokenRows"},
    "archzoo.layers": {"BuildContext", "ColumnParallelLinear", "LogitsProcessor", "Pooler"}
    | {"LogitsProcessorOutput", "MergedColumnParallelLinear", "ParallelLMHead", "RMSNorm"}
    | {"QKVParallelLinear", "RadixAttention", "ReplicatedLinear", "RowParallelLinear"}
    | {"SiluAndMul", "VocabParallelEmbedding", "get_rope", "PoolingType", "RotaryEmbedding"},
    "archzoo.models": {"CausalLM", "DecoderLayer", "DecoderModel", "GatedMLP"}
    | {"DecoderBase", "EmbeddingModel", "PPProxyTensors", "SequenceClassifier"},
    "archzoo.parallel": {"Communicator", "Group", "Groups", "HeadLayout", "ShardSpec", "Topology"}
    | {"LinearPartition", "ParameterFactory", "ShardedParameter", "Dim", "IN", "OUT"}
    | {"Elsewhere", "PipelineStage", "split_layers"},
    "archzoo.quantization": {"QuantConfig", "QuantMethod", "QuantTarget", "quant_config"},
    "archzoo.registry": {"Catalog", "Provider", "catalog", "resolve"},
    "archzoo.weights": {"AutoWeightsLoader", "NameMap", "NameRules", "RemapRegistry", "Rename"}
    | {"STANDARD_GATE_UP_MAPPING", "STANDARD_QKV_MAPPING", "STANDARD_SKIPS", "Skip"}
    | {"WeightReport", "WeightSource", "open_source", "UpdateReport", "WeightState"},
}

SIGNATURES = {
    "load": ["path", "dtype", "device", "topology", "tp", "pp", "attn_dp", "ep"]
    + ["quantization", "backend", "compile"],
    "build": ["config", "ctx"],
    "load_weights": ["module", "source"],
    "resolve": ["architectures", "strict"],
}

METHODS = {
    "logits": ["self", "ids", "chunk_size"],
    "logprobs": ["self", "ids", "start", "top_k", "temperature"],
    "embed": ["self", "prompts", "dimensions", "normalize"],
    "classify": ["self", "prompts", "chunk_size"],
    "generate": ["self", "prompt", "max_new_tokens", "stream"],
    "update_weights": ["self", "pairs", "mode", "atomic", "allow_partial_stacks", "check_values"],
    "export_weights": ["self"],
    "untie": ["self"],
}

KEYWORDS = {
    "load": {"check_values", "progress"},
    "load_weights": {"check_values"},
}
"""Additions, by name only."""


@pytest.mark.parametrize("package", list(PACKAGES))
def test_public_names_stay(package: str) -> None:
    module = import_module(package)
    assert PACKAGES[package] <= set(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("name", list(SIGNATURES))
def test_parameters_stay(name: str) -> None:
    parameters = inspect.signature(getattr(archzoo, name)).parameters
    assert list(parameters)[: len(SIGNATURES[name])] == SIGNATURES[name]
    if name == "load":
        kinds = {p.kind for p in list(parameters.values())[1:]}
        assert kinds == {inspect.Parameter.KEYWORD_ONLY}, "additions are keyword-only"


@pytest.mark.parametrize("name", list(KEYWORDS))
def test_keywords_stay(name: str) -> None:
    parameters = inspect.signature(getattr(archzoo, name)).parameters
    assert {parameters[each].kind for each in KEYWORDS[name]} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("name", list(METHODS))
def test_methods_stay(name: str) -> None:
    parameters = list(inspect.signature(getattr(archzoo.Model, name)).parameters)
    assert parameters[: len(METHODS[name])] == METHODS[name]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = archzoo.nonsense
    assert set(archzoo.__all__) <= set(dir(archzoo))


def test_importing_the_package_is_light() -> None:
    script = (
        "import sys, archzoo, archzoo.registry, archzoo.errors, archzoo.settings\n"
        "heavy = {'torch', 'transformers', 'safetensors', 'numpy', 'rich', 'typer'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
