/*
 * mem.h - metadata memory of one cache
 *
 * Tree nodes, block bitmaps, I/O descriptors and inodes come from a jemalloc arena made for this cache where the program
 * has jemalloc (weak symbols: a plugin in a program without it falls back to malloc), or from params.allocator.
 */
#ifndef IOMAP_MEM_H
#define IOMAP_MEM_H

#include <stddef.h>
#include <stdint.h>
#include "atomic.h"

struct iomap_allocator;

struct mem {
	const struct iomap_allocator *user;     /* NULL: jemalloc arena or malloc */
	unsigned arena;
	bool has_arena;
	_Atomic int64_t bytes;                  /* allocated and not yet freed */
};

int  mem_init(struct mem *m, const struct iomap_allocator *user);      /* user NULL: default */
void mem_fini(struct mem *m);                                          /* returns all the arena's memory at once */
void mem_init_malloc(struct mem *m);                                   /* for devices: plain malloc, whatever the program has */
void *mem_alloc(struct mem *m, size_t size);                           /* zeroed; NULL: no memory. Any thread; not under a short lock */
void *mem_alloc_aligned(struct mem *m, size_t size, size_t align);     /* zeroed */
void mem_free(struct mem *m, void *p, size_t size);                    /* the size it was allocated with; NULL does nothing */
uint64_t mem_bytes(const struct mem *m);

#endif
