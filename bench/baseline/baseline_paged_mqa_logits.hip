// A kernel of the published first design, to tie the timing model to published times. It is no variant of the operator.
//
// One 32-token tile per wave and step, two 32x32x64 MFMA per row and tile, keys straight to registers, nothing in flight
// across tiles. Grid (batch, split, groups of ROWS_PER_WAVE rows); a block's tiles are strided over its waves.
// GATHER: blocks of one token, plain. Otherwise blocks of 64 tokens, preshuffled in 16x16 tiles. Heads 32, head_dim 128.
using i32 = int;
using u32 = unsigned;
using i64 = long long;
using u8 = unsigned char;
using i32x4 = int __attribute__((ext_vector_type(4)));
using i32x4_at4 = int __attribute__((ext_vector_type(4), aligned(4)));
using i32x8 = int __attribute__((ext_vector_type(8)));
using f32x16 = float __attribute__((ext_vector_type(16)));
using u32x2 = unsigned __attribute__((ext_vector_type(2)));

#define DEVICE static __attribute__((device, always_inline))

constexpr i32 kRows = ROWS_PER_WAVE;
constexpr bool kGather = GATHER;
constexpr i32 kHeads = NUM_HEADS, kHeadDim = 128, kTile = 32, kLanes = 64;
constexpr i32 kBlockKV = kGather ? 1 : 64;
constexpr i32 kBlockBytes = kBlockKV * (kHeadDim + 4);
static_assert(kHeads == 32, "a row-tile is the 32 rows of one MFMA");

DEVICE i32 min(i32 a, i32 b) { return a < b ? a : b; }

DEVICE i32x8 join(i32x4 low, i32x4 high) { return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7); }

DEVICE f32x16 mfma(i32x8 a, i32x8 b, f32x16 c) {
  constexpr i32 kFp8 = 0;
  return __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(a, b, c, kFp8, kFp8, 0, 0, 0, 0);
}

// The sum over both halves of the wave, in every lane.
DEVICE float add_halves(float value) {
  const u32 bits = __builtin_bit_cast(u32, value);
  const u32x2 pair = __builtin_amdgcn_permlane32_swap(bits, bits, false, false);
  const u32 first = pair[0], second = pair[1];
  return __builtin_bit_cast(float, first) + __builtin_bit_cast(float, second);
}

// Lane l holds, of row (token or head) l % 32, chunks 2 * (l / 32) and 2 * (l / 32) + 1 of 16 bytes of each half of k.
struct Operand {
  i32x8 halves[2];
};

DEVICE Operand load_operand(const u8* row, i32 chunk_stride) {
  const u8* at = row + __builtin_amdgcn_workitem_id_x() % kLanes / kTile * 2 * chunk_stride;
  Operand operand;
#pragma unroll
  for (i32 half = 0; half < 2; ++half) {
    const auto* first = reinterpret_cast<const i32x4_at4*>(at + half * 4 * chunk_stride);
    const auto* second = reinterpret_cast<const i32x4_at4*>(at + (half * 4 + 1) * chunk_stride);
    operand.halves[half] = join(*first, *second);
  }
  return operand;
}

// The same value, of which the compiler no longer knows that it is: a load through it is not merged with another, and what
// makes it is not sunk below. Emits no instruction.
template <typename T>
DEVICE T hide(T value) {
  asm volatile("" : "+v"(value));
  return value;
}

extern "C" __attribute__((global, amdgpu_flat_work_group_size(64, 512),
                          amdgpu_waves_per_eu(WAVES_PER_SIMD))) void
KERNEL_NAME(const u8* q, const u8* kv_cache, const float* weights, const i32* context_lens, const i32* block_tables,
            float* logits, i64 table_row_stride, i64 logits_row_stride, i32 next_n, i32 chunk_tokens, i32 num_waves,
            i32 num_splits) {
  const i32 b = __builtin_amdgcn_workgroup_id_x(), split = __builtin_amdgcn_workgroup_id_y();
  const i32 first_row = __builtin_amdgcn_workgroup_id_z() * kRows;
  const i32 lane = __builtin_amdgcn_workitem_id_x() % kLanes;
  const i32 wave = __builtin_amdgcn_readfirstlane(__builtin_amdgcn_workitem_id_x() / kLanes);

  // The split's tokens: whole chunks of its own sequence.
  const i32 length = context_lens[b];
  const i32 chunks = (length + chunk_tokens - 1) / chunk_tokens;
  const i32 share = (chunks + num_splits - 1) / num_splits * chunk_tokens;
  const i32 begin = split * share, end = min(begin + share, length);
  if (begin >= end) return;

  // The rows' queries, and the weights of the heads whose scores the lane holds: 8 * (v / 4) + 4 * (lane / 32) + v % 4.
  Operand queries[kRows];
  float row_weights[kRows][16];
#pragma unroll
  for (i32 r = 0; r < kRows; ++r) {
    const i64 row = static_cast<i64>(b) * next_n + min(first_row + r, next_n - 1);
    queries[r] = load_operand(q + (row * kHeads + lane % kTile) * kHeadDim, 16);
#pragma unroll
    for (i32 v = 0; v < 16; ++v) row_weights[r][v] = weights[row * kHeads + 8 * (v / 4) + 4 * (lane / kTile) + v % 4];
  }

  const i32* table = block_tables + b * table_row_stride;
  for (i32 tile = begin + wave * kTile; tile < end; tile += num_waves * kTile) {
    const i32 token = tile + lane % kTile, known = min(token, length - 1);
    Operand keys;
    float scale;
    if constexpr (kGather) {
      keys = load_operand(kv_cache + static_cast<i64>(table[known]) * kBlockBytes, 16);
      const u8* token_block = kv_cache + static_cast<i64>(table[hide(known)]) * kBlockBytes;
      scale = *reinterpret_cast<const float*>(token_block + kHeadDim);
    } else {
      const i32 in_block = known % kBlockKV;
      const u8* block = kv_cache + static_cast<i64>(table[known / kBlockKV]) * kBlockBytes;
      keys = load_operand(block + in_block / 16 * 2048 + in_block % 16 * 16, 256);
      scale = hide(*reinterpret_cast<const float*>(block + kBlockKV * kHeadDim + in_block * 4));
    }
    __builtin_amdgcn_sched_barrier(0);
#pragma unroll
    for (i32 r = 0; r < kRows; ++r) {
      f32x16 scores = {};
      scores = mfma(queries[r].halves[0], keys.halves[0], scores);
      scores = mfma(queries[r].halves[1], keys.halves[1], scores);
      float sum = 0;
#pragma unroll
      for (i32 v = 0; v < 16; ++v) sum = __builtin_fmaf(__builtin_fmaxf(scores[v], 0.0f), row_weights[r][v], sum);
      sum = add_halves(sum);
      const i32 row = first_row + r;
      if (row < next_n && lane < kTile && token < end && token <= length - next_n + row)
        logits[(static_cast<i64>(b) * next_n + row) * logits_row_stride + token] = sum * scale;
    }
  }
}
