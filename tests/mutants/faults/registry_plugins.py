"""Faults of reading and loading plugins: metadata, requirements, imports, external code, hooks."""

from __future__ import annotations

from mutants.mutant import Mutant

LOADING = "core/registry/loading.py"
NEEDS = "core/registry/needs.py"
REQUIREMENTS = "core/registry/requirements.py"
SCAN = "core/registry/scan.py"

DEPENDENCIES = "tests/registry/test_dependencies.py"
EXTERNAL = "tests/registry/test_external_resolution.py"
HOOKS = "tests/registry/test_hooks.py"
REQUIREMENT_TESTS = "tests/registry/test_requirements.py"
SCAN_TESTS = "tests/registry/test_scan.py"

MUTANTS = (
    Mutant(
        "shadowed-copy-wins",
        "of two copies on the path the later one counts, and imports take the first",
        SCAN,
        {"place = sources[0].place": "place = sources[-1].place"},
        (
            f"{SCAN_TESTS}::test_first_copy_counts_even_without_entry_points",
            f"{SCAN_TESTS}::test_a_copy_elsewhere_on_the_path_is_no_fault",
        ),
    ),
    Mutant(
        "installed-twice-by-spelling",
        "after an interrupted upgrade 9.0 is believed and not 10.0",
        SCAN,
        {"key=_version_key)": "key=lambda source: source.name)"},
        (f"{SCAN_TESTS}::test_two_metadata_folders_in_one_place",),
    ),
    Mutant(
        "not-utf8-is-sound",
        "metadata that is not UTF-8 read with replaced letters and believed",
        SCAN,
        {', _invalid(f"its {filename} is not UTF-8")': ", None"},
        (f"{SCAN_TESTS}::test_broken_distribution_is_told_and_hides_no_other",),
    ),
    Mutant(
        "first-of-two-targets",
        "a name listed twice in one file is served by its first target",
        "core/registry/entries.py",
        {"if first != entry:": "if first.name != entry.name:"},
        (
            "tests/registry/test_entries.py::"
            "test_exact_repeat_is_one_entry_and_another_target_a_fault",
        ),
    ),
    Mutant(
        "extra-not-required",
        "what the extra of an entry point needs is not looked for",
        REQUIREMENTS,
        {'for extra in ("", *extras)]': 'for extra in ("",)]'},
        (
            f"{REQUIREMENT_TESTS}::test_extra_of_the_entry_point",
            f"{DEPENDENCIES}::test_extra_of_the_entry_point_is_known_before_the_import",
        ),
    ),
    Mutant(
        "core-range-ignored",
        "a plugin built for another archzoo is served",
        REQUIREMENTS,
        {
            "and need.allows(installed.version):": (
                "and (normalised(need.name) == _CORE or need.allows(installed.version)):"
            )
        },
        (f"{REQUIREMENT_TESTS}::test_core_range_is_that_of_the_running_core",),
    ),
    Mutant(
        "core-version-of-its-metadata",
        "stale metadata of another archzoo stands for the one that runs",
        REQUIREMENTS,
        {
            "(found or Installed(_CORE))._replace(version=__version__, fault=None)": (
                "found or Installed(_CORE, __version__)"
            )
        },
        (f"{REQUIREMENT_TESTS}::test_core_range_is_that_of_the_running_core",),
    ),
    Mutant(
        "requirement-that-cannot-be-read-passes",
        "a requirement nobody can parse counts as met",
        REQUIREMENTS,
        {"                    reasons[_unreadable(owner, line)] = None\n": ""},
        (f"{SCAN_TESTS}::test_broken_distribution_is_told_and_hides_no_other",),
    ),
    Mutant(
        "pre-release-is-not-installed",
        "2.0rc1 does not meet >=1.5",
        NEEDS,
        {"prereleases=True)": "prereleases=False)"},
        (f"{REQUIREMENT_TESTS}::test_unusual_versions_count_by_their_order",),
    ),
    Mutant(
        "versions-compared-as-text",
        "1.10 comes before 1.9",
        NEEDS,
        {
            "[int(part) for part in version.split": (
                '[str(int(part)) if int(part) else "" for part in version.split'
            )
        },
        (
            "tests/registry/test_needs.py::"
            "test_plain_ranges_are_compared_as_packaging_compares_them",
        ),
    ),
    Mutant(
        "optional-counts-as-mandatory",
        "a requirement of an extra nobody asked for keeps the plugin from serving",
        NEEDS,
        {"return self.extra == extra": "return not extra or self.extra == extra"},
        (f"{REQUIREMENT_TESTS}::test_met",),
    ),
    Mutant(
        "every-missing-module-is-optional",
        "an import that misses what nobody declared is told as an optional dependency",
        LOADING,
        {
            "declared = declared_as(plugin.installed, missing) if plugin and": (
                'declared = declared_as(plugin.installed, missing) or (missing, "pip") if plugin and'
            )
        },
        (f"{DEPENDENCIES}::test_missing_and_not_declared",),
    ),
    Mutant(
        "neighbours-imported-too",
        "asking for one architecture imports the modules of all that the plugin offers",
        LOADING,
        {
            "        module = import_module(provider.module)\n": (
                "        for each in source.providers():\n"
                "            if each.distribution == provider.distribution:\n"
                "                import_module(each.module)\n"
                "        module = import_module(provider.module)\n"
            )
        },
        ("tests/registry/test_resolution.py::test_imports_exactly_one_plugin_module",),
    ),
    Mutant(
        "displaced-class-served",
        "a class out of another package of that name is served, silently",
        LOADING,
        {"    _refuse_if_displaced(provider, source)\n    return": "    return"},
        (
            f"{DEPENDENCIES}::test_class_from_a_package_that_hides_the_plugin_is_told",
            f"{DEPENDENCIES}::test_class_that_another_plugin_wrote_over_is_refused",
        ),
    ),
    Mutant(
        "record-not-compared",
        "a file is taken for the plugin's own whatever its content",
        "core/registry/shadowing.py",
        {"if not recorded:\n": "if recorded:\n"},
        (f"{DEPENDENCIES}::test_class_that_another_plugin_wrote_over_is_refused",),
    ),
    Mutant(
        "undecided-module-imported-early",
        "an external module that does not tell is imported although another one is asked for",
        "core/registry/external.py",
        {"undecided[module] = None": "undecided[module] = __import__(module) and None"},
        (f"{EXTERNAL}::test_undecided_modules_are_imported_only_on_a_miss",),
    ),
    Mutant(
        "first-of-two-external-modules",
        "two modules of a package claim one name and the first serves",
        "core/registry/external_claims.py",
        {"first._replace(fault=first.fault or fault)": "first._replace(fault=first.fault)"},
        (
            "tests/registry/test_external.py::test_two_modules_that_claim_one_architecture",
            f"{EXTERNAL}::test_two_modules_that_contradict_are_a_broken_claim",
        ),
    ),
    Mutant(
        "maybe-counts-as-always",
        "what only one branch of an external module binds is believed",
        "core/registry/external_claims.py",
        {"if len(bound) != 1 or not bound[0].always or": "if len(bound) != 1 or"},
        ("tests/registry/test_external.py::test_undecided",),
    ),
    Mutant(
        "exit-swallowed",
        "an external package that exits while it is imported is as if it were not named",
        "core/registry/late.py",
        {
            "        except (Exception, SystemExit) as error:\n": (
                "        except SystemExit:\n            continue\n"
                "        except Exception as error:\n"
            )
        },
        (f"{EXTERNAL}::test_package_that_does_not_import",),
    ),
    Mutant(
        "hook-beats-metadata",
        "what a hook says of the first name comes before what metadata says of the second",
        "core/registry/resolution.py",
        {"decision = decide(source, names)\n": "decision = decide(source, names[:1])\n"},
        (f"{EXTERNAL}::test_hooks_are_asked_only_on_a_miss_and_never_override",),
    ),
    Mutant(
        "hooks-replace-what-cannot-serve",
        "hooks are asked for a name whose own provider is skipped or switched off",
        "core/registry/resolution.py",
        {"if decision.verdict is not Verdict.UNKNOWN:": "if decision.verdict is None:"},
        (f"{EXTERNAL}::test_hooks_do_not_replace_what_cannot_serve",),
    ),
    Mutant(
        "observer-sees-everybody",
        "a plugin observes models of others without the user's word",
        "core/registry/hook_plugins.py",
        {"if entry.key == serving or": "if serving or"},
        (
            f"{HOOKS}::test_an_observer_sees_its_own_distributions_models",
            f"{HOOKS}::test_everywhere_is_the_users_word",
        ),
    ),
    Mutant(
        "unready-hooks-loaded",
        "hooks run although a requirement of their plugin is not met",
        "core/registry/hook_entry.py",
        {"return not self.reasons and self.entry.fault is None": "return self.entry.fault is None"},
        (f"{HOOKS}::test_an_unready_plugin_is_not_loaded",),
    ),
    Mutant(
        "interrupt-contained",
        "the user's interrupt becomes a record beside the faults of hooks",
        "core/registry/hook_entry.py",
        {"CONTAINED = (Exception, SystemExit)": "CONTAINED = (BaseException,)"},
        (f"{HOOKS}::test_an_interrupt_passes",),
    ),
)
