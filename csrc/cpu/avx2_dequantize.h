// Stored rows to float32: the operations of dequantize.h in the same order, eight numbers at a time.
#pragma once

#include "avx2_elements.h"
#include "avx2_unpack32.h"
#include "avx2_unpack_iq.h"

namespace {

// What turns a number of a group into a float: scale * (u - zero), then less min or plus m.
struct Affine {
    float scale, offset;
};

// Eight numbers, from eight bytes.
template <int type> KT_INLINE void write8(__m128i bytes, Affine by, float *out) {
    constexpr Kind kind = Format<type>::kind;
    const __m256i zero = _mm256_set1_epi32(Format<type>::zero);
    const __m256i whole = is_signed<type>() ? _mm256_cvtepi8_epi32(bytes)
                                            : _mm256_sub_epi32(_mm256_cvtepu8_epi32(bytes), zero);
    __m256 w = _mm256_mul_ps(all(by.scale), _mm256_cvtepi32_ps(whole));
    if (kind == BLOCK32_MIN) w = _mm256_add_ps(w, all(by.offset));
    if (kind == SUPER_MIN) w = _mm256_sub_ps(w, all(by.offset));
    _mm256_storeu_ps(out, w);
}

template <int type> KT_INLINE void write16(__m128i bytes, Affine by, float *out) {
    write8<type>(bytes, by, out);
    write8<type>(_mm_unpackhi_epi64(bytes, bytes), by, out + 8);
}

// 32 numbers whose halves have their own factors.
template <int type> KT_INLINE void write32(__m256i bytes, Affine first, Affine second, float *out) {
    write16<type>(_mm256_castsi256_si128(bytes), first, out);
    write16<type>(_mm256_extracti128_si256(bytes, 1), second, out + 16);
}

template <int type> KT_INLINE void dequantize_super(const uint8_t *block, float *out) {
    alignas(32) int16_t scale[16], min[16] = {};
    Super w;
    Unpack<type>::super(block, w);
    store(scale, w.scale);
    if constexpr (Format<type>::kind == SUPER_MIN) store(min, w.min);
    for (int j = 0; j < 8; j++) {
        Affine by[2];
        for (int half = 0; half < 2; half++) {
            by[half].scale = w.d * (float)scale[2 * j + half];
            by[half].offset = Format<type>::kind == SUPER_MIN ? w.dmin * (float)min[2 * j + half] : 0.0f;
        }
        write32<type>(w.quants[j], by[0], by[1], out + 32 * j);
    }
}

template <int type> KT_INLINE void dequantize_block32(const uint8_t *block, float *out) {
    Affine by = {_mm256_cvtss_f32(Unpack<type>::d(block, 1)), 0.0f};
    if constexpr (Format<type>::kind == BLOCK32_MIN) by.offset = _mm256_cvtss_f32(Unpack<type>::m(block, 1));
    write32<type>(Unpack<type>::quants(block), by, by, out);
}

KT_INLINE void dequantize_nvfp4(const uint8_t *block, float *out) {
    for (int half = 0; half < 2; half++) {
        const Affine first = {nvfp4_scale(block[2 * half]), 0.0f}, second = {nvfp4_scale(block[2 * half + 1]), 0.0f};
        write32<KT_NVFP4>(Unpack<KT_NVFP4>::quants(block, half), first, second, out + 32 * half);
    }
}

template <int type> void dequantize_packed(const uint8_t *row, int64_t columns, float *out) {
    constexpr int numbers = Format<type>::block;
    for (int64_t k = 0; k < columns; k += numbers, row += Format<type>::bytes) {
        if constexpr (numbers == 256) dequantize_super<type>(row, out + k);
        if constexpr (numbers == 64) dequantize_nvfp4(row, out + k);
        if constexpr (numbers == 32) dequantize_block32<type>(row, out + k);
    }
}

// F32, F16, BF16. Numbers in a row may lie at odd addresses, so they are not read as arrays.
template <int type> void dequantize_plain(const uint8_t *row, int64_t columns, float *out) {
    constexpr int bytes = Format<type>::bytes;
    int64_t k = 0;
    for (; k + 8 <= columns; k += 8) {
        const uint8_t *p = row + k * bytes;
        _mm256_storeu_ps(out + k, type == KT_F16    ? floats_from_f16(p)
                                  : type == KT_BF16 ? floats_from_bf16(p)
                                                    : _mm256_castsi256_ps(load(p)));
    }
    for (; k < columns; k++) out[k] = widen<type>(row + k * bytes);
}

}  // namespace
