// CRC-32C by the processor's own instruction (SSE4.2) where it has one, else by tables.
//
// The instruction answers after three cycles and can start every cycle, so three lanes are computed side by side and
// joined: a CRC is linear, and moving one past LANE zero bytes is four look-ups.
#include <cpuid.h>
#include <string.h>

#include "ktitan_tiers.h"

namespace {

constexpr uint32_t POLYNOMIAL = 0x82f63b78;  // Castagnoli's, bits reversed
constexpr int64_t LANE = 4096;
constexpr int32_t SLICES = 8;

struct Tables {
    uint32_t slices[SLICES][256];  // [k][b]: byte b, followed by k zero bytes
    uint32_t lane[4][256];         // [k][b]: byte k of a CRC is b, moved past LANE zero bytes
};

constexpr Tables make_tables() {
    Tables made{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t crc = byte;
        for (int32_t bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
        made.slices[0][byte] = crc;
    }
    for (int32_t k = 1; k < SLICES; ++k)
        for (uint32_t byte = 0; byte < 256; ++byte) {
            const uint32_t crc = made.slices[k - 1][byte];
            made.slices[k][byte] = (crc >> 8) ^ made.slices[0][crc & 255];
        }
    for (int32_t bit = 0; bit < 32; ++bit) {
        uint32_t crc = uint32_t(1) << bit;
        for (int64_t i = 0; i < LANE; ++i) crc = (crc >> 8) ^ made.slices[0][crc & 255];
        for (uint32_t byte = 0; byte < 256; ++byte)
            if (byte >> (bit % 8) & 1) made.lane[bit / 8][byte] ^= crc;
    }
    return made;
}

constexpr Tables TABLES = make_tables();

uint64_t load(const uint8_t *from) {
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

uint32_t past_lane(uint32_t crc) {
    return TABLES.lane[0][crc & 255] ^ TABLES.lane[1][crc >> 8 & 255] ^ TABLES.lane[2][crc >> 16 & 255] ^
           TABLES.lane[3][crc >> 24];
}

uint32_t by_tables(uint32_t crc, const uint8_t *data, int64_t bytes) {
    for (; bytes >= SLICES; bytes -= SLICES, data += SLICES) {
        const uint64_t word = load(data) ^ crc;
        crc = 0;
        for (int32_t k = 0; k < SLICES; ++k) crc ^= TABLES.slices[SLICES - 1 - k][word >> (8 * k) & 255];
    }
    for (; bytes > 0; --bytes) crc = (crc >> 8) ^ TABLES.slices[0][(crc ^ *data++) & 255];
    return crc;
}

__attribute__((target("sse4.2"))) uint32_t by_instruction(uint32_t crc, const uint8_t *data, int64_t bytes) {
    uint64_t first = crc;
    for (; bytes >= 3 * LANE; bytes -= 3 * LANE, data += 3 * LANE) {
        uint64_t second = 0, third = 0;
        for (int64_t i = 0; i < LANE; i += 8) {
            first = __builtin_ia32_crc32di(first, load(data + i));
            second = __builtin_ia32_crc32di(second, load(data + LANE + i));
            third = __builtin_ia32_crc32di(third, load(data + 2 * LANE + i));
        }
        first = past_lane(past_lane(uint32_t(first)) ^ uint32_t(second)) ^ uint32_t(third);
    }
    for (; bytes >= 8; bytes -= 8, data += 8) first = __builtin_ia32_crc32di(first, load(data));
    uint32_t last = uint32_t(first);
    for (; bytes > 0; --bytes) last = __builtin_ia32_crc32qi(last, *data++);
    return last;
}

// CPUID is slow under a hypervisor, so it is asked once; threads that ask at the same time find the same.
int32_t found = -1;

bool has_instruction() {
    int32_t known = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (known < 0) {
        uint32_t eax, ebx, ecx, edx;
        known = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_SSE4_2);
        __atomic_store_n(&found, known, __ATOMIC_RELAXED);
    }
    return known;
}

uint32_t computed(uint32_t crc, const void *data, int64_t bytes, bool instruction) {
    const uint8_t *from = static_cast<const uint8_t *>(data);
    return ~(instruction ? by_instruction(~crc, from, bytes) : by_tables(~crc, from, bytes));
}

}  // namespace

KT_API uint32_t kt_crc32c(uint32_t crc, const void *data, int64_t bytes) {
    return computed(crc, data, bytes, has_instruction());
}

KT_API uint32_t kt_crc32c_tables(uint32_t crc, const void *data, int64_t bytes) {
    return computed(crc, data, bytes, false);
}
