"""Attention backends out of plugins, by name."""

from __future__ import annotations

import pytest
from attention.scene import Case, Scene
from registry.sites import Site

from archzoo.attention import TorchAttention, make_backend, require_backend
from archzoo.attention.builtin import BUILT_IN
from archzoo.errors import BackendUnavailableError, DuplicateArchitectureError, PluginLoadError
from archzoo.registry import Group
from archzoo.registry.index import RESERVED

GROUP = "archzoo.attention_backends"
BACKEND = """
from archzoo.attention import TorchAttention
class Flash(TorchAttention):
    name = "zqflash"
"""


def test_a_plugins_backend_attends(live_site: Site) -> None:
    live_site.install("p", {"zqflash": "zq_fl:Flash"}, group=GROUP, files={"zq_fl.py": BACKEND})
    scene = Scene(Case([(3, 2, 2), (0, 1, 1)]))
    backend = make_backend("zqflash", scene.pool)
    assert type(backend).__module__ == "zq_fl" and backend.name == "zqflash"
    backend.bind([scene.spec])


def test_unknown_lists_what_can_be_had(live_site: Site) -> None:
    live_site.install("p", {"zqflash": "zq_fl:Flash"}, group=GROUP)
    live_site.install("s", {"zqskip": "zq_fl:Flash"}, group=GROUP, requires=["zq-none"])
    for name in ("zqflush", "ZQFLASH", "zqflash ", ""):
        with pytest.raises(BackendUnavailableError, match="choose one of: torch, zqflash$"):
            require_backend(name)


def test_conflict(live_site: Site) -> None:
    for name in ("one", "two"):
        live_site.install(name, {"zqflash": "zq_fl:Flash"}, group=GROUP)
    with pytest.raises(DuplicateArchitectureError, match="backend 'zqflash' is claimed by one 1"):
        require_backend("zqflash")


def test_broken(live_site: Site) -> None:
    live_site.install("p", {"zqflash": "zq_bad:F"}, group=GROUP, files={"zq_bad.py": "1/0"})
    with pytest.raises(PluginLoadError, match="of p 1.0 cannot be loaded: ZeroDivisionError"):
        require_backend("zqflash")
    assert require_backend("torch") is TorchAttention


def test_nobody_takes_the_name_of_archzoos_own(live_site: Site) -> None:
    live_site.install("p", {"torch": "zq_thief:F"}, group=GROUP, files={"zq_thief.py": "1/0"})
    assert require_backend("torch") is TorchAttention


@pytest.mark.parametrize(
    ("code", "lacks"),
    [
        ("class F: pass", "bind, plan, forward"),
        ("class F:\n def bind(self): pass\n def plan(self): pass", "forward"),
    ],
)
def test_class_of_the_wrong_type(live_site: Site, code: str, lacks: str) -> None:
    live_site.install("p", {"zqflash": "zq_wrong:F"}, group=GROUP, files={"zq_wrong.py": code})
    with pytest.raises(BackendUnavailableError, match=f"zq_wrong.F; it lacks {lacks}, see"):
        require_backend("zqflash")


def test_names_of_our_own_backends_are_reserved() -> None:
    assert RESERVED[Group.ATTENTION_BACKENDS] == set(BUILT_IN)
