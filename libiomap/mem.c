/*
 * mem.c - metadata memory of one cache, counted to the byte
 *
 * Three sources stand behind one call: the caller's allocator, a jemalloc arena of this cache's own, or
 * malloc. jemalloc is reached through weak symbols only. A program that links it gets the arena, so that the
 * cache's metadata is apart from the program's heap and goes back as a whole; a plugin loaded into a program
 * without it gets malloc, and nobody's malloc is replaced on our account. Sanitizer builds always take
 * malloc, for its red zones. Callers say the size again when they free: that keeps the count exact without a
 * header before each piece.
 *
 * Invariants: bytes == sum of the sizes asked for and not yet freed. What came from a source goes back to that source.
 * Locking:    none; bytes is atomic, the sources lock for themselves.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jemalloc/jemalloc.h>
#include <iomap/cache.h>
#include "bug.h"
#include "lockdep.h"
#include "mem.h"
#include "rcu.h"        /* IOMAP_TSAN */
#include "util.h"

#pragma weak mallocx
#pragma weak dallocx
#pragma weak mallctl

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MEM_USES_MALLOC 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(IOMAP_TSAN)
#define MEM_USES_MALLOC 1
#endif

#define DEFAULT_ALIGN _Alignof(max_align_t)

static bool program_has_jemalloc(void)
{
#ifdef MEM_USES_MALLOC
	return false;
#else
	return mallocx && dallocx && mallctl;
#endif
}

void mem_init_malloc(struct mem *m)
{
	m->user = NULL;
	m->arena = 0;
	m->has_arena = false;
	atomic_init(&m->bytes, 0);
}

int mem_init(struct mem *m, const struct iomap_allocator *user)
{
	mem_init_malloc(m);
	m->user = user;
	if (user || !program_has_jemalloc())
		return 0;

	size_t size = sizeof(m->arena);

	if (mallctl("arenas.create", &m->arena, &size, NULL, 0))
		return -ENOMEM;
	m->has_arena = true;
	return 0;
}

void mem_fini(struct mem *m)
{
	if (!m->has_arena)
		return;
	char name[32];

	snprintf(name, sizeof(name), "arena.%u.destroy", m->arena);
	IOMAP_WARN_ON(mallctl(name, NULL, NULL, NULL, 0));
	m->has_arena = false;
}

/* Zeroed memory from the source of @m, or NULL. */
static void *get(struct mem *m, size_t size, size_t align)
{
	void *p = NULL;

	if (m->has_arena)
		/* no thread caches: what they held would outlive the arena */
		return mallocx(size, MALLOCX_ARENA(m->arena) | MALLOCX_TCACHE_NONE | MALLOCX_ALIGN(align) | MALLOCX_ZERO);
	if (m->user)
		p = m->user->alloc(m->user->priv, size, align);
	else if (align <= DEFAULT_ALIGN)
		return calloc(1, max_u64(size, DEFAULT_ALIGN)); /* some mallocs align small pieces to their size only */
	else if (posix_memalign(&p, align, size))
		return NULL;
	if (p)
		memset(p, 0, size);
	return p;
}

void *mem_alloc_aligned(struct mem *m, size_t size, size_t align)
{
	IOMAP_BUG_ON(size == 0);
	IOMAP_BUG_ON(!is_pow2(align));
	might_sleep();
	void *p = get(m, size, align);

	IOMAP_BUG_ON((uintptr_t)p & (align - 1));
	if (p)
		add_relaxed(&m->bytes, (int64_t)size);  /* a count; orders nothing */
	return p;
}

void *mem_alloc(struct mem *m, size_t size)
{
	return mem_alloc_aligned(m, size, DEFAULT_ALIGN);
}

void mem_free(struct mem *m, void *p, size_t size)
{
	if (!p)
		return;
	int64_t before = sub_relaxed(&m->bytes, (int64_t)size); /* a count; orders nothing */

	IOMAP_BUG_ON(before < (int64_t)size);
	(void)before;
	if (m->has_arena)
		dallocx(p, MALLOCX_TCACHE_NONE);
	else if (m->user)
		m->user->free(m->user->priv, p, size);
	else
		free(p);
}

uint64_t mem_bytes(const struct mem *m)
{
	int64_t bytes = load_relaxed(&m->bytes);        /* a statistic */

	IOMAP_BUG_ON(bytes < 0);
	return (uint64_t)bytes;
}
