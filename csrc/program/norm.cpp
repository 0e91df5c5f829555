// kt_rms_norm and kt_activate: rows of numbers, each by itself.
#include <string.h>

#include "../cpu/detect.h"
#include "../cpu/product.h"
#include "parts.h"

namespace {

struct NormJob {
    const kt_unit *unit;
    const kt_norm *norm;
    const float *x;
    int64_t count, per_item;
    float *out;
};

void norm_item(void *context, int64_t item, int) {
    const NormJob &job = *static_cast<const NormJob *>(context);
    const kt_norm &norm = *job.norm;
    const int64_t end = least((item + 1) * job.per_item, job.count);
    for (int64_t m = item * job.per_item; m < end; m++) {
        const int64_t at = m * norm.width;
        job.unit->rms_norm(job.x + at, norm.weight, norm.unit_offset, norm.eps, norm.width, job.out + at);
    }
}

struct ActJob {
    const kt_unit *unit;
    int32_t activation;
    const float *gate, *up;
    int64_t count;
    float *out;
};

void act_item(void *context, int64_t item, int) {
    const ActJob &job = *static_cast<const ActJob *>(context);
    const int64_t first = item * KT_EASY_NUMBERS, some = least(KT_EASY_NUMBERS, job.count - first);
    float *out = job.out + first;
    if (out != job.gate + first) memcpy(out, job.gate + first, (size_t)some * sizeof *out);
    job.unit->activate(job.activation, out, job.up ? job.up + first : nullptr, some);
}

}  // namespace

int32_t kt_norm_rows(const Call &, const kt_norm *norm, const float *x, int64_t count, float *out) {
    if (!kt_counts(count) || !kt_counts(norm->width) || norm->width == 0) return KT_WRONG_SIZE;
    NormJob job = {kt_active_unit(), norm, x, count, most(1, KT_EASY_NUMBERS / norm->width), out};
    kt_run(norm_item, &job, ceil_div(count, job.per_item));
    return KT_OK;
}

int32_t kt_act(const Call &, int32_t activation, const float *gate, const float *up, int64_t count, float *out) {
    if (activation < 0 || activation >= KT_ACTIVATIONS) return KT_NO_KERNEL;
    if (count < 0) return KT_WRONG_SIZE;
    ActJob job = {kt_active_unit(), activation, gate, up, count, out};
    kt_run(act_item, &job, ceil_div(count, KT_EASY_NUMBERS));
    return KT_OK;
}

int32_t kt_rms_norm(const kt_norm *norm, const float *x, int64_t count, float *out) {
    const Call call;
    return kt_norm_rows(call, norm, x, count, out);
}

int32_t kt_activate(int32_t activation, const float *gate, const float *up, int64_t count, float *out) {
    const Call call;
    return kt_act(call, activation, gate, up, count, out);
}
