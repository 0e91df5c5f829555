// Which experts the next layer will choose, by its own router on this layer's input (kt_predictor). A guess at what is read
// early: it changes no result, so only its speed matters, and it need not have the same bits on every machine.
#pragma once

#include "ktitan_tiers.h"

// Memory for predictions, kept between calls.
class Foresight {
public:
    ~Foresight();
    // kt_predict, inside a call.
    int32_t predict(const kt_predictor &predictor, const void *hidden, int32_t dtype, int64_t tokens, int64_t most,
                    int64_t *experts);

private:
    bool reserve(int64_t numbers);

    float *memory = nullptr;
    int64_t room = 0;
};
