// The arithmetic contract in scalar code: what every unit computes, operation by operation. The vector units use these
// functions for their tails and must give the same bits in their lanes; each unit compiles its own copy, so nothing
// here has external linkage. Rounding is to nearest even, subnormals are kept, and the compiler must not contract
// (-ffp-contract=off). The bits of a NaN are not part of the contract, that it is a NaN is.
#pragma once

#include <math.h>
#include <string.h>
#include <xmmintrin.h>

#include "formats.h"

namespace {

inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// Little-endian reads from any address.
inline uint16_t read_u16(const uint8_t *p) {
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

inline uint32_t read_u32(const uint8_t *p) {
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

// a * b + c with one rounding: an instruction where the unit has it, else the C library's exact one.
inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// ---- half and brain floats; like the processor's conversions, a NaN becomes quiet and keeps its upper payload ----

inline float from_f16(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t exponent = (half >> 10) & 31;
    const uint32_t fraction = half & 0x3ff;
    if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact
        return float_of(sign | bits_of((float)fraction * 0x1p-24f));
    }
    if (exponent == 31) {
        return float_of(sign | 0x7f800000u | (fraction << 13) | (fraction ? 0x400000u : 0));
    }
    return float_of(sign | ((exponent + 112) << 23) | (fraction << 13));
}

inline uint16_t to_f16(float x) {
    const uint32_t bits = bits_of(x);
    const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00);  // 65520 and above round to infinity
    if (magnitude < 0x38800000u) {
        // Below 2^-14: adding 0.5 puts the unit of the last place at 2^-24, so the addition itself rounds.
        return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
    }
    const uint32_t odd = (magnitude >> 13) & 1;
    return (uint16_t)(sign | ((magnitude - (112u << 23) + 0xfff + odd) >> 13));
}

inline float from_bf16(uint16_t brain) { return float_of((uint32_t)brain << 16); }

inline uint16_t to_bf16(float x) {
    const uint32_t bits = bits_of(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Floats of one storage type to float32, exactly.
template <int type> inline float widen(const uint8_t *p);
template <> inline float widen<KT_F32>(const uint8_t *p) { return float_of(read_u32(p)); }
template <> inline float widen<KT_F16>(const uint8_t *p) { return from_f16(read_u16(p)); }
template <> inline float widen<KT_BF16>(const uint8_t *p) { return from_bf16(read_u16(p)); }

// ---- activations ----

// Added to |x| < 2^22 this leaves x rounded to nearest even in the low bits; the same as rint, or as a conversion to
// int32 in the default rounding mode.
constexpr float ROUNDER = 0x1.8p23f;

// d_a of a block and the factor that maps x to q, from the largest |x| taken as bits (so NaN and infinity win).
struct Scale {
    float d;       // 0 for a block of nearly nothing, NaN for one that is not finite
    float factor;  // 0 in both of these cases: q is then 0 whatever x is (see quantize_block)
};

inline Scale activation_scale(uint32_t largest_bits) {
    const float amax = float_of(largest_bits);
    if (largest_bits >= 0x7f800000u) return {float_of(0x7fc00000u), 0.0f};
    if (amax < 1e-30f) return {0.0f, 0.0f};
    return {amax / 127.0f, 127.0f / amax};
}

// One block of `block` numbers (a multiple of 16): q, d_a and the sums of 16 neighbours.
inline void quantize_block(const float *x, int64_t block, int8_t *q, float *d, int16_t *sums) {
    uint32_t largest = 0;
    for (int64_t k = 0; k < block; k++) {
        const uint32_t magnitude = bits_of(x[k]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    const Scale scale = activation_scale(largest);
    *d = scale.d;
    if (scale.factor == 0.0f) {  // not x * 0, which would be NaN for infinity and NaN
        memset(q, 0, (size_t)block);
        memset(sums, 0, (size_t)(block / 16) * sizeof *sums);
        return;
    }
    for (int64_t j = 0; j < block / 16; j++) {
        int sum = 0;
        for (int64_t k = 16 * j; k < 16 * j + 16; k++) {
            const int value = (int)(bits_of(x[k] * scale.factor + ROUNDER) - bits_of(ROUNDER));
            q[k] = (int8_t)value;
            sum += value;
        }
        sums[j] = (int16_t)sum;
    }
}

// ---- what a block adds to an output; S, M and bs are the exact integer sums of README.md ----

// Q4_0 Q5_0 Q8_0 IQ4_NL MXFP4, every 16 numbers of NVFP4, and all SUPER types.
inline float add_scaled(float acc, float d, float d_a, int32_t S) { return fused(d * d_a, (float)S, acc); }

// Q4_1 Q5_1.
inline float add_with_offset(float acc, float d, float m, float d_a, int32_t S, int32_t bs) {
    return fused(d_a, fused(d, (float)S, m * (float)bs), acc);
}

// Q2_K Q4_K Q5_K.
inline float add_with_mins(float acc, float d, float dmin, float d_a, int32_t S, int32_t M) {
    return fused(d_a, fused(d, (float)S, -(dmin * (float)M)), acc);
}

// The end of a float dot: the sixteen lanes (lane = k mod 16) summed as a tree.
inline float sum_lanes(float *lane) {
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    }
    return lane[0];
}

// ---- exp and the activation functions ----

// e^x for every input, within 1 ulp where the result is a normal number; +0 where it is below 2^-126 (x < EXP_LOW),
// infinity above the largest float, NaN for NaN. In a vector unit every line is one lane-wise instruction:
//   t  one fma; its low bits hold n = x / ln 2 rounded to nearest even (garbage outside [EXP_LOW, EXP_HIGH])
//   r  two fma: x - n * ln 2, where ln 2 is the sum of two floats; |r| < 0.35
//   p  six fma (Horner): about e^r
//   y  n added to p's exponent: shift left by 23 and add, as uint32 modulo 2^32
//   two selects by ordered comparisons, which are false for NaN: the garbage goes, and the second one makes NaN of NaN.
constexpr float LOG2_E = 0x1.715476p+0f;
constexpr float LN2_HIGH = 0x1.62e430p-1f;
constexpr float LN2_LOW = -0x1.05c610p-29f;
constexpr float EXP_LOW = -0x1.5d589ep+6f;  // -87.33654: the first x whose e^x is a normal number
constexpr float EXP_HIGH = 0x1.62e42ep+6f;  // 88.72283: the last x whose e^x is finite
// Minimax fit of (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2, rounded to float32: relative error of e^r below 2^-27.
constexpr float EXP_C2 = 0x1.fffffcp-2f;
constexpr float EXP_C3 = 0x1.555490p-3f;
constexpr float EXP_C4 = 0x1.5558f4p-5f;
constexpr float EXP_C5 = 0x1.123a6cp-7f;
constexpr float EXP_C6 = 0x1.6a2352p-10f;

inline float exponential(float x) {
    const float t = fused(x, LOG2_E, ROUNDER);
    const float n = t - ROUNDER;
    float r = fused(n, -LN2_HIGH, x);
    r = fused(n, -LN2_LOW, r);
    float p = fused(EXP_C6, r, EXP_C5);
    p = fused(p, r, EXP_C4);
    p = fused(p, r, EXP_C3);
    p = fused(p, r, EXP_C2);
    p = fused(p, r, 1.0f);
    p = fused(p, r, 1.0f);
    float y = float_of(bits_of(p) + (bits_of(t) << 23));
    y = x >= EXP_LOW ? y : 0.0f;
    y = x <= EXP_HIGH ? y : x + INFINITY;
    return y;
}

// x / (1 + e^-x). The negation flips the sign bit. Minus infinity gives NaN, as in torch.
inline float silu(float x) { return x / (1.0f + exponential(-x)); }

// 0.5 x (1 + tanh(s (x + 0.044715 x^3))), s = sqrt(2 / pi), written as x / (1 + e^u), u = -2 s (x + 0.044715 x^3).
constexpr float GELU_C1 = -0x1.988454p+0f;  // -2 s
constexpr float GELU_C3 = -0x1.2444f2p-4f;  // -2 s * 0.044715

inline float gelu_tanh(float x) {
    const float u = x * fused(GELU_C3, x * x, GELU_C1);
    return x / (1.0f + exponential(u));
}

// 1 / (1 + e^-x).
inline float logistic_of(float x) { return 1.0f / (1.0f + exponential(-x)); }

// tanh x within 2 ulp: x + x^3 P(x^2) below 0.625 (coefficients of Cephes' tanhf, S. Moshier, netlib.org/cephes), else
// 1 - 2 / (e^(2 |x|) + 1) with the sign of x.
constexpr float TANH_SMALL = 0.625f;
constexpr float TANH_C3 = -3.33332819422e-1f;
constexpr float TANH_C5 = 1.33314422036e-1f;
constexpr float TANH_C7 = -5.37397155531e-2f;
constexpr float TANH_C9 = 2.06390887954e-2f;
constexpr float TANH_C11 = -5.70498872745e-3f;

inline float tanh_of(float x) {
    const uint32_t sign = bits_of(x) & 0x80000000u;
    const float size = float_of(bits_of(x) ^ sign);
    const float z = x * x;
    float p = fused(TANH_C11, z, TANH_C9);
    p = fused(p, z, TANH_C7);
    p = fused(p, z, TANH_C5);
    p = fused(p, z, TANH_C3);
    const float small = fused(p * z, x, x);
    const float large = 1.0f - 2.0f / (exponential(size + size) + 1.0f);
    return size < TANH_SMALL ? small : float_of(bits_of(large) | sign);
}

inline float softcapped(float x, float cap) { return cap * tanh_of(x / cap); }

// ---- root-mean-square norm ----

// The factor of a row: the root and both divisions are rounded correctly. `squares`: the sum of x^2 in sixteen lanes.
inline float norm_factor(float squares, int64_t count, float eps) {
    return 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(squares / (float)count + eps)));
}

}  // namespace
