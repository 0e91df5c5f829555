// Which instruction set computes: the processor's, under a cap, under the caller's choice.
#pragma once

#include "kernels.h"
#include "ktitan_cpu.h"

// The unit in use.
const kt_unit *kt_active_unit(void);
