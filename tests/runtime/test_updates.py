"""Updates and exports of loaded models, on one rank and on many."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from packers import PACKERS
from safetensors.torch import load_file, save_file
from torch import Tensor

import archzoo
from archzoo.errors import CoverageError, InputError, SpoiltWeightsError, WeightError
from archzoo.quantization import UnquantizedConfig, select
from archzoo.quantization.packing import WeightPacker
from archzoo.quantization.unquantized import UnquantizedLinearMethod
from archzoo.weights import IterableSource, open_source
from tiny import ids_of, tiny_llama

SIZES: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 131}
TOPOLOGIES: tuple[dict[str, Any], ...] = (
    {},
    {"tp": 4},
    {"pp": 3},
    {"tp": 2, "pp": 2},
    {"tp": 4, "attn_dp": 2},
    {"tp": 4, "attn_dp": 2, "dp_lm_head": True},
)
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Q = "model.layers.1.self_attn.q_proj.weight"
IDS = ids_of(9)

each_topology = pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
tied_or_not = pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints a and b of one shape, untied and tied."""
    folder = tmp_path_factory.mktemp("updates")
    for tied in (False, True):
        for seed, name in enumerate("ab"):
            path = folder / f"{name}{int(tied)}"
            tiny_llama(path, seed, tie_word_embeddings=tied, **SIZES)
    return folder


def tensors(path: Path) -> dict[str, Tensor]:
    return load_file(path / "model.safetensors")


def load(path: Path, **options: Any) -> archzoo.Model:
    return archzoo.load(path, dtype="float32", kv_slots=64, max_requests=2, **options)


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def exported(model: archzoo.Model) -> dict[str, Tensor]:
    pairs = list(model.export_weights())
    assert len(pairs) == len(dict(pairs)), "a name came twice"
    return dict(pairs)


class FailsAt(IterableSource):
    """Tensors whose nth read fails."""

    def __init__(self, pairs: dict[str, Tensor], name: str) -> None:
        super().__init__(pairs.items())
        self._fails, self.armed = name, False

    def read(self, name: str, box: Any) -> Tensor:
        if self.armed and name == self._fails:
            raise OSError("the network went away")
        return super().read(name, box)


def failing(pairs: dict[str, Tensor], name: str, monkeypatch: pytest.MonkeyPatch) -> FailsAt:
    """A source that is sound while it is validated, and fails once writing has begun."""
    from archzoo.weights.filling import Filling

    source, write = FailsAt(pairs, name), Filling.write

    def armed(self: Filling, *args: Any) -> Any:
        source.armed = True
        return write(self, *args)

    monkeypatch.setattr(Filling, "write", armed)
    return source


@tied_or_not
@each_topology
def test_an_export_equals_the_checkpoint(folder: Path, topology: Any, tied: bool) -> None:
    path = folder / f"a{int(tied)}"
    model = load(path, **topology)
    same(exported(model), tensors(path))
    same(exported(model), tensors(path))


@tied_or_not
@each_topology
def test_a_full_update_equals_a_cold_load(folder: Path, topology: Any, tied: bool) -> None:
    a, b = folder / f"a{int(tied)}", folder / f"b{int(tied)}"
    warm, cold = load(a, **topology), load(b, **topology)
    before = warm.logits(IDS)
    report = warm.update_weights(iter(tensors(b).items()), mode="full")
    assert torch.equal(warm.logits(IDS), cold.logits(IDS))
    assert not torch.equal(warm.logits(IDS), before)
    assert set(report.tensors) == tensors(b).keys()
    same(exported(warm), tensors(b))
    assert warm.report is report.reports[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("packer", PACKERS.values(), ids=PACKERS)
def test_packed_weights_are_packed_again(
    folder: Path, packer: WeightPacker, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is touched; packed weights keep no plain copy."""
    monkeypatch.setattr(select, "UnquantizedConfig", partial(UnquantizedConfig, packer))
    model = archzoo.load(folder / "a0", dtype=dtype, kv_slots=64)
    layers = model.module.model.layers
    method, other = layers[1].mlp.down_proj.quant_method, layers[0].mlp.down_proj.quant_method
    packs = packer.serves(layers[1].mlp.down_proj.weight)
    before = model.logits(IDS)
    packed, untouched = method.packed, other.packed
    assert (packed is not None) is packs
    name = "model.layers.1.mlp.down_proj.weight"
    new = tensors(folder / "b0")[name].to(model.module.dtype)
    report = model.update_weights({name: new})
    assert report.parameters == (name,) and report.tensors == (name,)
    assert report.rederived == ("model.layers.1.mlp.down_proj",)
    assert method.packed is None and other.packed is untouched
    assert not torch.equal(model.logits(IDS), before)
    assert (method.packed is not None) is packs and other.packed is untouched
    assert method.packed is not packed or not packs
    assert layers[1].mlp.down_proj.weight.is_meta is packs
    expected = {k: v.to(model.module.dtype) for k, v in tensors(folder / "a0").items()}
    same(exported(model), expected | {name: new})


@each_topology
def test_a_partial_update_changes_what_it_names(folder: Path, topology: Any) -> None:
    old, new = tensors(folder / "a0"), tensors(folder / "b0")
    names = [name for name in old if ".layers.1.self_attn." in name or name == EMBEDDING]
    part = {name: new[name] for name in names}
    model = load(folder / "a0", **topology)
    report = model.update_weights(part)
    same(exported(model), old | part)
    assert set(report.tensors) == set(names)
    assert "model.layers.1.self_attn.qkv_proj.weight" in report.parameters
    assert not any(".mlp." in name for name in (*report.parameters, *report.rederived))
    save(folder / "mixed", folder / "a0", old | part)
    assert torch.equal(model.logits(IDS), load(folder / "mixed", **topology).logits(IDS))


def save(path: Path, like: Path, content: dict[str, Tensor]) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text((like / "config.json").read_text())
    save_file(content, path / "model.safetensors", {"format": "pt"})
    return path


@each_topology
def test_a_tied_head_follows_its_embedding(folder: Path, topology: Any) -> None:
    new = tensors(folder / "b1")[EMBEDDING]
    model = load(folder / "a1", **topology)
    report = model.update_weights({EMBEDDING: new})
    mixed = save(folder / "mixed1", folder / "a1", tensors(folder / "a1") | {EMBEDDING: new})
    assert torch.equal(model.logits(IDS), load(mixed, **topology).logits(IDS))
    assert "lm_head" in report.rederived


@each_topology
def test_a_tied_head_alone_is_refused_until_untied(folder: Path, topology: Any) -> None:
    model = load(folder / "a1", **topology)
    before, head = model.logits(IDS), tensors(folder / "b0")[HEAD]
    with pytest.raises(CoverageError, match=r"lm_head.weight came without.*untie"):
        model.update_weights({HEAD: head})
    assert torch.equal(model.logits(IDS), before)
    model.untie()
    assert not model.config.tie_word_embeddings
    assert torch.equal(model.logits(IDS), before), "the same values in another place"
    old = tensors(folder / "a1")
    same(exported(model), old | {HEAD: old[EMBEDDING]})
    model.update_weights({HEAD: head})
    same(exported(model), old | {HEAD: head})
    model.update_weights({EMBEDDING: tensors(folder / "b1")[EMBEDDING]})
    same(exported(model), old | {HEAD: head, EMBEDDING: tensors(folder / "b1")[EMBEDDING]})
    model.untie()


def test_both_of_a_tied_pair_must_be_equal(folder: Path) -> None:
    model, new = load(folder / "a1"), tensors(folder / "b1")[EMBEDDING]
    with pytest.raises(CoverageError, match="hold different values"):
        model.update_weights({EMBEDDING: new, HEAD: new + 1})
    model.update_weights({EMBEDDING: new, HEAD: new.clone()})
    same(exported(model), tensors(folder / "a1") | {EMBEDDING: new})


@each_topology
def test_a_head_that_stood_for_both_may_come_alone(folder: Path, topology: Any) -> None:
    """Where the checkpoint stores the shared matrix as lm_head, that is what it exports."""
    content = tensors(folder / "a1")
    content[HEAD] = content.pop(EMBEDDING)
    model = load(save(folder / "headed", folder / "a1", content), **topology)
    same(exported(model), content)
    content[HEAD] = tensors(folder / "b1")[EMBEDDING]
    model.update_weights(content)
    same(exported(model), content)
    model.untie()
    same(exported(model), content | {EMBEDDING: content[HEAD]})


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "shape": ({"model.norm.weight": torch.zeros(47)}, r"model.norm.weight has shape \[47\]"),
    "integer": ({"model.norm.weight": torch.zeros(48, dtype=torch.int32)}, "int32 is stored"),
    "unknown": ({"model.layers.1.mlp.gate.weight": torch.ones(2, 2)}, "no 'gate'"),
    "layer": ({"model.layers.3.mlp.down_proj.weight": torch.ones(48, 72)}, "0 to 2, no 3"),
    "q alone": ({Q: torch.ones(48, 48)}, r"shard 'k' of .*expected .*k_proj"),
    "all nan": ({EMBEDDING: torch.full((131, 48), torch.nan)}, "NaN and 0 infinite"),
}


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("topology", [{}, {"tp": 4}, {"pp": 3}], ids=str)
def test_a_bad_last_tensor_leaves_all_as_it_was(
    folder: Path, topology: Any, kind: str, atomic: bool
) -> None:
    model, (bad, message) = load(folder / "a0", **topology), BAD[kind]
    before = model.logits(IDS)
    good = {EMBEDDING: tensors(folder / "b0")[EMBEDDING], HEAD: tensors(folder / "b0")[HEAD]}
    with pytest.raises(CoverageError, match=message):
        model.update_weights(iter((good | bad).items()), atomic=atomic)
    assert torch.equal(model.logits(IDS), before)
    same(exported(model), tensors(folder / "a0"))


@pytest.mark.parametrize("mode", ["partial", "full"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("topology", [{}, {"tp": 4}], ids=str)
def test_one_bad_value_is_found_before_anything_is_written(
    folder: Path, topology: Any, bad: float, mode: Any
) -> None:
    new = tensors(folder / "b0")
    name = "model.layers.2.mlp.down_proj.weight"
    new[name][47, 71] = bad
    model = load(folder / "a0", **topology)
    with pytest.raises(CoverageError, match=rf"{name}: .*at \[47, 71\]"):
        model.update_weights(new, mode)
    assert not model.module.weight_state.fault, "it was found while writing"
    same(exported(model), tensors(folder / "a0"))
    model.update_weights(new, mode, check_values=False)
    assert exported(model)[name][47, 71].equal(torch.tensor(bad)) or bad != bad


@pytest.mark.parametrize("atomic", [False, True])
def test_an_iterator_that_raises_has_written_nothing(folder: Path, atomic: bool) -> None:
    """All pairs are taken before the first write."""

    def pairs() -> Iterator[tuple[str, Tensor]]:
        yield from list(tensors(folder / "b0").items())[:5]
        raise RuntimeError("the trainer died")

    model = load(folder / "a0", tp=4)
    with pytest.raises(RuntimeError, match="the trainer died"):
        model.update_weights(pairs(), mode="full", atomic=atomic)
    same(exported(model), tensors(folder / "a0"))


@tied_or_not
@pytest.mark.parametrize("mode", ["partial", "full"])
@each_topology
def test_atomic_puts_the_old_weights_back(
    folder: Path, topology: Any, mode: Any, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, new = folder / f"a{int(tied)}", tensors(folder / f"b{int(tied)}")
    model = load(path, **topology)
    before = model.logits(IDS)
    with pytest.raises(OSError, match="the network went away"):
        source = failing(new, "model.norm.weight", monkeypatch)
        model.update_weights(source, mode, atomic=True)
    assert torch.equal(model.logits(IDS), before)
    same(exported(model), tensors(path))
    monkeypatch.undo()
    model.update_weights(new, mode, atomic=True)
    same(exported(model), new)
    assert torch.equal(model.logits(IDS), load(folder / f"b{int(tied)}", **topology).logits(IDS))


@pytest.mark.parametrize("topology", [{}, {"tp": 2, "pp": 2}], ids=str)
def test_a_packing_that_fails_is_undone(
    folder: Path, topology: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(folder / "a1", **topology)
    before, pack = model.logits(IDS), UnquantizedLinearMethod.process_weights_after_loading

    def fails(self: Any, layer: Any) -> None:
        if layer.prefix == "model.layers.2.mlp.down_proj":
            raise MemoryError("no room to pack")
        pack(self, layer)

    monkeypatch.setattr(UnquantizedLinearMethod, "process_weights_after_loading", fails)
    with pytest.raises(MemoryError):
        model.update_weights(tensors(folder / "b1"), "full", atomic=True)
    assert torch.equal(model.logits(IDS), before)
    same(exported(model), tensors(folder / "a1"))
    with pytest.raises(MemoryError):
        model.update_weights(tensors(folder / "b1"), "full")
    with pytest.raises(SpoiltWeightsError, match="MemoryError: no room to pack"):
        model.logits(IDS)


@pytest.mark.parametrize("topology", [{}, {"tp": 4}, {"tp": 2, "pp": 2}], ids=str)
def test_a_spoilt_model_serves_nothing_until_a_full_update(
    folder: Path, topology: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, new = load(folder / "a0", **topology), tensors(folder / "b0")
    with pytest.raises(OSError, match="the network went away"):
        model.update_weights(failing(new, "model.norm.weight", monkeypatch))
    monkeypatch.undo()
    calls = (
        lambda: model.logits(IDS),
        lambda: model.logits([]),
        lambda: model.logprobs(IDS),
        lambda: model.embed([]),
        lambda: model.generate(IDS, 2),
        lambda: model.generate(IDS, 2, stream=True),
        lambda: model.export_weights(),
        lambda: model.untie(),
        lambda: model.update_weights({}),
        lambda: model.update_weights(new),
        lambda: model.engine.add(model._request(IDS, archzoo.runtime.request.SamplingParams())),
        lambda: model.module(None, None, None),
    )
    for call in calls:
        with pytest.raises(SpoiltWeightsError, match=r"OSError: the network went.*mode='full'"):
            call()
    with pytest.raises(CoverageError, match="model.norm.weight"):
        short = {name: each for name, each in new.items() if name != "model.norm.weight"}
        model.update_weights(short, "full")
    model.update_weights(new, "full")
    assert torch.equal(model.logits(IDS), load(folder / "b0", **topology).logits(IDS))


def test_a_failed_reload_of_a_module_is_no_whole_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For engines that own the rest: load_weights leaves the same state."""
    model, new = load(folder / "a0"), tensors(folder / "b0")
    with pytest.raises(OSError, match="network"):
        archzoo.load_weights(model.module, failing(new, HEAD, monkeypatch))
    monkeypatch.undo()
    with pytest.raises(SpoiltWeightsError):
        model.logits(IDS)
    archzoo.load_weights(model.module, new)
    assert torch.equal(model.logits(IDS), load(folder / "b0").logits(IDS))


@each_topology
def test_parts_of_a_stack_when_asked(folder: Path, topology: Any) -> None:
    old, new = tensors(folder / "a0"), tensors(folder / "b0")
    model = load(folder / "a0", **topology)
    up = "model.layers.0.mlp.up_proj.weight"
    for atomic in (True, False):
        model.update_weights(
            {Q: new[Q], up: new[up]}, atomic=atomic, allow_partial_stacks=True, check_values=True
        )
        same(exported(model), old | {Q: new[Q], up: new[up]})


def test_parts_of_a_stack_still_may_not_overlap(folder: Path) -> None:
    model, new = load(folder / "a0"), tensors(folder / "b0")
    fused = torch.cat([new[Q], new[Q][:12], new[Q][:12]])
    pairs = {Q: new[Q], Q.replace("q_proj", "qkv_proj"): fused}
    with pytest.raises(CoverageError, match="both fill"):
        model.update_weights(pairs, allow_partial_stacks=True)
    del pairs[Q]
    model.update_weights(pairs)
    assert torch.equal(exported(model)[Q.replace("q_proj", "v_proj")], new[Q][:12])


def test_a_fused_checkpoint_is_exported_fused(folder: Path) -> None:
    content = tensors(folder / "a0")
    parts = [content.pop(f"model.layers.0.mlp.{each}_proj.weight") for each in ("gate", "up")]
    content["model.layers.0.mlp.gate_up_proj.weight"] = torch.cat(parts)
    path = save(folder / "fused", folder / "a0", content)
    for topology in TOPOLOGIES:
        same(exported(load(path, **topology)), content)


def test_requests_under_way_refuse_an_update(folder: Path) -> None:
    model, new = load(folder / "a0"), tensors(folder / "b0")
    stream = model.generate(IDS, 5, stream=True, ignore_eos=True)
    next(stream)
    with pytest.raises(InputError, match="requests are under way"):
        model.update_weights(new, "full")
    same(exported(model), tensors(folder / "a0"))
    list(stream)
    model.update_weights(new, "full")
    expected = load(folder / "b0").generate(IDS, 5, ignore_eos=True).token_ids
    assert model.generate(IDS, 5, ignore_eos=True).token_ids == expected


@pytest.mark.parametrize("mode", ["", "FULL", None, "atomic"])
def test_an_unknown_mode_is_refused(folder: Path, mode: Any) -> None:
    with pytest.raises(InputError, match="neither 'partial' nor 'full'"):
        load(folder / "a0").update_weights({}, mode)


def test_nothing_is_an_update_of_nothing(folder: Path) -> None:
    model = load(folder / "a0", tp=2)
    report = model.update_weights([], atomic=True)
    assert (report.tensors, report.parameters, report.rederived) == ((), (), ())
    assert "0 tensors into 0 parameters" in str(report)
    with pytest.raises(CoverageError, match="parameters without a tensor"):
        model.update_weights([], "full")
    with pytest.raises(WeightError, match="comes twice"):
        model.update_weights([(Q, torch.ones(48, 48)), (Q, torch.ones(48, 48))])
    with pytest.raises(WeightError, match="pairs"):
        model.update_weights([3])  # type: ignore[list-item]  # on purpose
    same(exported(model), tensors(folder / "a0"))


def test_an_export_owns_its_memory_and_feeds_an_update(folder: Path) -> None:
    model = load(folder / "a1", pp=2)
    saved = exported(model)
    model.update_weights(tensors(folder / "b1"), "full")
    same(saved, tensors(folder / "a1"))
    for tensor in saved.values():
        tensor.add_(0)
    model.update_weights(saved)
    same(exported(model), tensors(folder / "a1"))
    model.update_weights(model.export_weights(), "full")
    same(exported(model), tensors(folder / "a1"))


def test_an_export_that_an_update_overtakes_ends(folder: Path) -> None:
    model = load(folder / "a0")
    pairs = model.export_weights()
    next(pairs)
    model.update_weights({})
    with pytest.raises(WeightError, match="updated before"):
        next(pairs)


def test_an_update_from_a_directory_and_in_another_width(folder: Path) -> None:
    model = load(folder / "a0")
    source = open_source(folder / "b0")
    model.update_weights(source, "full", atomic=True, check_values=True)
    source.close()
    half = {name: tensor.bfloat16() for name, tensor in tensors(folder / "a0").items()}
    report = model.update_weights(half, "full")
    assert report.reports[0].converted == {"bfloat16 -> float32": len(half)}
    same(exported(model), {name: tensor.float() for name, tensor in half.items()})
