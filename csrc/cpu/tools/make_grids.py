"""Write ../grids.cpp: the codebooks of the IQ types, packed as in the gguf package and expanded by the compiler.

Run once: ``python csrc/cpu/tools/make_grids.py``. The numbers come from ggml (MIT license), ggml-common.h.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import quants

OUTPUT = Path(__file__).resolve().parent.parent / "grids.cpp"
COLUMNS = 120

HEAD = """// Codebooks of the IQ types. Written by tools/make_grids.py, do not edit. Numbers: ggml (MIT), ggml-common.h.
//
// Each code is stored as indices into a short list of values (2 bits each for IQ2 and IQ1, 3 bits for IQ3, number 0
// lowest) and expanded while compiling.
#include "grids.h"

namespace {

template <typename Grid, int codes, int values>
constexpr Grid expand(const uint16_t (&packed)[codes], const uint8_t (&value)[values]) {
    constexpr int numbers = sizeof(Grid::row[0]);
    constexpr int bits = numbers == 8 ? 2 : 3;
    Grid grid{};
    for (int code = 0; code < codes; code++) {
        for (int i = 0; i < numbers; i++) {
            const uint64_t number = value[(packed[code] >> (bits * i)) & ((1 << bits) - 1)];
            grid.row[code] |= number << (8 * i);
        }
    }
    return grid;
}
"""

TAIL = """
constexpr uint8_t IQ2_VALUE[] = {8, 25, 43, 0};  // index 3 does not occur
constexpr uint8_t IQ3_XXS_VALUE[] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr uint8_t IQ3_S_VALUE[] = {1, 3, 5, 7, 9, 11, 13, 15};
constexpr uint8_t IQ1_VALUE[] = {8, 16, 24, 0};

}  // namespace

const Grid8<256> kt_grid_iq2_xxs = expand<Grid8<256>>(IQ2_XXS, IQ2_VALUE);
const Grid8<512> kt_grid_iq2_xs = expand<Grid8<512>>(IQ2_XS, IQ2_VALUE);
const Grid8<1024> kt_grid_iq2_s = expand<Grid8<1024>>(IQ2_S, IQ2_VALUE);
const Grid4<256> kt_grid_iq3_xxs = expand<Grid4<256>>(IQ3_XXS, IQ3_XXS_VALUE);
const Grid4<512> kt_grid_iq3_s = expand<Grid4<512>>(IQ3_S, IQ3_S_VALUE);
const Grid8<2048> kt_grid_iq1 = expand<Grid8<2048>>(IQ1, IQ1_VALUE);
"""


def packed_codes(kind: Any) -> np.ndarray:
    """Return the codebook of a gguf class as [codes] uint16: indices into its values, number 0 in the lowest bits."""
    kind.init_grid()
    numbers = kind.grid.reshape(kind.grid_shape)
    bits = 2 if numbers.shape[1] == 8 else 3
    index = np.searchsorted(np.array(kind.grid_map, dtype=np.float32), numbers)
    return (index << (bits * np.arange(numbers.shape[1]))).sum(axis=1).astype(np.uint16)


def array_text(name: str, codes: np.ndarray) -> str:
    """Return the C++ source of one packed codebook."""
    lines, line = [], "   "
    for code in codes:
        item = f" {code},"
        if len(line) + len(item) > COLUMNS:
            lines.append(line)
            line = "   "
        line += item
    return "\n".join([f"constexpr uint16_t {name}[{len(codes)}] = {{", *lines, line, "};"])


def main() -> None:
    """Write grids.cpp beside the other sources."""
    names = {"IQ2_XXS": "IQ2_XXS", "IQ2_XS": "IQ2_XS", "IQ2_S": "IQ2_S"}
    names |= {"IQ3_XXS": "IQ3_XXS", "IQ3_S": "IQ3_S", "IQ1_S": "IQ1"}
    arrays = [array_text(name, packed_codes(getattr(quants, kind))) for kind, name in names.items()]
    OUTPUT.write_text(HEAD + "\n" + "\n\n".join(arrays) + "\n" + TAIL)


if __name__ == "__main__":
    main()
