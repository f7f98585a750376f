// The keys of one sequence, 64 tokens at a time, straight into registers in the layout of MFMA operand B.
#pragma once
#include "problem.h"

// What belongs to token `lane` of a step, out of what belongs to token lane % 16 of each tile.
template <typename T>
DEVICE T of_own_tile(const T (&tiles)[kTilesPerStep]) {
  return replace_row<3>(replace_row<2>(replace_row<1>(tiles[0], tiles[1]), tiles[2]), tiles[3]);
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

  // NOTE: the masks change nothing. They tell the compiler that the factors have fewer than 24 bits, for which there is
  // a multiplication at full rate.
  DEVICE LaneOffsets of(const Tensors& t, u32 token) {
    const u32 chunk_stride = t.kv_chunk_stride & 0xffff, token_stride = t.kv_token_stride & 0xffff;
    const u32 values = token * token_stride + lane_id() / kTile * chunk_stride;
    return {values, values + 4 * chunk_stride, token * 4};
  }
};

// Reads a sequence's keys: `load_first` for the step at `first`, then a `load_next` for each further one from `ahead`,
// all of whose tokens exist. Where there is none, what `open` looks up for it is not used.
template <bool kGather>
struct KvStream;

template <>
struct KvStream<false> {
  using Stage = KvStage<false>;

  // Where the tiles of a step are.
  struct Tiles {
    i32 ids[kTilesPerStep];      // their blocks
    u32 tokens[kTilesPerStep];   // their first tokens within them
  };

  Bytes cache;
  i64 block_stride;
  Bytes table;                  // of this sequence
  u32 block_kv, inverse;
  u32 last_token, last_page;    // the newest that may be read
  LaneOffsets lane;
  u32 first, position;          // of the step that it was opened at, of the one that `next` is for
  Tiles opened, next;

  DEVICE KvStream open(const Tensors& t, i32 b, i32 end, i32 first, i32 ahead) {
    KvStream s;
    s.cache = t.kv_cache;
    s.block_stride = t.kv_block_stride;
    s.table = t.block_tables + b * t.table_row_stride;
    s.block_kv = t.block_kv;
    s.inverse = t.page_inverse;
    s.last_token = end - 1;
    s.last_page = s.page_of(s.last_token);
    s.lane = LaneOffsets::of(t, lane_id() % kTile);
    s.first = first;
    s.position = ahead;
    s.opened = s.look_up<kMayEnd>(first);
    s.next = s.look_up<kMayEnd>(ahead);
    return s;
  }

  // Issue the loads of the first step, which may be the last: past the last token, that token is read again.
  MEMBER void load_first(const Tensors& t, Stage& stage) const {
#pragma unroll
    for (u32 tile = 0; tile < kTilesPerStep; ++tile) {
      const u32 left = last_token - min(first + tile * kTile, last_tile());
      load_tile(stage, tile, opened, LaneOffsets::of(t, min(static_cast<u32>(lane_id() % kTile), left)));
    }
  }

  // Issue the loads of the step looked up, and look up the one after. Past the last page, that page is looked up again.
  MEMBER void load_next(Stage& stage) {
#pragma unroll
    for (u32 tile = 0; tile < kTilesPerStep; ++tile) load_tile(stage, tile, next, lane);
    position += kStep;
    next = look_up<kWhole>(position);
  }

 private:
  enum Extent { kWhole, kMayEnd };

  // First token of the last tile.
  MEMBER u32 last_tile() const { return last_token / kTile * kTile; }

  // A token's tile over block_kv / 16, exact while their product is below 2^31 (Granlund & Montgomery 1994, theorem 4.2
  // with l = 31): inverse is less than 1 above 2^31 / (block_kv / 16), so tile * inverse is less than tile too large,
  // and the next quotient is at least 2^31 / (block_kv / 16) > tile away.
  MEMBER u32 page_of(u32 token) const {
    const u32 tile = token / kTile;
    return (static_cast<u64>(2 * tile) * inverse) >> 32;
  }

  template <Extent kExtent>
  MEMBER Tiles look_up(u32 position) const {
    Tiles tiles;
#pragma unroll
    for (u32 tile = 0; tile < kTilesPerStep; ++tile) {
      u32 token = position + tile * kTile;
      if (kExtent == kMayEnd) token = min(token, last_tile());
      const u32 page = page_of(token);
      tiles.ids[tile] = scalar_load<i32>(table + (kExtent == kMayEnd ? page : min(page, last_page)) * 4);
      tiles.tokens[tile] = token - page * block_kv;
    }
    return tiles;
  }

  MEMBER void load_tile(Stage& stage, i32 tile, const Tiles& tiles, const LaneOffsets& at) const {
    const u32 value_bytes = block_kv * kHeadDim, first = tiles.tokens[tile];
    const Bytes base = cache + static_cast<u32>(tiles.ids[tile]) * block_stride;
    const Buffer block = Buffer::of(base, value_bytes + block_kv * 4);
    // NOTE: keys of single tokens (gather) are kept: the halves of one, loaded apart, share cache lines.
    stage.keys[tile] = block.load_token<Buffer::kNonTemporal>(at.first_half, at.second_half, first * kHeadDim);
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
  i32 first;                    // of the step that it was opened at
  i32 page;                     // of the step that `look_up` reads
  struct Blocks {
    u32 ids[kTilesPerStep];     // of token lane % 16 of each tile
  } opened, next;

  DEVICE KvStream open(const Tensors& t, i32 b, i32 end, i32 first, i32 ahead) {
    KvStream s;
    s.table = Buffer::of(t.block_tables + b * t.table_row_stride, t.table_width * 4);
    s.block_stride = static_cast<u32>(t.kv_block_stride);
    s.shift = __builtin_ctz(t.block_kv);
    s.last_token = end - 1;
    s.last_page = s.last_token >> s.shift;
    s.first = first;
    s.page = (ahead >> s.shift) + (kStep >> s.shift);
#pragma unroll
    for (i32 tile = 0; tile < kTilesPerStep; ++tile) {
      s.next.ids[tile] = s.table.load_u32((s.bounded(ahead + tile * kTile + lane_id() % kTile) >> s.shift) * 4, 0);
      s.opened.ids[tile] = s.table.load_u32((s.bounded(first + tile * kTile + lane_id() % kTile) >> s.shift) * 4, 0);
    }
    const i32 in_page = lane_id() & (t.block_kv - 1);
    s.values_base = values_of(t, in_page);
    s.scale_base = scale_of(t, in_page);
    return s;
  }

  // Issue the loads of the first step, which may be the last: past the last token, that token is read again.
  MEMBER void load_first(const Tensors& t, Stage& stage) const {
    const i32 mask = t.block_kv - 1;
#pragma unroll
    for (i32 tile = 0; tile < kTilesPerStep; ++tile) {
      const i32 token = bounded(first + tile * kTile + lane_id() % kTile);
      load_tile(stage, tile, block(opened.ids[tile], values_of(t, token & mask)));
    }
    const u32 own = of_own_tile(opened.ids);
    stage.token_scale = vector_load<float>(block(own, scale_of(t, bounded(first + lane_id()) & mask)));
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
  DEVICE Bytes values_of(const Tensors& t, u32 in_page) { return t.kv_cache + LaneOffsets::of(t, in_page).first_half; }
  DEVICE Bytes scale_of(const Tensors& t, u32 in_page) {
    return t.kv_cache + static_cast<u32>(t.block_kv * kHeadDim + in_page * 4);
  }

  MEMBER i32 bounded(i32 token) const { return min(token, last_token); }

  // NOTE: past the last page the last is looked up again; those entries are never used.
  MEMBER Blocks look_up() {
    Blocks blocks;
    const u32 from = min(page, last_page - (kStep >> shift) + 1), lane = lane_id();
#pragma unroll
    for (u32 tile = 0; tile < kTilesPerStep; ++tile)
      blocks.ids[tile] = table.load_u32((lane % kTile >> shift) * 4, (from + (tile * kTile >> shift)) * 4);
    page += kStep >> shift;
    return blocks;
  }

  MEMBER Bytes block(u32 id, Bytes base) const { return base + static_cast<u64>(id) * block_stride; }

  MEMBER void load_tile(Stage& stage, i32 tile, Bytes values) const {
    const i32x4 low = vector_load<i32x4_at4>(values), high = vector_load<i32x4_at4>(values + kHeadDim / 2);
    stage.keys[tile] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
  }
};
