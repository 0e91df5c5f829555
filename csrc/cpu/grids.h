// Codebooks of the IQ types, shared by all units. Source of the numbers: ggml (MIT), ggml-common.h, through the gguf
// package; tools/make_grids.py writes grids.cpp.
#pragma once

#include <stdint.h>

// One row a code: number i of a row is byte i of the word (the lowest byte is number 0).
template <int codes> struct Grid8 {
    uint64_t row[codes];
};
template <int codes> struct Grid4 {
    uint32_t row[codes];
};

// Magnitudes of 8 numbers (IQ2) and of 4 numbers (IQ3).
extern "C" const Grid8<256> kt_grid_iq2_xxs;
extern "C" const Grid8<512> kt_grid_iq2_xs;
extern "C" const Grid8<1024> kt_grid_iq2_s;
extern "C" const Grid4<256> kt_grid_iq3_xxs;
extern "C" const Grid4<512> kt_grid_iq3_s;

// IQ1_S and IQ1_M: 8 * g + 16 for g in -1, 0, 1.
extern "C" const Grid8<2048> kt_grid_iq1;
