// Calls kt_attend, kt_rms_norm, kt_rotate, kt_activate and kt_heads_product with random forms, sizes and strides, and with
// arguments that are wrong: to be run under AddressSanitizer and UndefinedBehaviorSanitizer, every buffer being a heap
// block of exactly the size that the call needs.
//
//     attend_fuzz [--seed N] [--calls N]
//
// The last token of a row must have the same bits alone, and on one thread. One line at the end; exit 1 when that or a
// status is wrong, or when a refused call wrote something.
#include <vector>

#include "../../program/ktitan_program.h"
#include "check_data.h"

namespace {

constexpr float UNTOUCHED = -12345.678f;
constexpr int64_t WRONG[] = {-1, 0, INT64_MIN, INT64_MAX};
typedef std::vector<float> Floats;

Floats numbers(Random &random, int64_t count) {
    Floats made((size_t)count);
    const bool wild = random.one_in(20);
    for (float &x : made) x = wild ? random.any_bits() : 2 * random.unit();
    return made;
}

bool same(const float *a, const float *b, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (bits_of(a[i]) != bits_of(b[i]) && !(a[i] != a[i] && b[i] != b[i])) return false;
    }
    return true;
}

// Heads [rows, tokens, heads, width] with gaps between heads.
struct Heads {
    int64_t rows, tokens, heads, width, gap;
    Floats data;

    Heads(Random &random, int64_t r, int64_t t, int64_t h, int64_t w)
        : rows(r), tokens(t), heads(h), width(w), gap(random.one_in(2) ? random.below(5) : 0),
          data(numbers(random, r * t * h * (w + gap) - (r > 0 && t > 0 && h > 0 ? gap : 0))) {}
    kt_view view(int64_t from_token = 0) const {
        const int64_t head = width + gap, token = heads * head;
        return {data.data() + from_token * token, tokens * token, head, token};
    }
};

struct Case {
    int64_t rows, tokens, keys, group;
    kt_attention what;
    Heads query, key, value;
    Floats sinks, added;
    std::vector<uint8_t> seen;
    kt_mask mask;
    int32_t causal;

    static int64_t length(Random &random) { return random.one_in(8) ? random.between(1000, 1200) : random.between(1, 200); }

    Case(Random &random, bool latent, int64_t key_heads, int64_t key_dim, int64_t value_dim)
        : rows(random.one_in(9) ? 66 : random.between(1, 3)),
          tokens(rows > 3 ? 1 : random.one_in(3) ? random.between(1, 90) : 1),
          keys(tokens - 1 + (rows > 3 ? random.between(1, 30) : length(random))), group(random.between(1, 5)),
          query(random, rows, tokens, key_heads * group, key_dim + (latent ? value_dim : 0)),
          key(random, rows, keys, key_heads, key_dim), value(random, rows, keys, key_heads, value_dim),
          sinks(numbers(random, key_heads * group)), added(numbers(random, rows * tokens * keys)),
          seen((size_t)(rows * tokens * keys)), causal(random.one_in(4) ? 0 : 1) {
        what = {key_heads * group, key_heads, key_dim, value_dim, random.unit(), random.one_in(4) ? 5.0f : 0.0f,
                random.one_in(3) ? sinks.data() : nullptr, random.one_in(3) ? random.between(1, keys + 1) : 0, latent};
        for (uint8_t &see : seen) see = random.one_in(3) ? 0 : 1;
        const bool is_bool = random.one_in(2);
        const void *data = is_bool ? (const void *)seen.data() : added.data();
        mask = {random.one_in(2) ? data : nullptr, is_bool, tokens * keys, 0, keys};
    }
    static Case any(Random &random) {
        const bool latent = random.one_in(3);
        return Case(random, latent, latent ? 1 : random.between(1, 3), random.between(1, 70), random.between(1, 40));
    }

    int64_t out_width() const { return what.heads * (what.latent ? what.key_dim : what.value_dim); }
    // The last `some` tokens of every row.
    int32_t attend(int64_t some, float *out) const {
        kt_mask part = mask;
        const int64_t bytes = (tokens - some) * mask.token_stride * (mask.is_bool ? 1 : 4);
        if (part.data) part.data = static_cast<const uint8_t *>(part.data) + bytes;
        const kt_view q = query.view(tokens - some), k = key.view(), v = value.view();
        return kt_attend(&what, rows, some, keys, &q, &k, &v, &part, causal, out);
    }
};

bool check_attend(Random &random) {
    const Case given = Case::any(random);
    const int64_t width = given.out_width();
    Floats whole((size_t)(given.rows * given.tokens * width)), last((size_t)(given.rows * width));
    kt_set_threads((int32_t)random.between(1, 3));
    bool good = given.attend(given.tokens, whole.data()) == KT_OK;
    kt_set_threads(1);
    good &= given.attend(1, last.data()) == KT_OK;
    for (int64_t row = 0; row < given.rows; row++) {
        good &= same(whole.data() + ((row + 1) * given.tokens - 1) * width, last.data() + row * width, width);
    }
    return good;
}

bool check_refusals(Random &random) {
    Case given = Case::any(random);
    int64_t *sizes[] = {&given.what.heads, &given.what.key_heads, &given.what.key_dim, &given.what.value_dim};
    Floats out((size_t)(given.rows * given.tokens * given.out_width()), UNTOUCHED);
    if (random.one_in(4)) {
        given.causal = 1;
        given.keys = given.tokens - 1;
    } else {
        *sizes[random.below(4)] = WRONG[random.below(4)];
    }
    if (given.attend(given.tokens, out.data()) != KT_WRONG_SIZE) return false;
    for (float x : out) {
        if (x != UNTOUCHED) return false;
    }
    return true;
}

bool check_rows(Random &random) {
    const int64_t width = random.between(1, 100), count = random.between(0, 40), heads = random.between(1, 4);
    Floats x = numbers(random, count * heads * width), weight = numbers(random, width), out(x.size());
    const kt_norm norm = {random.one_in(3) ? nullptr : weight.data(), width, 1e-6f, (int32_t)random.below(2)};
    bool good = kt_rms_norm(&norm, x.data(), count * heads, out.data()) == KT_OK;
    good &= kt_activate((int32_t)random.below(KT_ACTIVATIONS), x.data(), out.data(), (int64_t)x.size(), x.data()) == KT_OK;
    const int64_t turned = random.between(0, width / 2) * 2, first = random.between(0, width - turned);
    const Floats table = numbers(random, count * turned);
    const kt_rotation rotation = {width, first, turned, (int32_t)random.below(2), (int32_t)random.below(2)};
    good &= kt_rotate(&rotation, x.data(), count, heads, table.data()) == KT_OK;
    const kt_rotation wrong = {width, first, width + 2, 0, 0};
    good &= kt_rotate(&wrong, x.data(), count, heads, table.data()) == KT_WRONG_SIZE;
    const int64_t rows = random.between(0, 30);
    const Floats weights = numbers(random, heads * rows * width);
    const kt_matrix matrix = {(const uint8_t *)weights.data(), heads * rows, width, width * 4, KT_F32};
    Floats products((size_t)(count * heads * rows));
    return good && kt_heads_product(&matrix, heads, x.data(), count, products.data()) == KT_OK;
}

}  // namespace

int main(int argc, char **argv) {
    Random random = {1};
    int64_t calls = 2000, wrong = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0) random.state = strtoull(argv[i + 1], nullptr, 0);
        if (strcmp(argv[i], "--calls") == 0) calls = strtoll(argv[i + 1], nullptr, 0);
    }
    for (int64_t call = 0; call < calls; call++) {
        const int64_t kind = random.below(4);
        const bool good = kind == 0 ? check_refusals(random) : kind == 1 ? check_rows(random) : check_attend(random);
        if (!good && wrong++ == 0) printf("attend_fuzz: call %lld, kind %lld\n", (long long)call, (long long)kind);
    }
    printf("attend_fuzz: %lld calls, %lld wrong\n", (long long)calls, (long long)wrong);
    return wrong ? 1 : 0;
}
