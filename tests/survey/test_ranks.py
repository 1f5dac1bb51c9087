"""What preflight says a rank holds is what the loaded rank holds."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from survey.checkpoints import EXPERTS, tensors, write
from survey.stated import CONFIG, shapes, state
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import archzoo
from archzoo.config import ModelConfig
from archzoo.errors import ConfigError, InputError, ShapeError, TopologyError
from archzoo.forward import KVCacheLayout
from archzoo.layers.moe import Experts, Routes
from archzoo.layers.rope_tables import RopeTable, table_bytes
from archzoo.survey import holders
from archzoo_llama.model import LlamaForCausalLM
from tiny import tiny_llama


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"))[0]


@pytest.mark.parametrize(
    "sizes", [{}, {"tp": 6, "attn_dp": 2}, {"tp": 3, "pp": 2, "pp_layers": (1, 2)}], ids=str
)
def test_ranks_hold_what_the_loaded_model_holds(llama: Path, sizes: dict[str, Any]) -> None:
    model = archzoo.load(llama, **sizes)
    report = archzoo.preflight(llama, **sizes)
    runners = model.engine.runners
    assert len(runners) == len(report.ranks) and report.dtype == torch.float32
    for rank, runner in zip(report.ranks, runners, strict=True):
        module = runner.module
        parameters = list(module.parameters())
        assert rank.memory.weights == sum(p.numel() * p.element_size() for p in parameters)
        kv = KVCacheLayout.of(module.attention_specs(), module.dtype)
        assert rank.memory.kv_per_token == kv.bytes_per_slot
        assert rank.layers == module.model.stage.layers
        assert set(rank.fills) == {name for name, _ in module.named_parameters()}
    assert [rank.read_bytes for rank in report.ranks] == [r.bytes_read for r in model.reports]


def test_a_group_of_ranks_that_outnumber_kv_heads_holds_copies(tmp_path: Path) -> None:
    report = archzoo.preflight(state(tmp_path, shapes()), tp=6, pp=2)
    one = archzoo.preflight(tmp_path)
    for stage in (report.ranks[:6], report.ranks[6:]):
        held = holders((rank.rank, share) for rank in stage for share in rank.heads)
        first = stage[0].rank
        assert held == {
            0: tuple(range(first, first + 3)), 1: tuple(range(first + 3, first + 6))
        }  # fmt: skip
        for at, rank in enumerate(stage):
            [share] = rank.heads
            assert (share.heads, share.replicas) == (range(at, at + 1), 3)
            assert share.layers == len(rank.layers)
    per_stage = sum(rank.memory.kv_per_token for rank in report.ranks)
    assert per_stage == 3 * one.ranks[0].memory.kv_per_token


def test_attention_groups_each_hold_all_heads(tmp_path: Path) -> None:
    report = archzoo.preflight(state(tmp_path, shapes()), tp=4, attn_dp=2)
    heads = [rank.heads[0].heads for rank in report.ranks]
    assert heads == [range(0, 3), range(3, 6)] * 2
    assert all(rank.heads[0].replicas == 1 for rank in report.ranks)


# --- how much fits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("sizes", [{}, {"tp": 2, "pp": 2}, {"tp": 4, "attn_dp": 2}], ids=str)
def test_the_most_context_fits_and_one_token_more_does_not(
    tmp_path: Path, batch: int, sizes: dict[str, int]
) -> None:
    folder = state(tmp_path, shapes())
    memory = 1 << 20
    most = archzoo.preflight(folder, batch=batch, chunk=16, memory=memory, **sizes).most_context(
        memory
    )
    assert most > 1
    for context, fits in ((most, True), (most + 1, False)):
        report = archzoo.preflight(
            folder, batch=batch, chunk=16, context=context, memory=memory, **sizes
        )
        assert report.fits is fits
        assert (report.needed <= memory) is fits


def test_each_attention_group_has_its_own_requests_and_cache(tmp_path: Path) -> None:
    folder = state(tmp_path, shapes())
    report = archzoo.preflight(folder, tp=4, attn_dp=2, batch=3, memory=1 << 20)
    held = report.ranks[0].memory
    room = (1 << 20) - held.weights - held.tables - held.activations
    assert report.load.requests == 2
    assert report.most_context(1 << 20) == room // held.kv_per_token // 2
    assert report.needed == (1 << 20) - room + 2 * 512 * held.kv_per_token


def test_no_memory_is_no_answer_and_too_little_is_no(tmp_path: Path) -> None:
    folder = state(tmp_path, shapes())
    assert archzoo.preflight(folder).fits is None
    tight = archzoo.preflight(folder, memory=1)
    assert tight.fits is False and tight.most_context(1) == 0
    exact = archzoo.preflight(folder).ranks[0].memory
    for spare, fits in ((0, False), (exact.kv_per_token, True)):
        assert archzoo.preflight(folder, memory=exact.fixed + spare).fits is fits


def test_activations_grow_with_rows_and_with_requests(tmp_path: Path) -> None:
    folder = state(tmp_path, shapes())
    small = archzoo.preflight(folder, chunk=1).ranks[0].memory.activations
    wide = archzoo.preflight(folder, chunk=64).ranks[0].memory.activations
    many = archzoo.preflight(folder, chunk=1, batch=1000).ranks[0].memory.activations
    assert 0 < small < wide and many >= 1000 * 131 * 4


class Alive(TorchDispatchMode):
    """Counts the bytes of results that are alive, by watching their storages; keeps the most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in tree_leaves(found):
            if isinstance(each, torch.Tensor):
                self._watch(each.untyped_storage())
        return found

    def _watch(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        self.now += storage.nbytes()
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, key, storage.nbytes())

    def _gone(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self.now -= nbytes


@pytest.mark.parametrize("sizes", [{}, {"tp": 2}, {"tp": 6, "ep": 2}], ids=str)
def test_activations_of_experts_are_no_less_than_a_forward_takes(
    tmp_path: Path, sizes: dict[str, int]
) -> None:
    folder, rows = write(tmp_path, "experts", tensors("experts")), 512
    model = archzoo.load(folder, kv_slots=16, **sizes)
    report = archzoo.preflight(folder, chunk=rows, **sizes)
    for rank, runner in zip(report.ranks, model.engine.runners, strict=True):
        experts = next(each for each in runner.module.modules() if isinstance(each, Experts))
        x = torch.randn(rows, EXPERTS["hidden_size"], dtype=report.dtype)
        here = torch.arange(experts.layout.here.start, experts.layout.here.stop)
        routes = Routes(here[:2].expand(rows, 2), torch.ones(rows, 2))
        with torch.inference_mode(), Alive() as alive:
            experts.compute(x, routes)
        residual_and_normed = 2 * x.nbytes
        assert 4 * rows * 24 < alive.most <= rank.memory.activations - residual_and_normed


@pytest.mark.parametrize("kind", ["default", "linear", "dynamic", "longrope", "llama3", "yarn"])
def test_table_bytes_are_those_of_the_table(kind: str) -> None:
    scaling: dict[str, Any] = {"rope_type": kind, "factor": 4.0}
    if kind in ("longrope", "llama3", "yarn"):
        scaling["original_max_position_embeddings"] = 128
    if kind == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind == "longrope":
        scaling |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    raw = CONFIG | ({} if kind == "default" else {"rope_scaling": scaling})
    rope = ModelConfig.from_dict(raw, LlamaForCausalLM.adapter).rope
    assert rope is not None
    table = RopeTable(rope, torch.bfloat16, torch.device("cpu"))
    nbytes = 0 if table.values is None else table.values.numel() * table.values.element_size()
    assert table_bytes(rope, torch.bfloat16) == nbytes


# --- ties, widths, and what is refused ---------------------------------------------------------------


def tied(tmp_path: Path, head: tuple[int, ...] | None, kind: str = "BF16") -> Path:
    config = CONFIG | {"tie_word_embeddings": True}
    found = shapes(config)
    if head is not None:
        found["lm_head.weight"] = head
    return state(tmp_path, found, config, {"lm_head.weight": kind})


def test_a_tied_head_takes_no_memory_but_on_another_stage(tmp_path: Path) -> None:
    folder = tied(tmp_path, None)
    one = archzoo.preflight(folder)
    assert one.ok and one.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    two = archzoo.preflight(folder, pp=2)
    assert two.ok and "lm_head.weight" in two.ranks[1].fills
    rows = 131 + -131 % 64
    assert sum(r.memory.weights for r in two.ranks) - one.ranks[0].memory.weights == rows * 24 * 2
    uses = two.explain("model.embed_tokens.weight").uses
    assert [use.parameter for use in uses] == ["model.embed_tokens.weight", "lm_head.weight"]


@pytest.mark.parametrize("sizes", [{}, {"tp": 2, "pp": 2}], ids=str)
def test_a_stored_head_of_a_tied_model_may_be_equal_which_headers_do_not_tell(
    tmp_path: Path, sizes: dict[str, int]
) -> None:
    report = archzoo.preflight(tied(tmp_path, (131, 24)), **sizes)
    assert report.ok and any("taken to equal" in note for note in report.notes)


def test_a_stored_head_that_differs_is_used(tmp_path: Path) -> None:
    report = archzoo.preflight(tied(tmp_path, (131, 24), "F32"))
    assert report.ok and any("stored head is used" in note for note in report.notes)
    assert "lm_head.weight" in report.ranks[0].fills and report.converted == {
        "float32 -> bfloat16": 1
    }
    report = archzoo.preflight(tied(tmp_path, (7, 24)))
    assert [fault.status for fault in report.found] == ["truncated"]


def test_conversions_are_counted_once_for_all_ranks(tmp_path: Path) -> None:
    folder = state(tmp_path, shapes())
    assert archzoo.preflight(folder, tp=2, pp=2).converted == {}
    report = archzoo.preflight(folder, tp=2, pp=2, dtype="float32")
    assert report.converted == {"bfloat16 -> float32": len(shapes())}
    assert report.dtype == torch.float32


def test_what_does_not_fit_the_model_is_refused_as_load_refuses_it(tmp_path: Path) -> None:
    folder = state(tmp_path, shapes())
    with pytest.raises(ShapeError):
        archzoo.preflight(folder, tp=4)
    with pytest.raises(ShapeError):
        archzoo.preflight(folder, pp=6)
    with pytest.raises(TopologyError):
        archzoo.preflight(folder, tp=2, attn_dp=3)
    for option in ({"batch": 0}, {"chunk": 0}, {"context": 0}, {"memory": 0}, {"dtype": "int8"}):
        with pytest.raises(InputError):
            archzoo.preflight(folder, **option)
    with pytest.raises(InputError, match="neither a tensor"):
        archzoo.preflight(folder).explain("")
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError):
        archzoo.preflight(folder)


def test_an_empty_checkpoint_misses_everything(tmp_path: Path) -> None:
    report = archzoo.preflight(state(tmp_path, {}), tp=2)
    assert set(report.faults()) == {"missing"}
    assert len(report.found) == 5 * 6 + 3
    assert all(fault.ranks == (0, 1) for fault in report.found)
