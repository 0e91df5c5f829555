// kt_choose: the likeliest token, or a draw from the top-k, without a pass over a sorted vocabulary.
//
// Of all logits only those that can be among the k largest are sorted. Sums are taken in double; where a cut or a draw lies
// closer to a boundary than the rounding of the plain way, which works in float, the answer is KT_UNSURE.
#include <math.h>
#include <string.h>

#include "ktitan_program.h"

namespace {

// A token and its logit divided by the temperature.
struct Candidate {
    int64_t token;
    float score;
};

constexpr int64_t LANES = 16, MOST_BLOCKS = 4096, MOST_CANDIDATES = 4096;
// Relative: a logit this close below another one may equal it once both were divided and rounded.
constexpr float DIVISION = 1e-6f;
// Of probabilities (1 in all): what rounding may do to a float sum of a sorted vocabulary.
constexpr double ROUNDING = 1e-5;

// Largest of logits[0, count); *bad becomes true where one is NaN.
float largest(const float *logits, int64_t count, bool *bad) {
    float lanes[LANES];
    int32_t unordered = 0;
    for (float &lane : lanes) lane = -INFINITY;
    const int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        for (int64_t j = 0; j < LANES; j++) {
            const float x = logits[i + j];
            lanes[j] = x > lanes[j] ? x : lanes[j];
            unordered |= x != x;
        }
    }
    for (int64_t i = whole; i < count; i++) {
        lanes[0] = logits[i] > lanes[0] ? logits[i] : lanes[0];
        unordered |= logits[i] != logits[i];
    }
    float best = lanes[0];
    for (const float lane : lanes) best = lane > best ? lane : best;
    *bad = *bad || unordered != 0;
    return best;
}

// e^x for x <= 0 to some 1e-15: x = n ln 2 + r, |r| <= ln(2) / 2, and the Taylor series of e^r.
double exponential(double x) {
    if (x < -700) return 0;
    const double n = (double)(int64_t)(x * 1.4426950408889634 - 0.5);
    const double r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10;  // ln 2 in two parts
    double sum = 1;
    for (int term = 14; term > 0; term--) sum = 1 + sum * r / term;
    const uint64_t bits = (uint64_t)((int64_t)n + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return sum * power;
}

// Best first; of equal scores the lower token.
struct ByScore {
    static bool before(const Candidate &a, const Candidate &b) {
        return a.score > b.score || (a.score == b.score && a.token < b.token);
    }
};

struct ByToken {
    static bool before(const Candidate &a, const Candidate &b) { return a.token < b.token; }
};

template <typename Order>
void sink(Candidate *heap, int64_t at, int64_t count) {
    const Candidate moved = heap[at];
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && Order::before(heap[child], heap[child + 1])) child++;
        if (!Order::before(moved, heap[child])) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

template <typename Order>
void sort(Candidate *candidates, int64_t count) {
    for (int64_t at = count / 2 - 1; at >= 0; at--) sink<Order>(candidates, at, count);
    for (int64_t end = count - 1; end > 0; end--) {
        const Candidate last = candidates[end];
        candidates[end] = candidates[0];
        candidates[0] = last;
        sink<Order>(candidates, 0, end);
    }
}

// The k-th largest of numbers, 1 <= k <= count <= MOST_BLOCKS.
float kth_largest(const float *numbers, int64_t count, int64_t k) {
    Candidate heap[MOST_BLOCKS];  // of the k largest so far, the smallest on top
    for (int64_t i = 0; i < k; i++) heap[i] = {i, numbers[i]};
    for (int64_t at = k / 2 - 1; at >= 0; at--) sink<ByScore>(heap, at, k);
    for (int64_t i = k; i < count; i++) {
        if (numbers[i] <= heap[0].score) continue;
        heap[0] = {i, numbers[i]};
        sink<ByScore>(heap, 0, k);
    }
    return heap[0].score;
}

// Consecutive logits with their maxima.
struct Blocks {
    float maxima[MOST_BLOCKS];
    int64_t width, count;
    float best = -INFINITY;
    bool bad = false;

    Blocks(const float *logits, int64_t size) : width(size > MOST_BLOCKS ? 64 : 1) {
        while ((size + width - 1) / width > MOST_BLOCKS) width *= 2;
        count = (size + width - 1) / width;
        for (int64_t block = 0; block < count; block++) {
            const int64_t first = block * width, room = size - first;
            maxima[block] = largest(logits + first, room < width ? room : width, &bad);
            best = maxima[block] > best ? maxima[block] : best;
        }
    }
};

int32_t likeliest(const float *logits, int64_t size, int64_t *token) {
    const Blocks blocks(logits, size);
    if (blocks.bad) return KT_UNSURE;
    int64_t block = 0;
    while (blocks.maxima[block] != blocks.best) block++;
    int64_t at = block * blocks.width;
    while (logits[at] != blocks.best) at++;
    *token = at;
    return KT_OK;
}

// All whose logits are, or nearly are, as large as the k-th largest maximum of a block; how many, or -1: too many.
int64_t find_candidates(const kt_choice &choice, const float *logits, int64_t size, const Blocks &blocks,
                        Candidate *candidates) {
    float limit = kth_largest(blocks.maxima, blocks.count, choice.top_k);
    limit -= fabsf(limit) * DIVISION;
    if (!isfinite(limit)) return -1;
    int64_t count = 0;
    for (int64_t block = 0; block < blocks.count; block++) {
        if (blocks.maxima[block] < limit) continue;
        const int64_t first = block * blocks.width;
        for (int64_t i = first; i < first + blocks.width && i < size; i++) {
            if (logits[i] < limit) continue;
            if (count == MOST_CANDIDATES) return -1;
            candidates[count++] = {i, logits[i] / choice.temperature};
        }
    }
    return count;
}

// How many of the sorted candidates top-p leaves; -1: that depends on rounding. A token stays while those before it are less.
int64_t cut_by_mass(const Candidate *candidates, const double *weights, int64_t count, double top_p) {
    double total = 0, sum = 0, before = 0;
    for (int64_t i = 0; i < count; i++) total += weights[i];
    int64_t kept = 0;
    do {
        before = sum;
        sum += weights[kept++];
    } while (kept < count && sum / total < top_p);
    if (fabs(sum / total - top_p) < ROUNDING) return -1;
    if (kept > 1 && fabs(before / total - top_p) < ROUNDING) return -1;
    return kept < count && candidates[kept].score == candidates[kept - 1].score ? -1 : kept;
}

// The one of `count` candidates in whose part of the cumulative probabilities, by token, `uniform` lies.
int64_t draw(Candidate *candidates, int64_t count, double uniform) {
    const float best = candidates[0].score;
    sort<ByToken>(candidates, count);
    double sums[MOST_CANDIDATES], sum = 0;
    for (int64_t i = 0; i < count; i++) sums[i] = sum += exponential((double)candidates[i].score - (double)best);
    const double point = uniform * sum;
    int64_t at = 0;
    while (at < count - 1 && sums[at] <= point) at++;
    return candidates[at].token;
}

int32_t drawn_from_best(const kt_choice &choice, const float *logits, int64_t size, double uniform, int64_t *token) {
    const Blocks blocks(logits, size);
    if (blocks.bad || !isfinite(blocks.best) || choice.top_k > blocks.count) return KT_UNSURE;
    Candidate candidates[MOST_CANDIDATES];
    const int64_t found = find_candidates(choice, logits, size, blocks, candidates);
    if (found < choice.top_k) return KT_UNSURE;
    sort<ByScore>(candidates, found);
    int64_t kept = choice.top_k;
    while (kept < found && candidates[kept].score == candidates[choice.top_k - 1].score) kept++;  // ties with the last stay
    if (choice.top_p < 1) {
        double weights[MOST_CANDIDATES];
        for (int64_t i = 0; i < kept; i++) {
            weights[i] = exponential((double)candidates[i].score - (double)candidates[0].score);
        }
        kept = cut_by_mass(candidates, weights, kept, choice.top_p);
        if (kept < 0) return KT_UNSURE;
    }
    *token = draw(candidates, kept, uniform);
    return KT_OK;
}

}  // namespace

int32_t kt_choose(const kt_choice *choice, const float *logits, int64_t count, double uniform, int64_t *token) {
    if (count < 1 || choice->top_k < 0 || !(choice->temperature > 0) || !(uniform >= 0 && uniform < 1)) return KT_WRONG_SIZE;
    if (choice->top_k == 0) return likeliest(logits, count, token);
    return drawn_from_best(*choice, logits, count, uniform, token);
}
