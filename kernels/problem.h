// The launch as the kernel sees it: arguments, the rows of a sequence and where each row ends.
#pragma once
#include "gfx950.h"

constexpr i32 kHeadDim = 128;
constexpr i32 kTile = 16;        // tokens that one MFMA contracts; both value layouts keep them in one 2 KiB piece
constexpr i32 kStep = 64;        // tokens of one step: one store of 64 cells per row
constexpr i32 kTilesPerStep = kStep / kTile;
constexpr i32 kTileBytes = kTile * kHeadDim;

// What decides which steps there are. Strides are in bytes.
struct Lengths {
  Bytes context_lens;   // int32 [B], or one per row
  Bytes cu_seqlens_q;   // int32 [B + 1], or null: next_n rows each
  i64 seq_stride, row_stride;  // of context_lens
  i32 per_row;
  i32 batch, next_n;
  i32 reach;            // cells a row can have: what its buffer and its block table both reach

  MEMBER i32 clip(i32 end) const { return max(0, min(end, reach)); }
};

// Who does them.
struct Division {
  i32 num_waves;
  u32 inverse;          // (2^32 - 1) / num_waves

  // Quotient by num_waves. inverse is at most 1 below 2^32 / num_waves, so the estimate is at most 1 too small.
  MEMBER i32 share_of(i32 total) const {
    const i32 share = (static_cast<u64>(static_cast<u32>(total)) * inverse) >> 32;
    return share + (total - share * num_waves >= num_waves);
  }
};

struct Tensors {
  Bytes q;              // [B, N, H, 128] fp8, or [T, H, 128] packed
  Bytes kv_cache;       // [blocks, block_kv * 128 value bytes, then block_kv float32 scales]
  Bytes weights;        // float32 [rows, H]
  Bytes block_tables;   // int32 [B, table_width]
  Global<u8>* logits;   // float32 [rows, >= max_model_len]
  i64 q_seq_stride, q_row_stride;
  i64 kv_block_stride;
  i64 weights_seq_stride, weights_row_stride;
  i64 table_row_stride;
  i64 logits_row_stride;
  i32 table_width, block_kv;
  u32 page_inverse;     // 2^31 / (block_kv / 16), rounded up; gather kernels do not use it
  i32 kv_token_stride, kv_chunk_stride;  // within a tile: token, and 16-byte chunk of a token
  i32 clean_logits, max_model_len;

  // Wait here for what a wave's first steps need, all of it at once. max_model_len is read when tails are cleaned.
  MEMBER void arrive() {
    in_registers(q, kv_cache, weights, block_tables, logits, q_seq_stride, q_row_stride, kv_block_stride,
                 weights_seq_stride, weights_row_stride, table_row_stride, logits_row_stride, table_width, block_kv,
                 page_inverse, kv_token_stride, kv_chunk_stride, clean_logits);
  }
};

// The kernarg segment: one field per kernel argument, in order.
struct Problem {
  Lengths lengths;      // these two, 14 registers, are in scalar registers when a wave starts (kernarg preload)
  Division division;
  Tensors tensors;
};
static_assert(sizeof(Lengths) + sizeof(Division) == 14 * 4, "what variants.txt has preloaded");
static_assert(sizeof(Problem) == 184, "4 bytes of padding, at the end");

// Load of a length or row bound: Uniform goes through the scalar cache, PerLane through the vector memory.
struct Uniform {
  DEVICE i32 read(Bytes at) { return scalar_load<i32>(at); }
};
struct PerLane {
  DEVICE i32 read(Bytes at) { return vector_load<i32>(at); }
};

// The rows of sequence b. Packed rows (cu_seqlens_q) are addressed as one sequence of all rows would be.
struct Sequence {
  i32 index;        // where it starts in q, weights and the lengths of rows: b, or its first row where rows are packed
  i32 first_row;    // row of the logits
  i32 num_rows;     // N(b)
  i32 length;       // where one length serves all rows
  i32 longest;      // the longest end of its rows

  template <typename Access>
  DEVICE Sequence read(const Lengths& lengths, i32 b) {
    Sequence s{b, b * lengths.next_n, lengths.next_n, 0, 0};
    if (lengths.cu_seqlens_q) {
      s.index = s.first_row = Access::read(lengths.cu_seqlens_q + 4ll * b);
      s.num_rows = max(0, Access::read(lengths.cu_seqlens_q + 4ll * b + 4) - s.first_row);
    }
    if (lengths.per_row) {
      // Four loads at once; the last row is read again where there are fewer.
#pragma unroll 1
      for (i32 n = 0; n < s.num_rows; n += 4)
#pragma unroll
        for (i32 more = 0; more < 4; ++more)
          s.longest = max(s.longest, s.own_end<Access>(lengths, min(n + more, s.num_rows - 1)));
    } else {
      // NOTE: a garbage length near INT_MIN would wrap round to a huge one.
      s.length = max(0, Access::read(lengths.context_lens + offset(lengths.seq_stride, b)));
      s.longest = lengths.clip(s.length);
    }
    return s;
  }

  // What one lane has read, for all.
  MEMBER Sequence of_lane(i32 lane) const {
    return {read_lane(index, lane), read_lane(first_row, lane), read_lane(num_rows, lane), read_lane(length, lane),
            read_lane(longest, lane)};
  }

  // Cells of row n: end(b, n) of the contract, clipped to [0, reach].
  MEMBER i32 end(const Lengths& lengths, i32 n) const {
    return lengths.per_row ? own_end<Uniform>(lengths, n) : shared_end(lengths, n);
  }
  MEMBER i32 shared_end(const Lengths& lengths, i32 n) const { return lengths.clip(length - num_rows + n + 1); }

  template <typename Access>
  MEMBER i32 own_end(const Lengths& lengths, i32 n) const {
    const Bytes row_0 = lengths.context_lens + offset(lengths.seq_stride, index);
    return lengths.clip(Access::read(row_0 + offset(lengths.row_stride, n)));
  }

 private:
  DEVICE u64 offset(u64 stride, u32 index) { return index * stride; }
};
