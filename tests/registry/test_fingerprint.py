"""Two processes agree exactly when they resolve alike, and a difference is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from registry.sites import Site

from archzoo.registry import Catalog, differences, facts, fingerprint

SCRIPT = """
import json, sys
from archzoo.registry import Catalog, facts, fingerprint
source = Catalog(sys.argv[1:])
print(json.dumps([fingerprint(source), facts(source)]))
"""


def furnish(site: Site) -> Site:
    """Some of everything that the fingerprint is about."""
    names = {f"Zq{letter}": f"zq_{letter}:A" for letter in "cab"}
    site.install("zoo", names, requires=["zq-none; extra == 'x'"], extras=["x"])
    site.install("rival", {"Zqa": "zq_rival:A"})
    site.install("skip", {"ZqSkip": "zq_skip:A"}, requires=["zq-none"])
    site.install("method", {"zq4": "zq_q:Q"}, group="archzoo.quantization")
    (site.folder / "zq_ext.py").write_text("class ZqExt: pass\nEntryClass = ZqExt\n")
    return site


SETTINGS = {
    "disabled": frozenset({"Zqb", "Zqc", "Zqx"}),
    "prefer": (("Zqa", "zoo"),),
    "external": ("zq_ext",),
}


def elsewhere(site: Site, seed: str) -> tuple[str, list[str]]:
    """Fingerprint and facts as another process finds them."""
    environment = {key: value for key, value in os.environ.items() if "ARCHZOO_" not in key}
    environment |= {
        "PYTHONHASHSEED": seed,
        "ARCHZOO_DISABLED_MODEL_ARCHS": "Zqx,Zqc,Zqb",
        "ARCHZOO_PREFER": "Zqa=zoo",
        "ARCHZOO_EXTERNAL_MODEL_PACKAGE": "zq_ext",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(site.folder)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found, lines = json.loads(done.stdout)
    return found, lines


def test_equal_between_processes_and_places(site: Site, other_site: Site) -> None:
    ours = furnish(site).catalog(**SETTINGS)
    for place, seed in ((site, "1"), (furnish(other_site), "2")):
        found, lines = elsewhere(place, seed)
        assert tuple(lines) == facts(ours)
        assert found == fingerprint(ours)
    assert not any(str(site.folder.parent) in line for line in facts(ours))
    assert differences(facts(ours), facts(ours)) == ""


@pytest.fixture
def ours(site: Site) -> Catalog:
    """The catalog that others are compared with."""
    return furnish(site).catalog(**SETTINGS)


def told(ours: Catalog, theirs: Catalog) -> str:
    assert fingerprint(ours) != fingerprint(theirs)
    return differences(facts(ours), facts(theirs))


def test_version_of_a_plugin(ours: Catalog, other_site: Site) -> None:
    info = furnish(other_site).info("rival")
    metadata = info / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 1.1"))
    info.rename(info.with_name("rival-1.1.dist-info"))
    said = told(ours, other_site.catalog(**SETTINGS))
    assert "missing there: archzoo.models Zqa = zq_rival:A of rival 1.0 is overridden" in said
    assert "only there: archzoo.models Zqa = zq_rival:A of rival 1.1 is overridden" in said
    assert "of zoo" not in said and said.count(" of ") == 2


def test_version_of_the_core(ours: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    before = facts(ours)
    monkeypatch.setitem(facts.__globals__, "__version__", "999.1")
    assert "only there: archzoo 999.1" in differences(before, facts(ours))


def test_disabled(ours: Catalog, site: Site) -> None:
    fewer = {**SETTINGS, "disabled": frozenset({"Zqb", "Zqc"})}
    assert told(ours, site.catalog(**fewer)) == "missing there: disabled Zqx"
    more = {**SETTINGS, "disabled": frozenset({"Zqa", "Zqb", "Zqc", "Zqx"})}
    assert "only there: disabled Zqa" in told(ours, site.catalog(**more))


def test_prefer(ours: Catalog, site: Site) -> None:
    said = told(ours, site.catalog(**{**SETTINGS, "prefer": (("", "zoo"),)}))
    assert said == "missing there: prefer Zqa=zoo; only there: prefer *=zoo"


def test_source_of_an_external_package(ours: Catalog, other_site: Site) -> None:
    furnish(other_site)
    with (other_site.folder / "zq_ext.py").open("a") as file:
        file.write("# edited on one host\n")
    said = told(ours, other_site.catalog(**SETTINGS))
    assert said.count("external zq_ext ") == 2 and "archzoo.models" not in said


def test_missing_plugin(ours: Catalog, other_site: Site) -> None:
    info = furnish(other_site).info("method")
    (info / "entry_points.txt").unlink()
    said = told(ours, other_site.catalog(**SETTINGS))
    assert said == "missing there: archzoo.quantization zq4 = zq_q:Q of method 1.0 is ready"


def test_requirement_that_only_one_has(ours: Catalog, other_site: Site) -> None:
    furnish(other_site).install("zq-none")
    said = told(ours, other_site.catalog(**SETTINGS))
    assert "ZqSkip = zq_skip:A of skip 1.0 is skipped (requirement-missing)" in said
    assert "only there: archzoo.models ZqSkip = zq_skip:A of skip 1.0 is ready" in said


def test_list_of_plugins(ours: Catalog, site: Site) -> None:
    said = told(ours, site.catalog(**SETTINGS, plugins=frozenset({"zoo", "skip", "rival"})))
    assert "zq4 = zq_q:Q of method 1.0 is excluded (plugin-not-selected)" in said


def test_hundreds_of_differences_are_counted(ours: Catalog, tmp_path: Path) -> None:
    empty = Site(tmp_path / "empty").catalog()
    said = told(ours, empty)
    assert said.count("missing there: ") == 8
    assert said.endswith(f"and {len(facts(ours)) - len(facts(empty)) - 8} more")


def test_nothing_is_imported(ours: Catalog) -> None:
    before = set(sys.modules)
    assert fingerprint(ours)
    assert not {name for name in set(sys.modules) - before if name.startswith("zq_")}
