"""The README: its example runs, and its two set-up commands are the ones continuous integration runs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_example_runs_and_returns_logits(capsys) -> None:  # type: ignore[no-untyped-def]
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    logits = names["logits"]
    assert tuple(logits.shape) == (6, 1024)  # type: ignore[attr-defined]
    assert logits.isfinite().sum().item() == 998 + 999 + 1000 + 68 + 69 + 70  # type: ignore[attr-defined]
    assert "torch.Size([6, 1024])" in capsys.readouterr().out


def test_there_are_two_set_up_commands_and_each_stands_alone() -> None:
    commands = re.findall(r"<!-- command: (\w+) -->\n```sh\n(.*)\n```", README)
    assert [name for name, _ in commands] == ["demo", "tests"]
    for _, line in commands:
        assert line.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert README.count("python3 -m venv") == 2


def test_continuous_integration_takes_the_commands_from_the_readme() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert "$(readme_command tests" in ci and "$(readme_command demo" in ci
    (line,) = [line for line in ci.splitlines() if "pip install" in line]  # beside those two, the older hip-python
    assert "--no-deps --target" in line and "hip-python==7.2." in line


def test_readme_says_that_nothing_was_measured() -> None:
    assert "**No MI355X has run this yet.**" in README
    assert "modelled, never measured" in README.replace("\n", " ")
