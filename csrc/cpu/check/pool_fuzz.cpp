// Calls the C interface of KV pools at random, with arguments that are wrong, too, and compares what a pool holds with a copy
// of what was given: to be run under AddressSanitizer and UndefinedBehaviorSanitizer.
//
//     pool_fuzz [--seed N] [--calls N]
//
// One line at the end; exit 1 when a status, a length or a number is not the expected one.
#include <map>
#include <vector>

#include "../../program/ktitan_program.h"
#include "check_data.h"

namespace {

constexpr int64_t LAYER = 3, OTHER = 7;  // f32, whose numbers are compared, and one that rounds
constexpr int64_t WRONG[] = {-1, INT64_MIN, INT64_MAX, (int64_t)1 << 40};
constexpr kt_kv_layer EXACT = {2, 3, 1, 5, KT_KV_F32};
constexpr int64_t KEY = 6, VALUE = 5;

using Tokens = std::vector<float>;  // KEY + VALUE numbers each

struct Fuzz {
    Random random;
    kt_pool *pool;
    kt_kv_layer rounded;
    std::map<int64_t, Tokens> held;
    int64_t limit, wrong = 0, calls = 0, refused = 0;

    void expect(bool right, const char *what) {
        calls++;
        if (right || wrong++ > 0) return;
        printf("%s is wrong after %lld calls\n", what, (long long)calls);
    }
    int64_t any() {
        auto at = held.begin();
        std::advance(at, random.below((int64_t)held.size()));
        return at->first;
    }
    static int64_t length(const Tokens &tokens) { return (int64_t)tokens.size() / (KEY + VALUE); }

    void append() {
        std::vector<int64_t> ids, counts;
        int64_t total = 0;
        for (auto &[id, tokens] : held) {
            if (!random.one_in(3)) continue;
            ids.push_back(id);
            counts.push_back(random.one_in(2) ? 1 : random.below(150));
            total += counts.back();
        }
        Tokens keys((size_t)(total * KEY)), values((size_t)(total * VALUE));
        for (float &x : keys) x = random.unit();
        for (float &x : values) x = random.unit();
        const int64_t count = (int64_t)ids.size();
        if (count && random.one_in(10)) {
            std::vector<int64_t> bad = counts;
            bad[0] = WRONG[random.below(4)];
            expect(kt_pool_append(pool, LAYER, ids.data(), bad.data(), count, nullptr, nullptr, limit) == KT_WRONG_SIZE,
                   "a number of tokens");
            expect(kt_pool_reserve(pool, ids.data(), bad.data(), count, limit) == KT_WRONG_SIZE, "a reservation");
            std::vector<int64_t> strange = ids;
            strange[0] = WRONG[random.below(4)];
            expect(kt_pool_append(pool, LAYER, strange.data(), counts.data(), count, nullptr, nullptr, limit) ==
                       KT_NO_SEQUENCE, "an unknown sequence");
        }
        if (random.one_in(2) && kt_pool_reserve(pool, ids.data(), counts.data(), count, limit) == KT_POOL_FULL) refused++;
        const int32_t status = kt_pool_append(pool, LAYER, ids.data(), counts.data(), count, keys.data(), values.data(), limit);
        expect(status == KT_OK || (status == KT_POOL_FULL && limit >= 0), "a status of append");
        if (status != KT_OK) return;
        append_rounded(ids, counts, total);
        const float *key = keys.data(), *value = values.data();
        for (int64_t i = 0; i < count; i++) {
            for (int64_t t = 0; t < counts[(size_t)i]; t++, key += KEY, value += VALUE) {
                Tokens &tokens = held[ids[(size_t)i]];
                tokens.insert(tokens.end(), key, key + KEY);
                tokens.insert(tokens.end(), value, value + VALUE);
            }
        }
    }
    void append_rounded(const std::vector<int64_t> &ids, const std::vector<int64_t> &counts, int64_t total) {
        Tokens keys((size_t)(total * rounded.key_heads * rounded.key_dim));
        Tokens values((size_t)(total * rounded.value_heads * rounded.value_dim));
        for (float &x : keys) x = random.one_in(200) ? float_of((uint32_t)random.next()) : random.unit();
        for (float &x : values) x = random.unit();
        const int32_t status = kt_pool_append(pool, OTHER, ids.data(), counts.data(), (int64_t)ids.size(), keys.data(),
                                              values.data(), limit);
        expect(status == KT_OK, "a status of the second append");
    }
    void compare() {
        const int64_t id = any(), first = length(held[id]) ? random.below(length(held[id])) : 0;
        const Tokens &tokens = held[id];
        const int64_t count = random.below(length(tokens) - first + 1);
        expect(kt_pool_length(pool, LAYER, id) == length(tokens), "a length");
        Tokens keys((size_t)(count * KEY)), values((size_t)(count * VALUE));
        expect(kt_pool_read(pool, LAYER, id, first, count, keys.data(), values.data()) == KT_OK, "a status of read");
        bool same = true;
        for (int64_t t = 0; t < count; t++) {
            const float *token = tokens.data() + (first + t) * (KEY + VALUE);
            same = same && memcmp(token, keys.data() + t * KEY, 4 * KEY) == 0;
            same = same && memcmp(token + KEY, values.data() + t * VALUE, 4 * VALUE) == 0;
        }
        expect(same, "what was read");
        expect(kt_pool_read(pool, LAYER, id, first, length(tokens) + 1, nullptr, nullptr) == KT_OUT_OF_RANGE, "a range");
        expect(kt_pool_read(pool, OTHER + 1, id, 0, 0, nullptr, nullptr) == KT_NO_LAYER, "an unknown layer");
        const int64_t all = kt_pool_length(pool, OTHER, id);
        Tokens one((size_t)(all * rounded.key_heads * rounded.key_dim)), two((size_t)(all * rounded.value_heads * rounded.value_dim));
        expect(kt_pool_gather(pool, OTHER, &id, 1, all, one.data(), two.data()) == KT_OK, "a status of gather");
        kt_pool_counts counts;
        kt_pool_count(pool, &counts);
        expect(limit < 0 || counts.allocated_bytes <= limit, "what is allocated");
    }
    void others() {
        const int64_t id = any();
        Tokens &tokens = held[id];
        switch (random.below(6)) {
            case 0:
                if (held.size() < 12) held[kt_pool_fork(pool, id)] = tokens;
                break;
            case 1:
                expect(kt_pool_free(pool, id) == KT_OK, "a free");
                expect(kt_pool_free(pool, id) == KT_NO_SEQUENCE && kt_pool_fork(pool, id) == -1, "a second free");
                held.erase(id);
                break;
            case 2: {
                const int64_t kept = random.below(length(tokens) + 2);
                expect(kt_pool_crop(pool, id, kept) == KT_OK && kt_pool_crop(pool, id, -1) == KT_WRONG_SIZE, "a crop");
                if (kept < length(tokens)) tokens.resize((size_t)(kept * (KEY + VALUE)));
                break;
            }
            case 3: kt_pool_trim(pool, random.one_in(2) ? 0 : WRONG[random.below(4)]); break;
            case 4: {
                kt_pool *copy = kt_pool_copy(pool);
                kt_pool_close(pool);
                pool = copy;
                break;
            }
            default: {
                const kt_kv_layer bad[] = {{0, 3, 1, 5, 0}, {1, INT64_MAX, 1, 5, 0}, {1, 3, -1, 5, 1}, {1, 33, 1, 32, 2}, {1, 3, 1, 5, 3}};
                expect(kt_pool_declare(pool, 1, &bad[random.below(5)], limit) == KT_WRONG_SIZE, "a layer's sizes");
                expect(kt_pool_declare(pool, WRONG[random.below(4)], &EXACT, limit) == KT_OUT_OF_RANGE, "a layer's number");
            }
        }
    }
    void run(int64_t steps) {
        pool = kt_pool_open();
        limit = random.one_in(2) ? -1 : 200 * 1024;
        rounded = {2, 32, 1, 64, random.one_in(2) ? KT_KV_Q8 : KT_KV_BF16};
        kt_pool_declare(pool, LAYER, &EXACT, limit);
        kt_pool_declare(pool, OTHER, &rounded, limit);
        for (int64_t i = 0; i < steps; i++) {
            if (held.empty() || random.one_in(12)) held[kt_pool_sequence(pool)] = {};
            random.one_in(2) ? append() : random.one_in(2) ? compare() : others();
            if (!held.empty()) compare();
        }
        kt_pool_close(pool);
    }
};

}  // namespace

int main(int argc, char **argv) {
    uint64_t seed = 1, calls = 3000;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0) seed = strtoull(argv[i + 1], nullptr, 0);
        if (strcmp(argv[i], "--calls") == 0) calls = strtoull(argv[i + 1], nullptr, 0);
    }
    int64_t done = 0, wrong = 0, refused = 0;
    for (uint64_t i = 0; i < calls / 100 + 1; i++) {
        Fuzz fuzz = {};
        fuzz.random = {seed + i};
        fuzz.run(100);
        done += fuzz.calls, wrong += fuzz.wrong, refused += fuzz.refused;
    }
    printf("seed %llu: KV pool, %lld checks, %lld refusals, %lld wrong\n", (unsigned long long)seed, (long long)done,
           (long long)refused, (long long)wrong);
    return wrong ? 1 : 0;
}
