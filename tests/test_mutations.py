"""Every mistake in tests/mutations.py is caught, and the unbroken kernel passes the same trials."""

from collections import Counter

import mutations
import pytest
from cases import Case, make
from mutations import ROOT, Trial

import indexer_rt
from indexer_rt.code_object import CodeObject
from indexer_rt.errors import EmulatorFault


@pytest.fixture(autouse=True)
def shipped_code_objects_afterwards():
    yield
    indexer_rt.use_code_objects(None)


def test_the_shipped_kernels_pass_the_trials():
    assert mutations.catch(None) is None


@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda mutation: mutation.name.replace(" ", "-"))
def test_mutation_is_caught(mutation, tmp_path, record_property):
    caught = mutations.catch(mutations.build(mutation, tmp_path))
    record_property("mutation", f"{mutation.name}: {caught or 'NOT CAUGHT'}")
    assert caught


@pytest.mark.parametrize("rows", [1, 2, 6])
@pytest.mark.parametrize("addressing", ["page", "gather"])
def test_every_wait_of_the_steady_loop_is_needed(tmp_path, record_property, addressing, rows):
    name = f"fp8_paged_mqa_logits_h32_r{rows}_{addressing}"
    layout = dict(block_kv=64) if addressing == "page" else dict(block_kv=1, preshuffle=False)
    trial = Trial(name, make(Case((700,), next_n=rows, rows_per_wave=rows, **layout)), num_waves=1)
    kernel = CodeObject.read(ROOT / "hsaco" / f"{name}.hsaco").kernels[name]

    # The steady loop is what runs most often among the code with matrix work.
    visits: Counter[int] = Counter()
    trial.run(observer=lambda offset, instruction, *_: visits.update([offset]))
    matrix = {offset: visits[offset] for offset, instruction in indexer_rt.emu.disassemble(kernel.code)
              if instruction.name.startswith("v_mfma")}  # fmt: skip
    rounds = max(matrix.values())
    first, last = (pick(offset for offset, count in matrix.items() if count == rounds) for pick in (min, max))

    tried = 0
    for offset, code_object in mutations.longer_waits(kernel):
        if first - 1024 <= offset <= last + 1024 and visits[offset] == rounds:
            (tmp_path / f"{name}.hsaco").write_bytes(code_object)
            indexer_rt.use_code_objects(tmp_path)
            with pytest.raises(EmulatorFault, match="outstanding"):
                trial.run()
            tried += 1
    record_property("mutation", f"{name}: {tried} waits of the steady loop, each one too long: EmulatorFault")
    assert tried >= 2
