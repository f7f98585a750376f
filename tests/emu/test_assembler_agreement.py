"""Check the decoder against LLVM's assembler: every line of ``corpus.txt`` is assembled, decoded and printed back.

The corpus is in the form LLVM's disassembler prints, so the text must come back letter for letter. Offsets come from
the object file's symbols, not from the decoder.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from conformance import assemble
from elftools.elf.elffile import ELFFile

from indexer_rt.emu import decode, disassemble
from indexer_rt.emu.formats import FORMATS
from indexer_rt.emu.table import TABLE
from indexer_rt.errors import EmulatorFault

CORPUS = Path(__file__).with_name("corpus.txt")
MNEMONICS = {entry.mnemonic for entry in TABLE.values()}


def read_corpus() -> dict[str, list[str]]:
    """Return the corpus lines by encoding."""
    sections: dict[str, list[str]] = {}
    for line in CORPUS.read_text().splitlines():
        if heading := re.fullmatch(r"# ([A-Z0-9]+)", line):
            lines = sections.setdefault(heading[1], [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return sections


SECTIONS = read_corpus()
REFUSED = SECTIONS.pop("REFUSED")


def mnemonic(line: str) -> str:
    """Return a line's mnemonic without the encoding's suffix."""
    name = re.sub(r"_(e32|e64|dpp|sdwa)$", "", line.split()[0])
    return name.replace("v_mfma_scale_", "v_mfma_")


@pytest.fixture(scope="module")
def encoded() -> dict[str, bytes]:
    """Return every corpus line's bytes."""
    lines = [line for section in (*SECTIONS.values(), REFUSED) for line in section]
    text = "\n".join(f"at_{n}:\n{line}" for n, line in enumerate(lines))
    elf = ELFFile(io.BytesIO(assemble(f".text\n{text}\nat_{len(lines)}:\n")))
    code = elf.get_section_by_name(".text").data()
    at = {symbol.name: symbol["st_value"] for symbol in elf.get_section_by_name(".symtab").iter_symbols()}
    return {line: code[at[f"at_{n}"] : at[f"at_{n + 1}"]] for n, line in enumerate(lines)}


def test_corpus_has_no_line_twice() -> None:
    lines = [line for section in SECTIONS.values() for line in section]
    assert sorted(line for line in set(lines) if lines.count(line) > 1) == []


@pytest.mark.parametrize("section", SECTIONS)
def test_decoder_prints_what_was_assembled(encoded: dict[str, bytes], section: str) -> None:
    wrong = []
    for line in SECTIONS[section]:
        if mnemonic(line) not in MNEMONICS:
            continue
        code = encoded[line]
        try:
            instruction = decode(code)
            got = (str(instruction), instruction.size, instruction.name)
        except EmulatorFault as fault:
            got = (f"EmulatorFault: {fault}", None, None)
        if got != (line, len(code), mnemonic(line)):
            wrong.append(
                f"  {code.hex(' ', 4)}\n    wanted {line} ({len(code)} bytes)\n"
                f"    got    {got[0]} ({got[1]} bytes, {got[2]})"
            )
    shown = "\n".join(wrong[:20])
    assert not wrong, f"{len(wrong)} of {len(SECTIONS[section])} lines differ:\n{shown}"


@pytest.mark.parametrize("section", SECTIONS)
def test_instructions_without_an_entry_are_refused(encoded: dict[str, bytes], section: str) -> None:
    accepted = []
    for line in SECTIONS[section]:
        if mnemonic(line) in MNEMONICS:
            continue
        try:
            accepted.append(f"{line}: decoded as {decode(encoded[line])}")
        except EmulatorFault as fault:
            word = f"{int.from_bytes(encoded[line][:4], 'little'):08x}"
            if word not in str(fault):
                accepted.append(f"{line}: the fault does not show {word}: {fault}")
    assert accepted == []


@pytest.mark.parametrize("line", REFUSED)
def test_forms_that_are_not_modelled_are_refused(encoded: dict[str, bytes], line: str) -> None:
    assert mnemonic(line) in MNEMONICS
    with pytest.raises(EmulatorFault, match=f"{mnemonic(line)}.*{int.from_bytes(encoded[line][:4], 'little'):08x}"):
        decode(encoded[line])


def test_every_table_entry_is_in_the_corpus(encoded: dict[str, bytes]) -> None:
    seen = set()
    for section in SECTIONS.values():
        for line in section:
            if mnemonic(line) in MNEMONICS:
                entry = decode(encoded[line]).entry
                seen.add((entry.format, entry.opcode))
    missing = sorted(f"{name} {opcode:#x} {TABLE[name, opcode].mnemonic}" for name, opcode in set(TABLE) - seen)
    assert missing == []


def test_distinct_lines_have_distinct_encodings(encoded: dict[str, bytes]) -> None:
    by_code: dict[bytes, list[str]] = {}
    for line, code in encoded.items():
        by_code.setdefault(code, []).append(line)
    assert [lines for lines in by_code.values() if len(lines) > 1] == []


def test_no_two_encodings_overlap() -> None:
    # Two prefixes that share a word are only allowed where the longer one is tried first.
    for place, earlier in enumerate(FORMATS):
        for later in FORMATS[place + 1 :]:
            common = earlier.mask & later.mask
            if earlier.value & common == later.value & common:
                assert earlier.mask & later.mask == later.mask and earlier.mask != later.mask, (
                    f"{earlier.name} is tried before {later.name}, which it hides."
                )


def test_a_whole_stream_decodes_at_the_assemblers_offsets(encoded: dict[str, bytes]) -> None:
    lines = [line for section in SECTIONS.values() for line in section if mnemonic(line) in MNEMONICS]
    offset, wanted = 0, []
    for line in lines:
        wanted.append((offset, line))
        offset += len(encoded[line])
    got = [(at, str(instruction)) for at, instruction in disassemble(b"".join(encoded[line] for line in lines))]
    assert got == wanted
