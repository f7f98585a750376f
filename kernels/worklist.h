// Which 64-token steps a wave does. The steps of the whole batch form one list (sequence, then group of rows, then
// position) that is cut into equal contiguous ranges, one per wave, from device data only: the launch depends on shapes
// alone, a ragged batch leaves no wave behind, and no value depends on where the cuts fall.
#pragma once
#include "problem.h"

template <i32 kRows>
struct Worklist {
  i32 sequence;   // where the range starts
  i32 skip;       // steps of that sequence that belong to earlier waves
  i32 remaining;  // steps in the range

  // Steps of a sequence: each group of rows walks to the sequence's longest end.
  template <typename Access>
  DEVICE i32 steps_of(Args p, i32 b, i32 reach) {
    auto sequence = Sequence<Access>::read(p, b);
    i32 longest = sequence.longest_end(p, 0, sequence.num_rows, reach);
    return ceil_div(sequence.num_rows, kRows) * ceil_div(longest, kStep);
  }

  // Steps of sequence first + lane; 0 past the batch.
  DEVICE i32 steps_of_lane(Args p, i32 first, i32 reach) {
    i32 b = first + lane_id();
    return b < p.batch ? steps_of<PerLane>(p, b, reach) : 0;
  }

  DEVICE Worklist of_wave(Args p, i32 wave, i32 reach) {
    const i32 first_steps = steps_of_lane(p, 0, reach);
    i32 total = read_lane(scan_lanes(first_steps), kLanes - 1);
    for (i32 first = kLanes; first < p.batch; first += kLanes)
      total += read_lane(scan_lanes(steps_of_lane(p, first, reach)), kLanes - 1);

    // Equal ranges: the first total % num_waves waves take one step more.
    const i32 share = static_cast<u32>(total) / static_cast<u32>(p.num_waves);
    const i32 extra = total - share * p.num_waves;
    const i32 begin = wave * share + min(wave, extra);
    Worklist list{0, 0, wave < p.num_waves ? share + (wave < extra) : 0};
    if (list.remaining == 0) return list;

    // The sequence whose steps hold `begin`: the first whose inclusive prefix sum exceeds it.
    i32 before = 0, steps = first_steps;
    for (i32 first = 0;; first += kLanes, steps = steps_of_lane(p, first, reach)) {
      const i32 prefix = before + scan_lanes(steps);
      const u64 beyond = __builtin_amdgcn_ballot_w64(prefix > begin);
      if (beyond) {
        const i32 lane = __builtin_ctzll(beyond);
        list.sequence = first + lane;
        list.skip = begin - (read_lane(prefix, lane) - read_lane(steps, lane));
        return list;
      }
      before = read_lane(prefix, kLanes - 1);
    }
  }
};
