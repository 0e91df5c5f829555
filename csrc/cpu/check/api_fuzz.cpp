// Calls the C interface with random sizes, types and bytes, and with arguments that are wrong, to be run under
// AddressSanitizer and UndefinedBehaviorSanitizer: every buffer is a heap block of exactly the size that the call needs.
//
//     api_fuzz [--seed N] [--calls N]
//
// Weights are any bytes: scales that are NaN or infinite, every index of every code book. One line at the end; exit 1 when a
// status is not the expected one, or when a refused call wrote something.
#include <memory>
#include <vector>

#include "../ktitan_cpu.h"
#include "check_data.h"

namespace {

constexpr int TYPE_COUNT = (int)(sizeof TYPES / sizeof *TYPES);
constexpr int32_t DTYPES[] = {KT_F32, KT_F16, KT_BF16};
constexpr int64_t WRONG_SIZES[] = {-1, -32, INT64_MIN, INT64_MAX, (int64_t)1 << 31, (int64_t)1 << 40, 0};
constexpr int32_t WRONG_TYPES[] = {-1, 4, 5, 9, 15, 24, 36, KT_TYPES, INT32_MAX, INT32_MIN};
constexpr uint8_t UNTOUCHED = 0x5a;

// A heap block of random bytes, without slack, so that the sanitizer sees one byte too many.
struct Block {
    Block(Random &random, int64_t bytes) : data(new uint8_t[(size_t)bytes]), size((size_t)bytes) {
        const bool uniform = random.one_in(10);
        const uint8_t value = (uint8_t)random.next();
        for (size_t i = 0; i < size; i++) data[i] = uniform ? value : (uint8_t)(random.next() >> 20);
    }
    void fill(uint8_t value) { memset(data.get(), value, size); }
    bool untouched() const {
        for (size_t i = 0; i < size; i++) {
            if (data[i] != UNTOUCHED) return false;
        }
        return true;
    }
    std::unique_ptr<uint8_t[]> data;
    size_t size;
};

const Type &any_type(Random &random) { return TYPES[random.below(TYPE_COUNT)]; }
int64_t width_of(int32_t dtype) { return dtype == KT_F32 ? 4 : 2; }

// Activations of a dtype: any bits at times, mostly moderate numbers, so that blocks of all kinds are quantised.
void fill_activations(Random &random, int32_t dtype, Block &x) {
    if (random.one_in(4)) return;
    const int64_t count = (int64_t)x.size / width_of(dtype);
    for (int64_t i = 0; i < count; i++) {
        const float number = random.unit() * 4;
        if (dtype == KT_F32) memcpy(x.data.get() + 4 * i, &number, 4);
        else write_u16(x.data.get() + 2 * i, dtype == KT_F16 ? to_f16(number) : to_bf16(number));
    }
}

// A number of columns that the blocks of two types divide.
int64_t any_columns(Random &random, const Type &first, const Type &second) {
    const int64_t block = first.block > second.block ? first.block : second.block;
    return block * random.between(1, block == 1 ? 200 : block == 256 ? 2 : 5);
}

struct Matrix {
    Matrix(Random &random, const Type &type, int64_t rows, int64_t columns)
        : gap(random.one_in(3) ? random.between(1, 9) : 0),
          view{nullptr, rows, columns, columns / type.block * type.bytes + gap, type.id},
          bytes(random, rows > 0 ? rows * view.row_bytes - gap : 0) {
        view.data = bytes.data.get();
    }
    int64_t gap;
    kt_matrix view;
    Block bytes;
};

struct Report {
    const char *name;
    int64_t calls = 0, wrong = 0;

    void expect(int32_t wanted, int32_t status, const Block &out, uint64_t call) {
        calls++;
        if (status == wanted && (wanted == KT_OK || out.untouched())) return;
        if (wrong++ == 0) {
            printf("%s, call %llu: status %d, expected %d%s\n", name, (unsigned long long)call, status, wanted,
                   wanted == KT_OK || out.untouched() ? "" : ", and the output was written");
        }
    }
};

// One of the sizes of a matrix made wrong.
void spoil_size(Random &random, kt_matrix &view, const Type &type) {
    const int64_t wrong = WRONG_SIZES[random.below(6)];
    switch (random.below(4)) {
        case 0: view.rows = wrong; break;
        case 1: view.columns = random.one_in(3) ? 0 : wrong; break;
        case 2: view.row_bytes = random.one_in(2) ? view.columns / type.block * type.bytes - 1 : INT64_MIN; break;
        default: view.columns += type.block == 1 ? INT64_MIN : random.between(1, type.block - 1);
    }
}

void call_linear(Random &random, Report &report, uint64_t call) {
    const Type &type = any_type(random);
    int32_t dtype = DTYPES[random.below(3)], wanted = KT_OK;
    int64_t rows = random.one_in(12) ? 0 : random.between(1, 70), count = random.one_in(12) ? 0 : random.between(1, 20);
    if (random.one_in(40)) count = random.between(257, 300);
    const int64_t columns = any_columns(random, type, type);
    Matrix weights(random, type, rows, columns);
    Block x(random, count * columns * width_of(dtype)), bias(random, rows * 4), out(random, rows * count * width_of(dtype));
    fill_activations(random, dtype, x);
    out.fill(UNTOUCHED);
    if (random.one_in(8)) {
        switch (random.below(4)) {
            case 0: weights.view.type = WRONG_TYPES[random.below(10)], wanted = KT_NO_KERNEL; break;
            case 1: dtype = random.one_in(2) ? KT_Q8_0 : WRONG_TYPES[random.below(10)], wanted = KT_NO_KERNEL; break;
            case 2: count = WRONG_SIZES[random.below(6)], wanted = KT_WRONG_SIZE; break;
            default: spoil_size(random, weights.view, type), wanted = KT_WRONG_SIZE;
        }
    }
    const float *added = random.one_in(2) ? nullptr : (const float *)bias.data.get();
    const int32_t status = kt_linear(&weights.view, x.data.get(), dtype, count, added, random.one_in(3) ? KT_FLOAT32 : KT_INT8,
                                     out.data.get());
    report.expect(wanted, status, out, call);
}

void call_rows(Random &random, Report &report, uint64_t call) {
    const Type &type = any_type(random);
    int64_t rows = random.one_in(12) ? 0 : random.between(1, 50), count = rows ? random.below(20) : 0;
    int32_t wanted = KT_OK;
    const int64_t columns = any_columns(random, type, type);
    Matrix weights(random, type, rows, columns);
    std::vector<int64_t> ids((size_t)count);
    for (int64_t &id : ids) id = random.below(rows);
    Block out(random, count * columns * 4);
    out.fill(UNTOUCHED);
    if (random.one_in(6)) {
        switch (random.below(4)) {
            case 0: weights.view.type = WRONG_TYPES[random.below(10)], wanted = KT_NO_KERNEL; break;
            case 1: count = WRONG_SIZES[random.below(6)], wanted = KT_WRONG_SIZE; break;
            case 2: spoil_size(random, weights.view, type), wanted = KT_WRONG_SIZE; break;
            default:
                if (count == 0) break;
                ids[(size_t)random.below(count)] = random.one_in(2) ? rows : WRONG_SIZES[random.below(6)];
                wanted = KT_OUT_OF_RANGE;
        }
    }
    report.expect(wanted, kt_rows(&weights.view, ids.data(), count, (float *)out.data.get()), out, call);
}

void call_experts(Random &random, Report &report, uint64_t call) {
    const Type &gate_type = any_type(random), &up_type = any_type(random), &down_type = any_type(random);
    const int64_t hidden = any_columns(random, gate_type, up_type), inner = any_columns(random, down_type, down_type);
    const int64_t experts = random.between(1, 5), slots = random.below(5);
    int64_t tokens = random.one_in(12) ? 0 : random.between(1, 12);
    int32_t dtype = DTYPES[random.below(3)], wanted = KT_OK;
    Matrix gate(random, gate_type, experts * inner, hidden), up(random, up_type, experts * inner, hidden);
    Matrix down(random, down_type, experts * hidden, inner);
    Block gate_bias(random, experts * inner * 4), down_bias(random, experts * hidden * 4);
    Block x(random, tokens * hidden * width_of(dtype)), weights(random, tokens * slots * 4);
    Block out(random, tokens * hidden * width_of(dtype));
    fill_activations(random, dtype, x);
    out.fill(UNTOUCHED);
    const bool gated = !random.one_in(3), biased = random.one_in(2);
    const float *bias = biased ? (const float *)gate_bias.data.get() : nullptr;
    kt_bank bank = {gated ? &gate.view : nullptr, &up.view, &down.view, gated ? bias : nullptr, bias,
                    biased ? (const float *)down_bias.data.get() : nullptr, experts, hidden, inner,
                    (int32_t)random.below(KT_ACTIVATIONS)};
    std::vector<int64_t> index((size_t)(tokens * slots));
    const bool crowded = random.one_in(4);  // all pairs to one expert; `experts` leaves a pair out
    for (int64_t &one : index) one = crowded ? 0 : random.below(experts + 1);
    int64_t given_slots = slots;
    if (random.one_in(6)) {
        switch (random.below(7)) {
            case 0: down.view.type = WRONG_TYPES[random.below(10)], wanted = KT_NO_KERNEL; break;
            case 1: bank.activation = random.one_in(2) ? -1 : KT_ACTIVATIONS, wanted = KT_NO_KERNEL; break;
            case 2: bank.experts = WRONG_SIZES[random.below(6)], wanted = KT_WRONG_SIZE; break;
            case 3: tokens = WRONG_SIZES[random.below(6)], wanted = KT_WRONG_SIZE; break;
            case 4: given_slots = WRONG_SIZES[random.below(6)], wanted = KT_WRONG_SIZE; break;
            case 5: (random.one_in(2) ? bank.hidden : bank.intermediate) += 1, wanted = KT_WRONG_SIZE; break;
            default:
                if (index.empty()) break;
                index[(size_t)random.below((int64_t)index.size())] =
                    random.one_in(2) ? experts + 1 : WRONG_SIZES[random.below(6)];
                wanted = KT_OUT_OF_RANGE;
        }
    }
    const int32_t status = kt_experts(&bank, x.data.get(), dtype, tokens, index.data(), given_slots,
                                      (const float *)weights.data.get(), random.one_in(3) ? KT_FLOAT32 : KT_INT8,
                                      out.data.get());
    report.expect(wanted, status, out, call);
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t seed = 1, calls = 3000;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0) seed = strtoull(argv[i + 1], nullptr, 0);
        if (strcmp(argv[i], "--calls") == 0) calls = strtoull(argv[i + 1], nullptr, 0);
    }
    Report linear = {"kt_linear"}, rows = {"kt_rows"}, experts = {"kt_experts"};
    for (uint64_t call = 0; call < calls; call++) {
        Random random = {seed + call};  // a call is a function of seed + call
        random.next();
        kt_set_isa((int32_t)random.below(3));
        if (random.one_in(50)) kt_set_threads((int32_t)random.between(1, 3));
        switch (random.below(4)) {
            case 0: call_rows(random, rows, call); break;
            case 1: call_experts(random, experts, call); break;
            default: call_linear(random, linear, call);
        }
    }
    kt_set_threads(1);
    printf("seed %llu: kt_linear %lld, kt_rows %lld, kt_experts %lld calls, %lld wrong\n", (unsigned long long)seed,
           (long long)linear.calls, (long long)rows.calls, (long long)experts.calls,
           (long long)(linear.wrong + rows.wrong + experts.wrong));
    return linear.wrong + rows.wrong + experts.wrong ? 1 : 0;
}
