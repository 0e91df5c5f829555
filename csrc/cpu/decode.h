// Scalar decoders: one stored block of each packed type to plain numbers (Block32, Block64, Block256 of formats.h), in
// the natural order of columns. Layouts: ggml (MIT), ggml-common.h. They define what the vector units must unpack;
// types that are rare use them everywhere.
#pragma once

#include "contract.h"
#include "grids.h"

namespace {

template <int type> void decode(const uint8_t *block, Block32 &out);
template <int type> void decode(const uint8_t *block, Block64 &out);
template <int type> void decode(const uint8_t *block, Block256 &out);

// The struct that a type decodes to.
template <int numbers> struct DecodedOf;
template <> struct DecodedOf<32> { typedef Block32 Block; };
template <> struct DecodedOf<64> { typedef Block64 Block; };
template <> struct DecodedOf<256> { typedef Block256 Block; };
template <int type> using Decoded = typename DecodedOf<Format<type>::block>::Block;

inline float read_f16(const uint8_t *p) { return from_f16(read_u16(p)); }

// Nibble i of a run of bytes, the low one first.
inline uint32_t nibble(const uint8_t *p, int i) { return (p[i / 2] >> (4 * (i % 2))) & 15; }

// 4-bit codes of the non-linear types, with the zero point added.
constexpr uint8_t IQ4_VALUE[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};  // + 128
constexpr uint8_t FP4_VALUE[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};  // 2 * e2m1 + 12

// `half` bytes to 2 * half numbers: all low nibbles, then all high ones.
inline void split_nibbles(const uint8_t *bytes, int half, uint8_t *u) {
    for (int i = 0; i < half; i++) {
        u[i] = bytes[i] & 15;
        u[i + half] = bytes[i] >> 4;
    }
}

inline void look_up(const uint8_t *values, int count, uint8_t *u) {
    for (int i = 0; i < count; i++) u[i] = values[u[i]];
}

// ---- blocks of 32 and 64 ----

template <> inline void decode<KT_Q4_0>(const uint8_t *block, Block32 &out) {
    out.d = read_f16(block);
    split_nibbles(block + 2, 16, out.u);
}

template <> inline void decode<KT_Q4_1>(const uint8_t *block, Block32 &out) {
    out.d = read_f16(block);
    out.m = read_f16(block + 2);
    split_nibbles(block + 4, 16, out.u);
}

inline void add_fifth_bit(uint32_t high, uint8_t *u) {
    for (int i = 0; i < 32; i++) u[i] |= (uint8_t)(((high >> i) & 1) << 4);
}

template <> inline void decode<KT_Q5_0>(const uint8_t *block, Block32 &out) {
    out.d = read_f16(block);
    split_nibbles(block + 6, 16, out.u);
    add_fifth_bit(read_u32(block + 2), out.u);
}

template <> inline void decode<KT_Q5_1>(const uint8_t *block, Block32 &out) {
    out.d = read_f16(block);
    out.m = read_f16(block + 2);
    split_nibbles(block + 8, 16, out.u);
    add_fifth_bit(read_u32(block + 4), out.u);
}

template <> inline void decode<KT_Q8_0>(const uint8_t *block, Block32 &out) {
    out.d = read_f16(block);
    for (int i = 0; i < 32; i++) out.u[i] = block[2 + i] ^ 0x80;  // int8 + 128
}

template <> inline void decode<KT_IQ4_NL>(const uint8_t *block, Block32 &out) {
    out.d = read_f16(block);
    split_nibbles(block + 2, 16, out.u);
    look_up(IQ4_VALUE, 32, out.u);
}

// Half of 2^(e - 127), since the values are doubled; 2^-128 and 2^-127 are subnormal. e = 255 is 2^127, as in gguf.
inline float mxfp4_scale(uint8_t e) { return float_of(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23); }

template <> inline void decode<KT_MXFP4>(const uint8_t *block, Block32 &out) {
    out.d = mxfp4_scale(block[0]);
    split_nibbles(block + 1, 16, out.u);
    look_up(FP4_VALUE, 32, out.u);
}

// Half of an unsigned e4m3 number, since the values are doubled. 0x7f is 0; the sign bit is ignored, as in gguf.
inline float nvfp4_scale(uint8_t e4m3) {
    if (e4m3 == 0x7f) return 0.0f;
    const uint32_t exponent = (e4m3 >> 3) & 15;
    const uint32_t fraction = e4m3 & 7;
    if (exponent == 0) return (float)fraction * 0x1p-10f;
    return float_of(((exponent + 119) << 23) | (fraction << 20));
}

template <> inline void decode<KT_NVFP4>(const uint8_t *block, Block64 &out) {
    for (int j = 0; j < 4; j++) {
        out.d[j] = nvfp4_scale(block[j]);
        split_nibbles(block + 4 + 8 * j, 8, out.u + 16 * j);
    }
    look_up(FP4_VALUE, 64, out.u);
}

// ---- K types ----

// 64 bytes to 256 two-bit numbers: 32 bytes hold four runs of 32, the lowest bits first.
inline void split_pairs(const uint8_t *bytes, uint8_t *u) {
    for (int half = 0; half < 2; half++, bytes += 32) {
        for (int shift = 0; shift < 8; shift += 2, u += 32) {
            for (int i = 0; i < 32; i++) u[i] = (bytes[i] >> shift) & 3;
        }
    }
}

// Bit plane p of 32 bytes belongs to numbers 32 p .. 32 p + 31; added to u as `1 << shift`.
inline void add_bit_planes(const uint8_t *bytes, int shift, uint8_t *u) {
    for (int plane = 0; plane < 8; plane++, u += 32) {
        for (int i = 0; i < 32; i++) u[i] |= (uint8_t)(((bytes[i] >> plane) & 1) << shift);
    }
}

template <> inline void decode<KT_Q2_K>(const uint8_t *block, Block256 &out) {
    for (int j = 0; j < 16; j++) {
        out.scale[j] = block[j] & 15;
        out.min[j] = block[j] >> 4;
    }
    split_pairs(block + 16, out.u);
    out.d = read_f16(block + 80);
    out.dmin = read_f16(block + 82);
}

// Twelve bytes with sixteen 6-bit scales, offset 32: the low nibbles in bytes 0-7, the upper pairs in bytes 8-11.
inline void q3_scales(const uint8_t *bytes, int16_t *scale) {
    for (int j = 0; j < 16; j++) {
        const int low = (bytes[j % 8] >> (j / 8 * 4)) & 15;
        const int high = (bytes[8 + j % 4] >> (j / 4 * 2)) & 3;
        scale[j] = (int16_t)((low | high << 4) - 32);
    }
}

template <> inline void decode<KT_Q3_K>(const uint8_t *block, Block256 &out) {
    split_pairs(block + 32, out.u);
    add_bit_planes(block, 2, out.u);
    q3_scales(block + 96, out.scale);
    memset(out.min, 0, sizeof out.min);
    out.d = read_f16(block + 108);
    out.dmin = 0.0f;
}

// Twelve bytes with eight 6-bit scales and eight 6-bit mins (Q4_K, Q5_K), each doubled for two groups of 16.
inline void q4_scales(const uint8_t *bytes, Block256 &out) {
    for (int j = 0; j < 8; j++) {
        int scale, min;
        if (j < 4) {
            scale = bytes[j] & 63;
            min = bytes[4 + j] & 63;
        } else {
            scale = (bytes[4 + j] & 15) | (bytes[j - 4] >> 6 << 4);
            min = (bytes[4 + j] >> 4) | (bytes[j] >> 6 << 4);
        }
        out.scale[2 * j] = out.scale[2 * j + 1] = (int16_t)scale;
        out.min[2 * j] = out.min[2 * j + 1] = (int16_t)min;
    }
}

template <> inline void decode<KT_Q4_K>(const uint8_t *block, Block256 &out) {
    out.d = read_f16(block);
    out.dmin = read_f16(block + 2);
    q4_scales(block + 4, out);
    for (int c = 0; c < 4; c++) split_nibbles(block + 16 + 32 * c, 32, out.u + 64 * c);
}

template <> inline void decode<KT_Q5_K>(const uint8_t *block, Block256 &out) {
    out.d = read_f16(block);
    out.dmin = read_f16(block + 2);
    q4_scales(block + 4, out);
    for (int c = 0; c < 4; c++) split_nibbles(block + 48 + 32 * c, 32, out.u + 64 * c);
    add_bit_planes(block + 16, 4, out.u);
}

template <> inline void decode<KT_Q6_K>(const uint8_t *block, Block256 &out) {
    uint8_t high[256];
    split_pairs(block + 128, high);
    for (int c = 0; c < 2; c++) split_nibbles(block + 64 * c, 64, out.u + 128 * c);
    for (int i = 0; i < 256; i++) out.u[i] |= (uint8_t)(high[i] << 4);
    for (int j = 0; j < 16; j++) out.scale[j] = (int8_t)block[192 + j];
    memset(out.min, 0, sizeof out.min);
    out.d = read_f16(block + 208);
    out.dmin = 0.0f;
}

// ---- i-quants ----

template <> inline void decode<KT_IQ4_XS>(const uint8_t *block, Block256 &out) {
    const uint32_t high = read_u16(block + 2);
    for (int j = 0; j < 8; j++) {
        const uint32_t scale = nibble(block + 4, j) | ((high >> (2 * j)) & 3) << 4;
        out.scale[2 * j] = out.scale[2 * j + 1] = (int16_t)((int)scale - 32);
        split_nibbles(block + 8 + 16 * j, 16, out.u + 32 * j);
    }
    look_up(IQ4_VALUE, 256, out.u);
    memset(out.min, 0, sizeof out.min);
    out.d = read_f16(block);
    out.dmin = 0.0f;
}

constexpr uint64_t EACH_BYTE = 0x0101010101010101u;

// Eight magnitudes (a byte each, at most 63) and eight sign bits to eight u = 64 +- magnitude.
inline void store_signed(uint64_t magnitudes, uint32_t signs, uint8_t *u) {
    const uint64_t spread = (signs * EACH_BYTE) & 0x8040201008040201u;  // bit i left alone in byte i
    const uint64_t negative = ((spread + 0x7f * EACH_BYTE) >> 7 & EACH_BYTE) * 0xff;
    const uint64_t zero = 64 * EACH_BYTE;
    const uint64_t eight = (negative & (zero - magnitudes)) | (~negative & (zero + magnitudes));
    memcpy(u, &eight, sizeof eight);
}

// Seven sign bits; the eighth makes their number even.
inline uint32_t even_signs(uint32_t seven) { return seven | (uint32_t)__builtin_parity(seven) << 7; }

inline uint64_t join(uint32_t low, uint32_t high) { return low | (uint64_t)high << 32; }

// What all IQ2 and IQ3 types share: d with a power of two, no mins.
inline void set_d(const uint8_t *block, float factor, Block256 &out) {
    memset(out.min, 0, sizeof out.min);
    out.d = read_f16(block) * factor;
    out.dmin = 0.0f;
}

template <> inline void decode<KT_IQ2_XXS>(const uint8_t *block, Block256 &out) {
    for (int j = 0; j < 8; j++) {
        const uint8_t *code = block + 2 + 8 * j;
        const uint32_t signs = read_u32(code + 4);
        out.scale[2 * j] = out.scale[2 * j + 1] = (int16_t)(2 * (signs >> 28) + 1);
        for (int i = 0; i < 4; i++) {
            store_signed(kt_grid_iq2_xxs.row[code[i]], even_signs((signs >> (7 * i)) & 127), out.u + 32 * j + 8 * i);
        }
    }
    set_d(block, 0.125f, out);
}

template <> inline void decode<KT_IQ2_XS>(const uint8_t *block, Block256 &out) {
    for (int j = 0; j < 16; j++) out.scale[j] = (int16_t)(2 * nibble(block + 66, j) + 1);
    for (int i = 0; i < 32; i++) {
        const uint32_t code = read_u16(block + 2 + 2 * i);
        store_signed(kt_grid_iq2_xs.row[code & 511], even_signs(code >> 9), out.u + 8 * i);
    }
    set_d(block, 0.125f, out);
}

template <> inline void decode<KT_IQ2_S>(const uint8_t *block, Block256 &out) {
    for (int j = 0; j < 16; j++) out.scale[j] = (int16_t)(2 * nibble(block + 74, j) + 1);
    for (int i = 0; i < 32; i++) {
        const uint32_t high = (block[66 + i / 4] >> (i % 4 * 2)) & 3;
        store_signed(kt_grid_iq2_s.row[block[2 + i] | high << 8], block[34 + i], out.u + 8 * i);
    }
    set_d(block, 0.125f, out);
}

template <> inline void decode<KT_IQ3_XXS>(const uint8_t *block, Block256 &out) {
    for (int j = 0; j < 8; j++) {
        const uint8_t *code = block + 2 + 8 * j;
        const uint32_t signs = read_u32(block + 66 + 4 * j);
        out.scale[2 * j] = out.scale[2 * j + 1] = (int16_t)(2 * (signs >> 28) + 1);
        for (int i = 0; i < 4; i++) {
            const uint64_t eight = join(kt_grid_iq3_xxs.row[code[2 * i]], kt_grid_iq3_xxs.row[code[2 * i + 1]]);
            store_signed(eight, even_signs((signs >> (7 * i)) & 127), out.u + 32 * j + 8 * i);
        }
    }
    set_d(block, 0.25f, out);
}

template <> inline void decode<KT_IQ3_S>(const uint8_t *block, Block256 &out) {
    for (int j = 0; j < 8; j++) {
        const uint8_t *code = block + 2 + 8 * j;
        const uint32_t high = block[66 + j];
        out.scale[2 * j] = out.scale[2 * j + 1] = (int16_t)(2 * nibble(block + 106, j) + 1);
        for (int i = 0; i < 4; i++) {
            const uint32_t first = code[2 * i] | ((high >> (2 * i)) & 1) << 8;
            const uint32_t second = code[2 * i + 1] | ((high >> (2 * i + 1)) & 1) << 8;
            const uint64_t eight = join(kt_grid_iq3_s.row[first], kt_grid_iq3_s.row[second]);
            store_signed(eight, block[74 + 4 * j + i], out.u + 32 * j + 8 * i);
        }
    }
    set_d(block, 1.0f, out);
}

// IQ1: the grid holds 8 * g + 16 for g in -1, 0, 1; the shift of an eighth is then one unit up or down.
inline void store_shifted(uint32_t index, bool down, uint8_t *u) {
    const uint64_t grid = kt_grid_iq1.row[index];
    const uint64_t eight = down ? grid - EACH_BYTE : grid + EACH_BYTE;
    memcpy(u, &eight, sizeof eight);
}

template <> inline void decode<KT_IQ1_S>(const uint8_t *block, Block256 &out) {
    for (int j = 0; j < 8; j++) {
        const uint32_t high = read_u16(block + 34 + 2 * j);
        out.scale[2 * j] = out.scale[2 * j + 1] = (int16_t)(2 * ((high >> 12) & 7) + 1);
        for (int i = 0; i < 4; i++) {
            const uint32_t index = block[2 + 4 * j + i] | ((high >> (3 * i)) & 7) << 8;
            store_shifted(index, high & 0x8000, out.u + 32 * j + 8 * i);
        }
    }
    set_d(block, 0.125f, out);
}

// IQ1_M keeps its f16 d in the top four bits of the four scale words.
template <> inline void decode<KT_IQ1_M>(const uint8_t *block, Block256 &out) {
    uint32_t d = 0;
    for (int j = 0; j < 16; j++) {
        const uint32_t word = read_u16(block + 48 + j / 4 * 2);
        out.scale[j] = (int16_t)(2 * ((word >> (j % 4 * 3)) & 7) + 1);
        if (j % 4 == 0) d |= word >> 12 << j;
    }
    for (int i = 0; i < 32; i++) {
        const uint32_t high = nibble(block + 32, i);
        store_shifted(block[i] | (high & 7) << 8, high & 8, out.u + 8 * i);
    }
    memset(out.min, 0, sizeof out.min);
    out.d = from_f16((uint16_t)d) * 0.125f;
    out.dmin = 0.0f;
}

// ---- ternary types: no integer scales ----

inline void set_ternary_d(const uint8_t *d, Block256 &out) {
    for (int j = 0; j < 16; j++) out.scale[j] = 1;
    memset(out.min, 0, sizeof out.min);
    out.d = read_f16(d);
    out.dmin = 0.0f;
}

// `count` bytes, each with `digits` base-3 digits as a fraction of 256; digit n of all bytes comes before digit n + 1.
inline uint8_t *split_ternary(const uint8_t *bytes, int count, int digits, uint8_t *u) {
    uint8_t power = 1;
    for (int n = 0; n < digits; n++, power *= 3) {
        for (int i = 0; i < count; i++) *u++ = (uint8_t)((uint8_t)(bytes[i] * power) * 3 >> 8);
    }
    return u;
}

template <> inline void decode<KT_TQ1_0>(const uint8_t *block, Block256 &out) {
    uint8_t *u = split_ternary(block, 32, 5, out.u);
    u = split_ternary(block + 32, 16, 5, u);
    split_ternary(block + 48, 4, 4, u);
    set_ternary_d(block + 52, out);
}

template <> inline void decode<KT_TQ2_0>(const uint8_t *block, Block256 &out) {
    split_pairs(block, out.u);
    set_ternary_d(block + 64, out);
}

}  // namespace
