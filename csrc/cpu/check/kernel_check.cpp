// Compares every instruction-set unit that this processor can run with the generic one, bit for bit, on random inputs.
// One line a check: its name, a hash of the generic unit's outputs, and the units compared. Exit 1 on a difference.
//
//     kernel_check [--seed N] [--no-guard]
//
// It runs on the shared library itself. Units that the processor lacks are left out and not named. Two NaNs count as
// equal. All inputs and outputs end at inaccessible pages; an access past an end is reported and ends the program. --no-guard
// leaves these pages accessible, for emulators that get masked loads wrong.
#include <signal.h>

#include <string>
#include <vector>

#include "../ktitan_cpu.h"
#include "check_data.h"

namespace {

const kt_unit &generic_unit = *kt_unit_of(KT_GENERIC);

std::vector<const kt_unit *> usable_units() {
    std::vector<const kt_unit *> units;
    for (int32_t level : {KT_AVX2, KT_AVX512}) {
        if (const kt_unit *unit = kt_unit_of(level)) units.push_back(unit);
    }
    return units;
}

// What runs now, for the report of a fault.
const char *running_check = "";
const char *running_unit = "";

const kt_unit &enter(const kt_unit &unit) {
    running_unit = unit.name;
    return unit;
}

void report_fault(int) {
    char line[160];
    const int length = snprintf(line, sizeof line, "%s: %s: memory fault: past the end of a buffer, or alignment\n",
                                running_check, running_unit);
    if (write(1, line, (size_t)length) != length) _exit(2);
    _exit(1);
}

// Bits with every NaN made one NaN.
uint64_t canonical(float x) { return x != x ? 0x7fc00000u : bits_of(x); }
uint64_t canonical(int8_t x) { return (uint8_t)x; }
uint64_t canonical(int16_t x) { return (uint16_t)x; }

// One named check: collects the hash of the expected outputs and the first difference.
class Check {
public:
    Check(const char *name, const std::vector<const kt_unit *> &units) : units(units), name_(name) {
        running_check = name;
    }

    template <typename T> void expect(T *values, size_t count) {
        for (size_t i = 0; i < count; i++) hash_ = (hash_ ^ canonical(values[i])) * 0x100000001b3u;
    }
    template <typename T>
    void compare(const kt_unit *unit, const char *what, const std::string &shape, T *expected, T *got, size_t count) {
        for (size_t i = 0; i < count; i++) {
            if (canonical(expected[i]) == canonical(got[i])) continue;
            if (differences_++ == 0) {
                printf("%s: %s %s %s: element %zu is %.9g (%llx), generic has %.9g (%llx)\n", name_, unit->name, what,
                       shape.c_str(), i, (double)got[i], (unsigned long long)canonical(got[i]), (double)expected[i],
                       (unsigned long long)canonical(expected[i]));
            }
        }
    }
    void require(bool condition, const kt_unit *unit, const char *what) {
        if (condition) return;
        printf("%s: %s: %s\n", name_, unit->name, what);
        differences_++;
    }
    bool finish() const {
        printf("%-10s %016llx ", name_, (unsigned long long)hash_);
        for (const kt_unit *unit : units) printf(" %s", unit->name);
        if (differences_) printf("  DIFFERENT: %zu", differences_);
        printf("\n");
        fflush(stdout);
        return differences_ == 0;
    }

    const std::vector<const kt_unit *> &units;

private:
    const char *name_;
    uint64_t hash_ = 0xcbf29ce484222325u;
    size_t differences_ = 0;
};

struct Shape {
    int64_t rows, columns, count;
    int64_t row_gap, out_gap;  // bytes between weight rows, elements between output rows

    std::string text() const {
        char line[120];
        snprintf(line, sizeof line, "rows %lld columns %lld count %lld row_gap %lld out_gap %lld", (long long)rows,
                 (long long)columns, (long long)count, (long long)row_gap, (long long)out_gap);
        return line;
    }
};

// Weight rows, the last of which ends at the guard page.
struct Weights {
    Weights(Random &random, const Type &type, const Shape &shape)
        : row_bytes(shape.columns / type.block * type.bytes + shape.row_gap),
          bytes(shape.rows * row_bytes - shape.row_gap) {
        for (int64_t n = 0; n < shape.rows; n++) {
            random_weights(random, type, bytes.data() + n * row_bytes, shape.columns);
        }
    }
    int64_t row_bytes;
    Guarded<uint8_t> bytes;
};

// Quantised activation rows, made by the generic unit.
struct Rows {
    Rows(Random &random, const Shape &shape, int64_t block)
        : q(shape.count * shape.columns), d(shape.count * shape.columns / block),
          sums(shape.count * shape.columns / 16) {
        std::vector<float> x((size_t)shape.columns);
        for (int64_t m = 0; m < shape.count; m++) {
            random_row(random, x.data(), shape.columns);
            int8_t *q_row = q.data() + m * shape.columns;
            float *d_row = d.data() + m * (shape.columns / block);
            int16_t *sums_row = sums.data() + m * (shape.columns / 16);
            enter(generic_unit).quantize(x.data(), shape.columns, block, q_row, d_row, sums_row);
            rows.push_back({q_row, d_row, sums_row});
        }
    }
    Guarded<int8_t> q;
    Guarded<float> d;
    Guarded<int16_t> sums;
    std::vector<kt_row> rows;
};

struct FloatRows {
    FloatRows(Random &random, const Shape &shape) : x(shape.count * shape.columns) {
        for (int64_t m = 0; m < shape.count; m++) {
            float *row = x.data() + m * shape.columns;
            random_row(random, row, shape.columns);
            rows.push_back(row);
        }
    }
    Guarded<float> x;
    std::vector<const float *> rows;
};

constexpr float UNTOUCHED = -12345.678f;

// Runs `product` of the generic unit and of every other one; the gaps of the output must stay untouched.
template <typename Run> void compare_products(Check &check, const Shape &shape, Run run) {
    const int64_t ldo = shape.rows + shape.out_gap;
    Guarded<float> expected(shape.count * ldo - shape.out_gap), got(shape.count * ldo - shape.out_gap);
    expected.fill(UNTOUCHED);
    run(enter(generic_unit), expected.data(), ldo);
    check.expect(expected.data(), expected.size());
    for (const kt_unit *unit : check.units) {
        got.fill(UNTOUCHED);
        run(enter(*unit), got.data(), ldo);
        check.compare(unit, "product", shape.text(), expected.data(), got.data(), got.size());
    }
}

void check_product(Check &check, Random &random, const Type &type, const Shape &shape) {
    Weights weights(random, type, shape);
    if (type.activation_block == 0) {
        FloatRows x(random, shape);
        compare_products(check, shape, [&](const kt_unit &unit, float *out, int64_t ldo) {
            unit.float_product[type.id](weights.bytes.data(), (size_t)weights.row_bytes, shape.rows, shape.columns,
                                        x.rows.data(), shape.count, out, ldo);
        });
        return;
    }
    Rows x(random, shape, type.activation_block);
    compare_products(check, shape, [&](const kt_unit &unit, float *out, int64_t ldo) {
        unit.product[type.id](weights.bytes.data(), (size_t)weights.row_bytes, shape.rows, shape.columns,
                              x.rows.data(), shape.count, out, ldo);
    });
}

// Every product underflows to -0, so a tail that adds 0 * 0 to a lane would turn the output from -0 into +0.
void check_negative_zero(Check &check, const Type &type, int64_t columns) {
    const Shape shape = {3, columns, 5, 0, 0};
    Guarded<uint8_t> weights(shape.rows * columns * type.bytes);
    Guarded<float> x(columns);
    x.fill(-1e-42f);
    for (int64_t i = 0; i < shape.rows * columns; i++) store_float(type, weights.data(), i, 0x1p-20f);
    const std::vector<const float *> rows((size_t)shape.count, x.data());
    compare_products(check, shape, [&](const kt_unit &unit, float *out, int64_t ldo) {
        unit.float_product[type.id](weights.data(), (size_t)(columns * type.bytes), shape.rows, columns, rows.data(),
                                    shape.count, out, ldo);
    });
}

void check_dequantize(Check &check, Random &random, const Type &type, int64_t columns) {
    const Shape shape = {1, columns, 1, 0, 0};
    Weights weights(random, type, shape);
    Guarded<float> expected(columns), got(columns);
    enter(generic_unit).dequantize[type.id](weights.bytes.data(), columns, expected.data());
    check.expect(expected.data(), expected.size());
    for (const kt_unit *unit : check.units) {
        enter(*unit).dequantize[type.id](weights.bytes.data(), columns, got.data());
        check.compare(unit, "dequantize", shape.text(), expected.data(), got.data(), got.size());
    }
}

// Odd sizes: every count up to 33 (all the ways to split rows into groups), then more rows than a tile, then long rows.
bool check_type(Random random, const Type &type, const std::vector<const kt_unit *> &units) {
    Check check(type.name, units);
    const bool plain = type.activation_block == 0;
    for (int64_t count = 1; count <= 33; count++) {
        const int64_t blocks = random.between(1, type.block == 256 ? 3 : 9);
        const int64_t columns = plain ? random.between(1, 150) : type.block * blocks;
        const int64_t row_gap = random.one_in(2) ? random.between(1, 9) : 0;
        check_product(check, random, type, {random.between(1, 40), columns, count, row_gap, random.below(3)});
        check_dequantize(check, random, type, columns);
    }
    const int64_t columns = plain ? 777 : 1024;
    check_product(check, random, type, {70, columns, 1, 0, 0});
    check_product(check, random, type, {53, columns, 3, 0, 0});
    check_product(check, random, type, {37, columns, 139, 0, 1});
    check_product(check, random, type, {19, plain ? 4099 : 45 * 256, 5, 3, 0});
    // What is left over beside whole tiles of activations is 1 to 3 rows.
    const int64_t narrow = plain ? 33 : type.block;
    for (int64_t count : {129, 130, 131, 257}) check_product(check, random, type, {17, narrow, count, 0, 0});
    for (int64_t k = 16; plain && k < 50; k++) check_negative_zero(check, type, k);
    return check.finish();
}

bool check_table(const std::vector<const kt_unit *> &units) {
    Check check("table", units);
    for (const kt_unit *unit : units) {
        for (int type = 0; type < KT_TYPES; type++) {
            check.require(!unit->product[type] == !generic_unit.product[type], unit, "product");
            check.require(!unit->float_product[type] == !generic_unit.float_product[type], unit, "float_product");
            check.require(!unit->dequantize[type] == !generic_unit.dequantize[type], unit, "dequantize");
        }
    }
    return check.finish();
}

bool check_quantize(Random random, const std::vector<const kt_unit *> &units) {
    Check check("quantize", units);
    for (int repeat = 0; repeat < 200; repeat++) {
        const int64_t block = random.one_in(2) ? 32 : 256, columns = block * random.between(1, 6);
        const Shape shape = {1, columns, block, 0, 0};
        Guarded<float> x(columns), d(columns / block), d_got(columns / block);
        Guarded<int8_t> q(columns), q_got(columns);
        Guarded<int16_t> sums(columns / 16), sums_got(columns / 16);
        random_row(random, x.data(), columns);
        enter(generic_unit).quantize(x.data(), columns, block, q.data(), d.data(), sums.data());
        check.expect(q.data(), q.size());
        check.expect(d.data(), d.size());
        check.expect(sums.data(), sums.size());
        for (const kt_unit *unit : units) {
            enter(*unit).quantize(x.data(), columns, block, q_got.data(), d_got.data(), sums_got.data());
            check.compare(unit, "q", shape.text(), q.data(), q_got.data(), q.size());
            check.compare(unit, "d", shape.text(), d.data(), d_got.data(), d.size());
            check.compare(unit, "sums", shape.text(), sums.data(), sums_got.data(), sums.size());
        }
    }
    return check.finish();
}

// Any bits, moderate numbers, and the ends of exp's range.
float activation_input(Random &random) {
    const int64_t character = random.below(4);
    if (character == 0) return random.any_bits();
    if (character == 1) return (random.one_in(2) ? 88.0f : -88.0f) + random.unit();
    return random.unit() * (character == 2 ? 8.0f : 100.0f);
}

bool check_activate(Random random, const std::vector<const kt_unit *> &units) {
    Check check("activate", units);
    for (int repeat = 0; repeat < 400; repeat++) {
        const int64_t count = random.between(1, 300);
        const int activation = (int)random.below(KT_ACTIVATIONS);
        const Shape shape = {activation, count, 1, 0, 0};
        Guarded<float> gate(count), up(count), expected(count), got(count);
        for (int64_t i = 0; i < count; i++) {
            gate[i] = activation_input(random);
            up[i] = random.unit();
        }
        const float *factor = random.one_in(3) ? nullptr : up.data();
        memcpy(expected.data(), gate.data(), (size_t)count * sizeof(float));
        enter(generic_unit).activate(activation, expected.data(), factor, count);
        check.expect(expected.data(), expected.size());
        for (const kt_unit *unit : units) {
            memcpy(got.data(), gate.data(), (size_t)count * sizeof(float));
            enter(*unit).activate(activation, got.data(), factor, count);
            check.compare(unit, "activate", shape.text(), expected.data(), got.data(), got.size());
        }
    }
    return check.finish();
}

bool check_accumulate(Random random, const std::vector<const kt_unit *> &units) {
    Check check("accumulate", units);
    for (int repeat = 0; repeat < 100; repeat++) {
        const int64_t count = random.between(1, 200);
        const Shape shape = {1, count, 1, 0, 0};
        const float scale = random.unit();
        Guarded<float> in(count), start(count), expected(count), got(count);
        random_row(random, in.data(), count);
        random_row(random, start.data(), count);
        memcpy(expected.data(), start.data(), (size_t)count * sizeof(float));
        enter(generic_unit).accumulate(scale, in.data(), count, expected.data());
        check.expect(expected.data(), expected.size());
        for (const kt_unit *unit : units) {
            memcpy(got.data(), start.data(), (size_t)count * sizeof(float));
            enter(*unit).accumulate(scale, in.data(), count, got.data());
            check.compare(unit, "accumulate", shape.text(), expected.data(), got.data(), got.size());
        }
    }
    return check.finish();
}

// Functions of a row in place, or to another row: run(unit, x) changes x, and may return a number.
template <typename Run> void compare_rows(Check &check, const char *what, Guarded<float> &x, Run run) {
    const Shape shape = {1, (int64_t)x.size(), 1, 0, 0};
    Guarded<float> expected(shape.columns), got(shape.columns);
    memcpy(expected.data(), x.data(), x.size() * sizeof(float));
    float number = run(enter(generic_unit), expected.data());
    check.expect(expected.data(), expected.size());
    check.expect(&number, 1);
    for (const kt_unit *unit : check.units) {
        memcpy(got.data(), x.data(), x.size() * sizeof(float));
        float other = run(enter(*unit), got.data());
        check.compare(unit, what, shape.text(), expected.data(), got.data(), got.size());
        check.compare(unit, what, shape.text(), &number, &other, 1);
    }
}

bool check_rows(Random random, const std::vector<const kt_unit *> &units) {
    Check check("rows", units);
    for (int repeat = 0; repeat < 300; repeat++) {
        const int64_t count = random.between(1, 200);
        Guarded<float> x(count), weight(count);
        random_row(random, x.data(), count);
        random_row(random, weight.data(), count);
        const float *factor = random.one_in(4) ? nullptr : weight.data();
        const int offset = (int)random.below(2);
        compare_rows(check, "rms_norm", x, [&](const kt_unit &unit, float *row) {
            unit.rms_norm(row, factor, offset, 1e-6f, count, row);
            return 0.0f;
        });
        const float a = random.unit(), b = random.unit();
        compare_rows(check, "blend", x, [&](const kt_unit &unit, float *row) {
            unit.blend(a, b, weight.data(), count, row);
            return 0.0f;
        });
        for (int64_t i = 0; i < count; i++) x[i] = activation_input(random);
        if (random.one_in(10)) x.fill(random.one_in(2) ? -INFINITY : -0.0f);
        compare_rows(check, "largest", x, [&](const kt_unit &unit, float *row) { return unit.largest(row, count); });
        compare_rows(check, "exponentials", x,
                     [&](const kt_unit &unit, float *row) { return unit.exponentials(row, count, 3.5f * a); });
        const float cap = random.one_in(2) ? 50.0f : 1.0f;
        compare_rows(check, "softcap", x, [&](const kt_unit &unit, float *row) {
            unit.softcap(row, count, cap);
            return 0.0f;
        });
        compare_rows(check, "logistic", x, [&](const kt_unit &unit, float *row) {
            unit.logistic(row, count);
            return 0.0f;
        });
    }
    return check.finish();
}

// Every number of rows, odd widths and gaps: the weights and values of attention.
bool check_weighted_sum(Random random, const std::vector<const kt_unit *> &units) {
    Check check("weights", units);
    for (int repeat = 0; repeat < 120; repeat++) {
        const int64_t rows = repeat % 20 + 1, count = random.between(0, 64), width = random.between(1, 200);
        const int64_t ldp = count + random.below(3), ldv = width + random.below(3), ldo = width + random.below(3);
        Guarded<float> p(count ? (rows - 1) * ldp + count : 0), v(count ? (count - 1) * ldv + width : 0);
        random_row(random, p.data(), (int64_t)p.size());
        random_row(random, v.data(), (int64_t)v.size());
        Guarded<float> out((rows - 1) * ldo + width);
        random_row(random, out.data(), (int64_t)out.size());
        compare_rows(check, "weighted_sum", out, [&](const kt_unit &unit, float *sums) {
            unit.weighted_sum(p.data(), ldp, rows, v.data(), ldv, count, width, sums, ldo);
            return 0.0f;
        });
    }
    return check.finish();
}

// Both 16-bit formats to float32: every number there is, then odd counts.
bool check_widening(const std::vector<const kt_unit *> &units) {
    Check check("widen", units);
    for (int64_t count : {65536, 1, 7, 15, 17, 33}) {
        const Shape shape = {1, count, 1, 0, 0};
        Guarded<uint16_t> in(count);
        Guarded<float> expected(count), got(count);
        for (int64_t i = 0; i < count; i++) in[i] = (uint16_t)(i * 40503);  // odd factor: all of them, mixed
        for (auto conversion : {&kt_unit::from_f16, &kt_unit::from_bf16}) {
            (enter(generic_unit).*conversion)(in.data(), count, expected.data());
            check.expect(expected.data(), expected.size());
            for (const kt_unit *unit : units) {
                (enter(*unit).*conversion)(in.data(), count, got.data());
                check.compare(unit, "widen", shape.text(), expected.data(), got.data(), got.size());
            }
        }
    }
    return check.finish();
}

// float32 numbers that a conversion to 16 bits finds hard: anything, subnormal f16, and halves between two neighbours.
float narrowing_input(Random &random) {
    const int64_t character = random.below(5);
    if (character == 0) return random.any_bits();
    if (character == 1) return random.unit() * 0x1p-13f;
    if (character == 2) return float_of((uint32_t)(random.next() & 0xffff0000u) | 0x8000u);
    const uint32_t step = (uint32_t)random.between(-1, 1);
    if (character == 3) return float_of(bits_of(from_f16((uint16_t)random.next())) + 0x1000u + step);
    const float half = ((float)random.below(1024) + 0.5f) * 0x1p-24f;  // between two subnormal f16
    return float_of(bits_of(half) + step);
}

// A 16-bit NaN may have any payload, so the results are compared as floats.
bool check_narrowing(Random random, const std::vector<const kt_unit *> &units) {
    Check check("narrow", units);
    for (int repeat = 0; repeat < 300; repeat++) {
        const int64_t count = random.between(1, 400);
        const Shape shape = {1, count, 1, 0, 0};
        Guarded<float> in(count), expected(count), got(count);
        Guarded<uint16_t> narrow(count);
        for (int64_t i = 0; i < count; i++) in[i] = narrowing_input(random);
        const bool f16 = random.one_in(2);
        const auto conversion = f16 ? &kt_unit::to_f16 : &kt_unit::to_bf16;
        const auto back = f16 ? generic_unit.from_f16 : generic_unit.from_bf16;
        (enter(generic_unit).*conversion)(in.data(), count, narrow.data());
        back(narrow.data(), count, expected.data());
        check.expect(expected.data(), expected.size());
        for (const kt_unit *unit : units) {
            (enter(*unit).*conversion)(in.data(), count, narrow.data());
            back(narrow.data(), count, got.data());
            check.compare(unit, f16 ? "to_f16" : "to_bf16", shape.text(), expected.data(), got.data(), got.size());
        }
    }
    return check.finish();
}

bool run_checks(uint64_t seed) {
    const std::vector<const kt_unit *> units = usable_units();
    // Each check has its own stream, so that its hash depends on the seed only.
    Random streams = {seed};
    bool good = check_table(units);
    for (const Type &type : TYPES) good &= check_type({streams.next()}, type, units);
    good &= check_quantize({streams.next()}, units);
    good &= check_activate({streams.next()}, units);
    good &= check_accumulate({streams.next()}, units);
    good &= check_rows({streams.next()}, units);
    good &= check_weighted_sum({streams.next()}, units);
    good &= check_widening(units);
    good &= check_narrowing({streams.next()}, units);
    return good;
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t seed = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--no-guard") == 0) {
            guard_pages = false;
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            seed = strtoull(argv[++i], nullptr, 0);
        } else {
            fprintf(stderr, "usage: %s [--seed N] [--no-guard]\n", argv[0]);
            return 2;
        }
    }
    signal(SIGSEGV, report_fault);
    return run_checks(seed) ? 0 : 1;
}
