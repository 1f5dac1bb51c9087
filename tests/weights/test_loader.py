from __future__ import annotations

import pickle
import random

import pytest
import torch
from calls import calls_of
from safetensors.torch import save_file
from torch import nn

from archzoo.errors import CoverageError, WeightError
from archzoo.parallel import Piece, Segment, ShardedParameter, ShardSpec, plain_spec
from archzoo.weights import (
    AutoWeightsLoader,
    IterableSource,
    NameMap,
    Rename,
    TensorInfo,
    open_source,
)
from archzoo.weights.execution import Execution


def load(model, weights, **options):
    progress = options.pop("progress", None)
    return AutoWeightsLoader(model, **options).load_weights(weights, progress=progress)


def refused(toy, weights, model=None, **options):
    """The report of a load that must fail; nothing may have been written."""
    model = toy.model() if model is None else model
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(CoverageError) as caught:
        load(model, weights, name_map=toy.names, **options)
    for name, parameter in model.named_parameters():
        assert torch.equal(bits(parameter), bits(before[name])), f"{name} was written"
    return caught.value.report


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


RANKS = [(tp, rank) for tp in (1, 2, 3) for rank in range(tp)]


@pytest.mark.parametrize("kv", [6, 1])
@pytest.mark.parametrize(("tp", "rank"), RANKS)
def test_every_rank_gets_exactly_its_slices(toy, tmp_path, tp, rank, kv):
    rank_toy = toy(tp, rank, kv=kv)
    full = rank_toy.checkpoint()
    save_file(full, tmp_path / "model.safetensors")
    model = rank_toy.model()
    source = open_source(tmp_path)
    report = load(model, source, name_map=rank_toy.names)
    source.close()
    expected = rank_toy.expected(full)
    found = dict(model.named_parameters())
    assert found.keys() == expected.keys() == set(report.parameter_names)
    for name in expected:
        assert torch.equal(found[name].data, expected[name]), name
    assert set(report.loaded) == full.keys()
    assert report.ok and not report.converted


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_all_ranks_reassemble_the_checkpoint(toy, tp):
    full = toy().checkpoint()
    back = {name: torch.zeros_like(tensor) for name, tensor in full.items()}
    seen = {name: torch.zeros(tensor.shape, dtype=torch.bool) for name, tensor in full.items()}
    for rank in range(tp):
        model = toy(tp, rank).model()
        loader = AutoWeightsLoader(model, name_map=toy.names)
        loader.load_weights(full)
        parameters = dict(model.named_parameters())
        for placement in loader.plan(IterableSource(full.items()).infos()).placements:
            for piece in placement.pieces:
                at = tuple(slice(*pair) for pair in piece.source)
                into = tuple(slice(*pair) for pair in piece.target)
                back[placement.tensor.name][at] = parameters[placement.parameter].data[into]
                seen[placement.tensor.name][at] = True
    for name in full:
        assert seen[name].all() and torch.equal(back[name], full[name]), name


def test_a_rank_reads_only_its_bytes(toy):
    full = toy().checkpoint()
    reads = []

    class Spy(IterableSource):
        def read(self, name, box):
            reads.append((name, box))
            return super().read(name, box)

    report = load(toy(3, 2).model(), Spy(full.items()), name_map=toy.names)
    size = sum(t.numel() * t.itemsize for t in full.values())
    assert report.bytes_read == sum(
        TensorInfo(n, (), full[n].dtype, "").nbytes(box) for n, box in reads
    )
    assert report.bytes_read < size / 2
    embed = [box for name, box in reads if name == "model.embed_tokens.weight"]
    assert embed == [((10, 13), (0, 10))]


def test_prefused_tensors_fill_stacked_parameters(toy):
    full = toy().checkpoint()
    fused = dict(full)
    for layer in range(2):
        for kind in ("weight", "bias"):
            at = f"model.layers.{layer}.self_attn."
            parts = [fused.pop(f"{at}{x}_proj.{kind}") for x in "qkv"]
            fused[f"{at}qkv_proj.{kind}"] = torch.cat(parts)
        at = f"model.layers.{layer}.mlp."
        parts = [fused.pop(f"{at}{x}_proj.weight") for x in ("gate", "up")]
        fused[f"{at}gate_up_proj.weight"] = torch.cat(parts)
    for tp, rank in RANKS:
        model = toy(tp, rank).model()
        load(model, fused, name_map=toy.names)
        for name, want in toy(tp, rank).expected(full).items():
            assert torch.equal(model.get_parameter(name).data, want), name


def test_float_widths_convert_and_are_counted(toy):
    model = toy(dtype=torch.bfloat16).model()
    full = toy().checkpoint()
    report = load(model, full, name_map=toy.names)
    assert report.converted == {"float32 -> bfloat16": len(full) - 2}
    want = toy(dtype=torch.bfloat16).expected(full)
    assert all(torch.equal(p.data, want[n]) for n, p in model.named_parameters())


@pytest.mark.parametrize("stored", [torch.int64, torch.float8_e4m3fn, torch.bool, torch.uint8])
def test_another_kind_of_number_is_a_fault(toy, stored):
    full = toy().checkpoint()
    name = "model.layers.1.mlp.down_proj.weight"
    full[name] = torch.zeros(full[name].shape).to(stored)
    report = refused(toy(), full)
    assert [fault.name for fault in report.dtype] == [name]
    assert str(stored).removeprefix("torch.") in str(report) and "float32" in str(report)


def test_a_float_does_not_fill_an_integer_parameter(toy):
    full = toy().checkpoint()
    name = "model.layers.0.mlp.down_proj.packed"
    for wrong in (torch.float32, torch.int64):
        full[name] = full[name].to(wrong)
        assert refused(toy(), full).dtype[0].name == name


def test_values_that_do_not_fit_float16_are_a_fault(toy):
    full = toy().checkpoint()
    full["model.norm.weight"][3] = 1e6
    with pytest.raises(CoverageError, match=r"model\.norm\.weight: values beyond"):
        load(toy(dtype=torch.float16).model(), full, name_map=toy.names)
    full["model.norm.weight"][3] = float("inf")
    loader = AutoWeightsLoader(toy(dtype=torch.float16).model(), name_map=toy.names)
    assert loader.load_weights(full, check_values=False).ok


@pytest.mark.parametrize(
    ("stored", "dtype", "value"),
    [(torch.float64, torch.float32, 1e39), (torch.float64, torch.bfloat16, -1e300),
     (torch.float32, torch.bfloat16, torch.finfo(torch.float32).max)],
    ids=str,
)  # fmt: skip
def test_values_that_become_infinite_in_any_float_are_a_fault(toy, stored, dtype, value):
    full = {name: tensor.to(stored) if tensor.is_floating_point() else tensor
            for name, tensor in toy().checkpoint().items()}  # fmt: skip
    assert load(toy(dtype=dtype).model(), full, name_map=toy.names).ok
    full["model.norm.weight"][:2] = torch.tensor([float("inf"), value], dtype=stored)
    with pytest.raises(CoverageError, match=rf"beyond {dtype}'s range; load as {stored}"):
        load(toy(dtype=dtype).model(), full, name_map=toy.names)


def test_pairs_that_were_let_go_cannot_be_read():
    source = IterableSource([("a", torch.ones(2))])
    source.close()
    with pytest.raises(WeightError, match="a: an iterator of tensors has no such tensor"):
        source.read("a", ((0, 2),))


def test_shape_fault_names_tensor_parameter_and_both_full_shapes(toy):
    full = toy().checkpoint()
    full["model.embed_tokens.weight"] = torch.zeros(17, 10)
    for tp, rank in RANKS:
        report = refused(toy(tp, rank), full)
        text = str(report)
        assert "model.embed_tokens.weight has shape [17, 10]" in text and "[13, 10]" in text
        assert "dimension 0: 17 stored, 13 configured" in text
        assert not report.missing and not report.partial


@pytest.mark.parametrize("shape", [(0,), (0, 10)])
def test_zero_size_tensors_are_a_fault(toy, shape):
    full = toy().checkpoint()
    full["model.layers.1.self_attn.k_proj.weight"] = torch.zeros(shape)
    report = refused(toy(), full)
    assert "model.layers.1.self_attn.k_proj.weight has shape" in str(report.shape[0])
    assert "[24, 10]" in str(report.shape[0]) and "ZeRO-3" in str(report.shape[0])


def test_transposed_and_scalar_tensors_are_faults(toy):
    full = toy().checkpoint()
    full["model.norm.weight"] = torch.tensor(1.0)
    name = "model.layers.0.mlp.down_proj.weight"
    full[name] = full[name].T.contiguous()
    report = refused(toy(), full)
    assert {fault.name for fault in report.shape} == {"model.norm.weight", name}
    assert "transposed" in str(report)


def test_partial_names_the_part_and_its_checkpoint_name(toy):
    for one in (toy(), toy(3, 1, kv=1)):
        full = one.checkpoint()
        del full["model.layers.0.self_attn.k_proj.weight"]
        report = refused(one, full)
        (fault,) = report.partial
        assert "shard 'k' of model.layers.0.self_attn.qkv_proj.weight" in fault.text
        assert "expected model.layers.0.self_attn.k_proj.weight" in fault.text
        assert not report.missing


def test_missing_names_parameter_and_expected_tensors(toy):
    full = toy().checkpoint()
    for x in "qkv":
        del full[f"model.layers.1.self_attn.{x}_proj.weight"]
    del full["model.norm.weight"]
    report = refused(toy(2, 1), full)
    assert [fault.name for fault in report.missing] == [
        "model.layers.1.self_attn.qkv_proj.weight",
        "model.norm.weight",
    ]
    assert "model.layers.1.self_attn.v_proj.weight" in report.missing[0].text
    assert not report.partial


def test_an_empty_checkpoint_misses_everything(toy):
    model = toy().model()
    report = refused(toy(), [], model)
    assert {f.name for f in report.missing} == {name for name, _ in model.named_parameters()}


def test_a_model_without_parameters_loads_an_empty_checkpoint():
    report = load(nn.Module(), [])
    assert report.ok and report.parameter_names == ()


def test_a_layer_too_many_is_unexpected(toy):
    report = refused(toy(), toy(layers=3).checkpoint())
    assert len(report.unexpected) == 12
    assert all(f.name.startswith("model.layers.2.") for f in report.unexpected)
    assert "model.layers has 0 to 1, no 2" in report.unexpected[0].text


def test_substring_relatives_are_not_taken_for_parts(toy):
    full = toy().checkpoint()
    for name in ("qq_proj", "xv_proj", "gate_gate_up_proj"):
        full[f"model.layers.0.mlp.{name}.weight"] = torch.zeros(18, 10)
    report = refused(toy(), full)
    assert len(report.unexpected) == 3 and not report.duplicate


def test_two_tensors_for_one_part_are_duplicates(toy):
    names = NameMap(
        ((Rename("old.**", "model.**"),),),
        toy.names.skips,
        toy.names.stacking,
    )
    full = toy().checkpoint()
    full["old.layers.0.self_attn.k_proj.weight"] = torch.zeros(24, 10)
    model = toy().model()
    with pytest.raises(CoverageError) as caught:
        load(model, full, name_map=names)
    (fault,) = caught.value.report.duplicate
    assert "old.layers.0.self_attn.k_proj.weight" in fault.text
    assert "model.layers.0.self_attn.k_proj.weight" in fault.text
    assert model.model.norm.weight.isnan().all()


@pytest.mark.parametrize("fused_first", [True, False])
@pytest.mark.parametrize(("tp", "rank"), [(1, 0), (3, 2)])
def test_fused_beside_split_is_a_duplicate(toy, fused_first, tp, rank):
    full = toy().checkpoint()
    fused = {"model.layers.0.mlp.gate_up_proj.weight": torch.zeros(36, 10)}
    pairs = fused | full if fused_first else full | fused
    report = refused(toy(tp, rank), pairs)
    assert report.duplicate
    assert "gate_up_proj.weight" in str(report) and "gate_proj.weight" in str(report)


def test_fused_beside_split_is_a_duplicate_on_ranks_that_hold_nothing_too():
    parts = (Segment("a", (2,), ()), Segment("b", (3,), ()))
    names = NameMap(stacking=(Rename("xa", "x", "a"), Rename("xb", "x", "b")))
    weights = [("xa", torch.ones(2)), ("x", torch.ones(5)), ("xb", torch.ones(3))]
    with pytest.raises(CoverageError) as caught:
        load(single(sharded(ShardSpec((0,), parts, concat_dim=0))), weights, name_map=names)
    assert [fault.name for fault in caught.value.report.duplicate] == ["x"]


def test_a_name_that_comes_twice_is_refused(toy):
    full = toy().checkpoint()
    pairs = [*full.items(), ("model.norm.weight", torch.zeros(10))]
    with pytest.raises(WeightError, match=r"model\.norm\.weight comes twice"):
        load(toy().model(), iter(pairs), name_map=toy.names)


def test_random_damage_is_always_caught_and_named(toy):
    """Deletes, renames, copies, transposes, cuts and empties: all found, at several ranks."""
    dice = random.Random(7)
    for turn in range(150):
        tp, rank = dice.choice(RANKS)
        full = toy().checkpoint(seed=turn % 3)
        name = dice.choice(list(full))
        tensor = full[name]
        match dice.choice(["delete", "rename", "copy", "cut", "empty", "transpose"]):
            case "delete":
                del full[name]
            case "rename":
                parts = name.split(".")
                at = dice.randrange(len(parts))
                parts[at] = "9" if parts[at].isdecimal() else parts[at] + "_"
                full[".".join(parts)] = full.pop(name)
            case "copy":
                full[name + "_copy"] = tensor
            case "cut":
                full[name] = tensor[:-1]
            case "empty":
                full[name] = tensor[:0]
            case "transpose":
                if tensor.ndim != 2:
                    continue
                full[name] = tensor.T.contiguous()
        report = refused(toy(tp, rank), full)
        assert name.rsplit(".", 1)[0] in str(report), name


def test_skips_are_counted_by_rule(toy):
    full = toy().checkpoint()
    full["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(2, dtype=torch.float16)
    full["model.layers.1.self_attn.rotary_emb.inv_freq"] = torch.zeros(2)
    full["vision.tower.0.weight"] = torch.zeros(3)
    full["mtp.extra.scale"] = torch.zeros(1)
    report = load(
        toy().model(),
        full,
        name_map=toy.names,
        skip_prefixes=["vision."],
        ignore_unexpected_suffixes=[".scale"],
    )
    assert {rule: len(names) for rule, names in report.skipped.items()} == {
        "rotary inv_freq": 2,
        "skip_prefixes 'vision.'": 1,
        "ignore_unexpected_suffixes '.scale'": 1,
    }
    assert "skipped by rotary inv_freq: 2" in str(report)


def test_skip_arguments_match_whole_components_only(toy):
    full = toy().checkpoint()
    full["visiontower.weight"] = torch.zeros(3)
    report = refused(toy(), full, skip_prefixes=["vision"], skip_substrs=["tower", "proj"])
    assert [fault.name for fault in report.unexpected] == ["visiontower.weight"]
    assert not report.skipped


def test_skip_substrs_take_a_run_of_components(toy):
    full = toy().checkpoint()
    full["a.b.c.d"] = torch.zeros(1)
    full["a.c.b.d"] = torch.zeros(1)
    report = refused(toy(), full, skip_substrs=["b.c"])
    assert report.skipped == {"skip_substrs 'b.c'": ("a.b.c.d",)}
    assert [fault.name for fault in report.unexpected] == ["a.c.b.d"]


def test_ignored_suffixes_never_hide_a_wanted_tensor(toy):
    full = toy().checkpoint()
    report = load(
        toy().model(), full, name_map=toy.names, ignore_unexpected_suffixes=["bias", "weight"]
    )
    assert set(report.loaded) == full.keys() and not report.skipped


def test_skipping_a_wanted_tensor_says_which_rule_took_it(toy):
    report = refused(toy(), toy().checkpoint(), skip_prefixes=["model.norm"])
    assert "left out by skip_prefixes 'model.norm'" in report.missing[0].text


@pytest.mark.parametrize("bad", ["vision", ["a..b"], [""], ["."]])
def test_senseless_skip_arguments_are_refused(toy, bad):
    with pytest.raises(WeightError, match="skip_prefixes"):
        AutoWeightsLoader(toy().model(), skip_prefixes=bad)


def test_tied_by_identity(toy):
    tied = toy(tied=True)
    full = tied.checkpoint()
    report = load(tied.model(), full, name_map=toy.names)
    assert report.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    assert "lm_head.weight" not in report.parameter_names
    full["lm_head.weight"] = full["model.embed_tokens.weight"].clone()
    report = load(tied.model(), full, name_map=toy.names)
    assert report.tied["lm_head.weight"] == "model.embed_tokens.weight"
    assert "lm_head.weight" not in report.loaded


@pytest.mark.parametrize("change", ["value", "shape", "dtype"])
def test_a_stored_head_that_differs_from_its_tie_is_a_fault(toy, change):
    full = toy(tied=True).checkpoint()
    head = full["model.embed_tokens.weight"].clone()
    head[-1, -1] += 1
    full["lm_head.weight"] = {"value": head, "shape": head[:-1], "dtype": head.double()}[change]
    report = refused(toy(2, 0, tied=True), full)
    text = str(report.tie[0])
    assert "lm_head.weight" in text and "model.embed_tokens.weight" in text
    assert "tie_word_embeddings" in text


def test_only_the_head_of_a_tied_pair_stored(toy):
    full = toy(tied=True).checkpoint()
    want = full["model.embed_tokens.weight"]
    full["lm_head.weight"] = full.pop("model.embed_tokens.weight")
    model = toy(tied=True).model()
    report = load(model, full, name_map=toy.names)
    assert torch.equal(model.model.embed_tokens.weight.data, want)
    assert "lm_head.weight" in report.loaded


def test_a_declared_tie_with_its_own_storage_gets_a_copy(toy):
    full = toy(tied=True).checkpoint()
    model = toy(3, 1).model()
    ties = {"lm_head.weight": "model.embed_tokens.weight"}
    report = load(model, full, name_map=toy.names, ties=ties)
    assert torch.equal(model.lm_head.weight.data, model.model.embed_tokens.weight.data)
    assert not model.lm_head.weight.isnan().any()
    assert report.tied == ties


def test_a_declared_tie_whose_source_is_on_another_rank(toy):
    full = toy(tied=True).checkpoint()
    model = toy().model()
    del model.model.embed_tokens
    load(model, full, name_map=toy.names, ties={"lm_head.weight": "model.embed_tokens.weight"})
    assert torch.equal(model.lm_head.weight.data, full["model.embed_tokens.weight"])


def test_a_declared_tie_of_a_head_without_parameter_is_compared(toy):
    full = toy().checkpoint()
    ties = {"lm_head.weight": "model.embed_tokens.weight"}
    model = toy().model()
    del model.lm_head
    assert refused(toy(), full, model, ties=ties).tie[0].name == "lm_head.weight"
    full["lm_head.weight"] = full["model.embed_tokens.weight"].clone()
    assert load(model, full, name_map=toy.names, ties=ties).tied == ties


def test_ties_in_a_circle_are_refused(toy):
    ties = {"lm_head.weight": "model.norm.weight", "model.norm.weight": "lm_head.weight"}
    with pytest.raises(WeightError, match="circle"):
        AutoWeightsLoader(toy().model(), ties=ties)


def single(parameter):
    model = nn.Module()
    model.x = parameter
    return model


def sharded(spec):
    return ShardedParameter(torch.full(spec.shape, float("nan")), spec)


def segment(shard, rows, at=0, total=None):
    box = ((0, rows),)
    return Segment(shard, (total or rows,), (Piece(box, ((at, at + rows),)),))


def test_optional_parameters_may_be_absent():
    spec = ShardSpec((2,), (segment(None, 2),), optional=True)
    report = load(single(sharded(spec)), [])
    assert report.derived == ("x",) and report.ok and report.parameter_names == ()
    assert "optional" in str(report)
    report = load(single(sharded(spec)), [("x", torch.ones(2))])
    assert report.loaded == ("x",) and not report.derived


def test_an_optional_stacked_parameter_must_be_whole_or_absent():
    spec = ShardSpec((4,), (segment("a", 2), segment("b", 2, 2)), optional=True)
    names = NameMap(stacking=(Rename("xa", "x", "a"), Rename("xb", "x", "b")))
    with pytest.raises(CoverageError, match=r"shard 'b' of x: expected xb"):
        load(single(sharded(spec)), [("xa", torch.ones(2))], name_map=names)


def test_a_spec_with_a_gap_or_an_overlap_is_a_fault():
    gap = ShardSpec((4,), (segment(None, 3),))
    with pytest.raises(CoverageError, match="1 of the elements"):
        load(single(sharded(gap)), [("x", torch.ones(3))])
    names = NameMap(stacking=(Rename("xa", "x", "a"), Rename("xb", "x", "b")))
    overlap = ShardSpec((4,), (segment("a", 3), segment("b", 2, 2)))
    with pytest.raises(CoverageError, match="xb and xa both fill"):
        load(
            single(sharded(overlap)), [("xa", torch.ones(3)), ("xb", torch.ones(2))], name_map=names
        )
    padded = ShardSpec((4,), (segment(None, 4),), padding=(((3, 4),),))
    with pytest.raises(CoverageError, match="padding"):
        load(single(sharded(padded)), [("x", torch.ones(4))])


def test_a_rank_that_holds_nothing_of_a_parameter():
    nothing = ShardSpec((0, 3), (Segment(None, (5, 3), ()),))
    empty_box = ShardSpec(
        (0, 3), (Segment(None, (5, 3), (Piece(((5, 5), (0, 3)), ((0, 0), (0, 3))),)),)
    )
    padding_only = ShardSpec((2, 3), (Segment(None, (5, 3), ()),), padding=(((0, 2), (0, 3)),))
    for spec in (nothing, empty_box, padding_only):
        model = single(sharded(spec))
        report = load(model, [("x", torch.ones(5, 3))])
        assert report.parameter_names == ("x",) and report.bytes_read == 0
        assert (model.x == 0).all()


def test_a_shard_of_a_parameter_that_is_not_stacked_is_unexpected():
    names = NameMap(stacking=(Rename("xa", "x", "a"),))
    with pytest.raises(CoverageError) as caught:
        load(
            single(sharded(ShardSpec((2,), (segment(None, 2),)))),
            [("xa", torch.ones(2))],
            name_map=names,
        )
    assert caught.value.report.unexpected[0].name == "xa"


def test_scalar_parameters_load():
    model = single(nn.Parameter(torch.tensor(float("nan")), requires_grad=False))
    load(model, [("x", torch.tensor(2.5))])
    assert model.x.item() == 2.5


def test_parameters_made_in_inference_mode_load():
    with torch.inference_mode():
        model = single(nn.Parameter(torch.full((3,), float("nan")), requires_grad=False))
    load(model, [("x", torch.ones(3))])
    assert (model.x == 1).all()


def test_meta_models_plan_but_do_not_load(toy):
    meta = toy(2, 1, device="meta")
    full = meta.checkpoint()
    loader = AutoWeightsLoader(meta.model(), name_map=toy.names)
    plan = loader.plan(IterableSource(full.items()).infos())
    assert not plan.findings.any_fault and len(plan.placements) == len(full)
    with pytest.raises(WeightError, match="meta device"):
        loader.load_weights(full)


def test_a_parameter_with_a_derived_layout_is_not_overwritten():
    model = single(sharded(plain_spec((2, 3))))
    model.x.data = torch.zeros(3, 2)
    with pytest.raises(CoverageError, match="derived layout"):
        load(model, [("x", torch.ones(2, 3))])


def test_a_source_that_gives_another_slice_than_promised_is_refused(toy):
    full = toy().checkpoint()

    class Broadcasting(IterableSource):
        def read(self, name, box):
            return super().read(name, box)[:1]

    class Retyped(IterableSource):
        def read(self, name, box):
            return super().read(name, box).double()

    for kind in (Broadcasting, Retyped):
        with pytest.raises(WeightError, match="the source is broken"):
            load(toy().model(), kind(full.items()), name_map=toy.names)


@pytest.mark.parametrize(("times", "kind"), [(0, "partial"), (2, "duplicate")])
def test_a_slice_that_is_not_copied_exactly_once_is_a_fault(toy, monkeypatch, times, kind):
    """The plan was right; what was done differs from it."""
    queues = Execution._queues

    def careless(self):
        return [
            [part for part in queue for _ in range(times if part.tensor.name == name else 1)]
            for queue in queues(self)
        ]

    name = "model.layers.1.mlp.up_proj.weight"
    monkeypatch.setattr(Execution, "_queues", careless)
    with pytest.raises(CoverageError) as caught:
        load(toy(3, 1).model(), toy().checkpoint(), name_map=toy.names)
    (fault,) = getattr(caught.value.report, kind)
    assert fault.name == "model.layers.1.mlp.gate_up_proj.weight"


def test_progress_rises_to_the_total(toy):
    calls = []
    report = load(
        toy(2, 1).model(), toy().checkpoint(), name_map=toy.names,
        progress=lambda done, total: calls.append((done, total)),
    )  # fmt: skip
    done, totals = zip(*calls, strict=True)
    assert list(done) == sorted(done) and done[0] == 0
    assert done[-1] == totals[0] == report.bytes_read and len(set(totals)) == 1


class Method:
    def __init__(self):
        self.calls = []

    def restore_weights_before_loading(self, layer):
        assert layer not in self.calls

    def process_weights_after_loading(self, layer):
        assert not layer.weight.isnan().any()
        self.calls.append(layer)


def test_quant_methods_run_once_for_each_module_after_all_bytes(toy):
    model, method = toy().model(), Method()
    users = [model.model.norm, model.model.layers[0].mlp.down_proj]
    for module in users:
        module.quant_method = method
    model.lm_head.quant_method = None
    model.again = users[1]
    full = toy().checkpoint()
    load(model, full, name_map=toy.names)
    assert set(method.calls) == set(users) and len(method.calls) == 2
    del full["lm_head.weight"]
    model.model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(CoverageError):
        load(model, full, name_map=toy.names)
    assert len(method.calls) == 2


class SelfLoading(nn.Module):
    """Takes its tensors by its own load_weights."""

    def __init__(self, names=("a", "b"), returns=None, take=True):
        super().__init__()
        for name in names:
            setattr(self, name, nn.Parameter(torch.full((2,), float("nan")), requires_grad=False))
        self.offered, self.returns, self.take = [], returns, take

    def load_weights(self, weights):
        written = []
        for name, tensor in weights if self.take else ():
            self.offered.append(name)
            self.get_parameter(name).data.copy_(tensor)
            written.append(name)
        return written if self.returns is None else self.returns


def nested(child):
    model = nn.Module()
    model.child = child
    model.own = nn.Parameter(torch.full((2,), float("nan")), requires_grad=False)
    return model


def pairs(*names):
    return [(name, torch.full((2,), 1.0 + at)) for at, name in enumerate(names)]


def test_a_submodule_loads_itself():
    model = nested(SelfLoading())
    report = load(model, pairs("child.a", "own", "child.b"))
    assert model.child.offered == ["a", "b"]
    assert model.child.b.tolist() == [3.0, 3.0] and model.own.tolist() == [2.0, 2.0]
    assert set(report.parameter_names) == {"own", "child.a", "child.b"}
    assert set(report.loaded) == {"own", "child.a", "child.b"}


def test_the_outermost_module_that_loads_itself_takes_all_of_its_tensors():
    outer = SelfLoading()
    outer.inner = SelfLoading(take=False, returns=0)
    load(nested(outer), pairs("own", "child.a", "child.b", "child.inner.a", "child.inner.b"))
    assert outer.offered == ["a", "b", "inner.a", "inner.b"] and not outer.inner.offered


def test_the_models_own_load_weights_is_not_entered_again():
    class Top(SelfLoading):
        def load_weights(self, weights):
            return AutoWeightsLoader(self).load_weights(weights)

    model = Top()
    assert set(model.load_weights(pairs("a", "b")).parameter_names) == {"a", "b"}


def test_a_nested_report_counts_and_its_modules_are_processed_once():
    class Inner(SelfLoading):
        def load_weights(self, weights):
            return AutoWeightsLoader(self).load_weights(weights)

    calls = []

    class Once:
        def restore_weights_before_loading(self, layer):
            assert not calls

        def process_weights_after_loading(self, layer):
            calls.append(layer)

    model = nested(Inner())
    model.child.quant_method = Once()
    report = load(model, pairs("own", "child.a", "child.b"))
    assert set(report.parameter_names) == {"own", "child.a", "child.b"}
    assert calls == [model.child]


@pytest.mark.parametrize(
    ("child", "names", "kind", "says"),
    [
        (SelfLoading(), ("own", "child.a"), "missing", "child.b: child.load_weights did not write"),
        (SelfLoading(take=False), ("own", "child.a", "child.b"), "unexpected", "did not take a"),
        (SelfLoading(returns=["a"]), ("own", "child.a", "child.b"), "missing", "child.b"),
        (SelfLoading(returns=["a", "b", "z"]), ("own", "child.a", "child.b"), "unexpected", "'z'"),
    ],
)
def test_a_submodule_that_loads_itself_badly_is_a_fault(child, names, kind, says):
    with pytest.raises(CoverageError) as caught:
        load(nested(child), pairs(*names))
    assert says in "\n".join(fault.text for fault in getattr(caught.value.report, kind))


@pytest.mark.parametrize("returns", [False, "ab", 3])
def test_a_submodule_must_return_names(returns):
    with pytest.raises(WeightError, match=r"child\.load_weights returned"):
        load(nested(SelfLoading(returns=returns)), pairs("own", "child.a", "child.b"))


def test_reports_and_errors_pickle(toy):
    with pytest.raises(CoverageError) as caught:
        load(toy().model(), [], name_map=toy.names)
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.report == caught.value.report and str(again) == str(caught.value)


@pytest.mark.parametrize("wrong", [3, None, "model.safetensors", [("a", 1)], [1], ["ab"]])
def test_senseless_weights_are_refused(wrong):
    with pytest.raises(WeightError, match="pass"):
        load(nn.Module(), wrong)


def test_many_tensors_cost_little_python():
    def calls(layers):
        model = nn.Module()
        model.layers = nn.ModuleList()
        for _ in range(layers):
            layer = nn.Module()
            for at in range(100):
                empty = torch.empty(2)
                layer.register_parameter(f"p{at}", nn.Parameter(empty, requires_grad=False))
            model.layers.append(layer)
        full = {name: torch.ones(2) for name, _ in model.named_parameters()}
        return calls_of(lambda: load(model, full))

    assert calls(24) < 5 * calls(6)
