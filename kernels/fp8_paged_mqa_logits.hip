// fp8_paged_mqa_logits: logits[row, p] = kv_scale[p] * sum_h relu(q[row, h, :] . k[p, :]) * weights[row, h]
//
// Decode-time selection logits of the lightning indexer over a paged FP8 key cache, head_dim 128. One code object per
// (NUM_HEADS, ROWS_PER_WAVE, GATHER); everything else is an argument. A wave keeps the queries of ROWS_PER_WAVE rows of
// one sequence in registers and streams that sequence's keys past them, 64 tokens a step.
#include "gfx950.h"
#include "kv_stream.h"
#include "problem.h"
#include "worklist.h"

constexpr i32 kNumHeads = NUM_HEADS;
constexpr i32 kRows = ROWS_PER_WAVE;
constexpr bool kGather = GATHER;

// A head tile is the 16 rows of one MFMA. With 8 heads the other half of it is past the end of the row's queries and
// weights, whose range-checked loads then give 0.
constexpr i32 kHeadTiles = (kNumHeads + kTile - 1) / kTile;

// Head tiles whose scores are in registers at once, twice over: those being weighed and those being computed. Where the
// rest leaves no room (64 heads, 3 rows, a page table entry per token), one less saves the register that clang 21
// spills.
constexpr bool kIsFull = kGather && kHeadTiles == 4 && kRows == 3;
constexpr i32 kTilesScored = kHeadTiles == 1 || kIsFull ? 1 : 2;
constexpr i32 kParts = kHeadTiles / kTilesScored;

// Which rows of a sequence a wave does.
struct Rows {
  i32 first, count;
  i32 ends[kRows];   // 0 where there are fewer
  i32 longest;       // of them

  DEVICE Rows of(const Lengths& lengths, const Sequence& sequence, i32 first) {
    Rows rows{first, min(kRows, sequence.num_rows - first), {}, 0};
    if (lengths.per_row) {
#pragma unroll
      for (i32 r = 0; r < kRows; ++r) rows.ends[r] = sequence.own_end<Uniform>(lengths, rows.row(r));
    } else {
#pragma unroll
      for (i32 r = 0; r < kRows; ++r) rows.ends[r] = sequence.shared_end(lengths, rows.row(r));
    }
#pragma unroll
    for (i32 r = 0; r < kRows; ++r) {
      rows.longest = max(rows.longest, rows.ends[r]);
      if (r >= rows.count) rows.ends[r] = 0;
    }
    in_register(rows.count);  // or five comparisons with it are kept in two registers each
    return rows;
  }

  MEMBER i32 row(i32 r) const { return first + min(r, count - 1); }
};

// Queries, weights and outputs of the wave's rows. 16 + 8 registers per row at 32 heads.
struct RowGroup {
  i32x8 queries[kRows][kHeadTiles];   // operand A: head lane % 16 of the tile
  f32x4 weights[kRows][kHeadTiles];   // of heads 4 * (lane / 16) + v of the tile: the rows of D
  Buffer logits[kRows];               // [0, end) of each row: a store past its end is dropped

  // A group with fewer rows reads its last row again and stores nothing for it.
  DEVICE RowGroup load(const Tensors& t, const Sequence& sequence, const Rows& rows) {
    const i32 lane = lane_id();
    const u32 q_lane = lane % kTile * kHeadDim + lane / kTile * 16, w_lane = lane / kTile * 16;
    Bytes q = t.q, w = t.weights;
    in_registers(q, w);
    q += sequence.index * t.q_seq_stride + rows.first * t.q_row_stride;
    w += sequence.index * t.weights_seq_stride + rows.first * t.weights_row_stride;
    RowGroup group;
#pragma unroll
    for (i32 r = 0; r < kRows; ++r) {
      const Buffer heads = Buffer::of(q, kNumHeads * kHeadDim), head_weights = Buffer::of(w, kNumHeads * 4);
#pragma unroll
      for (i32 tile = 0; tile < kHeadTiles; ++tile) {
        group.queries[r][tile] = heads.load_token<Buffer::kKept>(q_lane, q_lane + kHeadDim / 2, tile * kTileBytes);
        const i32x4 loaded = head_weights.load_x4<Buffer::kKept>(w_lane, tile * kTile * 4);
        group.weights[r][tile] = __builtin_bit_cast(f32x4, loaded);
      }
      const bool another = r + 1 < rows.count;
      q += another ? t.q_row_stride : 0;
      w += another ? t.weights_row_stride : 0;
    }
    return group;
  }

  MEMBER void open_logits(const Tensors& t, const Sequence& sequence, const Rows& rows) {
    Global<u8>* cells = t.logits;
    in_register(cells);
    cells += (sequence.first_row + rows.first) * t.logits_row_stride;
#pragma unroll
    for (i32 r = 0; r < kRows; ++r) logits[r] = Buffer::of(cells + r * t.logits_row_stride, rows.ends[r] * 4);
  }
};

// One piece of matrix work and of the vector work that follows it: one part of the heads of one row, on one tile of
// tokens.
struct Piece {
  i32 row, tile, part;

  DEVICE Piece of(i32 i) { return {i / (kTilesPerStep * kParts), i / kParts % kTilesPerStep, i % kParts}; }
};
constexpr i32 kPieces = kRows * kTilesPerStep * kParts;

// D of the head tiles of a piece.
struct Scores {
  f32x4 tiles[kTilesScored];
};

DEVICE Scores score(const RowGroup& group, const KvStage<kGather>& stage, Piece piece) {
  Scores scores;
#pragma unroll
  for (i32 i = 0; i < kTilesScored; ++i) {
    const i32x8& queries = group.queries[piece.row][piece.part * kTilesScored + i];
    scores.tiles[i] = mfma_16x16x128_fp8(queries, stage.keys[piece.tile]);
  }
  return scores;
}

// Add a piece's sum over the lane's heads of relu(score) * weight to that of the parts before it.
DEVICE float weigh(const RowGroup& group, Piece piece, const Scores& scores, float sum) {
#pragma unroll
  for (i32 i = 0; i < kTilesScored; ++i)
#pragma unroll
    for (i32 v = 0; v < 4; ++v) {
      const float relu = __builtin_fmaxf(scores.tiles[i][v], 0.0f);
      const float weight = group.weights[piece.row][piece.part * kTilesScored + i][v];
      sum = piece.part + i + v == 0 ? relu * weight : __builtin_fmaf(relu, weight, sum);
    }
  return sum;
}

// Add up the four rows of 16 lanes of each of four partial sums: lane l gets the total of tile l / 16, token l % 16.
DEVICE float reduce(float (&partial)[kTilesPerStep]) {
  swap_halves(partial[0], partial[2]);
  swap_halves(partial[1], partial[3]);
  float even = partial[0] + partial[2], odd = partial[1] + partial[3];
  swap_rows(even, odd);
  return even + odd;
}

// One step: every row's logits of 64 tokens. The matrix work of one piece is issued before the vector work of the
// previous one, which then fills its wait states.
DEVICE void compute_step(const RowGroup& group, const KvStage<kGather>& stage, i32 position) {
  const float scale = stage.scale();
  const i32 byte_offset = (position + lane_id()) * 4;
  Scores next = score(group, stage, Piece::of(0));
  float partial[kTilesPerStep] = {};
#pragma unroll
  for (i32 i = 0; i < kPieces; ++i) {
    const Piece piece = Piece::of(i);
    const Scores scores = next;
    if (i + 1 < kPieces) next = score(group, stage, Piece::of(i + 1));
    partial[piece.tile] = weigh(group, piece, scores, partial[piece.tile]);
    if (piece.tile == kTilesPerStep - 1 && piece.part == kParts - 1)
      group.logits[piece.row].store(byte_offset, reduce(partial) * scale);
  }
}

// Steps [begin, end) of one group of rows of sequence b. A last step that is not a whole one comes first, because its
// loads differ; then two stages take turns, so that the keys of the next step are on their way while one is computed.
DEVICE void run_steps(const Tensors& t, const Lengths& lengths, const Sequence& sequence, i32 b, i32 first_row,
                      i32 begin, i32 end) {
  const Rows rows = Rows::of(lengths, sequence, first_row);
  const i32 tokens = rows.longest;
  end = min(end, ceil_div(tokens, kStep));
  i32 remaining = end - begin;
  if (remaining <= 0) return;

  i32 position = (end * kStep > tokens ? end - 1 : begin) * kStep;
  i32 ahead = (end * kStep > tokens ? begin : begin + 1) * kStep;
  auto stream = KvStream<kGather>::open(t, b, tokens, position, ahead);
  stages_apart();
  RowGroup group = RowGroup::load(t, sequence, rows);
  stages_apart();
  KvStage<kGather> even, odd;
  stream.load_first(t, even);
  stages_apart();
  group.open_logits(t, sequence, rows);
  for (; remaining > 2; remaining -= 2) {
    stream.load_next(odd);
    stages_apart();
    compute_step(group, even, position);

    stream.load_next(even);
    stages_apart();
    compute_step(group, odd, ahead);
    position = ahead + kStep;
    ahead += 2 * kStep;
  }
  if (remaining == 2) {
    stream.load_next(odd);
    stages_apart();
    compute_step(group, even, position);
    position = ahead;
    even = odd;
  }
  compute_step(group, even, position);
}

// -inf in [end, max_model_len) of every row: 1024 cells a wave and turn.
DEVICE void clean_tails(const Problem& p, i32 wave) {
  constexpr i32 kCells = 1024;
  const i32 max_model_len = p.tensors.max_model_len, num_waves = p.division.num_waves;
  const i32 chunks = ceil_div(max_model_len, kCells);
  for (i32 b = 0; b < p.lengths.batch; ++b) {
    const auto sequence = Sequence::read<Uniform>(p.lengths, b);
    for (i32 n = 0; n < sequence.num_rows; ++n) {
      const i32 row = sequence.first_row + n, end = sequence.end(p.lengths, n);
      Global<float>* cells = reinterpret_cast<Global<float>*>(p.tensors.logits + row * p.tensors.logits_row_stride);
      for (i32 chunk = (wave + row) % num_waves; chunk < chunks; chunk += num_waves)
        for (i32 cell = max(chunk * kCells, end / kLanes * kLanes) + lane_id();
             cell < min((chunk + 1) * kCells, max_model_len); cell += kLanes)
          if (cell >= end) cells[cell] = -__builtin_inff();
    }
  }
}

DEVICE void run(Lengths lengths, const Division& division, Constant<Problem>* kernargs) {
  const i32 in_block = __builtin_amdgcn_workitem_id_x() / kLanes;
  const i32 wave = uniform(__builtin_amdgcn_workgroup_id_x() * kWavesPerBlock + in_block);

  // The other arguments are on their way while the lengths are.
  Tensors tensors = kernargs->tensors;
  const auto lanes = Worklist<kRows>::read_lanes(lengths, 0);
  tensors.arrive();
  const i32 tail_wave = tensors.clean_logits && wave < division.num_waves ? wave : -1;

  // The wave's range: sequence by sequence, group by group.
  auto list = Worklist<kRows>::of_wave(lengths, division, wave, lanes);
  while (list.remaining > 0) {
    const i32 steps = steps_per_group(list.sequence);
    const i32 group = list.skip < steps ? 0 : static_cast<u32>(list.skip) / static_cast<u32>(steps);
    const i32 begin = list.skip - group * steps, end = min(steps, begin + list.remaining);
    list.take(end - begin);
    run_steps(tensors, lengths, list.sequence, list.b, group * kRows, begin, end);
    // NOTE: the arguments are read again rather than held meanwhile: that would leave too few registers for the rows.
    in_register(kernargs);
    lengths = kernargs->lengths;
    tensors = kernargs->tensors;
    list.resume(lengths);
  }
  if (tail_wave >= 0) {
    in_register(kernargs);
    clean_tails(*kernargs, tail_wave);
  }
}

// The arguments that `run` is given by name come preloaded; it reads the others from the kernarg segment.
#pragma clang diagnostic ignored "-Wunused-parameter"
extern "C" __attribute__((global, amdgpu_flat_work_group_size(kLanes * kWavesPerBlock, kLanes * kWavesPerBlock),
                          amdgpu_waves_per_eu(WAVES_PER_SIMD, WAVES_PER_SIMD))) void
KERNEL_NAME(const u8* context_lens, const u8* cu_seqlens_q, i64 lens_seq_stride, i64 lens_row_stride, i32 lens_per_row,
            i32 batch, i32 next_n, i32 reach, i32 num_waves, u32 waves_inverse,
            const u8* q, const u8* kv_cache, const float* weights, const i32* block_tables, float* logits,
            i64 q_seq_stride, i64 q_row_stride, i64 kv_block_stride, i64 weights_seq_stride, i64 weights_row_stride,
            i64 table_row_stride, i64 logits_row_stride, i32 table_width, i32 block_kv, u32 page_inverse,
            i32 kv_token_stride, i32 kv_chunk_stride, i32 clean_logits, i32 max_model_len) {
  run({(Bytes)context_lens, (Bytes)cu_seqlens_q, lens_seq_stride, lens_row_stride, lens_per_row, batch, next_n, reach},
      {num_waves, waves_inverse}, (Constant<Problem>*)(__builtin_amdgcn_kernarg_segment_ptr()));
}
