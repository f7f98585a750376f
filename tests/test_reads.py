"""What the kernels read: exactly what the contract allows, byte by byte.

The emulator is given, instead of whole tensors, only the bytes that a launch may read: needed columns of the block
table, values and scales of tokens before the sequence's longest end. Anything else faults.
"""

import numpy as np
import pytest
from cases import Case, check, make
from emulation import emulation
from test_logits import LAYOUTS, ROWS_PER_WAVE

import indexer_rt
from indexer_rt.errors import EmulatorFault


def allowed_bytes(inputs) -> dict[str, np.ndarray]:
    """Return, for each tensor with bytes that must not be read, which of its bytes may be: bool [bytes]."""
    case = inputs.case
    cache = np.zeros(tuple(inputs.cache.flatten(1).shape), bool)
    tables = np.zeros((case.batch, inputs.tables.shape[1], 4), bool)
    values, scales = cache[:, : case.block_kv * 128], cache[:, case.block_kv * 128 :]
    for sequence, ends in enumerate(case.ends()):
        longest = max(ends, default=0)
        for page in range(-(-longest // case.block_kv)):
            tables[sequence, page] = True
            block = int(inputs.tables[sequence, page])
            for token in range(min(case.block_kv, longest - page * case.block_kv)):
                scales[block, token * 4 : token * 4 + 4] = True
                if case.preshuffle:
                    for chunk in range(8):
                        at = token // 16 * 2048 + chunk * 256 + token % 16 * 16
                        values[block, at : at + 16] = True
                else:
                    values[block, token * 128 : token * 128 + 128] = True
    return {"kv_cache": cache.reshape(-1), "block_tables": tables.reshape(-1)}


def run_in_contract(case: Case, num_waves: int | None = None, forbid=None) -> None:
    inputs = make(case)
    allowed = allowed_bytes(inputs)
    if forbid is not None:
        forbid(allowed)
    with emulation(num_waves=num_waves, allowed=allowed):
        indexer_rt.fp8_paged_mqa_logits(
            *inputs.arguments(), preshuffle=case.preshuffle, out=inputs.out, rows_per_wave=case.rows_per_wave
        )
    check(inputs)


@pytest.mark.parametrize("rows_per_wave", ROWS_PER_WAVE, ids=lambda rows: f"r{rows}")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("num_waves", [None, 1], ids=["all-waves", "one-wave"])
def test_nothing_else_is_read(layout, rows_per_wave, num_waves):
    lens = (1, 0, 15, 16, 63, 64, 65, 130, 200)
    run_in_contract(Case(lens, next_n=3, rows_per_wave=rows_per_wave, **LAYOUTS[layout]), num_waves)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_per_row_ends_read_to_the_longest(layout):
    run_in_contract(Case([[3, 70, 5], [0, 0, 0], [129, 2, 64]], next_n=3, **LAYOUTS[layout]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_needed_byte_less_faults(layout):
    def forbid(allowed):
        allowed["kv_cache"][np.flatnonzero(allowed["kv_cache"])[-1]] = False

    with pytest.raises(EmulatorFault, match="kv_cache"):
        run_in_contract(Case((33,), **LAYOUTS[layout]), forbid=forbid)
