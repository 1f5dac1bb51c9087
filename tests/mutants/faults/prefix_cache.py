"""Faults of the prefix cache: wrong tokens shared, slots lost, stale keys kept."""

from __future__ import annotations

from mutants.mutant import Mutant

TREE = "tests/runtime/test_prefix_tree.py"
CACHE = "tests/runtime/test_prefix_cache.py"
SCHEDULER = "tests/runtime/test_scheduler.py"
SLOTS = "tests/runtime/test_slots.py"
STREAMS = f"{CACHE}::test_streams_of_which_some_are_cancelled"
DRAFTED = "tests/runtime/test_drafts_and_prefixes.py::test_streams_with_every_kind_of_draft"

MUTANTS = (
    Mutant(
        "prefix-one-token-too-long",
        "a token counts as shared although it differs",
        "core/runtime/prefix_tree.py",
        {
            "middle = (same + most + 1) // 2\n        if one[same:middle]": (
                "middle = (same + most + 1) // 2\n        if one[same : middle - 1]"
            ),
            "== other[same:middle]": "== other[same : middle - 1]",
        },
        (f"{TREE}::test_common_length", STREAMS),
    ),
    Mutant(
        "split-forgets-locks",
        "the part before a split can be evicted under those who read it",
        "core/runtime/prefix_tree.py",
        {"node.slots[:at], node.locks)": "node.slots[:at])"},
        (f"{TREE}::test_any_order_of_use",),
    ),
    Mutant(
        "lock-on-the-last-run-only",
        "runs before the last one of a borrowed prefix can be evicted",
        "core/runtime/prefix_tree.py",
        {
            "            each.locks += 1\n": "            each.locks += 1\n            break\n",
            "            each.locks -= 1\n            if not each.locks:\n": (
                "            each.locks -= each is node\n            if not each.locks:\n"
            ),
        },
        (f"{TREE}::test_any_order_of_use",),
    ),
    Mutant(
        "newest-evicted-first",
        "the prefix that was used last gives way first",
        "core/runtime/prefix_tree.py",
        {"next(iter(self._idle))": "next(n for n in reversed(self._idle) if not n.children)"},
        (f"{TREE}::test_what_was_used_last_goes_last_and_from_its_end",),
    ),
    Mutant(
        "eviction-from-the-front",
        "the first tokens of a run are evicted and its end is kept",
        "core/runtime/prefix_tree.py",
        {"freed += leaf.slots[keep:]": "freed += leaf.slots[: len(leaf.slots) - keep]"},
        (f"{TREE}::test_what_was_used_last_goes_last_and_from_its_end",),
    ),
    Mutant(
        "whole-prompt-from-the-cache",
        "a prompt that is all there has no row left to sample from",
        "core/runtime/scheduler.py",
        {"else len(tokens) - 1\n": "else len(tokens)\n"},
        (f"{CACHE}::test_the_last_token_is_always_computed",),
    ),
    Mutant(
        "borrowed-slots-not-told",
        "ranks look for a borrowed prefix in the slots of an earlier request",
        "core/runtime/scheduler.py",
        {"if start and start == request.borrowed:": "if start < 0:"},
        (f"{CACHE}::test_the_second_of_two_computes_what_is_new", STREAMS),
    ),
    Mutant(
        "borrowed-slots-not-in-the-table",
        "the slot table of a rank lacks the borrowed prefix",
        "core/runtime/runner.py",
        {"self.pool.req_to_token[row, : len(borrowed)] = self._tensor(borrowed)": "pass"},
        (STREAMS,),
    ),
    Mutant(
        "borrowed-slots-lost-in-micro-batches",
        "a micro-batch begins without its borrowed prefix",
        "core/runtime/micro_batches.py",
        {"if low == begin and table_row": "if low > begin and table_row"},
        (f"{CACHE}::test_micro_batches_begin_with_borrowed_slots_once",),
    ),
    Mutant(
        "uncomputed-tokens-published",
        "others read keys that nobody has written",
        "core/runtime/scheduler.py",
        {
            "request.tokens[: request.computed], request.slots": "request.tokens[: len(request.slots)], request.slots"
        },
        (f"{SCHEDULER}::test_every_request_gets_what_it_would_get_alone", STREAMS, DRAFTED),
    ),
    Mutant(
        "cached-slots-freed-with-their-request",
        "slots that others read are free when their first owner ends",
        "core/runtime/prefix_cache.py",
        {"held = set(lease.path_slots)": "held = set[int]()"},
        (f"{CACHE}::test_equal_prompts_side_by_side_keep_one_copy",),
    ),
    Mutant(
        "lease-kept-for-ever",
        "what an ended request has locked is never evicted",
        "core/runtime/prefix_cache.py",
        {
            "slot not in held])\n        self._tree.unlock(lease)": "slot not in held])",
        },
        (f"{SCHEDULER}::test_every_request_gets_what_it_would_get_alone",),
    ),
    Mutant(
        "lease-of-a-request-that-waits",
        "a request that finds no room keeps its prefix locked each time it asks",
        "core/runtime/scheduler.py",
        {"            self.cache.give_back(lease)\n": ""},
        (f"{CACHE}::test_who_finds_no_room_holds_nothing_while_it_waits",),
    ),
    Mutant(
        "what-is-wanted-comes-from-the-cache",
        "log-probabilities of borrowed rows are missing",
        "core/runtime/scoring.py",
        {"[min(first, count) - 1]": "[count - 1]"},
        (f"{CACHE}::test_log_probabilities_are_of_the_rows_asked_for",),
    ),
    Mutant(
        "keys-of-another-length",
        "a long prompt borrows keys that a short one has turned",
        "core/runtime/prefix_cache.py",
        {"return self._limit if known_len <= self._limit else 0": "return self._limit"},
        (f"{CACHE}::test_keys_that_turn_by_the_length_of_their_prompt_are_not_shared",),
    ),
    Mutant(
        "length-of-dynamic-rope-ignored",
        "keys of any length are shared where rotation depends on it",
        "core/layers/rope_tables.py",
        {
            '    if config.rope_type == "dynamic":\n        return config.max_position_embeddings\n    return _original': "    return _original"
        },
        (f"{CACHE}::test_keys_that_turn_by_the_length_of_their_prompt_are_not_shared[dynamic]",),
    ),
    Mutant(
        "old-keys-under-new-weights",
        "prefixes stay when the weights change",
        "core/runtime/updating.py",
        {"    engine.forget_prefixes()\n": ""},
        (f"{CACHE}::test_new_weights_forget_what_the_old_ones_computed",),
    ),
    Mutant(
        "spoilt-keys-stay",
        "a prefix that holds NaN fails every request to come",
        "core/runtime/choosing.py",
        {"    scheduler.cache.clear()\n": ""},
        (f"{CACHE}::test_spoilt_keys_do_not_stay",),
    ),
    Mutant(
        "preempted-before-evicted",
        "a running request is put back while unused prefixes fill the pool",
        "core/runtime/scheduler.py",
        {"not held and not self.slots.available:": "not held and not self.slots.free_slots:"},
        (f"{CACHE}::test_cached_prefixes_give_way_before_anyone_is_put_back",),
    ),
    Mutant(
        "reserve-gives-all",
        "one missing slot empties the cache",
        "core/runtime/slots.py",
        {
            "self.reserve.evict(count - self.free_slots)": "self.reserve.evict(self.reserve.evictable)"
        },
        (f"{SLOTS}::test_a_reserve_gives_what_is_missing_and_no_more",),
    ),
)
