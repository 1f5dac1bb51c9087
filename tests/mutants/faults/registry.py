"""Faults of choosing who serves a name: conflicts, settings, fall-backs, memory, agreement."""

from __future__ import annotations

from mutants.mutant import Mutant

DECISION = "core/registry/decision.py"
FINGERPRINT = "core/registry/fingerprint.py"
INDEX = "core/registry/index.py"
INSTALLATION = "core/registry/installation.py"
RESOLUTION = "core/registry/resolution.py"
SETTINGS = "core/settings.py"

AGREEMENT_TESTS = "tests/runtime/test_agreement.py"
CONFLICTS = "tests/registry/test_conflicts.py"
FINGERPRINT_TESTS = "tests/registry/test_fingerprint.py"
RESCANS = "tests/registry/test_rescans.py"
RESOLUTION_TESTS = "tests/registry/test_resolution.py"
SETTINGS_TESTS = "tests/test_settings.py"
SWITCHING_OFF = "tests/registry/test_switching_off.py"
TOMBSTONES = "tests/registry/test_tombstones.py"

MUTANTS = (
    Mutant(
        "one-of-two-claimants-served",
        "two plugins claim a name and the first by name serves, silently",
        DECISION,
        {"if len(contenders) > 1:": "if len(contenders) > len(candidates):"},
        (
            f"{CONFLICTS}::test_no_later_name_is_tried",
            f"{RESOLUTION_TESTS}::test_conflict_names_both_and_the_choice",
        ),
    ),
    Mutant(
        "skipped-claim-contests-nothing",
        "which class serves depends on what a rival's requirements find installed",
        DECISION,
        {"(ProviderState.READY, ProviderState.SKIPPED)": "(ProviderState.READY,)"},
        (f"{RESOLUTION_TESTS}::test_a_skipped_claim_still_contests",),
    ),
    Mutant(
        "skipped-falls-through",
        "a provider that is skipped gives way to the next name of the list",
        DECISION,
        {"if candidates:": "if any(each.state is ProviderState.READY for each in candidates):"},
        (f"{RESOLUTION_TESTS}::test_skipped_never_falls_through",),
    ),
    Mutant(
        "disabled-falls-through",
        "a name that is switched off gives way to the next of the list",
        DECISION,
        {
            "            setting = source.settings.disabled_by\n": (
                "            if len(asked) > 1:\n                continue\n"
                "            setting = source.settings.disabled_by\n"
            )
        },
        (f"{SWITCHING_OFF}::test_by_variable",),
    ),
    Mutant(
        "names-out-of-order",
        "the names of a checkpoint tried in the order of the alphabet",
        DECISION,
        {"for name in asked:": "for name in sorted(asked):"},
        (f"{RESOLUTION_TESTS}::test_names_are_tried_in_order",),
    ),
    Mutant(
        "choice-of-a-stranger-ignored",
        "the user chose somebody who does not claim the name, and another one serves it",
        DECISION,
        {"if chosen and chosen not in": "if len(candidates) > 1 and chosen and chosen not in"},
        (f"{CONFLICTS}::test_choice_of_one_who_does_not_claim_it",),
    ),
    Mutant(
        "told-to-install-what-is-there",
        "a plugin too old for the name: the advice is the command that changes nothing",
        DECISION,
        {"if home and home not in enabled:": "if home:"},
        (f"{TOMBSTONES}::test_a_home_that_is_installed_is_not_told_to_install",),
    ),
    Mutant(
        "disabled-by-substring",
        "switching off one architecture switches off those that contain its name",
        INDEX,
        {"name in self.settings.disabled:": "any(s in name for s in self.settings.disabled):"},
        ("tests/registry/test_index.py::test_disabled_names_are_exact",),
    ),
    Mutant(
        "general-choice-beats-the-exact-one",
        "a distribution preferred for everything takes a name given to another",
        INDEX,
        {
            "        if exact:\n": "        if exact and not claimants & self.settings.preferred():\n"
        },
        (f"{CONFLICTS}::test_exact_choice_outranks_the_general_one",),
    ),
    Mutant(
        "two-general-choices-choose",
        "two distributions are preferred, both claim the name, and one is taken",
        INDEX,
        {
            "return preferred.pop() if len(preferred) == 1 and len(claimants) > 1": (
                "return min(preferred) if preferred and len(claimants) > 1"
            )
        },
        (f"{CONFLICTS}::test_two_general_choices_choose_nothing",),
    ),
    Mutant(
        "external-package-overrides",
        "a package that a variable names replaces an installed plugin without the user's word",
        INDEX,
        {
            "self._add(Group.MODELS, Claim(entry, package.name, Origin.EXTERNAL))": (
                "self._claims[Group.MODELS][entry.name] = "
                "[Claim(entry, package.name, Origin.EXTERNAL)]"
            )
        },
        (
            "tests/registry/test_external_resolution.py::"
            "test_override_of_an_installed_plugin_needs_the_users_word",
        ),
    ),
    Mutant(
        "reserved-name-taken",
        "a plugin's attention backend is served as archzoo's own",
        INDEX,
        {"if entry.name in RESERVED.get(group, ()):": "if entry.name in RESERVED:"},
        ("tests/registry/test_named.py::test_archzoos_own_name_is_reserved",),
    ),
    Mutant(
        "skipped-method-counts-as-none",
        "a quantization plugin lacks a requirement, and it is as if it were not installed",
        "core/registry/named.py",
        {"is Verdict.UNKNOWN:": "is not Verdict.CONTESTED:"},
        ("tests/registry/test_named.py::test_skipped_says_what_to_install",),
    ),
    Mutant(
        "strict-variable-ignored",
        "ARCHZOO_STRICT=1 has no effect",
        RESOLUTION,
        {"if source.settings.strict if strict is None else strict:": "if strict:"},
        (f"{RESOLUTION_TESTS}::TestStrict::test_on_names_every_fault",),
    ),
    Mutant(
        "strict-passes-over-skips",
        "strict mode looks at what is broken only",
        RESOLUTION,
        {
            "_UNABLE = (ProviderState.SKIPPED, ProviderState.BROKEN)": (
                "_UNABLE = (ProviderState.BROKEN,)"
            )
        },
        (f"{RESOLUTION_TESTS}::TestStrict::test_on_names_every_fault",),
    ),
    Mutant(
        "settings-that-match-nothing-untold",
        "a typing error in the list of disabled names goes unnoticed",
        RESOLUTION,
        {"    _warn_of_settings(source)\n": ""},
        (
            f"{SWITCHING_OFF}::test_a_name_that_matches_nothing_is_warned_about_whoever_serves",
            f"{CONFLICTS}::test_choice_that_matches_nothing_is_warned_about",
        ),
    ),
    Mutant(
        "every-miss-scans",
        "asking for what is not there reads all metadata each time",
        RESOLUTION,
        {"if source.installation.is_stale() and decide(": "if decide("},
        (f"{RESCANS}::test_a_miss_scans_again_once_and_only_for_a_change",),
    ),
    Mutant(
        "second-resolve-scans",
        "nothing is remembered between two questions",
        INSTALLATION,
        {"@lru_cache(maxsize=8)": "@lru_cache(maxsize=0)"},
        (
            f"{RESCANS}::test_one_scan_for_every_way_to_ask",
            "tests/registry/test_index.py::test_second_resolve_scans_nothing",
        ),
    ),
    Mutant(
        "tombstone-of-a-plugin-first",
        "a plugin says what to install for a name that archzoo ships an answer for",
        INSTALLATION,
        {"known.setdefault(entry.name, ": "known.__setitem__(entry.name, "},
        (f"{TOMBSTONES}::test_extended_by_a_plugin",),
    ),
    Mutant(
        "alias-beats-own-variable",
        "SGLang's variable read although archzoo's own is set",
        SETTINGS,
        {"if variable not in source and alias in source:": "if alias in source:"},
        (f"{SETTINGS_TESTS}::test_own_variable_outranks_the_alias_even_when_empty",),
    ),
    Mutant(
        "empty-allow-list-is-all",
        "ARCHZOO_PLUGINS= lets every plugin in",
        SETTINGS,
        {"plugins=None if plugins is None else": "plugins=None if not plugins else"},
        (
            f"{SETTINGS_TESTS}::test_plugins_unset_is_all_and_empty_is_none",
            f"{SWITCHING_OFF}::test_empty_list_of_plugins_is_none",
        ),
    ),
    Mutant(
        "argument-replaces-the-variable",
        "disabled= switches on again what the operator has switched off",
        SETTINGS,
        {"disabled=self.disabled | named": "disabled=named"},
        (
            f"{SWITCHING_OFF}::test_argument_adds_to_the_variable",
            f"{SETTINGS_TESTS}::test_a_callers_words_are_added",
        ),
    ),
    Mutant(
        "variable-beats-the-argument",
        "prefer= has no effect where ARCHZOO_PREFER names the same architecture",
        SETTINGS,
        {
            "tuple(pair for pair in self.prefer if pair[0] not in prefer)": "self.prefer",
            "prefer=asked + kept": "prefer=kept + asked",
        },
        (f"{CONFLICTS}::test_choice_by_argument_outranks_the_variable",),
    ),
    Mutant(
        "fingerprint-without-settings",
        "ranks with other disabled names or choices count as equal",
        FINGERPRINT,
        {
            '    lines += [f"disabled {name}" for name in settings.disabled]\n': "",
            """    lines += [f"prefer {name or '*'}={chosen}" for name, chosen in settings.prefer]\n""": "",
        },
        (f"{FINGERPRINT_TESTS}::test_disabled", f"{FINGERPRINT_TESTS}::test_prefer"),
    ),
    Mutant(
        "fingerprint-without-versions",
        "ranks with another version of a plugin count as equal",
        FINGERPRINT,
        {"of {provider.label} ": "of {provider.distribution} "},
        (
            f"{FINGERPRINT_TESTS}::test_version_of_a_plugin",
            f"{AGREEMENT_TESTS}::test_a_version_that_differs_is_named",
        ),
    ),
    Mutant(
        "fingerprint-without-sources",
        "ranks whose external package was edited on one host count as equal",
        FINGERPRINT,
        {"external {each.name} {each.digest[:16]}": "external {each.name}"},
        (f"{FINGERPRINT_TESTS}::test_source_of_an_external_package",),
    ),
    Mutant(
        "different-ranks-go-on",
        "one rank that agrees with rank 0, itself, is enough",
        "core/runtime/agreement.py",
        {"if all(each == prints[0]": "if any(each == prints[0]"},
        (f"{AGREEMENT_TESTS}::test_a_version_that_differs_is_named",),
    ),
)
