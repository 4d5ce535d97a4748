/*
 * base.h - what every public header of libiomap needs: version, export mark, forward declarations
 *
 * Included by the other parts; include <iomap/iomap.h>.
 */
#ifndef IOMAP_PUBLIC_BASE_H
#define IOMAP_PUBLIC_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define IOMAP_VERSION_MAJOR	0
#define IOMAP_VERSION_MINOR	1
#define IOMAP_VERSION_PATCH	0
#define IOMAP_VERSION_NUM	(IOMAP_VERSION_MAJOR * 10000 + IOMAP_VERSION_MINOR * 100 + IOMAP_VERSION_PATCH)

#define IOMAP_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
static_assert(sizeof(off_t) == 8, "libiomap needs a 64-bit off_t: build with -D_FILE_OFFSET_BITS=64");
#else
_Static_assert(sizeof(off_t) == 8, "libiomap needs a 64-bit off_t: build with -D_FILE_OFFSET_BITS=64");
#endif

struct iomap_cache;     /* one page cache: memory, budgets, threads */
struct iomap_file;      /* one open handle */
struct iomap_device;    /* what blocks are stored on */

/**
 * iomap_version - the version of the library that runs
 *
 * A program compares it with the IOMAP_VERSION_NUM it was compiled with.
 *
 * Context: any thread, any time, also from a callback or after fork().
 * Return:  IOMAP_VERSION_NUM of the library, major * 10000 + minor * 100 + patch.
 */
IOMAP_API unsigned iomap_version(void);

#ifdef __cplusplus
}
#endif
#endif
