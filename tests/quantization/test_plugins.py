"""Quantization methods out of plugins, by the name that config.json gives."""

from __future__ import annotations

from typing import Any

import pytest
from registry.sites import Site

from archzoo.errors import (
    DuplicateArchitectureError,
    MissingDependency,
    PluginLoadError,
    QuantizationError,
)
from archzoo.quantization import quant_config

GROUP = "archzoo.quantization"
METHOD = """
from archzoo.quantization import QuantConfig
class Config(QuantConfig):
    name = "zq4"
    @classmethod
    def from_checkpoint(cls, settings):
        found = cls()
        found.bits = settings["bits"]
        return found
    def method_for(self, target):
        raise NotImplementedError
"""


def test_a_plugins_method_reads_the_block(live_site: Site) -> None:
    live_site.install("p", {"zq4": "zq_q4:Config"}, group=GROUP, files={"zq_q4.py": METHOD})
    config: Any = quant_config({"quant_method": "zq4", "bits": 4})
    assert (config.name, config.bits, type(config).__module__) == ("zq4", 4, "zq_q4")


@pytest.mark.parametrize("method", ["zq", "ZQ4", "", None, 4, ["zq4"]])
def test_unknown_lists_what_is_served(live_site: Site, method: object) -> None:
    live_site.install("p", {"zq4": "zq_q4:Config", "zq5": "zq_q4:C"}, group=GROUP)
    live_site.install("s", {"zq6": "zq_q4:Config"}, group=GROUP, requires=["zq-none"])
    with pytest.raises(QuantizationError, match="methods served: zq4, zq5; use an unquant") as told:
        quant_config({"quant_method": method})
    assert repr(method) in str(told.value)


def test_nothing_installed_serves_plain_weights_only() -> None:
    with pytest.raises(
        QuantizationError, match=r"methods served: none \(plain float32, bfloat16, float16 only\)"
    ):
        quant_config({"quant_method": "zq4"})


def test_conflict(live_site: Site) -> None:
    for name in ("one", "two"):
        live_site.install(name, {"zq4": "zq_q4:Config"}, group=GROUP)
    with pytest.raises(DuplicateArchitectureError, match="quantization method 'zq4' is claimed by"):
        quant_config({"quant_method": "zq4"})


def test_broken_and_missing(live_site: Site) -> None:
    live_site.install("p", {"zq4": "zq_bad:C"}, group=GROUP, files={"zq_bad.py": "1/0"})
    live_site.install("o", {"zq5": "zq_opt:C"}, group=GROUP, requires=["zq-k; extra == 'x'"],
                      extras=["x"], files={"zq_opt.py": "import zq_k"})  # fmt: skip
    with pytest.raises(PluginLoadError, match="of p 1.0 cannot be loaded: ZeroDivisionError"):
        quant_config({"quant_method": "zq4"})
    with pytest.raises(MissingDependency, match=r"zq5 of o 1.0 needs 'zq-k'.*pip install 'o\[x\]'"):
        quant_config({"quant_method": "zq5"})


def test_class_of_the_wrong_type(live_site: Site) -> None:
    live_site.install("p", {"zq4": "zq_int:C"}, group=GROUP, files={"zq_int.py": "C = int"})
    with pytest.raises(QuantizationError, match=r"'zq4' is served by builtins.int, which does not"):
        quant_config({"quant_method": "zq4"})


def test_class_that_reads_no_block(live_site: Site) -> None:
    code = "from archzoo.quantization import QuantConfig\nclass C(QuantConfig): pass\n"
    live_site.install("p", {"zq4": "zq_no:C"}, group=GROUP, files={"zq_no.py": code})
    with pytest.raises(QuantizationError, match="C reads no quantization_config"):
        quant_config({"quant_method": "zq4"})
