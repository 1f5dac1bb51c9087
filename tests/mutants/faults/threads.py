"""Faults of threads that share a model, and of what a fork leaves behind."""

from __future__ import annotations

from mutants.mutant import Mutant

THREADS = "tests/runtime/test_threads.py"
FORKS = "tests/runtime/test_forks.py"

MUTANTS = (
    Mutant(
        "whole-calls-take-turns",
        "a call that generates keeps the turn until its end",
        "core/runtime/engine.py",
        {"                if not ready():\n                    turn.pause()\n": ""},
        (f"{THREADS}::test_requests_of_two_threads_are_in_one_forward_batch[False-None]",),
    ),
    Mutant(
        "riders-wait-for-the-driver",
        "a thread whose requests have ended waits until the driver's have",
        "core/runtime/turns.py",
        {"for rider in self._riders if not rider.drives": "for rider in ()"},
        (f"{THREADS}::test_turns_come_in_order_of_arrival",),
    ),
    Mutant(
        "driver-goes-first",
        "the driver steps again before those who wait for their turn",
        "core/runtime/turns.py",
        {"            self._calls.popleft()\n": "            return False\n"},
        (f"{THREADS}::test_turns_come_in_order_of_arrival",),
    ),
    Mutant(
        "draft-error-for-all",
        "what a draft raises reaches the thread that steps",
        "core/runtime/engine.py",
        {"self._step(draft_errors=False)": "self._step()"},
        (f"{THREADS}::test_a_draft_that_fails_ends_its_own_requests_only",),
    ),
    Mutant(
        "put-back-for-ever",
        "slots of a request are taken however little it has come on",
        "core/runtime/scheduler.py",
        {"youngest.num_output <= youngest.put_back_at and not force": "False"},
        (
            "tests/runtime/test_scheduler.py::"
            "test_slots_wanted_outside_cost_a_request_one_turn_for_each_token",
        ),
    ),
    Mutant(
        "child-goes-on-inside-a-step",
        "a child does not notice that another thread was inside of a step",
        "core/runtime/turns.py",
        {"self._calls and self._calls[0].thread != mine": "False"},
        (f"{FORKS}::test_a_fork_while_another_thread_is_in_a_step[sizes0]",),
    ),
)
