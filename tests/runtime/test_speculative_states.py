"""Drafts that read their target's hidden states: through chunks, preemption and every topology."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import eagle3
import pytest
from runtime.drafts import PROMPTS, all_free, load, proposals, tokens, write
from runtime.topologies import BYTES_ONLY

import archzoo
from archzoo.errors import InputError
from archzoo.runtime import prefix_cache
from archzoo.runtime.engine import Engine
from tiny import ids_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafts")
    write(folder)
    return folder


@pytest.fixture(scope="module")
def target(folder: Path) -> archzoo.Model:
    return load(folder / "target")


@pytest.fixture(scope="module")
def plain(target: archzoo.Model) -> list[list[int]]:
    return tokens(target.generate(PROMPTS, 12, ignore_eos=True))


@pytest.fixture(scope="module")
def proposed(folder: Path, target: archzoo.Model) -> dict[tuple[int, ...], list[int]]:
    """By the tokens that stand, what one rank proposes; plugins/llama tests it by the formulas."""
    with proposals() as seen:
        target.generate(PROMPTS, 12, ignore_eos=True, draft=load(folder / "head"))
    return {tuple(stood): guess for stood, guess in seen}


def check(
    target: archzoo.Model,
    draft: archzoo.Model,
    plain: list[list[int]],
    proposed: dict[tuple[int, ...], list[int]],
) -> None:
    """Tokens and proposals are those of one rank; nobody holds a slot afterwards."""
    with proposals() as seen:
        drafted = target.generate(PROMPTS, 12, ignore_eos=True, draft=draft)
    assert tokens(drafted) == plain
    assert seen and all_free(target, draft)
    for stood, guess in seen:
        assert proposed[tuple(stood)][: len(guess)] == guess


TOPOLOGIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tp3-for-pp3": ({"pp": 3, "pp_micro_batches": 3}, {"tp": 3}),
    "one-for-tp6-dp2": ({"tp": 6, "attn_dp": 2, "costs": BYTES_ONLY}, {}),
    "tp3-dp3-for-tp3-pp2": (
        {"tp": 3, "pp": 2, "costs": BYTES_ONLY, "pp_micro_batches": 2},
        {"tp": 3, "attn_dp": 3},
    ),
    "tp6-dp2-for-tp3-dp3-pp2": (
        {"tp": 3, "attn_dp": 3, "pp": 2},
        {"tp": 6, "attn_dp": 2, "costs": BYTES_ONLY, "dp_lm_head": True},
    ),
}


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_topology_proposes_what_one_rank_proposes(
    folder: Path, plain: Any, proposed: Any, topology: str
) -> None:
    ours, its = TOPOLOGIES[topology]
    check(load(folder / "target", **ours), load(folder / "head", **its), plain, proposed)


@pytest.mark.parametrize("chunk", [1, 4])
def test_prompts_in_chunks(folder: Path, plain: Any, proposed: Any, chunk: int) -> None:
    check(load(folder / "target", prefill_chunk=chunk), load(folder / "head"), plain, proposed)


@pytest.mark.parametrize(("slots", "its"), [(44, 512), (70, 30)])
def test_pools_too_small_for_all(
    folder: Path, plain: Any, proposed: Any, slots: int, its: int
) -> None:
    """A request that was put back brings its states again when it is computed again."""
    tight = load(folder / "target", kv_slots=slots)
    check(tight, load(folder / "head", kv_slots=its), plain, proposed)


def test_seats_are_dealt_to_every_group(folder: Path, target: archzoo.Model) -> None:
    """Two rows in each of two groups are enough for four requests."""
    draft = load(folder / "head", tp=2, attn_dp=2, max_requests=2)
    drafted = target.generate(PROMPTS, 12, ignore_eos=True, draft=draft)
    assert all(result.speculation.proposed for result in drafted)
    assert all_free(target, draft)


def test_an_embedding_is_lent_by_every_topology(folder: Path, target: archzoo.Model) -> None:
    want = dict(load(folder / "lent", target=target).export_weights())
    for options in ({"pp": 3}, {"tp": 6, "attn_dp": 2}):
        lender = load(folder / "target", **options)
        found = dict(load(folder / "lent", target=lender, tp=3).export_weights())
        assert found.keys() == want.keys()
        assert all(found[name].equal(want[name]) for name in want)


def test_the_target_gives_what_was_asked_for_before(folder: Path) -> None:
    target, draft = load(folder / "target"), load(folder / "head")
    target.set_aux_layers((3, 1))
    with pytest.raises(
        InputError, match=r"reads hidden states \(0, 1, 2\), its target gives \(3, 1"
    ):
        target.generate([5], 3, draft=draft)
    assert target.module.aux_layers == (3, 1)
    target.set_aux_layers(())
    target.generate([5], 3, draft=draft)
    assert target.module.aux_layers == (0, 1, 2)


def test_states_are_not_taken_from_requests_under_way(folder: Path, plain: Any) -> None:
    target, draft = load(folder / "target"), load(folder / "head")
    stream = target.generate(PROMPTS, 12, ignore_eos=True, stream=True, draft=draft)
    next(stream)
    with pytest.raises(InputError, match="read by the draft of requests under way"):
        target.set_aux_layers(())
    target.set_aux_layers((0, 1, 2))
    logits = target.logits(PROMPTS)
    assert sum(len(chunk.token_ids) for chunk in stream) == 12 * 4 - 1
    target.set_aux_layers(())
    for one, two in zip(target.logits(PROMPTS), logits, strict=True):
        assert one.equal(two)


def test_a_draft_at_work_keeps_its_own_states(folder: Path, plain: Any) -> None:
    target, draft = load(folder / "target"), load(folder / "head")
    stream = target.generate(PROMPTS, 12, ignore_eos=True, stream=True, draft=draft)
    next(stream)
    with pytest.raises(InputError, match=r"goes on from its own hidden states \(1,\)"):
        draft.set_aux_layers(())
    assert sum(len(chunk.token_ids) for chunk in stream) == 12 * 4 - 1
    draft.set_aux_layers(())


@pytest.mark.parametrize("drafted", [True, False])
def test_nobody_waits_for_prefixes_that_it_cannot_use(
    folder: Path, drafted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts that begin alike: without a head one goes first, with one all go together."""
    monkeypatch.setattr(prefix_cache, "WORTH_WAITING", 5)
    target, head = load(folder / "target"), load(folder / "head")
    prompts, plain, rows = [[*ids_of(20), n] for n in range(3, 6)], Engine._run, list[list[int]]()

    def run(self: Engine, steps: Any, wanted: Any) -> Any:
        if self is target.engine:
            rows.append(steps[0].extend_lens)
        return plain(self, steps, wanted)

    monkeypatch.setattr(Engine, "_run", run)
    target.generate(prompts, 1, draft=head if drafted else None)
    assert rows == ([[21, 21, 21]] if drafted else [[21], [1, 1]])
    assert target.cache_stats.prompt_tokens == (0 if drafted else 63), "not looked up"


def test_two_heads_and_none_take_turns(folder: Path, plain: Any, target: archzoo.Model) -> None:
    heads = [load(folder / "head"), load(folder / "lent", target=target)]
    streams = [
        target.generate(PROMPTS, 12, ignore_eos=True, stream=True, draft=draft)
        for draft in (*heads, None)
    ]
    found: list[list[list[int]]] = [[[] for _ in PROMPTS] for _ in streams]
    for _ in range(200):
        for at, stream in enumerate(streams):
            chunk = next(stream, None)
            if chunk is not None:
                found[at][chunk.index] += chunk.token_ids
    assert found == [plain] * 3 and all_free(target, *heads)


def test_a_head_that_sometimes_is_right(tmp_path: Path) -> None:
    """One whose layer says nothing and whose state is the embedding, for a target that echoes."""
    target, draft, reference = echoes(tmp_path)
    plain = target.generate(PROMPTS, 24, ignore_eos=True)
    with proposals() as seen:
        drafted = target.generate(PROMPTS, 24, ignore_eos=True, draft=draft)
    assert tokens(drafted) == tokens(plain)
    accepted = sum(result.speculation.accepted for result in drafted)
    assert 0 < accepted < sum(result.speculation.proposed for result in drafted)
    assert all_free(target, draft)
    for stood, proposed in seen[::3]:
        found = target.forward(stood[:-1]).aux_hidden_states
        assert reference.chain(stood, list(found), len(proposed)) == proposed


def echoes(folder: Path) -> tuple[archzoo.Model, archzoo.Model, eagle3.Reference]:
    """A target of weak layers, and a head that shares its embedding and output matrix."""
    from safetensors.torch import load_file, save_file

    from tiny import tiny_llama

    path, _ = tiny_llama(folder / "target", num_hidden_layers=3)
    file = path / "model.safetensors"
    stored = load_file(file)
    weak = {
        name: tensor * (0.4 if "o_proj" in name or "down_proj" in name else 1.0)
        for name, tensor in stored.items()
    }
    save_file(weak, file, {"format": "pt"})
    config = eagle3.SIZES | {"draft_vocab_size": 130}
    tensors = eagle3.weights(config)
    tensors["midlayer.self_attn.o_proj.weight"] *= 0.01
    tensors["midlayer.mlp.down_proj.weight"] *= 0.01
    tensors["norm.weight"] = weak["model.norm.weight"]
    tensors["lm_head.weight"] = weak["lm_head.weight"]
    # The state is the last captured one, near the target's last; the others do not count.
    tensors["fc.weight"] = tensors["fc.weight"] * 0.01
    for at in range(48):
        tensors["fc.weight"][at, 96 + at] = 1.0
    draft = load(eagle3.save(folder / "head", config, tensors))
    return load(path), draft, eagle3.Reference(config, tensors)


def test_ids_beyond_the_context_of_the_head(folder: Path, tmp_path: Path) -> None:
    config = eagle3.SIZES | {"max_position_embeddings": 16}
    draft = load(eagle3.save(tmp_path, config, eagle3.weights(config)))
    target = load(folder / "target")
    prompts = [ids_of(3), ids_of(14), ids_of(15), ids_of(16), ids_of(17), ids_of(40)]
    plain = target.generate(prompts, 20, ignore_eos=True)
    drafted = target.generate(prompts, 20, ignore_eos=True, draft=draft)
    assert tokens(drafted) == tokens(plain)
    proposed = [result.speculation.proposed for result in drafted]
    assert proposed[0] > proposed[1] > proposed[2] > 0 and proposed[4:] == [0, 0]
    assert all_free(target, draft)
