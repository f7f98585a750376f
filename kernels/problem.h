// The launch as the kernel sees it: arguments, the rows of a sequence and where each row ends.
#pragma once
#include "gfx950.h"

constexpr i32 kHeadDim = 128;
constexpr i32 kTile = 16;        // tokens that one MFMA contracts; both value layouts keep them in one 2 KiB piece
constexpr i32 kStep = 64;        // tokens of one step: one store of 64 cells per row
constexpr i32 kTilesPerStep = kStep / kTile;
constexpr i32 kTileBytes = kTile * kHeadDim;

// The kernarg segment: one field per kernel argument, in order. Strides are in bytes.
struct Problem {
  Bytes q;              // [B, N, H, 128] fp8, or [T, H, 128] packed
  Bytes kv_cache;       // [blocks, block_kv * 128 value bytes, then block_kv float32 scales]
  Bytes weights;        // float32 [rows, H]
  Bytes context_lens;   // int32 [B], or one per row
  Bytes block_tables;   // int32 [B, table_width]
  Bytes cu_seqlens_q;   // int32 [B + 1], or null: next_n rows each
  Global<u8>* logits;   // float32 [rows, >= max_model_len]
  i64 q_seq_stride, q_row_stride;
  i64 kv_block_stride;
  i64 weights_seq_stride, weights_row_stride;
  i64 lens_seq_stride, lens_row_stride;
  i64 table_row_stride;
  i64 logits_row_stride;
  i32 batch, next_n, max_model_len, table_width, block_kv;
  i32 kv_token_stride, kv_chunk_stride;  // within a tile: token, and 16-byte chunk of a token
  i32 lens_per_row, clean_logits, num_waves;
};
static_assert(sizeof(Problem) == 168, "no padding: the kernarg segment has none");

// NOTE: read where they are needed and not held, because 42 scalar registers of arguments leave too few for the rows.
using Args = Constant<Problem>&;

// Cells a row can have: what the caller's buffer and its block table both reach.
DEVICE i32 reach_of(Args p) {
  const u64 tabled = static_cast<u64>(static_cast<u32>(p.table_width)) * static_cast<u32>(p.block_kv);
  return tabled < static_cast<u64>(p.max_model_len) ? static_cast<i32>(tabled) : p.max_model_len;
}

DEVICE i32 clip(i32 end, i32 reach) { return max(0, min(end, reach)); }

// Load of a length or row bound: Uniform goes through the scalar cache, PerLane through the vector memory.
struct Uniform {
  DEVICE i32 read(Bytes at) { return scalar_load<i32>(at); }
};
struct PerLane {
  DEVICE i32 read(Bytes at) { return vector_load<i32>(at); }
};

// The rows of sequence b. Packed rows (cu_seqlens_q) are addressed as one sequence of all rows would be.
template <typename Access>
struct Sequence {
  i32 first_row;    // row of the logits
  i32 num_rows;     // N(b)
  i64 lens_at;      // byte offset of the length of row 0
  i64 lens_stride;  // from row to row: 0 where one length serves all

  DEVICE Sequence read(Args p, i32 b) {
    Sequence s{b * p.next_n, p.next_n, b * p.lens_seq_stride, p.lens_per_row ? p.lens_row_stride : 0};
    if (p.cu_seqlens_q) {
      s.first_row = Access::read(p.cu_seqlens_q + 4ll * b);
      s.num_rows = max(0, Access::read(p.cu_seqlens_q + 4ll * b + 4) - s.first_row);
      if (p.lens_per_row) s.lens_at = s.first_row * p.lens_row_stride;
    }
    return s;
  }

  // Where row 0 starts in a tensor with these strides.
  MEMBER i64 offset(Args p, i32 b, i64 seq_stride, i64 row_stride) const {
    return p.cu_seqlens_q ? first_row * row_stride : b * seq_stride;
  }

  // Cells of row n: end(b, n) of the contract, clipped to [0, reach].
  MEMBER i32 end(Args p, i32 n, i32 reach) const {
    // NOTE: a garbage length near INT_MIN would wrap round to a huge one.
    const i32 length = max(0, Access::read(p.context_lens + lens_at + n * lens_stride));
    return clip(p.lens_per_row ? length : length - num_rows + n + 1, reach);
  }

  // The longest end among rows [first, last).
  MEMBER i32 longest_end(Args p, i32 first, i32 last, i32 reach) const {
    i32 longest = 0;
    for (i32 n = p.lens_per_row ? first : max(first, last - 1); n < last; ++n) longest = max(longest, end(p, n, reach));
    return longest;
  }
};
