// The keys of one sequence, 64 tokens at a time, straight into registers in the layout of MFMA operand B.
#pragma once
#include "problem.h"

// What belongs to token `lane` of a step, out of what belongs to token lane % 16 of each tile.
template <typename T>
DEVICE T of_own_tile(const T (&tiles)[kTilesPerStep]) {
  const i32 lane = lane_id();
  const T first = tiles[0], second = tiles[1], third = tiles[2], fourth = tiles[3];
  const T low = lane < 16 ? first : second, high = lane < 48 ? third : fourth;
  return lane < 32 ? low : high;
}

// 64 tokens: four tiles of [128, 16] fp8, and the scale of token `lane` once `scale()` has put it together.
template <bool kGather>
struct KvStage;

// Pages of 16 tokens or more: a tile lies within one page and is 2 KiB in one piece, so its address is scalar.
template <>
struct KvStage<false> {
  i32x8 keys[kTilesPerStep];
  float scales[kTilesPerStep];  // of token lane % 16 of each tile

  MEMBER float scale() const { return of_own_tile(scales); }
};

// Smaller pages: every token has its own page table entry.
template <>
struct KvStage<true> {
  i32x8 keys[kTilesPerStep];
  float token_scale;

  MEMBER float scale() const { return token_scale; }
};

// The lane's byte offsets within a tile.
struct LaneOffsets {
  u32 first_half, second_half;  // of its token's 16 bytes in k 0..63 and in k 64..127
  u32 scale;

  DEVICE LaneOffsets of(Args p, i32 token) {
    const u32 values = token * p.kv_token_stride + lane_id() / kTile * p.kv_chunk_stride;
    return {values, values + 4 * p.kv_chunk_stride, static_cast<u32>(token) * 4};
  }
};

// Reads a sequence's keys: `load_any` for one step, then `seek` and a `load_next` for each further one.
template <bool kGather>
struct KvStream;

template <>
struct KvStream<false> {
  using Stage = KvStage<false>;

  Bytes cache;
  i64 block_stride;
  Bytes table;                 // of this sequence
  u32 block_kv, tiles_per_page, inverse;
  i32 last_page, last_token;   // the newest that may be read
  LaneOffsets lane;
  i32 position;                // of the step that `look_up` is for
  i32 ids[kTilesPerStep];      // the next step's blocks
  u32 tokens[kTilesPerStep];   // and its tiles' first tokens within them

  DEVICE KvStream open(Args p, i32 b, i32 end) {
    KvStream s;
    s.cache = p.kv_cache;
    s.block_stride = p.kv_block_stride;
    s.table = p.block_tables + b * p.table_row_stride;
    s.block_kv = p.block_kv;
    s.tiles_per_page = s.block_kv / kTile;
    s.inverse = ((1u << 31) + s.tiles_per_page - 1) / s.tiles_per_page;
    s.last_token = end - 1;
    s.last_page = s.page_of(s.last_token / kTile);
    s.lane = LaneOffsets::of(p, lane_id() % kTile);
    return s;
  }

  // Issue the loads of the step at `first`, which may be the last: past the last token, that token is read again.
  MEMBER void load_any(Args p, Stage& stage, i32 first) const {
#pragma unroll
    for (i32 tile = 0; tile < kTilesPerStep; ++tile) {
      const u32 index = min(first / kTile + tile, last_token / kTile), page = page_of(index);
      const LaneOffsets clamped = LaneOffsets::of(p, min(lane_id() % kTile, last_token - index * kTile));
      load_tile(stage, tile, scalar_load<i32>(table + page * 4), in_page(index, page), clamped);
    }
  }

  // Look up the blocks of the step at `first`, all of whose tokens exist.
  MEMBER void seek(i32 first) {
    position = first;
    look_up();
  }

  // Issue the loads of the step looked up, and look up the one after. Past the last page, that page is looked up again.
  MEMBER void load_next(Stage& stage) {
#pragma unroll
    for (i32 tile = 0; tile < kTilesPerStep; ++tile) load_tile(stage, tile, ids[tile], tokens[tile], lane);
    position += kStep;
    look_up();
  }

 private:
  // Quotient by tiles_per_page, exact while tile * tiles_per_page < 2^31 (Granlund & Montgomery 1994, theorem 4.2 with
  // l = 31): inverse is less than 1 above 2^31 / tiles_per_page, so tile * inverse is less than tile too large, and the
  // next quotient is at least 2^31 / tiles_per_page > tile away.
  MEMBER u32 page_of(u32 tile) const { return (static_cast<u64>(2 * tile) * inverse) >> 32; }
  MEMBER u32 in_page(u32 tile, u32 page) const { return (tile - page * tiles_per_page) * kTile; }

  MEMBER void look_up() {
#pragma unroll
    for (i32 tile = 0; tile < kTilesPerStep; ++tile) {
      const u32 index = position / kTile + tile, page = page_of(index);
      ids[tile] = scalar_load<i32>(table + static_cast<u32>(min(page, last_page)) * 4);
      tokens[tile] = in_page(index, page);
    }
  }

  MEMBER void load_tile(Stage& stage, i32 tile, i32 id, u32 first, const LaneOffsets& at) const {
    const u32 value_bytes = block_kv * kHeadDim;
    const Buffer block = Buffer::of(cache + static_cast<u32>(id) * block_stride, value_bytes + block_kv * 4);
    stage.keys[tile] = block.load_token(at.first_half, at.second_half, first * kHeadDim);
    stage.scales[tile] = block.load_f32(at.scale, value_bytes + first * 4);
  }
};

// Every token has its own page table entry, so addresses are per lane: a lane reads token lane % 16 of each tile, and
// the scale of token `lane` of the step. Entries are looked up two steps ahead: vector loads return in order, so that
// waiting for an entry must not mean waiting for the keys of the step under way.
template <>
struct KvStream<true> {
  using Stage = KvStage<true>;

  Buffer table;                 // of this sequence
  Bytes values_base;            // of the lane's 16 bytes and of its scale, were its token in block 0
  Bytes scale_base;
  u32 block_stride;             // below 4 GiB here
  i32 shift;                    // log2(block_kv)
  i32 last_token, last_page;
  i32 page;                     // of the step that `look_up` reads
  struct Blocks {
    u32 ids[kTilesPerStep];     // of token lane % 16 of each tile
  } next;

  DEVICE KvStream open(Args p, i32 b, i32 end) {
    KvStream s;
    s.table = Buffer::of(p.block_tables + b * p.table_row_stride, p.table_width * 4);
    s.block_stride = static_cast<u32>(p.kv_block_stride);
    s.shift = __builtin_ctz(p.block_kv);
    s.last_token = end - 1;
    s.last_page = s.last_token >> s.shift;
    const i32 in_page = lane_id() % p.block_kv;
    s.values_base = values_of(p, in_page);
    s.scale_base = scale_of(p, in_page);
    return s;
  }

  MEMBER void load_any(Args p, Stage& stage, i32 position) const {
#pragma unroll
    for (i32 tile = 0; tile < kTilesPerStep; ++tile) {
      const i32 token = min(position + tile * kTile + lane_id() % kTile, last_token);
      load_tile(stage, tile, block(entry(token >> shift), values_of(p, token & (p.block_kv - 1))));
    }
    const i32 token = min(position + lane_id(), last_token);
    stage.token_scale = vector_load<float>(block(entry(token >> shift), scale_of(p, token & (p.block_kv - 1))));
  }

  MEMBER void seek(i32 position) {
    page = position >> shift;
    next = look_up();
  }

  // NOTE: in this order the entries take the registers of those they follow.
  MEMBER void load_next(Stage& stage) {
    Bytes values[kTilesPerStep];
#pragma unroll
    for (i32 tile = 0; tile < kTilesPerStep; ++tile) values[tile] = block(next.ids[tile], values_base);
    Bytes scale = block(of_own_tile(next.ids), scale_base);
    stages_apart();
    next = look_up();
    stages_apart();
#pragma unroll
    for (i32 tile = 0; tile < kTilesPerStep; ++tile) load_tile(stage, tile, values[tile]);
    stage.token_scale = vector_load<float>(scale);
  }

 private:
  DEVICE Bytes values_of(Args p, i32 in_page) {
    return p.kv_cache + static_cast<u32>(in_page * p.kv_token_stride + lane_id() / kTile * p.kv_chunk_stride);
  }
  DEVICE Bytes scale_of(Args p, i32 in_page) {
    return p.kv_cache + static_cast<u32>(p.block_kv * kHeadDim + in_page * 4);
  }

  MEMBER u32 entry(u32 at) const { return table.load_u32(at * 4, 0); }

  // NOTE: past the last page the last is looked up again; those entries are never used.
  MEMBER Blocks look_up() {
    Blocks blocks;
    const u32 first = min(page, last_page - (kStep >> shift) + 1), lane = lane_id();
#pragma unroll
    for (u32 tile = 0; tile < kTilesPerStep; ++tile)
      blocks.ids[tile] = table.load_u32((lane % kTile >> shift) * 4, (first + (tile * kTile >> shift)) * 4);
    page += kStep >> shift;
    return blocks;
  }

  MEMBER Bytes block(u32 id, Bytes base) const { return base + static_cast<u64>(id) * block_stride; }

  MEMBER void load_tile(Stage& stage, i32 tile, Bytes values) const {
    const i32x4 low = vector_load<i32x4_at4>(values), high = vector_load<i32x4_at4>(values + kHeadDim / 2);
    stage.keys[tile] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
  }
};
