// Names for the gfx950 instructions that the kernels use, one function per instruction, and the few types they need.
// Compiles with bare clang: no HIP header is included.
#pragma once

using i32x4 = int __attribute__((ext_vector_type(4)));
using i32x8 = int __attribute__((ext_vector_type(8)));
using u32x2 = unsigned __attribute__((ext_vector_type(2)));
using f32x4 = float __attribute__((ext_vector_type(4)));

using i32 = int;
using u32 = unsigned;
using i64 = long long;
using u64 = unsigned long long;
using u8 = unsigned char;

// 16 bytes that are only known to lie at a multiple of 4: one global_load_dwordx4, legal on gfx950's global memory.
using i32x4_at4 = int __attribute__((ext_vector_type(4), aligned(4)));

#define MEMBER __attribute__((device, always_inline))
#define DEVICE static MEMBER

constexpr i32 kLanes = 64;
constexpr i32 kWavesPerBlock = 4;

// Device memory, and memory that no launch writes: at a wave-uniform address the latter is read by s_load, which has
// its own counter (lgkmcnt).
template <typename T>
using Global = T __attribute__((address_space(1)));
template <typename T>
using Constant = const T __attribute__((address_space(4)));

using Bytes = const Global<u8>*;

template <typename T>
DEVICE T vector_load(Bytes at) {
  return *reinterpret_cast<const Global<T>*>(at);
}
template <typename T>
DEVICE T scalar_load(Bytes at) {
  return *reinterpret_cast<Constant<T>*>(reinterpret_cast<u64>(at));
}

// The value, of which the compiler no longer knows where it came from: it is in a scalar register here, and what is
// read through it, if it is a pointer, is read again rather than kept.
// NOTE: the only inline assembly; it emits no instruction, and no builtin hides a value so.
template <typename T>
DEVICE void in_register(T& value) {
  asm volatile("" : "+s"(value));
}
template <typename... T>
DEVICE void in_registers(T&... values) {
  (in_register(values), ...);
}

DEVICE i32 min(i32 a, i32 b) { return a < b ? a : b; }
DEVICE u32 min(u32 a, u32 b) { return a < b ? a : b; }
DEVICE i32 max(i32 a, i32 b) { return a > b ? a : b; }
DEVICE i32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }

DEVICE i32 lane_id() { return __builtin_amdgcn_workitem_id_x() % kLanes; }
DEVICE i32 uniform(i32 value) { return __builtin_amdgcn_readfirstlane(value); }
DEVICE i32 read_lane(i32 value, i32 lane) { return __builtin_amdgcn_readlane(value, lane); }

// Nothing is scheduled across this: the loads before it are all issued before the waits after it.
DEVICE void stages_apart() { __builtin_amdgcn_sched_barrier(0); }

// v_mfma_f32_16x16x128_f8f6f4, both operands FP8 (OCP e4m3), C = 0: [16, 128] @ [128, 16] -> [16, 16].
// Lane l, byte 16 * h + j holds row l % 16 of A (column l % 16 of B) at k = 64 * h + 16 * (l / 16) + j.
// D: lane l, register v is row 4 * (l / 16) + v, column l % 16.
// NOTE: the scale operands are the constants 0, 0, for which clang emits the unscaled instruction; a scale in a scalar
// register would be read wrongly by the hardware. The build rejects every v_mfma_scale_*.
DEVICE f32x4 mfma_16x16x128_fp8(i32x8 a, i32x8 b) {
  constexpr i32 kFp8 = 0;
  return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(a, b, f32x4{0, 0, 0, 0}, kFp8, kFp8, 0, 0, 0, 0);
}

// NOTE: the elements are copied before the cast. Of `vector.y`, clang 21 and 22 cast element 0.
DEVICE void unpack(u32x2 pair, float& a, float& b) {
  const u32 first = pair[0], second = pair[1];
  a = __builtin_bit_cast(float, first);
  b = __builtin_bit_cast(float, second);
}

// v_permlane32_swap_b32: lanes 32..63 of a change places with lanes 0..31 of b.
DEVICE void swap_halves(float& a, float& b) {
  unpack(__builtin_amdgcn_permlane32_swap(__builtin_bit_cast(u32, a), __builtin_bit_cast(u32, b), false, false), a, b);
}

// v_permlane16_swap_b32: the odd rows of 16 lanes of a change places with the even rows of b.
DEVICE void swap_rows(float& a, float& b) {
  unpack(__builtin_amdgcn_permlane16_swap(__builtin_bit_cast(u32, a), __builtin_bit_cast(u32, b), false, false), a, b);
}

// `value` with its lanes 16 * kRow .. 16 * kRow + 15 taken from `other`: one v_mov_b32 with a row mask.
template <i32 kRow, typename T>
DEVICE T replace_row(T value, T other) {
  constexpr i32 kSameLane = 0xe4;  // quad_perm:[0,1,2,3]
  const i32 old = __builtin_bit_cast(i32, value), source = __builtin_bit_cast(i32, other);
  return __builtin_bit_cast(T, __builtin_amdgcn_update_dpp(old, source, kSameLane, 1 << kRow, 0xf, false));
}

// One step of a scan over lanes: adds what the DPP control names, 0 where a lane has no source.
template <i32 kControl, i32 kRowMask>
DEVICE i32 add_dpp(i32 value) {
  return value + __builtin_amdgcn_update_dpp(0, value, kControl, kRowMask, 0xf, false);
}

// Inclusive prefix sum over the 64 lanes of a wave.
DEVICE i32 scan_lanes(i32 value) {
  constexpr i32 kRowShr = 0x110, kRowBcast15 = 0x142, kRowBcast31 = 0x143;
  value = add_dpp<kRowShr + 1, 0xf>(value);
  value = add_dpp<kRowShr + 2, 0xf>(value);
  value = add_dpp<kRowShr + 4, 0xf>(value);
  value = add_dpp<kRowShr + 8, 0xf>(value);
  value = add_dpp<kRowBcast15, 0xa>(value);
  return add_dpp<kRowBcast31, 0xc>(value);
}

// A piece of memory of less than 4 GiB, addressed by a lane's 32-bit byte offset plus a scalar one.
// NOTE: the hardware checks the lane's offset against `bytes`: a load at or past them gives 0, a store is dropped. The
// scalar offset is not surely part of that check (LLVM's intrinsics exclude it), so nothing relies on it.
struct Buffer {
  // Cache policies. Non-temporal memory is not worth keeping: it is passed through once.
  static constexpr i32 kKept = 0, kNonTemporal = 2;

  __amdgpu_buffer_rsrc_t resource;

  DEVICE Buffer of(Bytes base, u32 bytes) {
    constexpr i32 kDataFormat32 = 0x00020000;
    void* address = reinterpret_cast<void*>(reinterpret_cast<u64>(base));
    return {__builtin_amdgcn_make_buffer_rsrc(address, 0, bytes, kDataFormat32)};
  }
  template <i32 kPolicy>
  MEMBER i32x4 load_x4(u32 lane_offset, u32 scalar_offset) const {
    const auto loaded = __builtin_amdgcn_raw_buffer_load_b128(resource, lane_offset, scalar_offset, kPolicy);
    return __builtin_bit_cast(i32x4, loaded);
  }
  // 32 bytes of operand A or B.
  template <i32 kPolicy>
  MEMBER i32x8 load_token(u32 first_half, u32 second_half, u32 scalar_offset) const {
    const i32x4 low = load_x4<kPolicy>(first_half, scalar_offset), high = load_x4<kPolicy>(second_half, scalar_offset);
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
  }
  MEMBER u32 load_u32(u32 lane_offset, u32 scalar_offset) const {
    return __builtin_amdgcn_raw_buffer_load_b32(resource, lane_offset, scalar_offset, 0);
  }
  MEMBER float load_f32(u32 lane_offset, u32 scalar_offset) const {
    return __builtin_bit_cast(float, load_u32(lane_offset, scalar_offset));
  }
  MEMBER void store(u32 lane_offset, float value) const {
    __builtin_amdgcn_raw_buffer_store_b32(__builtin_bit_cast(u32, value), resource, lane_offset, 0, kNonTemporal);
  }
};
