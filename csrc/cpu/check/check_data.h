// Random inputs for kernel_check: valid blocks of every type, activations that reach every branch of the contract, and
// memory whose end is the end of a page, so that a read or write past it faults.
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../decode.h"

namespace {

// splitmix64.
struct Random {
    uint64_t state;

    uint64_t next() {
        uint64_t z = (state += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    int64_t below(int64_t limit) { return (int64_t)(next() % (uint64_t)limit); }
    int64_t between(int64_t first, int64_t last) { return first + below(last - first + 1); }
    bool one_in(int64_t n) { return below(n) == 0; }
    float unit() { return (float)(next() >> 40) * 0x1p-23f - 1.0f; }  // [-1, 1)
    float any_bits() { return float_of((uint32_t)next()); }
};

// False under emulators that load whole vectors where the instruction masks lanes out (QEMU 7.2, vpmaskmovd).
inline bool guard_pages = true;

// `count` elements that end where an inaccessible page begins.
template <typename T> class Guarded {
public:
    explicit Guarded(int64_t count) : count_((size_t)count) {
        const size_t page = (size_t)sysconf(_SC_PAGESIZE);
        const size_t used = (count_ * sizeof(T) + page - 1) / page * page;
        size_ = used + page;
        void *memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            perror("mmap");
            exit(2);
        }
        memory_ = (uint8_t *)memory;
        if (guard_pages && mprotect(memory_ + used, page, PROT_NONE) != 0) {
            perror("mprotect");
            exit(2);
        }
        data_ = (T *)(memory_ + used - count_ * sizeof(T));
    }
    ~Guarded() { munmap(memory_, size_); }
    Guarded(const Guarded &) = delete;
    Guarded &operator=(const Guarded &) = delete;

    T *data() { return data_; }
    size_t size() const { return count_; }
    T &operator[](int64_t i) { return data_[i]; }
    void fill(T value) {
        for (size_t i = 0; i < count_; i++) data_[i] = value;
    }

private:
    size_t count_, size_;
    uint8_t *memory_;
    T *data_;
};

// What the checks need to know of a type while running.
struct Type {
    int id;
    const char *name;
    int block, bytes;
    int activation_block;  // 0 for float types
    int d_at, m_at;        // where f16 scales lie in a block, -1: none
};

constexpr Type TYPES[] = {
    {KT_F32, "f32", 1, 4, 0, -1, -1},           {KT_F16, "f16", 1, 2, 0, -1, -1},
    {KT_BF16, "bf16", 1, 2, 0, -1, -1},         {KT_Q4_0, "q4_0", 32, 18, 32, 0, -1},
    {KT_Q4_1, "q4_1", 32, 20, 32, 0, 2},        {KT_Q5_0, "q5_0", 32, 22, 32, 0, -1},
    {KT_Q5_1, "q5_1", 32, 24, 32, 0, 2},        {KT_Q8_0, "q8_0", 32, 34, 32, 0, -1},
    {KT_IQ4_NL, "iq4_nl", 32, 18, 32, 0, -1},   {KT_MXFP4, "mxfp4", 32, 17, 32, -1, -1},
    {KT_NVFP4, "nvfp4", 64, 36, 32, -1, -1},    {KT_Q2_K, "q2_k", 256, 84, 256, 80, 82},
    {KT_Q3_K, "q3_k", 256, 110, 256, 108, -1},  {KT_Q4_K, "q4_k", 256, 144, 256, 0, 2},
    {KT_Q5_K, "q5_k", 256, 176, 256, 0, 2},     {KT_Q6_K, "q6_k", 256, 210, 256, 208, -1},
    {KT_IQ4_XS, "iq4_xs", 256, 136, 256, 0, -1}, {KT_IQ2_XXS, "iq2_xxs", 256, 66, 256, 0, -1},
    {KT_IQ2_XS, "iq2_xs", 256, 74, 256, 0, -1}, {KT_IQ2_S, "iq2_s", 256, 82, 256, 0, -1},
    {KT_IQ3_XXS, "iq3_xxs", 256, 98, 256, 0, -1}, {KT_IQ3_S, "iq3_s", 256, 110, 256, 0, -1},
    {KT_IQ1_S, "iq1_s", 256, 50, 256, 0, -1},   {KT_IQ1_M, "iq1_m", 256, 56, 256, -1, -1},
    {KT_TQ1_0, "tq1_0", 256, 54, 256, 52, -1},  {KT_TQ2_0, "tq2_0", 256, 66, 256, 64, -1},
};

// An f16 scale: mostly of one magnitude, so that no block drowns the others; also subnormal, negative, rarely infinite.
inline uint16_t random_f16(Random &random) {
    if (random.one_in(300)) return (uint16_t)(random.one_in(2) ? 0x7c00 : 0xfe00);
    if (random.one_in(12)) return (uint16_t)((random.next() & 0x83ff));
    if (random.one_in(12)) return (uint16_t)(random.next() & 0xbfff);  // |d| < 2
    return to_f16(random.unit() * 0.01f);
}

inline void write_u16(uint8_t *p, uint16_t value) { memcpy(p, &value, sizeof value); }

// IQ1_M has its f16 in the top four bits of four words.
inline void scatter_iq1_m(uint8_t *scales, uint16_t d) {
    for (int i = 0; i < 4; i++) {
        write_u16(scales + 2 * i, (uint16_t)((read_u16(scales + 2 * i) & 0xfff) | (d >> (4 * i) << 12)));
    }
}

// An exponent byte of MXFP4: moderate, or an end of the range.
inline uint8_t random_exponent(Random &random) {
    constexpr uint8_t ENDS[] = {0, 1, 2, 253, 254, 255};
    return random.one_in(20) ? ENDS[random.below(6)] : (uint8_t)random.between(112, 122);
}

// Bytes of a block: random, or all the same (the extremes of every field).
inline void random_block(Random &random, const Type &type, uint8_t *block) {
    constexpr uint8_t EXTREMES[] = {0x00, 0xff, 0x7f, 0x80};
    const bool uniform = random.one_in(6);
    const uint8_t extreme = EXTREMES[random.below(4)];
    for (int i = 0; i < type.bytes; i++) block[i] = uniform ? extreme : (uint8_t)(random.next() >> 13);
    if (type.d_at >= 0) write_u16(block + type.d_at, random_f16(random));
    if (type.m_at >= 0) write_u16(block + type.m_at, random_f16(random));
    if (type.id == KT_IQ1_M) scatter_iq1_m(block + 48, random_f16(random));
    if (type.id == KT_MXFP4) block[0] = random_exponent(random);
}

// Numbers of one character in a row of activations.
enum Character { EQUAL, ZERO, THRESHOLD, OUTLIERS, TIES, PLAIN_NUMBERS, CHARACTERS, ANY_BITS };

inline float random_number(Random &random, Character character, float size) {
    const float u = random.unit();
    switch (character) {
        case EQUAL: return u < 0 ? -size : size;  // every q is 127 or -127
        case ZERO: return 0.0f;
        case THRESHOLD: return u * 1e-30f;
        case OUTLIERS: return random.one_in(8) ? u * 1000.0f : u;
        case TIES: return ((float)random.between(-127, 126) + 0.5f) * (size / 127.0f);
        case ANY_BITS: return random.any_bits();  // NaN, infinity, huge
        default: return u * size;
    }
}

inline void random_run(Random &random, float *x, int64_t count) {
    const Character character = random.one_in(60) ? ANY_BITS : (Character)random.below(CHARACTERS);
    const float size = (1.0f + random.unit()) * (float)(1 << random.below(8));
    for (int64_t i = 0; i < count; i++) x[i] = random_number(random, character, size);
    if (character == TIES) x[random.below(count)] = size;
    if (character == THRESHOLD) x[random.below(count)] = float_of(bits_of(1e-30f) + (uint32_t)random.between(-1, 1));
}

// Runs of 32, 256 or more numbers of one character, so that blocks of both sizes are uniform at times.
inline void random_row(Random &random, float *x, int64_t columns) {
    const int64_t run = random.one_in(2) ? 32 : 256;
    for (int64_t k = 0; k < columns; k += run) random_run(random, x + k, columns - k < run ? columns - k : run);
}

// Stores number i of a row of a float type.
inline void store_float(const Type &type, uint8_t *row, int64_t i, float w) {
    if (type.id == KT_F32) memcpy(row + 4 * i, &w, 4);
    if (type.id == KT_F16) write_u16(row + 2 * i, to_f16(w));
    if (type.id == KT_BF16) write_u16(row + 2 * i, to_bf16(w));
}

// Float weights of any type; also tiny ones, whose products underflow to either zero.
inline void random_floats(Random &random, const Type &type, uint8_t *out, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        float w = random.one_in(10) ? random.unit() * 1e-7f : random.unit();
        if (random.one_in(50)) w = random.unit() * 1e-40f;
        if (random.one_in(1000)) w = random.any_bits();
        store_float(type, out, i, w);
    }
}

inline void random_weights(Random &random, const Type &type, uint8_t *out, int64_t columns) {
    if (type.activation_block == 0) {
        random_floats(random, type, out, columns);
        return;
    }
    for (int64_t b = 0; b < columns / type.block; b++) random_block(random, type, out + b * type.bytes);
}

}  // namespace
