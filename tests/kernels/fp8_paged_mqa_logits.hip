// The smallest kernel that passes build.sh: one MFMA per row. The build's tests compile it, and spoil it in one way each.
typedef __attribute__((ext_vector_type(8))) int Fragment;
typedef __attribute__((ext_vector_type(4))) float Accumulator;

extern "C" __attribute__((global, amdgpu_flat_work_group_size(256, 256))) void KERNEL_NAME(
    const Fragment* q, const Fragment* kv_cache, Accumulator* logits, long logits_row_stride) {
    const int lane = __builtin_amdgcn_workitem_id_x();
    for (int row = 0; row < ROWS_PER_WAVE; ++row) {
        const Fragment k = kv_cache[lane + 256 * row + NUM_HEADS * GATHER];
        const Accumulator zero = {0, 0, 0, 0};
        logits[lane + row * logits_row_stride] =
            __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(q[lane], k, zero, 0, 0, 0, 0, 0, 0);
    }
}
