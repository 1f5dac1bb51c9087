"""What other programs may rely on; names are added, never taken away."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from typing import Any

import pytest

import archzoo
from archzoo.runtime.generation import GenerateOptions, GenerateResult, StreamChunk
from archzoo.runtime.prefix_cache import CacheStats
from archzoo.runtime.speculative.state import SpeculationReport
from archzoo.survey import PreflightReport, RankReport
from archzoo.weights import WeightReport

PACKAGES = {
    "archzoo": {"BuildContext", "Model", "ModelConfig", "Topology", "build", "load"}
    | {"load_weights", "preflight", "resolve", "__version__"},
    "archzoo.attention": {"AttentionBackend", "AttentionSpec", "AttentionType", "make_backend"}
    | {"LayerKV", "TorchAttention", "reference_attention"},
    "archzoo.boundary": {"AddNorm", "Branch", "ResidualStream", "StageBoundary", "StageFacts"}
    | {f"declare_{kind}" for kind in ("attn", "ffn", "head", "moe", "own", "parallel")},
    "archzoo.config": {"ConfigAdapter", "ConfigLedger", "LLAMA_LIKE", "ModelConfig", "RopeConfig"}
    | {"MoEConfig", "no_window", "read_config", "window_everywhere", "window_if_switched_on"},
    "archzoo.errors": {"ArchzooError", "BackendUnavailableError", "BoundaryError", "CapacityError"}
    | {"CheckpointFileError", "CollectiveError", "ConfigError", "CoverageError", "InputError"}
    | {"DisabledArchitectureError", "DuplicateArchitectureError", "LogitsError"}
    | {"MissingDependency"}
    | {"PluginLoadError", "QuantizationError", "RegistryError", "ShapeError", "SpoiltWeightsError"}
    | {"TopologyError", "UnknownArchitectureError", "WeightError", "WeightShapeError"},
    "archzoo.forward": {"ForwardBatch", "ForwardMode", "KVCacheLayout", "KVPool", "OutputRows"}
    | {"AttentionSpec", "LogprobRequest", "PoolingRequest", "RequestRows", "TokenRows"},
    "archzoo.layers": {"BuildContext", "ColumnParallelLinear", "LogitsProcessor", "Pooler"}
    | {"LogitsProcessorOutput", "MergedColumnParallelLinear", "ParallelLMHead", "RMSNorm"}
    | {"QKVParallelLinear", "RadixAttention", "ReplicatedLinear", "RowParallelLinear"}
    | {"SiluAndMul", "VocabParallelEmbedding", "get_rope", "PoolingType", "RotaryEmbedding"}
    | {"GatedActivation", "RotaryRows", "get_act_and_mul"},
    "archzoo.models": {"CausalLM", "DecoderLayer", "DecoderModel", "GatedMLP"}
    | {"GroupedQueryAttention", "LinearStack", "Reranking"}
    | {"DecoderBase", "EmbeddingModel", "PPProxyTensors", "SequenceClassifier"}
    | {"DraftModel", "SparseMLP", "states_for_draft"},
    "archzoo.parallel": {"Communicator", "Group", "Groups", "HeadLayout", "ShardSpec", "Topology"}
    | {"LinearPartition", "ParameterFactory", "ShardedParameter", "Dim", "IN", "OUT"}
    | {"Elsewhere", "ExpertLayout", "ExpertPartition", "PipelineStage", "split_layers"},
    "archzoo.quantization": {"QuantConfig", "QuantMethod", "QuantTarget", "quant_config"},
    "archzoo.registry": {"Catalog", "Provider", "catalog", "resolve"},
    "archzoo.survey": {"Explanation", "PreflightReport", "RankFault", "RankReport", "preflight"},
    "archzoo.weights": {"AutoWeightsLoader", "NameMap", "NameRules", "RemapRegistry", "Rename"}
    | {"STANDARD_GATE_UP_MAPPING", "STANDARD_QKV_MAPPING", "STANDARD_SKIPS", "Skip"}
    | {"GGUF_NAMES", "Nesting", "STANDARD_EXPERT_MAPPING", "STANDARD_NESTING", "UpdateReport"}
    | {"WeightReport", "WeightSource", "WeightState", "open_headers", "open_source"},
}

SIGNATURES = {
    "load": ["path", "dtype", "device", "topology", "tp", "pp", "attn_dp", "ep"]
    + ["quantization", "backend", "compile"],
    "build": ["config", "ctx"],
    "load_weights": ["module", "source"],
    "preflight": ["path", "dtype", "topology", "tp", "pp", "attn_dp", "ep", "pp_layers"]
    + ["dp_lm_head", "batch", "chunk", "context", "memory"],
    "resolve": ["architectures", "strict"],
}

METHODS = {
    "logits": ["self", "ids", "chunk_size"],
    "logprobs": ["self", "ids", "start", "top_k", "temperature"],
    "embed": ["self", "prompts", "dimensions", "normalize"],
    "classify": ["self", "prompts", "chunk_size", "label_tokens"],
    "generate": ["self", "prompt", "max_new_tokens", "stream"],
    "rerank": ["self", "query", "documents", "instruction", "labels", "chunk_size"],
    "step_scores": ["self", "prompts", "step_token"],
    "update_weights": ["self", "pairs", "mode", "atomic", "allow_partial_stacks", "check_values"],
    "export_weights": ["self"],
    "untie": ["self"],
    "forward": ["self", "ids", "chunk_size"],
    "set_aux_layers": ["self", "indices"],
    "set_eagle3_layers_to_capture": ["self", "ids"],
    "set_dflash_layers_to_capture": ["self", "ids"],
}

KEYWORDS = {
    "load": {"check_values", "costs", "dp_lm_head", "kv_slots", "max_requests", "offline", "plan"}
    | {"pp_layers", "pp_micro_batches", "prefill_chunk", "prefix_cache", "progress", "target"},
    "load_weights": {"check_values"},
}
"""Additions, by name only."""

METHOD_KEYWORDS = {
    "classify": {"chunk_size", "label_tokens"},
    "embed": {"chunk_size"},
    "forward": {"chunk_size"},
    "generate": {"draft", "draft_tokens", "stream"},
    "logprobs": {"chunk_size"},
    "rerank": {"chunk_size", "instruction", "labels"},
    "update_weights": {"allow_partial_stacks", "check_values"},
}
"""The same of Model."""

OPTIONS = {"ignore_eos", "seed", "stop", "stop_token_ids", "temperature", "top_k", "top_p"}
"""Of generate, beside its own parameters."""

FIELDS = {
    GenerateResult: {"cached_tokens", "finish_reason", "prompt_token_ids", "speculation", "text"}
    | {"token_ids"},
    StreamChunk: {"finish_reason", "index", "speculation", "text", "token_ids"},
    SpeculationReport: {"accepted", "draft_forwards", "proposed", "target_forwards"},
    PreflightReport: {"converted", "derived", "found", "memory", "ranks", "skipped", "tensors"}
    | {"tied"},
    RankReport: {"fills", "heads", "layers", "memory", "rank", "read_bytes"},
}
"""What results hold."""

PROPERTIES = {
    archzoo.Model: {"cache_stats", "tokenizer"},
    CacheStats: {"hit_rate"},
    SpeculationReport: {"acceptance"},
    PreflightReport: {"fits", "ok"},
    WeightReport: {"ok"},
}


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
    if name in ("load", "preflight"):
        kinds = {p.kind for p in list(parameters.values())[1:]}
        assert kinds == {inspect.Parameter.KEYWORD_ONLY}, "additions are keyword-only"


@pytest.mark.parametrize("name", list(KEYWORDS))
def test_keywords_stay(name: str) -> None:
    parameters = inspect.signature(getattr(archzoo, name)).parameters
    assert {parameters[each].kind for each in KEYWORDS[name]} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("name", list(METHOD_KEYWORDS))
def test_keywords_of_methods_stay(name: str) -> None:
    parameters = inspect.signature(getattr(archzoo.Model, name)).parameters
    kinds = {parameters[each].kind for each in METHOD_KEYWORDS[name]}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("name", list(METHODS))
def test_methods_stay(name: str) -> None:
    parameters = list(inspect.signature(getattr(archzoo.Model, name)).parameters)
    assert parameters[: len(METHODS[name])] == METHODS[name]


def test_options_of_generate_stay() -> None:
    assert OPTIONS <= GenerateOptions.__annotations__.keys()


@pytest.mark.parametrize("result", list(FIELDS), ids=lambda result: result.__name__)
def test_fields_of_results_stay(result: type[Any]) -> None:
    assert FIELDS[result] <= {field.name for field in fields(result)}


@pytest.mark.parametrize("owner", list(PROPERTIES), ids=lambda owner: owner.__name__)
def test_properties_stay(owner: type[Any]) -> None:
    found = {name for name in PROPERTIES[owner] if isinstance(getattr(owner, name), property)}
    assert found == PROPERTIES[owner]


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
