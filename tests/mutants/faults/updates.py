"""Faults of value checks, updates and exports."""

from __future__ import annotations

from mutants.mutant import Mutant

UPDATES = "tests/runtime/test_updates.py"
VALUES = "tests/weights/test_values.py"

MUTANTS = (
    Mutant(
        "infinity-passes",
        "only NaN is looked for",
        "core/weights/values.py",
        {"if bool(low.isfinite() & high.isfinite()):": "if not bool(low.isnan() | high.isnan()):"},
        (f"{VALUES}::test_each_single_bad_value_is_found_and_placed",),
    ),
    Mutant(
        "place-in-the-slice",
        "the first bad value is placed in the rank's slice, not in the tensor",
        "core/weights/values.py",
        {"at = [start + index for": "at = [index for"},
        (f"{VALUES}::test_a_place_is_one_of_the_full_tensor",),
    ),
    Mutant(
        "zero-slice-is-a-zero-matrix",
        "rows of unused tokens on one rank make the matrix look empty",
        "core/weights/values.py",
        {"if all_zero(self._source, tensor):": "if tensor:"},
        (f"{VALUES}::test_what_may_be_zero",),
    ),
    Mutant(
        "values-unchecked",
        "check_values reaches nothing",
        "core/weights/execution.py",
        {"            check.enter(part, copied.sight)\n": "            pass\n"},
        (f"{VALUES}::test_every_bad_tensor_is_in_the_report",),
    ),
    Mutant(
        "update-written-before-values-are-seen",
        "a NaN is found when half of the update is written",
        "core/models/base.py",
        {"        filling.scan()\n": ""},
        (f"{UPDATES}::test_one_bad_value_is_found_before_anything_is_written",),
    ),
    Mutant(
        "head-changes-the-embedding",
        "a tied head alone is written over the embedding",
        "core/weights/update.py",
        {"if tensor in self._allowed.head_names:": "if tensor:"},
        (f"{UPDATES}::test_a_tied_head_alone_is_refused_until_untied",),
    ),
    Mutant(
        "half-stacks-by-default",
        "q is updated without k and v",
        "core/weights/update.py",
        {"if not self._allowed.stacks:": "if self._allowed.stacks:"},
        (f"{UPDATES}::test_a_bad_last_tensor_leaves_all_as_it_was",),
    ),
    Mutant(
        "not-packed-again",
        "an updated weight stays in the slow plain layout",
        "core/weights/execution.py",
        {"            method.process_weights_after_loading(module)\n": ""},
        (f"{UPDATES}::test_packed_weights_are_packed_again",),
    ),
    Mutant(
        "undo-forgets-values",
        "an undone update leaves plain parameters new",
        "core/weights/snapshot.py",
        {"tensor.detach().copy_(values)": "tensor.detach()"},
        (f"{UPDATES}::test_atomic_puts_the_old_weights_back",),
    ),
    Mutant(
        "undo-on-the-failed-rank-only",
        "ranks that had finished keep the new weights",
        "core/runtime/updating.py",
        {"                filling.undo()\n": "                fillings[-1].undo()\n"},
        (f"{UPDATES}::test_atomic_puts_the_old_weights_back",),
    ),
    Mutant(
        "spoilt-model-serves",
        "old and new weights side by side answer prompts",
        "core/weights/state.py",
        {"if self.fault:": "if not self:"},
        (f"{UPDATES}::test_a_spoilt_model_serves_nothing_until_a_full_update",),
    ),
    Mutant(
        "partial-update-heals",
        "a partial update makes a spoilt model serve",
        "core/models/base.py",
        {
            "            self.weight_state.require()\n            stored": (
                "            self.weight_state = self.weight_state.filled()\n            stored"
            )
        },
        (f"{UPDATES}::test_a_spoilt_model_serves_nothing_until_a_full_update",),
    ),
    Mutant(
        "update-under-requests",
        "cached keys of the old weights are attended with the new",
        "core/runtime/updating.py",
        {"if engine.has_work:": "if not engine:"},
        (f"{UPDATES}::test_requests_under_way_refuse_an_update",),
    ),
    Mutant(
        "export-of-a-view",
        "an exported tensor changes with the model",
        "core/runtime/exporting.py",
        {"    return full\n": "    return engine.executor.of_rank(rank, read)\n"},
        (f"{UPDATES}::test_an_export_owns_its_memory_and_feeds_an_update",),
    ),
    Mutant(
        "export-splits-what-was-fused",
        "a fused checkpoint comes back under other names",
        "core/weights/export.py",
        {"if (parameter, None) in self._stored:": "if parameter in self._stored:"},
        (f"{UPDATES}::test_a_fused_checkpoint_is_exported_fused",),
    ),
    Mutant(
        "export-of-two-weights",
        "an export goes on over an update",
        "core/runtime/exporting.py",
        {"_versions(engine) != versions:": "_versions(engine) == []:"},
        (f"{UPDATES}::test_an_export_that_an_update_overtakes_ends",),
    ),
)
