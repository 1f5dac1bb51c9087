"""What the source of an external package claims, and what an imported module does."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from archzoo.errors import RegistryError
from archzoo.registry import ReasonCode
from archzoo.registry.entries import Entry
from archzoo.registry.external import ExternalPackage, declared_by, read_package

EXIT = "import os\nos._exit(3)\n"  # importing what holds it would end the test run
Read = Callable[..., ExternalPackage]


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Read]:
    """Lay out ``pkg`` of files (``__init__`` exits, if not given) and read it."""
    before = set(sys.modules)

    def lay_out(files: dict[str, str], name: str = "pkg") -> ExternalPackage:
        for relative, text in {"__init__.py": EXIT, **files}.items():
            path = tmp_path / "pkg" / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return read_package(name, [str(tmp_path)])

    yield lay_out
    assert not [name for name in set(sys.modules) - before if name.partition(".")[0] == "pkg"]


def claims(package: ExternalPackage) -> dict[str, str]:
    assert not [entry for entry in package.entries if entry.fault]
    return {entry.name: f"{entry.module}:{entry.attr}" for entry in package.entries}


def module_of(body: str) -> dict[str, str]:
    return {"m.py": f"from elsewhere import Base\nclass A(Base): ...\nclass B(Base): ...\n{body}\n"}


# ------------------------------------------------------------------ forms that can be read


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("EntryClass = A", {"A": "A"}),
        ("EntryClass = [A, B]", {"A": "A", "B": "B"}),
        ("EntryClass = (B,)", {"B": "B"}),
        ("EntryClass = []", {}),
        ("EntryClass: type = A", {"A": "A"}),
        ("EntryClass: list[type]\nEntryClass = [A, A]", {"A": "A"}),
        ("Other = EntryClass = A", {"A": "A"}),
        ("Alias = A\nEntryClass = Alias", {"A": "A"}),
        ("if True:\n  class C: ...\nEntryClass = C", {"C": "C"}),
        ("@decorated\nclass C: ...\nEntryClass = C", {"C": "C"}),
        ("EntryClass = Base", {"Base": "Base"}),
        ("from outside.x import Foo as Bar\nEntryClass = Bar", {"Foo": "Bar"}),
        ("from outside import Foo as EntryClass", {"Foo": "EntryClass"}),
        ("import outside.x\nEntryClass = outside.x.Foo", {"Foo": "outside.x.Foo"}),
        ("import outside.x as o\nEntryClass = [o.Foo]", {"Foo": "o.Foo"}),
        ("ARCHITECTURES = {}", {}),
        ("ARCHITECTURES = {'X': A, 'Y': 'B'}", {"X": "A", "Y": "B"}),
        ("ARCHITECTURES: dict = {'X': 'Outer.Inner'}", {"X": "Outer.Inner"}),
        ("ARCHITECTURES = {'X': A, 'X': 'A'}", {"X": "A"}),
        ("EntryClass = A\nARCHITECTURES = {'X': B}", {"A": "A", "X": "B"}),
        ("from elsewhere import *\nEntryClass = A", {"A": "A"}),
        ("EntryClass = A\nprint(EntryClass, EntryClass.x())", {"A": "A"}),
        ("EntryClass = [A]\nfor c in EntryClass: print(c)", {"A": "A"}),
        ("EntryClass = A\n# EntryClass.append(B)", {"A": "A"}),
        ("EntryClass = A\n'\\d'", {"A": "A"}),  # an invalid escape warns when it is parsed
    ],
)
def test_readable(body: str, expected: dict[str, str], read: Read) -> None:
    package = read(module_of(body))
    assert claims(package) == {name: f"pkg.m:{attr}" for name, attr in expected.items()}
    assert not package.undecided and not package.faults


@pytest.mark.parametrize(
    "body",
    [
        "EntryClass = make()",
        "EntryClass = [A] + [B]",
        "EntryClass = [c for c in (A, B)]",
        "EntryClass = [A, *others]",
        "EntryClass = [A, make()]",
        "EntryClass = [[A]]",
        "EntryClass = {A}",
        "EntryClass = None",
        "EntryClass = 'A'",
        "EntryClass = missing",
        "EntryClass = Base if x else A",
        "EntryClass, other = A, B",
        "EntryClass = A\nEntryClass = B",
        "EntryClass = A\ndel EntryClass",
        "EntryClass = [A]\nEntryClass += [B]",
        "EntryClass = [A]\nEntryClass.append(B)",
        "EntryClass = [A]\nif x:\n  EntryClass.extend([B])",
        "EntryClass = [A]\nEntryClass[0] = B",
        "EntryClass = [A]\ndel EntryClass[0]",
        "EntryClass = A\ndef f():\n  global EntryClass\n  EntryClass = B",
        "if x:\n  EntryClass = A",
        "try:\n  EntryClass = A\nexcept E:\n  pass",
        "try: pass\nexcept E:\n  EntryClass = A",
        "for EntryClass in (A, B): pass",
        "for x in y:\n  EntryClass = A",
        "with x as EntryClass: pass",
        "while x:\n  if y:\n    EntryClass = A",
        "match x:\n  case 1:\n    EntryClass = A",
        "if (EntryClass := A): pass",
        "x = (EntryClass := A)",
        "def EntryClass(): pass",
        "import EntryClass",
        "from outside import EntryClass",
        "from .absent import EntryClass",
        "from .... import EntryClass",
        "from .m import EntryClass",
        "from .absent import Foo\nEntryClass = Foo",
        "from . import absent\nEntryClass = absent.Foo",
        "import outside\nEntryClass = outside",
        "def A2(): pass\nEntryClass = A2",
        "A = wrap(A)\nEntryClass = A",
        "try:\n  from x import C\nexcept E:\n  C = None\nEntryClass = C",
        "from outside import *\nEntryClass = FromStar",
        "Loop = Pool\nPool = Loop\nEntryClass = Loop",
        "Grow = Grow.x\nEntryClass = Grow",
        "EntryClass = EntryClass",
        "EntryClass = A.Inner",
        "ARCHITECTURES = dict(X=A)",
        "ARCHITECTURES = {**other}",
        "ARCHITECTURES = {'X': A, **other}",
        "ARCHITECTURES = {NAME: A}",
        "ARCHITECTURES = {3: A}",
        "ARCHITECTURES = {'': A}",
        "ARCHITECTURES = {'X': 3}",
        "ARCHITECTURES = {'X': make()}",
        "ARCHITECTURES = {n: A for n in names}",
        "ARCHITECTURES = [A]",
        "ARCHITECTURES = A",
        "TEXT = '.m:A'\nARCHITECTURES = {'X': TEXT}",
        "ARCHITECTURES = {}\nARCHITECTURES['X'] = A",
        "ARCHITECTURES = {}\nARCHITECTURES.update(X=A)",
        "ARCHITECTURES = {}\ndef f(c):\n  ARCHITECTURES[c.__name__] = c\n  return c",
        "ARCHITECTURES = {}\nclass C:\n  ARCHITECTURES.setdefault('X', A)",
    ],
)
def test_undecided(body: str, read: Read) -> None:
    package = read(module_of(body))
    assert (package.entries, package.undecided, package.faults) == ((), ("pkg.m",), ())


@pytest.mark.parametrize(
    "body",
    [
        "",
        "from outside import *",
        "EntryClass: type",
        "__all__ = ['EntryClass']",
        "class X:\n  EntryClass = A",
        "def f():\n  EntryClass = []\n  EntryClass.append(A)\n  return EntryClass",
        "# EntryClass = A",
        "'''\nEntryClass = A\n'''",
        "x.EntryClass = A",
        "MyEntryClass = A",
        "from outside import EntryClass as E",
        "print(module.EntryClass, ARCHITECTURES)",
    ],
)
def test_declares_nothing(body: str, read: Read) -> None:
    files = module_of(body)
    alone = read(files)
    assert (alone.entries, alone.undecided, alone.faults) == ((), ("pkg",), ())
    beside = read({**files, "n.py": "class N: ...\nEntryClass = N"})
    assert claims(beside) == {"N": "pkg.n:N"} and beside.undecided == ()


def test_one_readable_and_one_undecided_variable_in_a_module(read: Read) -> None:
    package = read(module_of("EntryClass = A\nARCHITECTURES = make()"))
    assert claims(package) == {"A": "pkg.m:A"} and package.undecided == ("pkg.m",)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        (".x:Foo", "pkg.sub.x:Foo"), ("..x:Foo", "pkg.x:Foo"), (".:Foo", "pkg.sub:Foo"),
        ("other.x:Foo.Bar", "other.x:Foo.Bar"), ("Foo", "pkg.sub.m:Foo"),
    ],
)  # fmt: skip
def test_targets_as_text(text: str, target: str, read: Read) -> None:
    files = {"sub/__init__.py": EXIT, "sub/m.py": f"ARCHITECTURES = {{'X': {text!r}}}"}
    assert claims(read(files)) == {"X": target}


@pytest.mark.parametrize(
    "text", ["", ":", "Foo:", ":Foo", "a b:Foo", "x:Foo:Bar", "....x:Foo", "x:Foo()", "a-b:Foo",
             "x:1Foo", "../x:Foo", "x:Foo [extra]", "x\0:Foo"],
)  # fmt: skip
def test_a_bad_target_costs_only_its_key(text: str, read: Read) -> None:
    package = read({"m.py": f"ARCHITECTURES = {{'X': {text!r}, 'Y': 'Foo'}}"})
    bad, good = package.entries
    assert bad.name == "X" and bad.module == bad.attr == ""
    assert bad.fault is not None and bad.fault.code is ReasonCode.ENTRY_POINT_INVALID
    assert "pkg.m" in bad.fault.problem and "'X'" in bad.fault.problem
    assert good == Entry("Y", "pkg.m", "Foo")


# ------------------------------------------------------------------ the shape of the package


def test_init_modules_and_sub_packages_at_any_depth(read: Read) -> None:
    package = read(
        {
            "__init__.py": "class Top: ...\nEntryClass = Top\n" + EXIT,
            "one.py": "class One: ...\nEntryClass = One\n" + EXIT,
            "sub/__init__.py": EXIT,
            "sub/deep/two.py": "class Two: ...\nEntryClass = Two\n" + EXIT,
        }
    )
    assert claims(package) == {
        "Top": "pkg:Top",
        "One": "pkg.one:One",
        "Two": "pkg.sub.deep.two:Two",
    }


def test_a_sub_package_or_a_plain_module_named_by_itself(read: Read) -> None:
    files = {
        "top.py": "class T: ...\nEntryClass = T",
        "llms/__init__.py": EXIT,
        "llms/a.py": "from ..top import T\nfrom .b import B\nEntryClass = [T, B]",
        "llms/b.py": "class B: ...",
    }
    sub = read(files, "pkg.llms")
    assert sub.name == "pkg.llms"
    assert claims(sub) == {"T": "pkg.llms.a:T", "B": "pkg.llms.b:B"}
    assert claims(read(files, "pkg.top")) == {"T": "pkg.top:T"}
    assert read(files, "pkg.llms.b").undecided == ("pkg.llms.b",)


def test_a_top_level_module_with_a_relative_target(tmp_path: Path) -> None:
    (tmp_path / "pkg_flat.py").write_text(
        "from . import x\nclass A: ...\nEntryClass = A\nARCHITECTURES = {'X': '.x:A', 'Y': A}"
    )
    good, bad, other = read_package("pkg_flat", [str(tmp_path)]).entries
    assert (good, other) == (Entry("A", "pkg_flat", "A"), Entry("Y", "pkg_flat", "A"))
    assert bad.name == "X" and bad.fault is not None


def test_names_are_followed_through_the_package(read: Read) -> None:
    package = read(
        {
            "__init__.py": "from .models import Foo as F, bar\nimport pkg.baz\nimport pkg.qux as q\n"
            "EntryClass = [F, bar.Bar, pkg.baz.Baz, q.Alias]\n",
            "models/__init__.py": "from .foo import Foo\nfrom . import bar\n",
            "models/foo.py": "class Foo: ...\n",
            "models/bar.py": "Bar = _Bar = None\nclass _B: ...\n".replace("Bar = _Bar = None\n", "")
            + "Bar = _B\n",
            "baz.py": "from outside import Real as Baz\n",
            "qux.py": "class Qux: ...\nAlias = Qux\n",
        }
    )
    assert claims(package) == {
        "Foo": "pkg.models.foo:Foo", "_B": "pkg.models.bar:_B", "Real": "pkg.baz:Baz",
        "Qux": "pkg.qux:Qux",
    }  # fmt: skip
    assert package.undecided == ()


def test_the_same_class_by_several_ways_is_one_claim(read: Read) -> None:
    package = read(
        {
            "__init__.py": "from .foo import EntryClass, Foo\nfrom .models import bar\n"
            "ARCHITECTURES = {'Foo': Foo, 'Bar': '.models:Bar'}\n",
            "models/__init__.py": "from .bar import Bar, ARCHITECTURES\n",
            "models/bar.py": "class Bar: ...\nARCHITECTURES = {'Bar': Bar}\n",
            "foo.py": "class Foo: ...\nEntryClass = [Foo]\n",
            "alias.py": "from .foo import Foo as F\nEntryClass = F\n",
        }
    )
    assert claims(package) == {"Foo": "pkg.foo:Foo", "Bar": "pkg.models:Bar"}
    assert not package.undecided and not package.faults


def test_two_modules_that_claim_one_architecture(read: Read) -> None:
    same = "class Foo: ...\nEntryClass = Foo\n"
    package = read({"a.py": same, "b.py": same, "c.py": "class Bar: ...\nEntryClass = Bar"})
    foo, bar = package.entries
    assert bar == Entry("Bar", "pkg.c", "Bar")
    assert foo.name == "Foo" and foo.fault is not None
    assert foo.fault.code is ReasonCode.ENTRY_POINT_INVALID
    for part in ("module pkg.a", "pkg.a:Foo", "module pkg.b", "pkg.b:Foo"):
        assert part in foo.fault.problem
    three = read({"d.py": same}).entries[0].fault
    assert three == foo.fault  # the first contradiction is told


def test_a_key_twice_in_one_table(read: Read) -> None:
    (entry,) = read(module_of("ARCHITECTURES = {'X': A, 'X': B}")).entries
    assert entry.fault is not None and "pkg.m:B" in entry.fault.problem


def test_circles_of_imports(read: Read) -> None:
    package = read(
        {
            "a.py": "from .b import EntryClass, Foo\n",
            "b.py": "from .a import EntryClass, Foo\n",
            "c.py": "from .a import Foo\nEntryClass = Foo\n",
        }
    )
    assert package.entries == () and package.undecided == ("pkg.a", "pkg.b", "pkg.c")


def test_a_variable_passed_on_from_an_undecided_module(read: Read) -> None:
    package = read({"a.py": "EntryClass = make()\n", "b.py": "from .a import EntryClass\n"})
    assert package.undecided == ("pkg.a", "pkg.b")


def test_modules_without_source_count_only_when_nothing_is_declared(read: Read) -> None:
    compiled = {f"fast{EXTENSION_SUFFIXES[0]}": "", "bare.pyc": ""}
    assert read(compiled).undecided == ("pkg", "pkg.bare", "pkg.fast")
    assert read({"m.py": "class A: ...\nEntryClass = A"}).undecided == ()


def test_a_class_out_of_a_compiled_module_is_undecided(read: Read) -> None:
    files = {f"fast{EXTENSION_SUFFIXES[0]}": "", "m.py": "from .fast import A\nEntryClass = A"}
    assert read(files).undecided == ("pkg.m",)


def test_a_zip_file(tmp_path: Path) -> None:
    archive = tmp_path / "lib.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("pkg/__init__.py", EXIT)
        file.writestr("pkg/m.py", "class A: ...\nEntryClass = A\n")
        file.writestr("pkg/bad.py", "EntryClass = (\n")
        file.writestr("pkg/sub/__init__.py", b"# \xff\n")
        file.writestr("pkg/sub/n.py", "class N: ...\nEntryClass = N\n")
    package = read_package("pkg", [str(archive)])
    assert claims(package) == {"A": "pkg.m:A", "N": "pkg.sub.n:N"}
    assert len(package.faults) == 2
    assert f"{archive}/pkg/sub/__init__.py: SyntaxError" in package.faults[0].problem
    assert f"{archive}/pkg/bad.py:1" in package.faults[1].problem


def test_the_standard_library_and_builtins_declare_nothing() -> None:
    for name in ("json", "sys"):
        package = read_package(name, sys.path)
        assert (package.entries, package.undecided, package.faults) == ((), (name,), ())


# ------------------------------------------------------------------ faults


@pytest.mark.parametrize(
    "name", ["", "absent", "pkg.absent", "pkg.m.deeper", "a..b", "../pkg", "a-b", "pkg/m", "pkg\0"]
)
def test_not_found(name: str, read: Read) -> None:
    package = read({"m.py": ""}, name)
    assert (package.name, package.entries, package.undecided) == (name, (), ())
    (fault,) = package.faults
    assert fault.code is ReasonCode.EXTERNAL_NOT_FOUND and repr(name) in fault.problem
    assert fault.fix


GOOD = {"good.py": "class Good: ...\nEntryClass = Good\n"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"class A:\n  x = (\nEntryClass = A", "bad.py:2: SyntaxError"),
        (b"EntryClass = A\nprint 'x'\n", "bad.py:2: SyntaxError"),
        (b"EntryClass = A\n\n# \xff", "bad.py: UnicodeDecodeError"),
        (b"# \xff EntryClass", "bad.py: SyntaxError: invalid or missing encoding"),
        (b"# coding: no-such-codec\nEntryClass = A", "SyntaxError: unknown encoding: no-such-codec"),
        (b"# coding: rot13\nEntryClass = A", "LookupError"),
        (b"\xef\xbb\xbf# coding: latin-1\nEntryClass = A", "SyntaxError"),
        (b"EntryClass = A\0", "null bytes"),
        (b"EntryClass = " + b"(" * 5000 + b")" * 5000, "SyntaxError: too many nested"),
        (b"EntryClass = " + b"-" * 100_000 + b"1", "pkg.bad"),
        (b"EntryClass = " + b"+".join([b"1"] * 50_000), "RecursionError"),
        (b"EntryClass = a" + b".b" * 50_000, "RecursionError"),
        (b"if a:\n pass\n" + b"elif a:\n pass\n" * 10_000 + b"EntryClass = a", "pkg.bad"),
        (b"EntryClass = " + b"9" * 5000, "SyntaxError"),
    ],
    ids=["syntax", "python2", "utf8", "utf8-line1", "codec", "not-text", "bom", "nul", "nested",
         "unary", "sum", "attributes", "elif", "digits"],
)  # fmt: skip
def test_a_module_that_cannot_be_read_costs_only_itself(
    text: bytes, said: str, read: Read, tmp_path: Path
) -> None:
    read(GOOD)
    (tmp_path / "pkg/bad.py").write_bytes(text)
    package = read_package("pkg", [str(tmp_path)])
    assert claims(package) == {"Good": "pkg.good:Good"} and package.undecided == ()
    (fault,) = package.faults
    assert fault.code is ReasonCode.MODULE_UNREADABLE
    assert str(tmp_path / "pkg/bad.py") in fault.problem and said in fault.problem
    assert len(fault.problem) < 600 and fault.fix


def test_a_package_that_cannot_be_parsed_is_told_even_when_it_declares_nothing(read: Read) -> None:
    package = read({**GOOD, "sub/__init__.py": "def (", "sub/helper.py": "def ("})
    (fault,) = package.faults  # the helper may never be imported
    assert "pkg.sub cannot be read" in fault.problem and "__init__.py:1" in fault.problem


def test_a_class_sought_in_a_module_that_cannot_be_parsed(read: Read) -> None:
    package = read({"a.py": "from .x import Foo\nEntryClass = Foo", "x.py": "\nclass Foo(:"})
    assert package.undecided == ("pkg.a",)
    assert len(package.faults) == 1 and "x.py:2" in package.faults[0].problem


def test_a_file_that_may_not_be_opened(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(GOOD)

    def refuse(self: object, path: str) -> bytes:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("importlib.machinery.SourceFileLoader.get_data", refuse)
    package = read_package("pkg", [str(tmp_path)])
    assert {fault.code for fault in package.faults} == {ReasonCode.MODULE_UNREADABLE}
    assert "Permission denied" in package.faults[0].problem
    assert package.undecided == ("pkg",)


def test_links_in_a_circle(read: Read, tmp_path: Path) -> None:
    read(GOOD)
    (tmp_path / "pkg/again").symlink_to(tmp_path / "pkg", target_is_directory=True)
    (tmp_path / "pkg/loop.py").symlink_to("loop.py")
    assert claims(read_package("pkg", [str(tmp_path)])) == {"Good": "pkg.good:Good"}


def test_hostile_bytes_never_raise(tmp_path: Path) -> None:
    chance = random.Random(3)
    seed = b"from .x import *\nclass A: ...\nEntryClass: list = [A, *b]\nARCHITECTURES = {'a': A}\n"
    for number in range(300):
        data = bytearray(seed)
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(data))
            data[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        (tmp_path / f"pkg_{number}.py").write_bytes(bytes(data))
    for number in range(300):
        assert len(read_package(f"pkg_{number}", [str(tmp_path)]).digest) == 64


# ------------------------------------------------------------------ digest and cost


def test_the_digest_follows_names_and_sources_and_nothing_else(tmp_path: Path) -> None:
    def digest(where: str, files: dict[str, str]) -> str:
        for relative, text in files.items():
            path = tmp_path / where / "pkg" / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return read_package("pkg", [str(tmp_path / where)]).digest

    files = {"__init__.py": "", "a.py": "x = 1", "b.py": "y = '\\ud800'"}
    variants = [
        files,
        {**files, "a.py": "x = 2"},
        {"__init__.py": "", "a2.py": "x = 1", "b.py": "y = '\\ud800'"},
        {"__init__.py": "", "a.py": "x = 1"},
        {**files, "c.py": ""},
        {**files, "a.py": "", "b.py": "x = 1y = '\\ud800'"},
    ]
    digests = [digest(f"v{number}", variant) for number, variant in enumerate(variants)]
    assert len(set(digests)) == len(variants)
    again = digest("elsewhere", dict(reversed(files.items())))
    assert again == digests[0]
    code = (
        "import sys; from archzoo.registry.external import read_package; "
        "print(read_package('pkg', sys.argv[1:]).digest)"
    )
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-c", code, str(tmp_path / "v0")]
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        out = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
        assert out.strip() == digests[0]


# ------------------------------------------------------------------ imported modules


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Callable[..., types.ModuleType]:
    """A module as an import leaves it, from source."""

    def make(source: str, name: str = "pkg.m") -> types.ModuleType:
        module = types.ModuleType(name)
        module.__package__ = name.rpartition(".")[0]
        monkeypatch.setitem(sys.modules, name, module)
        exec(source, vars(module))
        return module

    return make


@pytest.mark.parametrize(
    "body",
    [
        "EntryClass = A", "EntryClass = [A, B]", "EntryClass = (B, A, B)", "EntryClass = []",
        "C = A\nEntryClass = C", "ARCHITECTURES = {'X': A, 'Y': 'B', 'Z': '.z:Z', 'W': 'w:W'}",
        "ARCHITECTURES = {'X': '../x'}", "EntryClass = A\nARCHITECTURES = {'A': A}",
        "from types import SimpleNamespace as N\nEntryClass = [A, N]".replace("N]", "A]"),
        "from collections import OrderedDict as O\nEntryClass = O",
    ],
)  # fmt: skip
def test_import_and_source_tell_the_same(
    body: str, read: Read, imported: Callable[..., types.ModuleType]
) -> None:
    source = f"class A: ...\nclass B: ...\n{body}\n"
    package = read({"m.py": source})
    assert package.undecided == ()
    assert declared_by(imported(source), "pkg") == package.entries
    sys.modules.pop("pkg.m")


def test_what_only_an_import_tells(imported: Callable[..., types.ModuleType]) -> None:
    made = imported("EntryClass = type('Made', (), {})")
    assert declared_by(made, "pkg") == (Entry("Made", "pkg.m", "EntryClass"),)
    lazy = imported("class A: ...\ndef __getattr__(name):\n  return [A]")
    assert declared_by(imported("class A: ...\nEntryClass = [A] + []"), "pkg") == (
        Entry("A", "pkg.m", "A"),
    )
    with pytest.raises(RegistryError, match="ARCHITECTURES"):  # it answers to every name
        declared_by(lazy, "pkg")
    for nothing in ("", "EntryClass = None", "ARCHITECTURES = None\nEntryClass = ()"):
        assert declared_by(imported(nothing), "pkg") == ()


def test_a_class_is_taken_from_where_the_package_defines_it(
    imported: Callable[..., types.ModuleType],
) -> None:
    imported("class A: ...", "pkg.home")
    imported("class O: ...", "pkgother.home")
    module = imported("from pkg.home import A\nfrom pkgother.home import O\nEntryClass = [A, O]")
    assert declared_by(module, "pkg") == (Entry("A", "pkg.home", "A"), Entry("O", "pkg.m", "O"))


def test_a_class_that_no_name_leads_to(imported: Callable[..., types.ModuleType]) -> None:
    module = imported("class A: ...\nEntryClass = [type('Made', (), {}), A]")
    made, good = declared_by(module, "pkg")
    assert good == Entry("A", "pkg.m", "A")
    assert made.name == "Made" and made.fault is not None
    assert "pkg.m" in made.fault.problem and made.fault.code is ReasonCode.ENTRY_POINT_INVALID


def test_two_classes_of_one_name(imported: Callable[..., types.ModuleType]) -> None:
    source = "class A: ...\nB = type('A', (), {'__module__': 'pkg.m'})\nEntryClass = [A, B]"
    (entry,) = declared_by(imported(source), "pkg")
    assert entry.fault is not None and "pkg.m:B" in entry.fault.problem


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("EntryClass = 3", "3"), ("EntryClass = 'A'", "'A'"), ("EntryClass = [A, None]", "None"),
        ("EntryClass = {A}", "A"), ("EntryClass = Evil()", "Evil"), ("EntryClass = lambda: A", "func"),
        ("ARCHITECTURES = [A]", "A"), ("ARCHITECTURES = {3: A}", "3"),
        ("ARCHITECTURES = {'': A}", "''"), ("ARCHITECTURES = 'A'", "'A'"),
    ],
)  # fmt: skip
def test_wrong_types(body: str, said: str, imported: Callable[..., types.ModuleType]) -> None:
    evil = "class Evil:\n  def __repr__(self): raise SystemError\n"
    module = imported(f"class A: ...\n{evil}{body}")
    with pytest.raises(RegistryError, match="of module pkg.m") as caught:
        declared_by(module, "pkg")
    assert said in str(caught.value) and body.partition(" ")[0] in str(caught.value)


def test_a_wrong_value_in_the_table_costs_only_its_key(
    imported: Callable[..., types.ModuleType],
) -> None:
    bad, good = declared_by(imported("class A: ...\nARCHITECTURES = {'X': 3, 'Y': A}"), "pkg")
    assert bad.name == "X" and bad.fault is not None and "3" in bad.fault.problem
    assert good == Entry("Y", "pkg.m", "A")
