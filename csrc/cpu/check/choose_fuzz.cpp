// Calls kt_choose with random logits of any bits and options, right and wrong: to be run under AddressSanitizer and
// UndefinedBehaviorSanitizer, the logits being a heap block of exactly their size.
//
//     choose_fuzz [--seed N] [--calls N]
//
// A token that is chosen must be there, be the first of the largest where the likeliest is asked for, and be among the top-k
// else. One line at the end; exit 1 when that or a status is wrong, or when a refused call wrote something.
#include <math.h>

#include <algorithm>
#include <vector>

#include "../../program/ktitan_program.h"
#include "check_data.h"

namespace {

constexpr int64_t UNTOUCHED = -7;

struct Report {
    int64_t calls = 0, unsure = 0, refused = 0, wrong = 0;

    void expect(bool right, const char *what, uint64_t call) {
        if (right) return;
        wrong++;
        printf("call %llu: %s\n", (unsigned long long)call, what);
    }
};

std::vector<float> logits_of(Random &random) {
    const int64_t kind = random.below(5), size = random.one_in(3) ? random.between(1, 70000) : random.between(1, 300);
    std::vector<float> made((size_t)size);
    const float same = random.any_bits();
    for (float &x : made) {
        x = kind == 0 ? random.any_bits() : kind == 1 ? same : kind == 2 ? (float)random.below(9) : 8 * random.unit();
        if (kind == 4 && random.one_in(2)) x = -INFINITY;
    }
    return made;
}

bool any_nan(const std::vector<float> &logits) {
    return std::any_of(logits.begin(), logits.end(), [](float x) { return x != x; });
}

// Whether fewer than `top_k` logits are larger, but for what the division by the temperature makes equal.
bool is_among_best(const std::vector<float> &logits, int64_t token, int64_t top_k, float temperature) {
    const float own = logits[(size_t)token] / temperature;
    return std::count_if(logits.begin(), logits.end(), [&](float x) { return x / temperature > own; }) < top_k;
}

void choose(Random &random, Report &report, uint64_t call) {
    const std::vector<float> logits = logits_of(random);
    const int64_t size = (int64_t)logits.size();
    kt_choice choice = {random.one_in(4) ? 1e-4f : 0.1f + fabsf(random.unit()), random.one_in(3) ? 0 : random.between(1, 90),
                        random.one_in(3) ? 1.0 : 0.05 + 0.9 * fabs(random.unit())};
    double uniform = fabs(random.unit()) * 0.999;
    int64_t count = size, token = UNTOUCHED;
    const bool is_spoilt = random.one_in(8);
    switch (is_spoilt ? random.below(4) : -1) {
        case 0: choice.temperature = random.one_in(2) ? 0.0f : NAN; break;
        case 1: choice.top_k = random.one_in(2) ? -1 : INT64_MIN; break;
        case 2: uniform = random.one_in(2) ? 1.0 : NAN; break;
        case 3: count = -random.below(3); break;
    }
    const int32_t status = kt_choose(&choice, logits.data(), count, uniform, &token);
    report.calls++;
    report.refused += status == KT_WRONG_SIZE;
    report.unsure += status == KT_UNSURE;
    report.expect((status == KT_WRONG_SIZE) == is_spoilt, "a status is wrong", call);
    report.expect((status == KT_OK) == (token != UNTOUCHED), "a token without its status, or a status without", call);
    if (status != KT_OK) return;
    report.expect(!any_nan(logits), "a token was chosen beside a NaN", call);
    const bool is_there = token >= 0 && token < size;
    report.expect(is_there, "a token is none", call);
    if (!is_there) return;
    const auto largest = std::max_element(logits.begin(), logits.end());
    if (choice.top_k == 0) report.expect(token == largest - logits.begin(), "not the likeliest", call);
    else report.expect(is_among_best(logits, token, choice.top_k, choice.temperature), "not among the best", call);
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
        choose(random, report, call);
    }
    printf("seed %llu: %lld calls, %lld unsure, %lld refused, %lld wrong\n", (unsigned long long)seed,
           (long long)report.calls, (long long)report.unsure, (long long)report.refused, (long long)report.wrong);
    return report.wrong ? 1 : 0;
}
