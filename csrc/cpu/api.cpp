// The version of the C interface; the other functions of ktitan_cpu.h stand beside what they do.
#include "ktitan_cpu.h"

int32_t kt_abi_version(void) { return KT_ABI; }
