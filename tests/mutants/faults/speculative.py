"""Faults of speculative decoding, of draft heads, and of the hidden states they read."""

from __future__ import annotations

from mutants.mutant import Mutant

TESTS = "tests/runtime/test_speculative.py"
STATES = "tests/runtime/test_speculative_states.py"
AUX = "tests/runtime/test_aux_hidden_states.py"
HEADS = "plugins/llama/tests/test_eagle3.py"
DRAFTER = "core/runtime/speculative/drafter.py"
EAGLE3 = "plugins/llama/archzoo_llama/eagle3.py"

MUTANTS = (
    Mutant(
        "every-guess-stands",
        "proposed tokens are taken without being compared",
        "core/runtime/speculative/verifying.py",
        {
            "next((at for at, (guess, token) in pairs if guess != token), len(proposal))": (
                "len(proposal)"
            ),
            "    pairs = enumerate(zip(proposal, sampled, strict=False))\n": "",
        },
        (f"{TESTS}::test_what_stands", f"{TESTS}::test_a_draft_that_is_sometimes_right"),
    ),
    Mutant(
        "guesses-share-a-slot",
        "the first guess is written over the token before it",
        "core/runtime/scheduler.py",
        {
            "request.slots[start:end]": (
                "[*request.slots[start:stop], *request.slots[stop - 1 : end - 1]]"
            )
        },
        (f"{TESTS}::test_a_draft_that_is_sometimes_right",),
    ),
    Mutant(
        "guesses-keep-their-slots",
        "slots of rejected tokens are not given back",
        "core/runtime/scheduler.py",
        {"                self._drop_guesses(request)\n": "                pass\n"},
        (f"{TESTS}::test_guesses_leave_others_their_next_slot",),
    ),
    Mutant(
        "stop-does-not-cut",
        "a stop inside an accepted run does not end the output there",
        "core/runtime/request.py",
        {"            if reason:\n                break\n": ""},
        (f"{TESTS}::test_a_stop_id_cuts_an_accepted_run",),
    ),
    Mutant(
        "guesses-past-the-limit",
        "tokens proposed that could never be output",
        DRAFTER,
        {"request.limit - request.num_output - 1": "request.limit - request.num_output"},
        (f"{TESTS}::test_the_limit_cuts_an_accepted_run",),
    ),
    Mutant(
        "draft-keeps-wrong-guesses",
        "the draft's keys of tokens that were rejected are used",
        DRAFTER,
        {"                if guess != token:\n                    break\n": ""},
        (f"{TESTS}::test_the_draft_proposes_what_it_would_generate",),
    ),
    Mutant(
        "verification-draws-one-number",
        "all rows of a verification draw by one random number",
        "core/runtime/choosing.py",
        {
            "Choice(request.params, request.num_output + at)": "Choice(request.params, request.num_output)"
        },
        (f"{TESTS}::test_a_seed_draws_the_tokens_of_plain_sampling",),
    ),
    Mutant(
        "draft-draws-its-own-number",
        "the draft draws by other random numbers than its target",
        "core/runtime/speculative/forward.py",
        {"place = request.num_output + len(request.proposal)": "place = len(request.proposal)"},
        (f"{TESTS}::test_a_seed_draws_the_tokens_of_plain_sampling",),
    ),
    Mutant(
        "seat-leaked",
        "a finished request keeps its place in the draft's pool",
        "core/runtime/scheduler.py",
        {"            request.speculation.drafter.release(request)\n": "            pass\n"},
        (
            f"{TESTS}::test_a_draft_that_is_sometimes_right",
            f"{TESTS}::test_a_stream_that_is_let_go_frees_both_pools",
        ),
    ),
    Mutant(
        "guess-takes-a-sure-slot",
        "a slot for a guess is taken from another request's next token",
        "core/runtime/scheduler.py",
        {"self.slots.available + 1 - len(self._running)": "self.slots.available"},
        (f"{TESTS}::test_guesses_leave_others_their_next_slot",),
    ),
    Mutant(
        "guesses-beyond-the-batch",
        "proposals make a step larger than its limit",
        "core/runtime/scheduler.py",
        {"self.max_batch_tokens // len(self._running)": "self.max_batch_tokens"},
        (f"{TESTS}::test_rows_of_one_step_stay_within_their_limit",),
    ),
    Mutant(
        "spoilt-guess-ends-its-request",
        "a row behind a wrong guess ends the request",
        "core/runtime/choosing.py",
        {"if new and verified(proposal, new)[-1] == UNUSABLE": "if UNUSABLE in new"},
        (f"{TESTS}::test_only_rows_that_stand_can_end_a_request",),
    ),
    Mutant(
        "spoilt-guess-blamed-on-its-request",
        "NaN that came from a guess ends the request",
        "core/runtime/choosing.py",
        {"for request, guessed in found if not guessed]": "for request, _ in found]"},
        (f"{TESTS}::test_only_rows_that_stand_can_end_a_request",),
    ),
    Mutant(
        "heads-wait-for-prefixes",
        "requests that can use no cached prefix wait for one another",
        "core/runtime/prefix_cache.py",
        {
            "min(most, self.shareable(request.known_len)) < least": "self.shareable(request.known_len) < least"
        },
        (f"{STATES}::test_nobody_waits_for_prefixes_that_it_cannot_use[True]",),
    ),
    Mutant(
        "guesses-reach-across",
        "a proposal is computed over keys of another rotation",
        "core/runtime/scheduler.py",
        {"rows = min(rows, self._recompute_after - request.computed)": "pass"},
        ("tests/runtime/test_rotation.py::test_a_proposal_never_reaches_across",),
    ),
    Mutant(
        "padding-is-proposed",
        "a draft proposes ids that its target's tokenizer has not",
        "core/runtime/speculative/pairing.py",
        {"reads_states, target.engine.choosable)": "reads_states)"},
        ("tests/runtime/test_padded_vocabulary.py::test_a_head_proposes_no_padding",),
    ),
    Mutant(
        "head-reads-the-wrong-token",
        "a head reads a token beside that token's own state",
        DRAFTER,
        {"ahead = int(self.reads_states)": "ahead = 0"},
        (f"{HEADS}::test_proposals_follow_from_the_targets_states",),
    ),
    Mutant(
        "head-keeps-its-own-states",
        "keys made of guessed states stay when the target's states are there",
        DRAFTER,
        {"        if not self.reads_states:\n": "        if True:\n"},
        (f"{STATES}::test_a_head_that_sometimes_is_right",),
    ),
    Mutant(
        "head-goes-on-from-its-input",
        "the state fed back is what entered the head, not what left it",
        "core/runtime/speculative/pairing.py",
        {"draft.capture((module.config.num_hidden_layers,))": "draft.capture((0,))"},
        (f"{HEADS}::test_proposals_follow_from_the_targets_states",),
    ),
    Mutant(
        "head-norms-swapped",
        "embeddings and states through each other's norm",
        EAGLE3,
        {"self.input_layernorm(batch": "self.hidden_norm(batch"},
        (f"{HEADS}::test_logits_and_states_are_those_of_the_formulas",),
    ),
    Mutant(
        "head-halves-swapped",
        "states before embeddings in the attention's input",
        EAGLE3,
        {
            "torch.cat([embedded, self.attn_boundary.prepare(stream)], -1)": (
                "torch.cat([self.attn_boundary.prepare(stream), embedded], -1)"
            )
        },
        (f"{HEADS}::test_logits_and_states_are_those_of_the_formulas",),
    ),
    Mutant(
        "offsets-taken-for-ids",
        "d2t read as the target's ids",
        "plugins/llama/archzoo_llama/draft_vocabulary.py",
        {"index_copy_(1, self.target_ids, known)": "index_copy_(1, self.d2t, known)"},
        (f"{HEADS}::test_logits_and_states_are_those_of_the_formulas",),
    ),
    Mutant(
        "doubled-map-accepted",
        "two draft tokens lead to one of the target",
        "plugins/llama/archzoo_llama/draft_vocabulary.py",
        {"if int(uses.max()) > 1:": "if int(uses.max()) > 2:"},
        (f"{HEADS}::test_hostile_maps_are_refused",),
    ),
    Mutant(
        "layer-id-taken-for-a-state",
        "an explicit layer id means what enters that layer",
        "core/models/capturing.py",
        {"sorted(each + 1 for each in ids)": "sorted(ids)"},
        (f"{AUX}::test_the_fields_counting",),
    ),
    Mutant(
        "states-stay-on-their-process",
        "hidden states are lost on the way to other processes",
        "core/runtime/pipeline.py",
        {"*(whole.aux_hidden_states or [None] * aux)": "*[None] * aux"},
        (f"{AUX}::test_every_topology_gives_the_states_of_one_rank",),
    ),
)
