"""Execute gfx950 code objects on the CPU, in numpy: the shipped bytes, instruction by instruction.

Waves at one program counter step together as a *convoy*; registers are arrays over all waves in flight, so an
instruction costs a few numpy calls whatever the number of waves. Memory is a list of named buffers with exact bounds.

**Not modelled**

* time: clocks, caches, banks, occupancy; emulated results prove values, never speed;
* the matrix unit's inner rounding and order of summation (exact products and sums, rounded once with C, stand for it),
  fp6, bf6 and fp4 operands, cbsz/abid/blgp broadcasts, f64 and sparse (smfmac) matrix instructions;
* rounding modes other than to nearest even, flushing of float16 and float64 subnormals, floating-point
  exceptions and traps;
* scratch memory, flat accesses to the LDS and scratch apertures, swizzled buffers, format conversion in buffer
  instructions, GDS, register indexing (s_movrel*, s_set_gpr_idx_*), s_sendmsg, s_trap;
* races between waves through global memory: waves run in one deterministic order (``wave_order_seed`` changes it);
* of the hazards that need wait states, only those after matrix instructions are checked;
* where a lane swap has partners that EXEC disables, op_sel on instructions that gained it late (v_alignbit and the
  like), conversions with a scale (v_cvt_scalef32_*) and stochastic rounding (v_cvt_sr_*).

**Adding an instruction** is one decorated function (or one row) in the file of its kind: ``scalar``, ``control``,
``smem``, ``vector_float``, ``vector_integer``, ``vector_compare``, ``packed``, ``matrix``, ``lds``, ``vmem``.
``table`` says what a body sees; a taken opcode fails at import, naming both.

What is not modelled is a fault that says so, never a guess.
"""

from __future__ import annotations

from . import program as _program  # fills the opcode tables
from .instruction import Instruction, decode, disassemble
from .machine import RunStats, run
from .memory import Buffer

__all__ = ["Buffer", "Instruction", "RunStats", "decode", "disassemble", "run"]
del _program
