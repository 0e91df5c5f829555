// kt_experts: the routed experts of a layer, all in memory.
#include "experts.h"

#include "detect.h"
#include "expert_pass.h"

namespace {

// One expert's share of a stack; false where the stack is no whole number of them.
bool one_of(const kt_matrix &stack, int64_t experts, kt_matrix &one) {
    one = stack;
    if (!kt_counts(experts) || experts == 0 || stack.rows % experts != 0) return false;
    one.rows = stack.rows / experts;
    return true;
}

const uint8_t *expert_of(const kt_matrix *stack, const kt_matrix &one, int64_t expert) {
    return stack == nullptr ? nullptr : stack->data + (size_t)(expert * one.rows) * (size_t)one.row_bytes;
}

}  // namespace

int32_t kt_run_experts(const Call &call, const kt_bank *bank, const void *hidden, int32_t dtype, int64_t tokens,
                       const int64_t *index, int64_t slots, const float *weights, int32_t arithmetic, void *out) {
    const kt_unit *unit = kt_active_unit();
    kt_matrix gate = {}, up = {}, down = {};
    const bool whole = one_of(*bank->up, bank->experts, up) && one_of(*bank->down, bank->experts, down) &&
                       (bank->gate == nullptr || one_of(*bank->gate, bank->experts, gate));
    ExpertLayer layer = {};
    layer.unit = unit;
    layer.gate = kt_weights_of(unit, bank->gate ? &gate : nullptr, arithmetic);
    layer.up = kt_weights_of(unit, &up, arithmetic);
    layer.down = kt_weights_of(unit, &down, arithmetic);
    layer.gate_bias = bank->gate_bias;
    layer.up_bias = bank->up_bias;
    layer.down_bias = bank->down_bias;
    layer.experts = bank->experts;
    layer.wide = bank->hidden;
    layer.inner = bank->intermediate;
    layer.activation = bank->activation;
    layer.hidden = {hidden, dtype, bank->hidden};
    layer.index = index;
    layer.slots = slots;
    layer.weights = weights;
    layer.out = static_cast<uint8_t *>(out);
    layer.threads = call.threads();
    const int32_t status = layer.check(whole ? tokens : -1);
    if (status != KT_OK || tokens == 0) return status;

    ExpertPass pass(layer);
    const int64_t step = layer.pass_tokens(tokens);
    if (!pass.prepare(step)) return KT_NO_MEMORY;
    for (int64_t first = 0; first < tokens; first += step) {
        pass.begin(first, least(step, tokens - first));
        for (int64_t g = 0; g < pass.group_count; g++) {
            Group &group = pass.groups[g];
            group.data = {expert_of(bank->gate, gate, group.expert), expert_of(bank->up, up, group.expert),
                          expert_of(bank->down, down, group.expert)};
        }
        pass.compute_all();
        pass.finish();
    }
    return KT_OK;
}

int32_t kt_experts(const kt_bank *bank, const void *hidden, int32_t dtype, int64_t tokens, const int64_t *index,
                   int64_t slots, const float *weights, int32_t arithmetic, void *out) {
    const Call call;
    return kt_run_experts(call, bank, hidden, dtype, tokens, index, slots, weights, arithmetic, out);
}
