// Calls kt_route and kt_gate with random forms, sizes and bits, and with arguments that are wrong: to be run under
// AddressSanitizer and UndefinedBehaviorSanitizer, every buffer being a heap block of exactly the size that the call needs.
//
//     route_fuzz [--seed N] [--calls N]
//
// Whatever the numbers are, NaN too, the chosen experts must be there, differ from each other and lie in as many groups as
// are kept. One line at the end; exit 1 when that or a status is wrong, or when a refused call wrote something.
#include <set>
#include <vector>

#include "../../program/ktitan_program.h"
#include "check_data.h"

namespace {

constexpr int64_t WRONG[] = {-1, 0, INT32_MIN, INT32_MAX};
constexpr int64_t UNTOUCHED = -7;

// All from one distribution: any bits, equal numbers, or moderate ones.
void fill(Random &random, std::vector<float> &numbers) {
    const int64_t kind = random.below(3);
    const float same = random.any_bits();
    for (float &number : numbers) number = kind == 0 ? random.any_bits() : kind == 1 ? same : 4 * random.unit();
}

struct Case {
    std::vector<float> matrix, bias, correction, hidden;
    kt_router router;
    int64_t tokens;

    explicit Case(Random &random) : tokens(random.one_in(10) ? 0 : random.one_in(10) ? 300 : random.between(1, 9)) {
        const int64_t groups = random.one_in(2) ? 1 : random.between(2, 6), size = random.between(1, 12);
        const int64_t experts = groups * size, columns = random.between(1, 40), kept = random.between(1, groups);
        const int64_t open = groups > 1 ? kept * size : experts;
        for (auto *vector : {&bias, &correction}) vector->resize((size_t)experts);
        matrix.resize((size_t)(experts * columns));
        hidden.resize((size_t)(tokens * columns));
        for (auto *vector : {&matrix, &bias, &correction, &hidden}) fill(random, *vector);
        router = {{(const uint8_t *)matrix.data(), experts, columns, columns * 4, KT_F32},
                  random.one_in(2) ? bias.data() : nullptr,
                  random.one_in(2) ? correction.data() : nullptr,
                  random.between(1, open),
                  (int32_t)random.below(3),
                  (int32_t)groups,
                  (int32_t)kept,
                  (int32_t)random.between(1, size),
                  (int32_t)random.below(2),
                  2 * random.unit()};
    }

    // Something made wrong, and the status that says so.
    int32_t spoil(Random &random) {
        const int64_t size = router.weights.rows / router.groups;
        switch (random.below(7)) {
            case 0: router.weights.type = random.one_in(2) ? KT_Q8_0 : 4; return KT_NO_KERNEL;
            case 1: router.scores = (int32_t)(random.one_in(2) ? 3 : -1); return KT_NO_KERNEL;
            case 2: router.groups = (int32_t)(random.one_in(2) ? router.weights.rows + 1 : WRONG[random.below(3)]); break;
            case 3: router.groups_kept = (int32_t)(random.one_in(2) ? router.groups + 1 : WRONG[random.below(3)]); break;
            case 4: router.group_best = (int32_t)(random.one_in(2) ? size + 1 : WRONG[random.below(3)]); break;
            case 5: router.chosen = random.one_in(2) ? router.weights.rows + 1 : WRONG[random.below(4)]; break;
            default: tokens = random.one_in(2) ? -1 : INT64_MAX;
        }
        return KT_WRONG_SIZE;
    }
};

struct Report {
    uint64_t call = 0;
    int64_t calls = 0, refused = 0, wrong = 0;

    void expect(bool right, const char *what) {
        if (!right && wrong++ == 0) printf("call %llu: %s\n", (unsigned long long)call, what);
    }
};

bool is_choice(const kt_router &router, const int64_t *index) {
    std::set<int64_t> experts, groups;
    for (int64_t k = 0; k < router.chosen; k++) {
        if (index[k] < 0 || index[k] >= router.weights.rows) return false;
        experts.insert(index[k]);
        groups.insert(index[k] / (router.weights.rows / router.groups));
    }
    return (int64_t)experts.size() == router.chosen && (int64_t)groups.size() <= router.groups_kept + (router.groups == 1);
}

void route(Random &random, Report &report) {
    Case one(random);
    const size_t pairs = (size_t)(one.tokens * one.router.chosen);
    std::vector<int64_t> index(pairs, UNTOUCHED);
    std::vector<float> weights(pairs), logits((size_t)(one.tokens * one.router.weights.rows));
    const int64_t tokens = one.tokens;
    const int32_t wanted = random.one_in(5) ? one.spoil(random) : KT_OK;
    const int32_t status = kt_route(&one.router, one.hidden.data(), one.tokens, index.data(), weights.data(),
                                    random.one_in(2) ? nullptr : logits.data());
    report.calls++;
    report.refused += wanted != KT_OK;
    report.expect(status == wanted, "a status is wrong");
    for (int64_t one_index : index) report.expect(wanted == KT_OK || one_index == UNTOUCHED, "a refused call wrote");
    for (int64_t t = 0; t < tokens && wanted == KT_OK; t++) {
        report.expect(is_choice(one.router, index.data() + t * one.router.chosen), "a choice is none");
    }
}

void gate(Random &random, Report &report) {
    const int64_t tokens = random.below(20), width = random.below(40);
    std::vector<float> x((size_t)(tokens * width)), scores((size_t)tokens), out(x.size());
    fill(random, x);
    fill(random, scores);
    float *into = random.one_in(2) ? x.data() : out.data();
    report.calls++;
    report.expect(kt_gate(x.data(), scores.data(), tokens, width, into) == KT_OK, "a gate is refused");
    report.expect(kt_gate(x.data(), scores.data(), random.one_in(2) ? -1 : INT64_MAX, width, into) == KT_WRONG_SIZE,
                  "a gate of no size is not refused");
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t seed = 1, calls = 5000;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0) seed = strtoull(argv[i + 1], nullptr, 0);
        if (strcmp(argv[i], "--calls") == 0) calls = strtoull(argv[i + 1], nullptr, 0);
    }
    Report report;
    for (uint64_t call = 0; call < calls; call++) {
        Random random = {seed + call};  // a call is a function of seed + call
        random.next();
        report.call = call;
        kt_set_isa((int32_t)random.below(3));
        if (random.one_in(50)) kt_set_threads((int32_t)random.between(1, 3));
        if (random.one_in(10)) gate(random, report);
        else route(random, report);
    }
    kt_set_threads(1);
    printf("seed %llu: %lld calls, %lld refused, %lld wrong\n", (unsigned long long)seed, (long long)report.calls,
           (long long)report.refused, (long long)report.wrong);
    return report.wrong ? 1 : 0;
}
