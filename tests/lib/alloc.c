/*
 * alloc.c - an allocator for params.allocator that fails on demand
 */
#include "alloc.h"

#include <stdlib.h>
#include <string.h>

static void *get(void *priv, size_t size, size_t align)
{
	struct t_alloc *a = priv;
	void *p = NULL;

	if (++a->calls == a->fail_at)
		return NULL;
	if (posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, size))
		return NULL;
	memset(p, 0xa5, size);
	a->bytes += (int64_t)size;
	return p;
}

static void put(void *priv, void *p, size_t size)
{
	struct t_alloc *a = priv;

	memset(p, 0x5a, size);
	a->bytes -= (int64_t)size;
	free(p);
}

void t_alloc_init(struct t_alloc *a)
{
	a->ops = (struct iomap_allocator){ .alloc = get, .free = put, .priv = a };
	a->calls = 0;
	a->fail_at = 0;
	a->bytes = 0;
}

void t_alloc_fail(struct t_alloc *a, uint64_t nth)
{
	a->calls = 0;
	a->fail_at = nth;
}
