// Block scales as they are stored, until those of sixteen rows become floats together.
#pragma once

#include "avx512_vec.h"
#include "decode.h"

namespace {

struct E8M0 {  // MXFP4
    uint8_t bits;
};
struct E4M3 {  // NVFP4
    uint8_t bits;
};

inline float scale_to_float(uint16_t d) { return _cvtsh_ss(d); }
inline float scale_to_float(float d) { return d; }
inline float scale_to_float(E8M0 d) { return mxfp4_scale(d.bits); }

inline __m512 load_scales(const uint16_t *d) { return _mm512_cvtph_ps(load256(d)); }
inline __m512 load_scales(const float *d) { return _mm512_loadu_ps(d); }

// mxfp4_scale
inline __m512 load_scales(const E8M0 *d) {
    const __m512i e = _mm512_cvtepu8_epi32(load128(d));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __mmask16 is_tiny = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_tiny, tiny));
}

// nvfp4_scale
inline __m512 load_scales(const E4M3 *d) {
    const __m512i bits = _mm512_cvtepu8_epi32(load128(d));
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7f));
    const __m512i normal = _mm512_add_epi32(_mm512_slli_epi32(magnitude, 20), _mm512_set1_epi32(119 << 23));
    const __m512 tiny = _mm512_mul_ps(_mm512_cvtepi32_ps(magnitude), _mm512_set1_ps(0x1p-10f));
    const __mmask16 is_tiny = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(8));
    const __mmask16 present = _mm512_cmpneq_epi32_mask(bits, _mm512_set1_epi32(0x7f));
    return _mm512_maskz_mov_ps(present, _mm512_mask_mov_ps(_mm512_castsi512_ps(normal), is_tiny, tiny));
}

}  // namespace
