"""Faults of scheduling, chunked prefill, sampling and stopping."""

from __future__ import annotations

from mutants.mutant import Mutant

SCHEDULER = "tests/runtime/test_scheduler.py"
SAMPLING = "tests/runtime/test_sampling.py"
STOPPING = "tests/runtime/test_stopping.py"
LLAMA = "plugins/llama/tests/test_llama.py"

MUTANTS = (
    Mutant(
        "decode-positions-off-by-one",
        "a decode token placed one position late",
        "core/runtime/step.py",
        {"return self.prefix_lens\n": "return [at + 1 for at in self.prefix_lens]\n"},
        (f"{SCHEDULER}::test_one_request",),
    ),
    Mutant(
        "chunk-positions-from-zero",
        "every chunk of a prompt starts at position 0",
        "core/runtime/step.py",
        {"for at in range(prefix, prefix + extend)": "for at in range(extend)"},
        (f"{SCHEDULER}::test_a_long_prompt_comes_in_chunks_and_samples_once",),
    ),
    Mutant(
        "chunk-samples-too-early",
        "every chunk of a prompt gives a token",
        "core/runtime/scheduler.py",
        {"1 + len(proposal) if stop == len(tokens) else 0": "1 + len(proposal)"},
        (f"{SCHEDULER}::test_a_long_prompt_comes_in_chunks_and_samples_once",),
    ),
    Mutant(
        "sampled-row-of-another-request",
        "the first row of a request sampled instead of its last",
        "core/runtime/step.py",
        {
            "[row for end, count in last for row in range(end - count, end)]": (
                "[end - size for (end, count), size in zip(last, self.extend_lens) if count]"
            )
        },
        (f"{SCHEDULER}::test_requests_join_and_leave_between_steps",),
    ),
    Mutant(
        "preempted-without-recomputing",
        "a request that lost its slots goes on as if they held its tokens",
        "core/runtime/scheduler.py",
        {
            "request.lease, request.computed, request.borrowed = lease, found, found": (
                "request.lease, request.borrowed = lease, found\n"
                "        request.computed = max(found, len(tokens) - 1) if request.num_output else found"
            )
        },
        (f"{SCHEDULER}::test_the_youngest_is_preempted_and_its_output_stays_equal",),
    ),
    Mutant(
        "slots-leaked",
        "a finished request keeps its slots",
        "core/runtime/prefix_cache.py",
        {"self._slots.free([slot for slot in slots if slot not in held])": "self._slots.free([])"},
        (f"{SCHEDULER}::test_one_request", f"{SCHEDULER}::test_abort_in_every_state"),
    ),
    Mutant(
        "slots-freed-early",
        "a decode slot free for others while its request still uses it",
        "core/runtime/scheduler.py",
        {
            "alloc_after(request.slots[-1], missing)\n": (
                "alloc_after(request.slots[-1], missing)\n"
                "            self.slots.free(request.slots[-1:])\n"
            )
        },
        (f"{SCHEDULER}::test_one_request",),
    ),
    Mutant(
        "admission-takes-the-last-slot",
        "a new request takes the slot a running one needs next",
        "core/runtime/scheduler.py",
        {"self.slots.available - fresh < len(self._running)": "self.slots.available < fresh"},
        (f"{SCHEDULER}::test_admission_leaves_running_requests_their_next_slot",),
    ),
    Mutant(
        "scoring-forgets-the-prefix",
        "later chunks of a scored prompt do not see the earlier ones",
        "core/runtime/scoring_pass.py",
        {"step.prefix_lens.append(rows.start)": "step.prefix_lens.append(0)"},
        (f"{LLAMA}::test_chunks_and_batches_equal_the_whole[grouped]",),
    ),
    Mutant(
        "scoring-knows-the-chunk-only",
        "length-dependent rope of a scored prompt sees the chunks so far",
        "core/runtime/scoring_pass.py",
        {"[length] * len(rows)": "[rows.stop] * len(rows)"},
        (f"{LLAMA}::test_chunks_and_batches_equal_the_whole[longrope]",),
    ),
    Mutant(
        "logprob-target-shifted",
        "the log-probability of the row's own token instead of the next",
        "core/runtime/scoring.py",
        {"[ids[row + 1] for row in here]": "[ids[row] for row in here]"},
        ("tests/runtime/test_model.py::test_logprobs_of_input_tokens[0-None]",),
    ),
    Mutant(
        "top-p-one-token-too-many",
        "the token that reaches the mass is not the last one kept",
        "core/runtime/sampling.py",
        {
            "(running < target).sum(-1, keepdim=True) + 1": "(running <= target).sum(-1, keepdim=True) + 1"
        },
        (f"{SAMPLING}::test_top_p_keeps_the_smallest_set_that_reaches_it",),
    ),
    Mutant(
        "top-p-of-the-whole-mass",
        "top_p measured before top_k has cut",
        "core/runtime/sampling.py",
        {
            "torch.where(most < vocab, inside, probs.sum(dim=-1, keepdim=True))": (
                "probs.sum(dim=-1, keepdim=True)"
            )
        },
        (f"{SAMPLING}::test_top_p_is_a_share_of_what_top_k_left",),
    ),
    Mutant(
        "one-random-number-for-all-steps",
        "every step of a request draws the same number",
        "core/runtime/sampling.py",
        {'f"{params.seed}:{step}"': 'f"{params.seed}"'},
        (f"{SAMPLING}::test_seed_and_step_decide_the_token",),
    ),
    Mutant(
        "temperature-multiplied",
        "logits multiplied by the temperature",
        "core/runtime/sampling.py",
        {"(centred / column(": "(centred * column("},
        (f"{SAMPLING}::test_frequencies_are_the_distribution",),
    ),
    Mutant(
        "stop-string-in-the-text",
        "the stop string is shown",
        "core/runtime/stopping.py",
        {"self._release(max(ended))": "self._release(0)"},
        (f"{STOPPING}::test_a_stop_string_over_tokens_is_held_back_and_cut_off",),
    ),
    Mutant(
        "stop-string-leaks",
        "the beginning of a stop string is streamed before it is decided",
        "core/runtime/stopping.py",
        {
            "self._release(max(automaton.matched for automaton in self._automata))": (
                "self._release(0)"
            )
        },
        (f"{STOPPING}::test_a_stop_string_over_tokens_is_held_back_and_cut_off",),
    ),
    Mutant(
        "output-decoded-alone",
        "the text of an output does not know what came before it",
        "core/runtime/request.py",
        {"decoder, self.tokens)": "decoder, ())"},
        ("tests/runtime/test_text.py::test_prompt_and_text_are_the_decoding_of_all_ids[newlines]",),
    ),
    Mutant(
        "last-stop-is-length",
        "a stop string that the last allowed token completes reports length",
        "core/runtime/request.py",
        {'"stop" if self.output.close() else "length"': '"length"'},
        (f"{STOPPING}::test_a_stop_string_that_the_last_allowed_token_leaves_open",),
    ),
    Mutant(
        "special-tokens-unmatched",
        "stop strings do not see special tokens",
        "core/runtime/stopping.py",
        {
            "self._detokenizer.push(token_id) if hidden is None else hidden": (
                "self._detokenizer.push(token_id)"
            )
        },
        (f"{STOPPING}::test_a_special_token_is_matched_and_not_shown",),
    ),
    Mutant(
        "last-token-whatever-is-stated",
        "a mean of all rows asked for, the last row given",
        "core/runtime/resolved.py",
        {"module.pooler = Pooler(self.files.pooling)": "_ = Pooler(self.files.pooling)"},
        (
            "tests/runtime/test_sentence_files.py"
            "::test_rows_that_the_files_name_make_the_vector[mean_tokens-LlamaModel]",
        ),
    ),
)
