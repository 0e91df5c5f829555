// Facts about the block formats that all units share: sizes, zero points, kinds. Layouts: ggml (MIT), ggml-common.h.
#pragma once

#include "kernels.h"

namespace {

// How the integer part of a block becomes a float; contract.h has the formula of each.
enum Kind {
    PLAIN,          // floats
    BLOCK32,        // 32 numbers, scale d:                    w = d * (u - zero)
    BLOCK32_MIN,    // 32 numbers, scale d and offset m:       w = d * u + m
    SUPER,          // 256 numbers, d and integer sub-scales:  w = d * scale[j] * (u - zero)
    SUPER_MIN,      // 256 numbers, also integer sub-offsets:  w = d * scale[j] * u - dmin * min[j]
    FLOAT16THS      // NVFP4: 64 numbers, a float scale for each 16
};

// block: numbers in a block. bytes: of a block. zero: u - zero is the weight's integer. sub: numbers that share one
// integer scale (SUPER kinds).
template <int type> struct Format;
#define KT_FORMAT(TYPE, KIND, BLOCK, BYTES, ZERO, SUB)      \
    template <> struct Format<TYPE> {                        \
        static constexpr Kind kind = KIND;                   \
        static constexpr int block = BLOCK;                  \
        static constexpr int bytes = BYTES;                  \
        static constexpr int zero = ZERO;                    \
        static constexpr int sub = SUB;                      \
    }
KT_FORMAT(KT_F32, PLAIN, 1, 4, 0, 1);
KT_FORMAT(KT_F16, PLAIN, 1, 2, 0, 1);
KT_FORMAT(KT_BF16, PLAIN, 1, 2, 0, 1);
KT_FORMAT(KT_Q4_0, BLOCK32, 32, 18, 8, 32);
KT_FORMAT(KT_Q4_1, BLOCK32_MIN, 32, 20, 0, 32);
KT_FORMAT(KT_Q5_0, BLOCK32, 32, 22, 16, 32);
KT_FORMAT(KT_Q5_1, BLOCK32_MIN, 32, 24, 0, 32);
KT_FORMAT(KT_Q8_0, BLOCK32, 32, 34, 128, 32);
KT_FORMAT(KT_IQ4_NL, BLOCK32, 32, 18, 128, 32);
KT_FORMAT(KT_MXFP4, BLOCK32, 32, 17, 12, 32);
KT_FORMAT(KT_NVFP4, FLOAT16THS, 64, 36, 12, 16);
KT_FORMAT(KT_Q2_K, SUPER_MIN, 256, 84, 0, 16);
KT_FORMAT(KT_Q3_K, SUPER, 256, 110, 4, 16);
KT_FORMAT(KT_Q4_K, SUPER_MIN, 256, 144, 0, 32);
KT_FORMAT(KT_Q5_K, SUPER_MIN, 256, 176, 0, 32);
KT_FORMAT(KT_Q6_K, SUPER, 256, 210, 32, 16);
KT_FORMAT(KT_IQ4_XS, SUPER, 256, 136, 128, 32);
KT_FORMAT(KT_IQ2_XXS, SUPER, 256, 66, 64, 32);
KT_FORMAT(KT_IQ2_XS, SUPER, 256, 74, 64, 16);
KT_FORMAT(KT_IQ2_S, SUPER, 256, 82, 64, 16);
KT_FORMAT(KT_IQ3_XXS, SUPER, 256, 98, 64, 32);
KT_FORMAT(KT_IQ3_S, SUPER, 256, 110, 64, 32);
KT_FORMAT(KT_IQ1_S, SUPER, 256, 50, 16, 32);
KT_FORMAT(KT_IQ1_M, SUPER, 256, 56, 16, 16);
KT_FORMAT(KT_TQ1_0, SUPER, 256, 54, 1, 256);
KT_FORMAT(KT_TQ2_0, SUPER, 256, 66, 1, 256);
#undef KT_FORMAT

// Every packed type, for filling tables.
template <int... types> struct TypeList {};
typedef TypeList<KT_Q4_0, KT_Q4_1, KT_Q5_0, KT_Q5_1, KT_Q8_0, KT_IQ4_NL, KT_MXFP4, KT_NVFP4, KT_Q2_K, KT_Q3_K, KT_Q4_K,
                 KT_Q5_K, KT_Q6_K, KT_IQ4_XS, KT_IQ2_XXS, KT_IQ2_XS, KT_IQ2_S, KT_IQ3_XXS, KT_IQ3_S, KT_IQ1_S, KT_IQ1_M,
                 KT_TQ1_0, KT_TQ2_0>
    PackedTypes;

// One decoded block, in natural order of columns. SUPER kinds have 16 scales and mins, one for each 16 numbers.
struct Block256 {
    alignas(64) uint8_t u[256];
    int16_t scale[16];
    int16_t min[16];
    float d, dmin;
};
struct Block32 {
    alignas(32) uint8_t u[32];
    float d, m;
};
struct Block64 {  // NVFP4
    alignas(64) uint8_t u[64];
    float d[4];
};

}  // namespace
