/*
 * util.h - arithmetic and small macros that every file may use
 */
#ifndef IOMAP_UTIL_H
#define IOMAP_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE_SHIFT      12
#define PAGE_BYTES      (UINT64_C(1) << PAGE_SHIFT)
#define MAX_ORDER       9               /* largest folio: 4 KiB << 9 = 2 MiB */
#define NS_PER_MS       UINT64_C(1000000)
#define NS_PER_S        UINT64_C(1000000000)

typedef uint64_t pgoff_t;               /* counts 4 KiB pages in a file */

#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr) - offsetof(type, member)))
#define ARRAY_SIZE(a)   (sizeof(a) / sizeof((a)[0]))
#define likely(x)       __builtin_expect(!!(x), 1)
#define unlikely(x)     __builtin_expect(!!(x), 0)

static inline uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint64_t div_round_up(uint64_t n, uint64_t d) { return n / d + (n % d != 0); }
/* @to is a power of two; round_up() must not be called where the result would pass 2^64 - 1. */
static inline uint64_t round_down(uint64_t n, uint64_t to) { return n & ~(to - 1); }
static inline uint64_t round_up(uint64_t n, uint64_t to) { return round_down(n + to - 1, to); }
static inline bool is_pow2(uint64_t n) { return n && !(n & (n - 1)); }
static inline unsigned log2_floor(uint64_t n) { return 63 - (unsigned)__builtin_clzll(n); }      /* n > 0 */
static inline unsigned log2_ceil(uint64_t n) { return n <= 1 ? 0 : log2_floor(n - 1) + 1; }

#endif
