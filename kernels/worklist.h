// Which 64-token steps a wave does. The steps of the whole batch form one list (sequence, then group of rows, then
// position) that is cut into equal contiguous ranges, one per wave, from device data only: the launch depends on shapes
// alone, a ragged batch leaves no wave behind, and no value depends on where the cuts fall.
#pragma once
#include "problem.h"

// Steps of one group of rows: each walks to the sequence's longest end.
DEVICE i32 steps_per_group(const Sequence& sequence) { return ceil_div(sequence.longest, kStep); }

template <i32 kRows>
struct Worklist {
  i32 b;              // the sequence where the range starts
  Sequence sequence;
  i32 skip;           // steps of that sequence that belong to earlier waves
  i32 remaining;      // steps in the range

  // Sequence first + lane; one without rows past the batch.
  DEVICE Sequence read_lanes(const Lengths& lengths, i32 first) {
    const i32 b = first + lane_id();
    return b < lengths.batch ? Sequence::read<PerLane>(lengths, b) : Sequence{};
  }

  // `lanes`: the first 64 sequences. Those after them are read for the total and again in the search.
  DEVICE Worklist of_wave(const Lengths& lengths, const Division& division, i32 wave, Sequence lanes) {
    i32 steps = steps_of(lanes), prefix = scan_lanes(steps);
    i32 total = read_lane(prefix, kLanes - 1);
    for (i32 first = kLanes; first < lengths.batch; first += kLanes)
      total += read_lane(scan_lanes(steps_of(read_lanes(lengths, first))), kLanes - 1);

    // Equal ranges: the first total % num_waves waves take one step more.
    const i32 share = division.share_of(total), extra = total - share * division.num_waves;
    const i32 begin = wave * share + min(wave, extra);
    Worklist list{0, {}, 0, wave < division.num_waves ? share + (wave < extra) : 0};
    if (list.remaining == 0) return list;

    // The sequence whose steps hold `begin`: the first whose inclusive prefix sum exceeds it.
    i32 first = 0;
    u64 beyond = __builtin_amdgcn_ballot_w64(prefix > begin);
    while (!beyond) {
      first += kLanes;
      lanes = read_lanes(lengths, first);
      steps = steps_of(lanes);
      prefix = read_lane(prefix, kLanes - 1) + scan_lanes(steps);
      beyond = __builtin_amdgcn_ballot_w64(prefix > begin);
    }
    const i32 lane = __builtin_ctzll(beyond);
    list.b = first + lane;
    list.sequence = lanes.of_lane(lane);
    list.skip = begin - (read_lane(prefix, lane) - read_lane(steps, lane));
    return list;
  }

  // Do the next `steps` of them.
  MEMBER void take(i32 steps) {
    skip += steps;
    remaining -= steps;
    in_registers(skip, remaining);
  }

  // Read anew the sequence that the rest of the range starts in, if there is a rest.
  MEMBER void resume(const Lengths& lengths) {
    bool is_found = remaining == 0;
    while (!is_found) {
      sequence = Sequence::read<Uniform>(lengths, b);
      const i32 steps = steps_of(sequence);
      is_found = skip < steps;
      b += !is_found;
      skip -= is_found ? 0 : steps;
    }
  }

 private:
  DEVICE i32 steps_of(const Sequence& sequence) {
    return ceil_div(sequence.num_rows, kRows) * steps_per_group(sequence);
  }
};
