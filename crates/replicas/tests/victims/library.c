/* A library with enough text and data that a process maps several segments of it. */
#include <stdint.h>

#define REPEAT4(x) x x x x
#define REPEAT64(x) REPEAT4(REPEAT4(REPEAT4(x)))

static const uint32_t table[4096] = {7, 11, 13};

/* 64 KiB of straight code, so that a page that differs changes the result. */
uint32_t mix(uint32_t x)
{
    REPEAT64(REPEAT4(REPEAT4(x = x * 1664525u + 1013904223u; x ^= x >> 13;)))
    return x + table[x & 3];
}
