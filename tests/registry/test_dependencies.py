"""What a failed import means: an optional dependency, an absent file, another package, a defect."""

from __future__ import annotations

import sys
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import pytest
from registry.sites import Site

from archzoo.errors import MissingDependency, PluginLoadError, RegistryError
from archzoo.registry import ReasonCode, resolve_from

CLASS = "class A: pass\n"


def plug(
    site: Site,
    code: str,
    requires: Sequence[str] = (),
    extras: Sequence[str] = (),
    name: str = "zq-plug",
) -> Site:
    """A plugin whose model runs some code, beside one that a fallback could take."""
    package = name.replace("-", "_")
    files = {f"{package}/__init__.py": "", f"{package}/model.py": code}
    site.install(name, {"ZqA": f"{package}.model:A"}, requires=requires, extras=extras, files=files)
    site.install("other", {"ZqB": "zq_other:A"}, files={"zq_other.py": CLASS})
    return site


def refused(site: Site, error: type[RegistryError]) -> RegistryError:
    """The error of the plugin; the plugin beside it has not been looked at."""
    with pytest.raises(RegistryError) as caught:
        resolve_from(site.catalog(), ["ZqA", "ZqB"])
    assert type(caught.value) is error
    assert "zq_other" not in sys.modules
    return caught.value


def defect(site: Site) -> PluginLoadError:
    error = refused(site, PluginLoadError)
    assert isinstance(error, PluginLoadError) and "zq-plug 1.0" in str(error)
    return error


def missing(site: Site) -> MissingDependency:
    error = refused(site, MissingDependency)
    assert isinstance(error, MissingDependency)
    return error


# --- optional dependencies


@pytest.mark.parametrize(
    ("code", "requires", "requirement", "install"),
    [
        ("import zq_fla", "zq-fla>=2; extra == 'fast'", "zq-fla>=2", "zq-plug[fast]"),
        ("import zq_fla", "zq_fla ; extra == 'Fast'", "zq_fla", "zq-plug[fast]"),
        ("from zq_fla.ops import f", "Zq.Fla[x]; extra == 'fast'", "Zq.Fla[x]", "zq-plug[fast]"),
        ("import zq_fla", "zq-fla; python_version < '3' or extra == 'fast'", "zq-fla", "zq-plug[fast]"),
        ("import zq_mand", "zq-mand<9", "zq-mand<9", "zq-mand<9"),
    ],
)  # fmt: skip
def test_declared_and_not_there(
    live_site: Site, code: str, requires: str, requirement: str, install: str
) -> None:
    live_site.install("zq-mand")  # its metadata is there, and its module is not
    error = missing(plug(live_site, code, [requires], ["fast"]))
    assert error.requirement == requirement
    assert error.feature == "ZqA of zq-plug 1.0"
    assert error.install in (f"pip install '{install}'", f"pip install {install}")
    assert f"run: pip install '{install}'" in str(error)
    assert isinstance(error.__cause__, ModuleNotFoundError)


def test_missing_deep_inside_a_chain_of_imports(live_site: Site) -> None:
    plug(live_site, "from zq_plug.a import A", ["zq-fla; extra == 'fast'"], ["fast"])
    (live_site.folder / "zq_plug" / "a.py").write_text("def f(): import zq_fla\nf()\n")
    assert missing(live_site).requirement == "zq-fla"


def test_missing_when_the_name_is_taken_from_a_lazy_package(live_site: Site) -> None:
    code = "def __getattr__(name):\n    import zq_fla\n"
    assert missing(plug(live_site, code, ["zq-fla; extra == 'f'"], ["f"])).requirement == "zq-fla"


@pytest.mark.parametrize("lazily", [False, True])
def test_plugin_says_so_itself(live_site: Site, lazily: bool) -> None:
    said = "raise MissingDependency('zq attention', 'zq-fla>=2', 'pip install zq-fla')"
    code = f"def __getattr__(name):\n    {said}\n" if lazily else f"{said}\n"
    error = missing(plug(live_site, f"from archzoo.errors import MissingDependency\n{code}"))
    assert error.feature == "zq attention" and error.install == "pip install zq-fla"
    assert error.__notes__ == ["said by zq-plug 1.0, which serves ZqA"]


def test_extra_of_the_entry_point_is_known_before_the_import(live_site: Site) -> None:
    live_site.install("zq-plug", {"ZqA": "zq_plug:A [fast]"}, extras=["fast"],
                      requires=["zq-fla>=2; extra == 'fast'"], files={"zq_plug.py": "1/0"})  # fmt: skip
    with pytest.raises(RegistryError, match="run: pip install 'zq-fla>=2'"):
        resolve_from(live_site.catalog(), "ZqA")
    assert "zq_plug" not in sys.modules


# --- defects


@pytest.mark.parametrize(
    ("code", "requires"),
    [
        ("import zq_nowhere", ["zq-nowhere-else; extra == 'x'"]),
        ("import zq_nowhere", ["zq-nowhere; python_version < '3'"]),  # declared for others
        ("raise ModuleNotFoundError('by hand')", ["zq-x; extra == 'x'"]),
        ("raise ModuleNotFoundError('by hand', name='')", ["zq-x; extra == 'x'"]),
    ],
)
def test_missing_and_not_declared(live_site: Site, code: str, requires: list[str]) -> None:
    error = defect(plug(live_site, code, requires, ["x"]))
    assert error.code == ReasonCode.IMPORT_FAILED
    assert "which zq-plug does not declare" in str(error)
    assert error.fix == "report it to the distribution's author, or uninstall it"
    assert isinstance(error.__cause__, ModuleNotFoundError)


CLASHES = {
    "name": ("from zq_dep import new_name", "ImportError: cannot import name 'new_name'"),
    "submodule": ("import zq_dep.new", "ModuleNotFoundError: No module named 'zq_dep.new'"),
    "attribute": ("import zq_dep\nzq_dep.new()", "AttributeError: module 'zq_dep' has no attr"),
    "argument": ("from zq_dep import f\nf(new=1)", "TypeError: f() got an unexpected keyword"),
    "inside": ("import zq_dep.old", "ImportError: cannot import name 'gone' from 'json'"),
}


@pytest.mark.parametrize("kind", CLASHES)
@pytest.mark.parametrize("marker", ["", "; extra == 'x'"])
def test_version_clash_is_a_defect(live_site: Site, kind: str, marker: str) -> None:
    """The dependency is declared and there: that it has not what is wanted is no missing option."""
    files = {"zq_dep/__init__.py": "def f(): pass\n", "zq_dep/old.py": "from json import gone"}
    live_site.install("zq-dep", files=files)
    code, said = CLASHES[kind]
    error = defect(plug(live_site, code, [f"zq-dep{marker}"], ["x"]))
    assert error.code == ReasonCode.IMPORT_FAILED
    assert said in str(error) and "does not declare" not in str(error)
    assert error.__cause__ is not None and type(error.__cause__).__name__ in said


def test_own_name_in_an_extra_is_no_dependency(live_site: Site) -> None:
    """``zq-plug[all]`` may ask for ``zq-plug[fast]``; its own missing file is its own defect."""
    site = plug(live_site, "import zq_plug.helpers", ["zq-plug[fast]; extra == 'all'"], ["all"])
    assert defect(site).code == ReasonCode.IMPORT_FAILED


def test_another_plugins_failure_inside_an_import_names_the_one_asked_for(live_site: Site) -> None:
    code = "import archzoo.registry as r\nr.resolve('ZqDeep')\n"
    plug(live_site, code)
    live_site.install("deep", {"ZqDeep": "zq_deep:A"}, files={"zq_deep.py": "1/0"})
    error = defect(live_site)
    assert isinstance(error.__cause__, PluginLoadError)
    assert "of deep 1.0 cannot be loaded: ZeroDivisionError" in str(error)


# --- files


def test_missing_file(live_site: Site) -> None:
    plug(live_site, CLASS)
    (live_site.folder / "zq_plug" / "model.py").unlink()
    error = defect(live_site)
    assert error.code == ReasonCode.MODULE_MISSING
    assert "its module zq_plug.model is not there" in str(error)
    assert error.fix == "run: pip install --force-reinstall zq-plug"


def test_missing_file_that_the_record_lists(live_site: Site) -> None:
    plug(live_site, "from zq_plug import layers, helpers\n" + CLASS)
    (live_site.info("zq-plug") / "RECORD").write_text(
        'zq_plug/__init__.py,,\nzq_plug/model.py,,\n"zq_plug/layers.py",,\n'
    )
    (live_site.folder / "zq_plug" / "model.py").write_text("import zq_plug.layers\n" + CLASS)
    error = defect(live_site)
    assert error.code == ReasonCode.MODULE_MISSING
    assert "its module zq_plug.layers is not there" in str(error)


@pytest.fixture
def before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live_site: Site) -> Iterator[Path]:
    """A folder that is searched before the site; what came from it is forgotten afterwards."""
    folder = tmp_path / "before"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "zq_plug"]:
        del sys.modules[name]


def recorded(site: Site, code: str = CLASS) -> Site:
    plug(site, code)
    (site.info("zq-plug") / "RECORD").write_text("zq_plug/__init__.py,,\nzq_plug/model.py,,\n")
    return site


SHADOWS = {
    "no_module": {"zq_plug/__init__.py": ""},
    "plain_module": {"zq_plug.py": ""},
    "no_class": {"zq_plug/__init__.py": "", "zq_plug/model.py": ""},
    "raises": {"zq_plug/__init__.py": "1/0"},
    "syntax": {"zq_plug.py": "def ("},
    "exits": {"zq_plug.py": "raise SystemExit"},
}


@pytest.mark.parametrize("kind", SHADOWS)
def test_shadowed_package_names_the_two_files(live_site: Site, before: Path, kind: str) -> None:
    for relative, text in SHADOWS[kind].items():
        (before / relative).parent.mkdir(exist_ok=True)
        (before / relative).write_text(text)
    first = before / next(iter(SHADOWS[kind]))
    error = defect(recorded(live_site))
    assert error.code == ReasonCode.MODULE_SHADOWED
    own = live_site.folder / "zq_plug" / "__init__.py"
    assert f"package zq_plug is imported from {first}, which hides {own}" in str(error)
    assert error.fix.startswith("rename or uninstall")
    assert error.__cause__ is not None


def test_class_from_a_package_that_hides_the_plugin_is_told(live_site: Site, before: Path) -> None:
    (before / "zq_plug").mkdir()
    for name in ("__init__.py", "model.py"):
        (before / "zq_plug" / name).write_text(CLASS)
    with pytest.warns(UserWarning, match="ZqA = zq_plug.model:A of zq-plug 1.0: .*hides") as told:
        found = resolve_from(recorded(live_site).catalog(), "ZqA")
    assert str(before) in str(told[0].message) and found.__module__ == "zq_plug.model"
    assert told[0].filename == __file__


def test_class_that_another_plugin_wrote_over_is_refused(live_site: Site) -> None:
    """Two wheels with one package: pip lets the later one replace the files of the earlier."""
    for name, code in (("zq-plug", CLASS), ("zq-thief", "class A: stolen = True\n")):
        path = "zq_plug.py"
        digest = urlsafe_b64encode(sha256(code.encode()).digest()).decode().rstrip("=")
        live_site.install(name, {f"{name}Model": "zq_plug:A"}, files={path: code})
        (live_site.info(name) / "RECORD").write_text(f"{path},sha256={digest},{len(code)}\n")
    with pytest.raises(PluginLoadError, match="zq-thief 1.0 wrote over it") as caught:
        resolve_from(live_site.catalog(), "zq-plugModel")
    assert caught.value.code == ReasonCode.MODULE_SHADOWED
    assert resolve_from(live_site.catalog(), "zq-thiefModel").stolen


def test_nothing_is_told_of_a_package_in_its_place(live_site: Site) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve_from(recorded(live_site).catalog(), "ZqA")


def test_a_value_whose_repr_raises(live_site: Site) -> None:
    code = "class B:\n    def __repr__(self): raise OSError\nA = B()\n"
    error = defect(plug(live_site, code))
    assert error.code == ReasonCode.NOT_A_CLASS and "not a class" in str(error)
