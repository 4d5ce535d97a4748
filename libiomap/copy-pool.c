/*
 * copy-pool.c - memory for the contents of small write requests in flight
 *
 * A bitmap of 4 KiB frames and a next-fit hand: requests live for one I/O each and are of few sizes, so runs come free in
 * about the order they were taken.
 *
 * Locking: the pool's leaf lock.
 */
#include <errno.h>
#include "bug.h"
#include "copy-pool.h"

int copy_pool_init(struct copy_pool *p, struct mem *mem, uint64_t bytes)
{
	p->nr_frames = (unsigned)(bytes / PAGE_BYTES);
	p->bytes = (size_t)p->nr_frames * PAGE_BYTES;
	p->hand = 0;
	p->used = mem_alloc(mem, div_round_up(p->nr_frames, 64) * sizeof(*p->used));
	p->base = p->used ? plat_map(p->bytes, false) : NULL;
	if (!p->base) {
		mem_free(mem, p->used, div_round_up(p->nr_frames, 64) * sizeof(*p->used));
		return -ENOMEM;
	}
	mutex_init(&p->lock, LOCK_LEAF);
	return 0;
}

void copy_pool_fini(struct copy_pool *p, struct mem *mem)
{
	plat_unmap(p->base, p->bytes);
	mem_free(mem, p->used, div_round_up(p->nr_frames, 64) * sizeof(*p->used));
	mutex_fini(&p->lock);
}

static bool in_use(const struct copy_pool *p, unsigned frame) { return p->used[frame / 64] >> (frame % 64) & 1; }

static void flip(struct copy_pool *p, unsigned first, unsigned nr)
{
	for (unsigned i = first; i < first + nr; i++)
		p->used[i / 64] ^= UINT64_C(1) << (i % 64);
}

void *copy_pool_get(struct copy_pool *p, size_t bytes)
{
	unsigned want = (unsigned)div_round_up(bytes, PAGE_BYTES), run = 0;
	void *copy = NULL;

	IOMAP_BUG_ON(!bytes || bytes > COPY_MAX_BYTES);
	if (want > p->nr_frames)
		return NULL;
	mutex_lock(&p->lock);
	if (p->hand + want > p->nr_frames)
		p->hand = 0;
	for (unsigned seen = 0, at = p->hand; seen < p->nr_frames + want; seen++, at++) {
		if (at == p->nr_frames)
			at = run = 0;
		run = in_use(p, at) ? 0 : run + 1;
		if (run < want)
			continue;
		flip(p, at + 1 - want, want);
		p->hand = at + 1;
		copy = p->base + (size_t)(at + 1 - want) * PAGE_BYTES;
		break;
	}
	mutex_unlock(&p->lock);
	return copy;
}

void copy_pool_put(struct copy_pool *p, void *copy, size_t bytes)
{
	unsigned first = (unsigned)((size_t)((char *)copy - p->base) / PAGE_BYTES);

	mutex_lock(&p->lock);
	IOMAP_BUG_ON(!in_use(p, first));
	flip(p, first, (unsigned)div_round_up(bytes, PAGE_BYTES));
	mutex_unlock(&p->lock);
}
