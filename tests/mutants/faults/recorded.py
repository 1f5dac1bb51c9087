"""Faults of what proves a checkpoint by its values: recordings, fingerprints, ignore lists; and of leaving."""

from __future__ import annotations

from mutants.mutant import Mutant

RECORDING = "tests/cli/test_recording.py"
MUTATED = "tests/cli/test_mutated_weights.py"
IGNORED = "tests/quantization/test_ignored.py"
LEAVING = "tests/parallel/test_leaving.py"

MUTANTS = (
    Mutant(
        "recording-not-proved",
        "a damaged recording is taken for a model that departs",
        "core/cli/recording.py",
        {'if metadata.get("digest") != _digest(text, tensors):': 'if "digest" not in metadata:'},
        (
            f"{RECORDING}::test_a_damaged_recording_is_told_from_a_model_that_departs[value_changed]",
        ),
    ),
    Mutant(
        "departing-reference-recorded",
        "what we disagree with is kept as if it were proved",
        "core/cli/verify.py",
        {"if options.record is not None and agrees:": "if options.record is not None:"},
        (f"{RECORDING}::test_only_what_agrees_is_kept",),
    ),
    Mutant(
        "wider-format-decides",
        "a narrow recording is judged as if it were exact",
        "core/cli/verify.py",
        {
            "return max(TOLERANCES[getattr(torch, options.dtype)], TOLERANCES[reference.dtype])": (
                "return min(TOLERANCES[getattr(torch, options.dtype)], TOLERANCES[reference.dtype])"
            )
        },
        (f"{RECORDING}::test_the_narrower_number_format_decides_what_agrees",),
    ),
    Mutant(
        "swaps-called-changes",
        "nobody is told whose values a tensor holds",
        "core/cli/fingerprints.py",
        {"        if found in held:\n": "        if found in absent:\n"},
        (f"{MUTATED}::test_verify_names_the_tensors_and_what_became_of_them",),
    ),
    Mutant(
        "digest-of-memory-order",
        "a transposed view has the digest of what it is a view of",
        "core/cli/fingerprints.py",
        {"values.contiguous().reshape(-1)": "values.flatten().sort().values"},
        (
            f"{MUTATED}::test_a_digest_is_of_the_values_in_their_order[dtype0]",
            f"{MUTATED}::test_verify_names_the_tensors_and_what_became_of_them",
        ),
    ),
    Mutant(
        "infinity-called-nan",
        "the status of a bad value says another thing than its message",
        "core/weights/values.py",
        {'return "NaN" if nans else "infinite", (': 'return "NaN" if len(bad) else "infinite", ('},
        (
            f"{MUTATED}::test_one_bad_value_in_any_tensor_is_named_with_its_status[tied-inf-infinite]",
        ),
    ),
    Mutant(
        "groups-left-to-the-teardown",
        "worker threads of gloo outlive the interpreter",
        "core/parallel/launch.py",
        {'    if kind != "cuda":\n        atexit': '    if kind != "cpu":\n        atexit'},
        (f"{LEAVING}::test_no_worker_thread_outlives_the_interpreter[0]",),
    ),
    Mutant(
        "ignored-by-substring",
        "an entry for head drops lm_head too",
        "core/quantization/ignored.py",
        {
            "parts[at : at + len(run)] == run for run in self._runs for at in range(len(parts))": (
                '".".join(run) in module for run in self._runs for at in range(len(parts))'
            )
        },
        (f"{IGNORED}::test_layers_are_found_by_the_names_of_the_checkpoint",),
    ),
    Mutant(
        "ignore-list-past-the-map",
        "an ignore list in a wrapper's names matches nothing",
        "core/quantization/ignored.py",
        {"renamed = (self.names.rename(entry + _TENSOR) for": "renamed = (entry + _TENSOR for"},
        (f"{IGNORED}::test_wrappers_are_undone_as_they_are_for_weights",),
    ),
    Mutant(
        "half-ignored-is-ignored",
        "q listed makes k and v plain",
        "core/quantization/ignored.py",
        {"if listed and len(listed) < len(parts):": "if len(listed) > len(parts):"},
        (f"{IGNORED}::test_half_a_stacked_layer_is_refused",),
    ),
    Mutant(
        "only-stored-names-listed",
        "an expression in the model's own names misses a wrapped checkpoint",
        "core/quantization/ignored.py",
        {
            "for each in self._expressions for name in (module, stored)": (
                "for each in self._expressions for name in (stored,)"
            )
        },
        (f"{IGNORED}::test_wrappers_are_undone_as_they_are_for_weights",),
    ),
)
