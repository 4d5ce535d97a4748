/*
 * alloc.h - an allocator for params.allocator that fails on demand
 *
 * For N = 1, 2, 3 …: the Nth allocation fails, the test looks at what that did, and it ends with the first N that is not
 * reached. Memory comes filled with garbage.
 */
#ifndef TESTS_LIB_ALLOC_H
#define TESTS_LIB_ALLOC_H

#include <stdint.h>
#include <iomap/cache.h>

struct t_alloc {
	struct iomap_allocator ops;
	_Atomic uint64_t calls;         /* of alloc since t_alloc_init() or t_alloc_fail() */
	_Atomic uint64_t fail_at;       /* this one of them fails; 0: none */
	_Atomic int64_t bytes;          /* allocated and not yet freed */
};

void t_alloc_init(struct t_alloc *a);
void t_alloc_fail(struct t_alloc *a, uint64_t nth);     /* counts from here */

#endif
