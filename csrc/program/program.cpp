// kt_program_check and kt_program_run: the operations of a program, one after another in one call; kt_program_next: those of
// one token, and the choice of the next.
#include "ops.h"
#include "pool.h"

namespace {

Operation operation_of(int32_t kind) {
    Operation found = kt_plain_operation(kind);
    if (found.run == nullptr) found = kt_product_operation(kind);
    if (found.run == nullptr) found = kt_model_operation(kind);
    return found;
}

// Whether a step has the tokens that it says.
bool whole(const kt_step &step) {
    if (!kt_counts(step.count) || !kt_counts(step.total) || step.count < 1) return false;
    int64_t total = 0;
    for (int64_t i = 0; i < step.count; i++) {
        if (step.tokens[i] < 1 || step.tokens[i] > step.total) return false;
        total += step.tokens[i];
    }
    return total == step.total;
}

}  // namespace

int32_t kt_program_check(const kt_program *program, int64_t *failed) {
    for (int64_t i = 0; i < program->op_count; i++) {
        *failed = i;
        const kt_op &op = program->ops[i];
        const Operation operation = operation_of(op.kind);
        if (operation.run == nullptr) return KT_NO_KERNEL;
        if (!operation.fits({*program, op})) return KT_WRONG_SIZE;
    }
    *failed = -1;
    return KT_OK;
}

int32_t kt_program_run(const kt_program *program, const kt_step *step, int64_t first, int64_t last, int64_t *failed) {
    const Call call;
    *failed = first;
    if (first < 0 || last > program->op_count || !whole(*step)) return KT_WRONG_SIZE;
    const Run run = {call, *program, *step};
    for (int64_t i = first; i < last; i++) {
        *failed = i;
        const kt_op &op = program->ops[i];
        const int32_t status = operation_of(op.kind).run(run, op);
        if (status != KT_OK) return status;
    }
    *failed = -1;
    return KT_OK;
}

int32_t kt_program_next(const kt_decoding *decoding, int64_t token, int64_t seen, double uniform, int64_t *chosen) {
    constexpr int64_t MOST_TABLES = 16;
    const kt_program &program = *decoding->program;
    if (program.table_count > MOST_TABLES || seen < 0 || seen >= decoding->positions) return KT_NOT_READY;
    if (!kv_goes_on(decoding->pool, decoding->sequence, seen)) return KT_NOT_READY;
    const float *tables[MOST_TABLES];
    for (int64_t i = 0; i < program.table_count; i++) tables[i] = decoding->tables[i] + seen * program.table_widths[i];
    const int64_t tokens = 1;
    const kt_step step = {&token, &decoding->sequence, &tokens, 1, 1, decoding->pool, tables, decoding->buffers};
    int64_t failed;
    const int32_t status = kt_program_run(&program, &step, 0, program.op_count, &failed);
    if (status != KT_OK) return status;
    if (decoding->choice == nullptr) return KT_UNSURE;
    return kt_choose(decoding->choice, decoding->logits, decoding->vocabulary, uniform, chosen);
}
