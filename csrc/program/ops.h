// The operations of programs: what each demands of its buffers, and what it does.
#pragma once

#include "../cpu/detect.h"
#include "../cpu/product.h"
#include "../cpu/threads.h"
#include "ktitan_program.h"

// A step that runs.
struct Run {
    const Call &call;
    const kt_program &program;
    const kt_step &step;

    // Rows of an operation: tokens, or sequences.
    int64_t rows(const kt_op &op) const {
        return program.buffers[op.out[0]].by_sequence ? step.count : step.total;
    }
    int64_t width(int32_t buffer) const { return program.buffers[buffer].width; }
    float *floats(int32_t buffer) const { return static_cast<float *>(step.buffers[buffer]); }
    int64_t *numbers(int32_t buffer) const { return static_cast<int64_t *>(step.buffers[buffer]); }
};

// An operation that is looked at before anything runs.
struct Draft {
    const kt_program &program;
    const kt_op &op;

    const kt_buffer *at(int32_t buffer) const {
        return buffer >= 0 && buffer < program.buffer_count ? &program.buffers[buffer] : nullptr;
    }
    // Width of a buffer; -1: there is none.
    int64_t width(int32_t buffer) const { return at(buffer) ? at(buffer)->width : -1; }
    // Whether a buffer holds `columns` floats (or int64 numbers) a row, and as many rows as the first output.
    bool floats(int32_t buffer, int64_t columns) const { return holds(buffer, columns, 4); }
    bool numbers(int32_t buffer, int64_t columns) const { return holds(buffer, columns, 8); }
    // The same for a buffer whose width is what it is.
    bool floats(int32_t buffer) const { return floats(buffer, width(buffer)); }
    bool apart(int32_t a, int32_t b) const { return a != b; }
    const int32_t *in() const { return op.in; }
    const int32_t *out() const { return op.out; }

private:
    bool holds(int32_t buffer, int64_t columns, int32_t bytes) const {
        const kt_buffer *found = at(buffer), *first = at(op.out[0]);
        return found && columns > 0 && kt_counts(columns) && found->width == columns && found->bytes == bytes &&
               (first == nullptr || found->by_sequence == first->by_sequence);
    }
};

// Whether a matrix has a type that kernels know, and sizes that can be computed with.
static inline bool kt_usable(const kt_matrix *matrix) {
    return matrix && kt_form(*kt_active_unit(), matrix->type, KT_FLOAT32) != FORMS && kt_sound(*matrix);
}

struct Operation {
    bool (*fits)(const Draft &draft);
    int32_t (*run)(const Run &run, const kt_op &op);
};

// The operation of a kind (enum kt_op_kind); nulls where it belongs to another file.
Operation kt_plain_operation(int32_t kind);
Operation kt_product_operation(int32_t kind);
Operation kt_model_operation(int32_t kind);
