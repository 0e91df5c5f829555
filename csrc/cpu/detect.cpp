// Reads the processor's features (CPUID) and what the operating system saves of its registers (XGETBV).
#include "detect.h"

#include <cpuid.h>

// The highest level with a unit in this build; setup.py sets it.
#ifndef KT_HIGHEST_ISA
#define KT_HIGHEST_ISA 2
#endif

namespace {

// XCR0: SSE and AVX state; then also the mask registers and both halves of the 512-bit registers.
constexpr uint32_t YMM_STATE = 0x06;
constexpr uint32_t ZMM_STATE = 0xe6;

struct Features {
    uint32_t ecx1 = 0;  // leaf 1
    uint32_t ebx7 = 0;  // leaf 7, subleaf 0
    uint32_t ecx7 = 0;
    uint32_t saved = 0;  // XCR0
};

Features read_features() {
    Features found;
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return found;
    found.ecx1 = ecx;
    if (ecx & bit_OSXSAVE) {
        uint32_t high;
        __asm__("xgetbv" : "=a"(found.saved), "=d"(high) : "c"(0));
    }
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        found.ebx7 = ebx;
        found.ecx7 = ecx;
    }
    return found;
}

bool all(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

int32_t processor_level() {
    const Features found = read_features();
    const bool avx2 = all(found.saved, YMM_STATE) && all(found.ecx1, bit_AVX | bit_FMA | bit_F16C) &&
                      all(found.ebx7, bit_AVX2 | bit_BMI2);
    if (!avx2) return KT_GENERIC;
    const bool avx512 = all(found.saved, ZMM_STATE) &&
                        all(found.ebx7, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) &&
                        all(found.ecx7, bit_AVX512VNNI);
    return avx512 ? KT_AVX512 : KT_AVX2;
}

int32_t detected_level() {
    const int32_t level = processor_level();
    return level < KT_HIGHEST_ISA ? level : KT_HIGHEST_ISA;
}

// Both are read by any thread; `limit` is the detected level under the cap, -1 before it is known.
int32_t limit = -1;
int32_t active = -1;

int32_t known_limit() {
    int32_t level = __atomic_load_n(&limit, __ATOMIC_ACQUIRE);
    if (level >= 0) return level;
    level = detected_level();
    int32_t unknown = -1;
    // Another thread may have been first, and may have capped it since.
    if (!__atomic_compare_exchange_n(&limit, &unknown, level, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return unknown;
    return level;
}

}  // namespace

int32_t kt_built_isa(void) { return KT_HIGHEST_ISA; }

int32_t kt_isa(void) {
    const int32_t level = __atomic_load_n(&active, __ATOMIC_ACQUIRE);
    return level >= 0 ? level : known_limit();
}

int32_t kt_set_isa(int32_t level) {
    const int32_t highest = known_limit();
    const int32_t lowest = level < KT_GENERIC ? (int32_t)KT_GENERIC : level;
    const int32_t chosen = lowest < highest ? lowest : highest;
    __atomic_store_n(&active, chosen, __ATOMIC_RELEASE);
    return chosen;
}

int32_t kt_cap_isa(int32_t level) {
    const int32_t lowest = level < KT_GENERIC ? (int32_t)KT_GENERIC : level;
    if (lowest < known_limit()) __atomic_store_n(&limit, lowest, __ATOMIC_RELEASE);
    return kt_set_isa(kt_isa());
}

const kt_unit *kt_unit_of(int32_t level) {
    static const kt_unit *const units[] = {
        &kt_unit_generic,
#if KT_HIGHEST_ISA >= 1
        &kt_unit_avx2,
#endif
#if KT_HIGHEST_ISA >= 2
        &kt_unit_avx512,
#endif
    };
    return level < KT_GENERIC || level > known_limit() ? nullptr : units[level];
}

const kt_unit *kt_active_unit(void) { return kt_unit_of(kt_isa()); }
