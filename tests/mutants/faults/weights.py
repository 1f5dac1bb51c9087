"""Faults of weight loading: names, shards, ties, files, GGUF."""

from __future__ import annotations

from mutants.mutant import Mutant

LOADER = "tests/weights/test_loader.py"
REMAP = "tests/weights/test_remap.py"
SOURCES = "tests/weights/test_sources.py"
GGUF = "tests/weights/test_gguf.py"
NESTING = "tests/weights/test_nesting.py"
READING = "tests/weights/test_reading.py"
MUTATED = "tests/weights/test_mutated_checkpoints.py"

MUTANTS = (
    Mutant(
        "gate-and-up-stacked-swapped",
        "gate_proj loaded into up's half and the other way round",
        "core/weights/standard_names.py",
        {
            '"**.gate_proj.*", "**.gate_up_proj.*", 0': '"**.gate_proj.*", "**.gate_up_proj.*", 1',
            '"**.up_proj.*", "**.gate_up_proj.*", 1': '"**.up_proj.*", "**.gate_up_proj.*", 0',
        },
        (
            f"{REMAP}::test_standard_mapping",
            f"{LOADER}::test_every_rank_gets_exactly_its_slices[3-2-6]",
        ),
    ),
    Mutant(
        "names-by-substring",
        "qq_proj taken for q_proj",
        "core/weights/patterns.py",
        {
            "elif want != have:": "elif want not in have:",
            "for key in (*name, None):": "for key in self._by_key:",
        },
        (
            f"{REMAP}::test_standard_mapping[model.layers.3.mlp.xup_proj.weight-target4]",
            f"{LOADER}::test_substring_relatives_are_not_taken_for_parts",
        ),
    ),
    Mutant(
        "skips-by-substring",
        "a skip argument drops every name that contains it",
        "core/weights/skip_rules.py",
        {
            "any(name[at : at + size] == self.parts for at in range(len(name) - size + 1))": (
                '".".join(self.parts) in ".".join(name)'
            )
        },
        (f"{LOADER}::test_skip_arguments_match_whole_components_only",),
    ),
    Mutant(
        "skip-rule-too-wide",
        "a rule for stored masks drops real biases",
        "core/weights/standard_names.py",
        {'"**.attn.bias"': '"**.*.bias"'},
        (f"{REMAP}::test_standard_skips_leave_others_alone[self_attn.bias]",),
    ),
    Mutant(
        "ledger-sees-no-gap",
        "a dropped shard passes the proof",
        "core/weights/ledger.py",
        {"return total - self._volume.get(parameter, 0)": "return 0"},
        (
            f"{LOADER}::test_a_spec_with_a_gap_or_an_overlap_is_a_fault",
            "tests/weights/test_ledger.py::test_boxes_agree_with_a_bitmap",
        ),
    ),
    Mutant(
        "written-slices-not-proved",
        "a slice dropped while copying passes, for the plan had it",
        "core/weights/filling.py",
        {"        run.prove()\n": ""},
        (f"{LOADER}::test_a_slice_that_is_not_copied_exactly_once_is_a_fault[0-partial]",),
    ),
    Mutant(
        "one-part-is-enough",
        "a stacked parameter counts as covered by any of its parts",
        "core/weights/plan.py",
        {"if None in seen or not absent:": "if seen or not absent:"},
        (f"{LOADER}::test_partial_names_the_part_and_its_checkpoint_name",),
    ),
    Mutant(
        "missing-accepted",
        "a parameter without a tensor keeps what it had",
        "core/weights/plan.py",
        {"if not seen and spec.optional:": "if not seen:"},
        (
            f"{LOADER}::test_missing_names_parameter_and_expected_tensors",
            f"{LOADER}::test_an_empty_checkpoint_misses_everything",
        ),
    ),
    Mutant(
        "duplicate-accepted",
        "of two tensors for one place the first wins in silence",
        "core/weights/plan.py",
        {
            'plan.findings.tensor_fault("duplicate", name, f"{name} and {rival} both fill {where}")': (
                "plan.findings.skip(name, rival, where)"
            )
        },
        (
            f"{LOADER}::test_two_tensors_for_one_part_are_duplicates",
            f"{LOADER}::test_fused_beside_split_is_a_duplicate",
        ),
    ),
    Mutant(
        "unexpected-accepted",
        "a tensor that no parameter wants is dropped",
        "core/weights/plan.py",
        {
            'plan.findings.tensor_fault("unexpected", name, text, status)': (
                "plan.findings.skip(name, text, status)"
            )
        },
        (
            f"{LOADER}::test_a_layer_too_many_is_unexpected",
            f"{LOADER}::test_substring_relatives_are_not_taken_for_parts",
        ),
    ),
    Mutant(
        "other-numbers-converted",
        "8-bit floats loaded without their scale as if they were values",
        "core/weights/conversion.py",
        {
            "(stored in _FLOATS and wanted in _FLOATS)": "(stored.is_floating_point and wanted in _FLOATS)"
        },
        (f"{LOADER}::test_another_kind_of_number_is_a_fault[stored1]",),
    ),
    Mutant(
        "padding-not-zeroed",
        "rows of vocabulary padding keep what memory held",
        "core/weights/execution.py",
        {".data[box_slices(box)].zero_()": ".data[box_slices(box)]"},
        (f"{LOADER}::test_every_rank_gets_exactly_its_slices[3-2-6]",),
    ),
    Mutant(
        "tie-not-compared",
        "a stored head that differs from the tied embedding is thrown away",
        "core/weights/loader.py",
        {"if source_tensors_equal(source, check.tensor, check.fed_by):": "if check.tensor:"},
        (f"{LOADER}::test_a_stored_head_that_differs_from_its_tie_is_a_fault[value]",),
    ),
    Mutant(
        "index-before-single-file",
        "of a single file and an index the other one is read than transformers reads",
        "core/weights/directory.py",
        {
            '("model" + TENSORS_SUFFIX, "model" + INDEX_SUFFIX)': (
                '("model" + INDEX_SUFFIX, "model" + TENSORS_SUFFIX)'
            )
        },
        (f"{SOURCES}::test_a_single_file_goes_before_the_index_with_a_note",),
    ),
    Mutant(
        "index-choice-ignored",
        "of a tensor in two shards the last file wins, not the index's",
        "core/weights/gathering.py",
        {
            "if self._index is not None and self._index.get(name, path) != path:": "if False:",
            "if name in self.infos:": "if self._index is None and name in self.infos:",
        },
        (f"{SOURCES}::test_the_indexs_copy_of_a_tensor_is_used",),
    ),
    Mutant(
        "index-promise-unchecked",
        "a tensor the index names and no shard holds goes unnoticed",
        "core/weights/gathering.py",
        {"if name not in self.infos]": "if name not in self._index]"},
        (f"{SOURCES}::test_a_promise_the_shard_does_not_keep_names_both",),
    ),
    Mutant(
        "gguf-rows-left-interleaved",
        "llama.cpp's row order of q and k not undone",
        "core/weights/gguf.py",
        {"pairs.swapaxes(1, 2).reshape(stored.shape)": "pairs.reshape(stored.shape)"},
        (f"{GGUF}::test_rows_come_back_in_hugging_face_order[llama]",),
    ),
    Mutant(
        "gguf-every-expert-the-first",
        "all experts of a stacked tensor read where the first one lies",
        "core/weights/gguf.py",
        {"tensor.start + at * size": "tensor.start + 0 * size"},
        (f"{GGUF}::test_stacked_experts_are_tensors_of_one_expert_each[0]",),
    ),
    Mutant(
        "gguf-text-split-by-a-guess",
        "a GGUF file that does not say how text is split means GPT-2's way",
        "core/runtime/gguf_tokenizer.py",
        {'name = self.file.get(key, str) or ""': 'name = self.file.get(key, str) or "gpt-2"'},
        (
            "tests/runtime/test_gguf_tokenizer.py::test_a_file_that_does_not_name_its_split"
            "_turns_ids_into_text_and_no_text_into_ids",
        ),
    ),
    Mutant(
        "gguf-turns-end-as-stated-alone",
        "a chat model's GGUF file names the base model's end, and its turns never end",
        "core/runtime/gguf_tokenizer.py",
        {"for index in (*stated, *known) if": "for index in stated if"},
        ("tests/runtime/test_gguf_tokenizer.py::test_every_id_that_ends_a_generation",),
    ),
    Mutant(
        "gguf-key-rows-by-query-heads",
        "rows of k put in order as if there were as many KV heads as heads",
        "core/weights/gguf.py",
        {'"attn_k": heads if kv_heads is None else kv_heads': '"attn_k": heads'},
        (f"{GGUF}::test_rows_come_back_in_hugging_face_order[llama]",),
    ),
    Mutant(
        "gguf-rope-divisors-dropped",
        "Llama 3.1's frequency divisors lost on the way from a GGUF file",
        "core/weights/gguf.py",
        {"if not accepted and not bool((values == 1).all()):": "if values.numel() == 0:"},
        (f"{GGUF}::test_rope_factors_that_matter_are_refused",),
    ),
    Mutant(
        "first-wrapper-wins",
        "half of a checkpoint is wrapped, and nobody is told",
        "core/weights/nesting.py",
        {"if len(examples) > 1:": "if len(examples) > 9:"},
        (f"{NESTING}::test_mixtures_are_refused_by_name",),
    ),
    Mutant(
        "leftovers-before-parameters",
        "a rule for what nobody wants takes the KV scale that an attention waits for",
        "core/weights/standard_names.py",
        {"_UNUSED_SCALE, unless_wanted=True)": "_UNUSED_SCALE)"},
        (f"{NESTING}::test_a_tensor_that_a_parameter_wants_is_never_a_leftover",),
    ),
    Mutant(
        "spelling-forgotten",
        "a checkpoint's own spelling does not come back",
        "core/weights/remap.py",
        {"        name = self.spelled.get(name, name)\n": ""},
        (f"{NESTING}::test_a_wrapper_is_undone_for_every_name_and_put_back",),
    ),
    Mutant(
        "last-of-two-names-wins",
        "a header states a tensor twice and the second silently counts",
        "core/weights/safetensors_header.py",
        {"object_pairs_hook=once": "object_pairs_hook=dict"},
        ("tests/weights/test_hostile_sources.py::test_headers_that_lie_are_refused[a name twice]",),
    ),
    Mutant(
        "the-rest-of-a-column-slice",
        "a rank's columns are read as one run of the file",
        "core/weights/safetensors_file.py",
        {"if last - first == out.nbytes:": "if last - first >= out.nbytes:"},
        (f"{READING}::test_every_kind_of_slice_is_read_into_memory",),
    ),
    Mutant(
        "last-rows-of-a-part",
        "parts leave out the rows that do not fill one",
        "core/weights/parts.py",
        {
            "for start in range(first, last, rows):": "for start in range(first, last - rows + 1, rows):"
        },
        (f"{READING}::test_parts_cover_a_piece_in_order[box0-24]",),
    ),
    Mutant(
        "replaced-file-read",
        "bytes of another save are loaded by the offsets of the first",
        "core/weights/safetensors_file.py",
        {"if (now.st_size, now.st_mtime_ns) != (was.st_size, was.st_mtime_ns):": "if not was:"},
        (f"{READING}::test_a_file_that_changes_after_its_header_was_read_is_refused",),
    ),
    Mutant(
        "pages-stay",
        "a loaded file stays resident beside the weights",
        "core/weights/mapping.py",
        {"if size and hasattr(": "if not size and hasattr("},
        (f"{READING}::test_no_page_of_a_file_stays",),
    ),
    Mutant(
        "others-read-on",
        "an error in one file is reported when all others have been read",
        "core/weights/workers.py",
        {"            self._stopped = True\n": "            pass\n"},
        (f"{READING}::test_a_file_that_fails_is_named_and_the_others_stop",),
    ),
    Mutant(
        "one-dead-part-is-a-dead-matrix",
        "a block of rows that are not used refuses a checkpoint",
        "core/weights/values.py",
        {"        if slice_.left and sight.problem is None:\n            return\n": ""},
        (f"{READING}::test_values_are_judged_over_all_parts",),
    ),
    Mutant(
        "parts-in-any-order",
        "a renamed part of a split model passes for another",
        "core/weights/gguf_split.py",
        {"if found != want:": "if found is None:"},
        ("tests/weights/test_gguf_split.py::test_parts_that_changed_places_are_named",),
    ),
    Mutant(
        "transposed-by-any-other-name",
        "the report does not say what is wrong with a shape",
        "core/weights/misfits.py",
        {'return "transposed", "it looks transposed"': 'return "reshaped", "it looks transposed"'},
        (
            f"{MUTATED}::test_every_mutation_of_every_tensor_is_found_in_headers_and_called_by_its_name",
        ),
    ),
)
